"""Dagster assets, checks, schedules and sensors."""
