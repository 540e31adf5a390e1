"""The Hiero block node: its two jobs, calls and blocks decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines.hiero import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    silver.JOB,
    Job(
        "gold.hiero",
        outputs=gold.OUTPUTS,
        build=gold.tables,
        version=gold.VERSION,
        protocol="hiero",
        reads=("silver.hiero",),
        state_table=gold.STATE,
        joined=True,
    ),
)
