"""The `[source.kafka]` table of the configuration: how to reach the broker, and the first offset to land."""

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
#: Prefix of a setting's value that names an environment variable.
_FROM_ENVIRONMENT: Final = "env:"
#: Settings that landing relies on and that users can't change: manifests, not the broker, record what was read.
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
            # The message doesn't show the value: it may be a password.
            raise OptionError(key=f"{key}.{name}", reason="must be a text, in quotes")
        if name in OURS:
            raise OptionError(key=f"{key}.{name}", reason="is set by Wirehouse")
    return dict(value)


@dataclass(frozen=True, slots=True)
class KafkaOptions(OptionTable):
    """The `[source.kafka]` table of the configuration."""

    READERS: ClassVar[Mapping[str, Read]] = {"start": _start, "settings": _settings}
    #: Where landing begins in a topic that it sees for the first time: `earliest`; `committed`, the offsets of the
    #: consumer group `settings."group.id"`; or a time (ISO 8601 with its zone).
    start: str = EARLIEST
    #: Settings of librdkafka: bootstrap.servers, security.protocol, sasl.mechanism, ssl.ca.location … For a value
    #: `env:NAME`, the value of that environment variable is used, which keeps secrets out of the file.
    settings: Mapping[str, str] = field(default_factory=dict)

    def check(self, mapping: Mapping[str, Any]) -> None:
        """Raise OptionError if `start` is `committed` but no group is set."""
        if self.start == COMMITTED and "group.id" not in self.settings:
            raise OptionError(key="start", reason='committed needs settings."group.id"')

    @property
    def variables(self) -> list[str]:
        """Names of the environment variables that settings are read from."""
        values = self.settings.values()
        return [value.removeprefix(_FROM_ENVIRONMENT) for value in values if value.startswith(_FROM_ENVIRONMENT)]

    def resolved(self) -> dict[str, str]:
        """The settings with the values of environment variables. Raises OptionError if one isn't set."""
        settings = {"bootstrap.servers": f"{_FROM_ENVIRONMENT}{BOOTSTRAP}"} | dict(self.settings)
        for key, value in settings.items():
            if value.startswith(_FROM_ENVIRONMENT):
                name = value.removeprefix(_FROM_ENVIRONMENT)
                if name not in os.environ:
                    raise OptionError(key=f"settings.{key}", reason=f"the variable {name} is not set")
                settings[key] = os.environ[name]
        return settings


def time_ms(text: Any) -> int:
    """Parse a time in ISO 8601 with its zone as milliseconds since 1970. Raises OptionError."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        time = None
    if time is None or time.tzinfo is None:
        raise OptionError(key="start", reason=f"must be earliest, committed or a time with its zone, not {text!r}")
    return int(time.timestamp() * 1000)
