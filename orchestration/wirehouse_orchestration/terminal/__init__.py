"""What a terminal shows: tables, colours, progress.

It imports no other room of orchestration.
"""
