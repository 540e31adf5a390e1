"""The `[upkeep]` table of the configuration: what a lake keeps, and when it is tidied."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import OptionTable, Read, whole

_NUMBER: Final = re.compile("[0-9]+")
_MOST_DAYS: Final = 36_500
_CRON: Final = re.compile(r"[0-9*,/-]+( [0-9*,/-]+){4}")
#: Greatest number of minutes, hours, days, months, days of the week.
_MOST: Final = (59, 23, 31, 12, 7)


def _cron(value: Any, key: str) -> str:
    text = value if isinstance(value, str) and _CRON.fullmatch(value) else ""
    fields = text.split()
    numbers = [
        (int(number), most) for field, most in zip(fields, _MOST, strict=False) for number in _NUMBER.findall(field)
    ]
    if not fields or any(number > most for number, most in numbers):
        raise OptionError(key=key, reason=f'must be five fields of cron, in UTC, as "23 3 * * *", not {value!r}')
    return text


@dataclass(frozen=True, slots=True)
class UpkeepOptions(OptionTable):
    """What a lake keeps."""

    READERS: ClassVar = dict[str, Read](
        file_bytes=whole(1 << 40),
        vacuum_days=whole(_MOST_DAYS),
        log_days=whole(_MOST_DAYS),
        landing_days=whole(_MOST_DAYS),
        landing_bytes=whole((1 << 63) - 1),
        schedule=_cron,
    )

    #: Files of a table are joined up to this size.
    file_bytes: int = 128 << 20
    #: Files of rows that were replaced stay so long: for who reads an older version, or began to read before.
    vacuum_days: int = 7
    #: So long a table's older versions are known.
    log_days: int = 30
    #: Landed records stay so long; None: for ever.
    landing_days: int | None = None
    #: Landed records are at most so many bytes; None: no limit.
    landing_bytes: int | None = None
    #: When it is done, five fields of cron in UTC.
    schedule: str = "23 3 * * *"
