"""The Hiero block node: its two jobs, calls and blocks decoded and judged (silver), and what they mean (gold)."""

from __future__ import annotations

from wirehouse_pipelines.hiero import gold, silver
from wirehouse_pipelines.jobs.job import gold_job

JOBS = (silver.JOB, gold_job("hiero", gold.OUTPUTS, gold.tables, gold.VERSION, joined=True))
