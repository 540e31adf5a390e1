"""Bytes to messages and back for every protocol; no Spark, no Dagster, no sockets."""
