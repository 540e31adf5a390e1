"""What only several calls of a service show together: findings, decisions, catch-ups, races, and whether blocks chain.

It may import log and what is below it.
"""
