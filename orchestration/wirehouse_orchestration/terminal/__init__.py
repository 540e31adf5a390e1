"""Output on a terminal: tables, colours, progress.

It imports no other room of orchestration.
"""
