"""Bamboo Point-2-Point: its two jobs, connections and entry files decoded and judged (silver), and logs (gold)."""

from __future__ import annotations

from wirehouse_pipelines.bamboo import gold, silver
from wirehouse_pipelines.jobs.job import gold_job

JOBS = (silver.JOB, gold_job("bamboo", gold.OUTPUTS, gold.tables, gold.VERSION, joined=True))
