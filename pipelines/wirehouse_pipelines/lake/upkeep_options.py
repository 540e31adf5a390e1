"""The `[upkeep]` table of the configuration: what a lake keeps, for how long, and when upkeep runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import OptionTable, Read, whole

_NUMBER: Final = re.compile("[0-9]+")
_MOST_DAYS: Final = 36_500
_CRON: Final = re.compile(r"[0-9*,/-]+( [0-9*,/-]+){4}")
#: Largest value of each cron field: minute, hour, day, month, day of the week.
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
    """The `[upkeep]` table of the configuration."""

    READERS: ClassVar = dict[str, Read](
        file_bytes=whole(1 << 40),
        vacuum_days=whole(_MOST_DAYS),
        log_days=whole(_MOST_DAYS),
        landing_days=whole(_MOST_DAYS),
        landing_bytes=whole((1 << 63) - 1),
        schedule=_cron,
    )

    #: Files of a table are compacted up to this size.
    file_bytes: int = 128 << 20
    #: Days to keep files whose rows were replaced, for readers of older versions and for reads that are under way.
    vacuum_days: int = 7
    #: Days to keep a table's older versions in its log.
    log_days: int = 30
    #: Days to keep landed records; None: forever.
    landing_days: int | None = None
    #: Limit for the size of all landed records; None: no limit.
    landing_bytes: int | None = None
    #: When upkeep runs: five cron fields, in UTC.
    schedule: str = "23 3 * * *"
