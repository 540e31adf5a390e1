"""The Wallaroo connector protocol: its two jobs, connections decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines.wallaroo import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    silver.JOB,
    Job(
        "gold.wallaroo",
        outputs=gold.OUTPUTS,
        build=gold.tables,
        version=gold.VERSION,
        protocol="wallaroo",
        reads=("silver.wallaroo",),
        state_table=gold.STATE,
    ),
)
