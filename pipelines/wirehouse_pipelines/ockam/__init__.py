"""The Ockam stream service: its two jobs, connections decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines.ockam import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    silver.JOB,
    Job(
        "gold.ockam",
        outputs=gold.OUTPUTS,
        build=gold.tables,
        version=gold.VERSION,
        protocol="ockam",
        reads=("silver.ockam",),
        state_table=gold.STATE,
        joined=True,
    ),
)
