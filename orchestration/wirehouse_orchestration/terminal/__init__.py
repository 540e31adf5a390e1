"""Output on a terminal: tables, colours, progress; and how text of the wire is escaped (`render`).

It imports no other sub-package of orchestration.
"""
