"""The `[source.kafka]` table: which broker, and where the first range of a partition begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from wirehouse_codecs.errors import OptionError

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


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The `[source.kafka]` table: which broker, and where the first range of a partition begins."""

    #: earliest; committed (of `settings."group.id"`); or a time (ISO 8601, with its zone).
    start: str = EARLIEST
    #: Settings of librdkafka as they are: bootstrap.servers, security.protocol, sasl.mechanism, ssl.ca.location … A
    #: value `env:NAME` is that of the variable: secrets stand there.
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> KafkaOptions:
        """Options from the table as written. Raises OptionError."""
        for key in mapping:
            if key not in ("start", "settings"):
                raise OptionError(key=key, reason="unknown option, expected one of start, settings")
        options = cls(mapping.get("start", EARLIEST), mapping.get("settings", {}))
        if not isinstance(options.settings, Mapping):
            raise OptionError(key="settings", reason=f"must be a table, not {options.settings!r}")
        for name, value in options.settings.items():
            if not isinstance(value, str):
                # Not what it is: it may be a password.
                raise OptionError(key=f"settings.{name}", reason="must be a text, in quotes")
            if name in OURS:
                raise OptionError(key=f"settings.{name}", reason="is set by Wirehouse")
        if options.start == COMMITTED and "group.id" not in options.settings:
            raise OptionError(key="start", reason='committed needs settings."group.id"')
        if options.start not in (EARLIEST, COMMITTED):
            time_ms(options.start)
        return options

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
