"""The `[source.kafka]` table: which broker, and where the first range of a partition begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import OptionTable, Read, table

EARLIEST, COMMITTED = "earliest", "committed"
BOOTSTRAP: Final = "KAFKA_BOOTSTRAP_SERVERS"
#: Before a setting's value: it stands in the variable of that name.
_FROM_ENVIRONMENT: Final = "env:"
#: Ours: a range is read once, from where its manifests say.
OURS: Final = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
}


def _start(value: Any, key: str) -> str:
    if value not in (EARLIEST, COMMITTED):
        time_ms(value)
    return str(value)


def _settings(value: Any, key: str) -> Mapping[str, str]:
    for name, setting in table(value, key).items():
        if not isinstance(setting, str):
            # Not what it is: it may be a password.
            raise OptionError(key=f"{key}.{name}", reason="must be a text, in quotes")
        if name in OURS:
            raise OptionError(key=f"{key}.{name}", reason="is set by Wirehouse")
    return dict(value)


@dataclass(frozen=True, slots=True)
class KafkaOptions(OptionTable):
    """The `[source.kafka]` table: which broker, and where the first range of a partition begins."""

    READERS: ClassVar[Mapping[str, Read]] = {"start": _start, "settings": _settings}
    #: earliest; committed (of `settings."group.id"`); or a time (ISO 8601, with its zone).
    start: str = EARLIEST
    #: Settings of librdkafka as they are: bootstrap.servers, security.protocol, sasl.mechanism, ssl.ca.location … A
    #: value `env:NAME` is that of the variable: secrets stand there.
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self, mapping: Mapping[str, Any]) -> None:
        """Raise OptionError where a group's offsets are meant, and no group."""
        if self.start == COMMITTED and "group.id" not in self.settings:
            raise OptionError(key="start", reason='committed needs settings."group.id"')

    @property
    def variables(self) -> list[str]:
        """Those of the environment that settings are taken from."""
        values = self.settings.values()
        return [value.removeprefix(_FROM_ENVIRONMENT) for value in values if value.startswith(_FROM_ENVIRONMENT)]

    def resolved(self) -> dict[str, str]:
        """The settings with what the environment has. Raises OptionError if it lacks some."""
        settings = {"bootstrap.servers": f"{_FROM_ENVIRONMENT}{BOOTSTRAP}"} | dict(self.settings)
        for key, value in settings.items():
            if value.startswith(_FROM_ENVIRONMENT):
                name = value.removeprefix(_FROM_ENVIRONMENT)
                if name not in os.environ:
                    raise OptionError(key=f"settings.{key}", reason=f"the variable {name} is not set")
                settings[key] = os.environ[name]
        return settings


def time_ms(text: Any) -> int:
    """A time of ISO 8601 with its zone, in milliseconds since 1970. Raises OptionError."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        time = None
    if time is None or time.tzinfo is None:
        raise OptionError(key="start", reason=f"must be earliest, committed or a time with its zone, not {text!r}")
    return int(time.timestamp() * 1000)
