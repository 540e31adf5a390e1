"""Findings and rows that need several connections or messages.

It may import log and what is below it.
"""
