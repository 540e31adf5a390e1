"""Dagster definitions, configuration and the `wirehouse` command line."""
