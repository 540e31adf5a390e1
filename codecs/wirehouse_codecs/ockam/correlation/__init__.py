"""Findings and rows that only several connections or messages show together.

It may import log and what is below it.
"""
