"""The fold of a service: findings, decisions, catch-ups, races and chains that only several calls show together.

It may import log and what is below it.
"""
