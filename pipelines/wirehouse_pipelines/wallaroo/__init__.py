"""The Wallaroo connector protocol: its two jobs, connections decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines import hash_key
from wirehouse_pipelines.connections import CARRIED
from wirehouse_pipelines.wallaroo import gold, silver
from wirehouse_pipelines.work import Job

JOBS = (
    Job(
        "silver.wallaroo",
        outputs=("silver.wallaroo",),
        build=silver.log,
        version=silver.VERSION,
        protocol="wallaroo",
        reads=("bronze.segments",),
        state_table="silver.wallaroo",
        carried=CARRIED,
        also=hash_key.name_of,
    ),
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
