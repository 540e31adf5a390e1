"""Assets, schedules, sensors, runs and the UI.

It may import query, evidence, infra and what is below them.
"""
