"""Spark jobs that turn landed captures into bronze, silver and gold Delta tables."""
