"""Cardinal Streams: its two jobs, messages decoded (silver) and blocks, updates and chain (gold)."""

from __future__ import annotations

from wirehouse_pipelines.cardinal import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    Job(
        "silver.cardinal",
        outputs=("silver.cardinal",),
        build=silver.log,
        version=silver.VERSION,
        protocol="cardinal",
        reads=("bronze.messages",),
    ),
    Job(
        "gold.cardinal",
        outputs=gold.OUTPUTS,
        build=gold.tables,
        version=gold.VERSION,
        protocol="cardinal",
        reads=("silver.cardinal",),
        state_table=gold.STATE,
    ),
)
