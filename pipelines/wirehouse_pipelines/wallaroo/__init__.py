"""The Wallaroo connector protocol: its two jobs, connections decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines.jobs.job import gold_job
from wirehouse_pipelines.wallaroo import gold, silver

JOBS = (silver.JOB, gold_job("wallaroo", gold.OUTPUTS, gold.tables, gold.VERSION))
