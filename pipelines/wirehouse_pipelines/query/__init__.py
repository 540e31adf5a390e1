"""Queries without a JVM: SQL through DataFusion, in this process or another one; and the column lineage of views.

It may import what jobs may.
"""
