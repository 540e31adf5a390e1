"""The `[spark]` table of the configuration: where jobs run, what workers need to be sent, and settings of Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import OptionTable, Read, flag, text

LOCAL: Final = "local[*]"
#: Environment variables that override the table's master.
MASTER_VARIABLES: Final = ("WIREHOUSE_SPARK_MASTER", "SPARK_MASTER")
#: Settings that rows and commits depend on; users can't change them.
OURS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # Delta's own log store for S3 loses commits if two drivers write one table.
    "spark.delta.logStore.s3a.impl": "wirehouse.ConditionalLogStore",
}


def _settings(value: Any, key: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise OptionError(key=key, reason=f"must be a table, not {value!r}")
    for name, setting in value.items():
        if not isinstance(setting, str):
            raise OptionError(key=f"{key}.{name}", reason=f"must be a text, not {setting!r}")
        if not name.startswith("spark."):
            raise OptionError(key=f"{key}.{name}", reason='is none of Spark, written as "spark.executor.memory"')
        if name in OURS:
            raise OptionError(key=f"{key}.{name}", reason="is set by Wirehouse")
    return value


@dataclass(frozen=True, slots=True)
class SparkOptions(OptionTable):
    """The `[spark]` table of the configuration."""

    READERS: ClassVar[Mapping[str, Read]] = {"master": text, "ship": flag, "settings": _settings}
    master: str = LOCAL
    #: Whether to send this Python environment and the jars to the workers of a cluster. If false, workers have them at
    #: the same paths already.
    ship: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def asked_master(self) -> str:
        """The master in the environment, else the table's."""
        return next(filter(None, map(os.environ.get, MASTER_VARIABLES)), self.master)


EMBEDDED: Final = SparkOptions()
