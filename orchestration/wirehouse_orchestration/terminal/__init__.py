"""Output on a terminal: tables, colours, progress.

It imports no other sub-package of orchestration.
"""
