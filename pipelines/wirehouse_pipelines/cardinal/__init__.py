"""The two jobs of Cardinal Streams: silver decodes messages, gold computes blocks, their updates and the chain."""

from __future__ import annotations

from wirehouse_pipelines.cardinal import gold, silver
from wirehouse_pipelines.jobs.job import gold_job

JOBS = (silver.JOB, gold_job("cardinal", gold.OUTPUTS, gold.tables, gold.VERSION))
