"""Cardinal Streams: its two jobs, messages decoded (silver) and blocks, updates and chain (gold)."""

from __future__ import annotations

from wirehouse_pipelines.cardinal import gold, silver
from wirehouse_pipelines.jobs.job import gold_job

JOBS = (silver.JOB, gold_job("cardinal", gold.OUTPUTS, gold.tables, gold.VERSION))
