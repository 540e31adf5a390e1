"""Bamboo Point-2-Point: its two jobs, connections and entry files decoded and judged (silver), and logs (gold)."""

from __future__ import annotations

from wirehouse_pipelines.bamboo import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    silver.JOB,
    Job(
        "gold.bamboo",
        outputs=gold.OUTPUTS,
        build=gold.tables,
        version=gold.VERSION,
        protocol="bamboo",
        reads=("silver.bamboo",),
        state_table=gold.STATE,
        joined=True,
    ),
)
