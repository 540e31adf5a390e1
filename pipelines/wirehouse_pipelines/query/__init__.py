"""Answers without a JVM: SQL, a process of its own for it, lineage of views.

It may import what jobs may.
"""
