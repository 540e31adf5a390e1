"""Block items: their kinds, a set of them cut into items, and the few that are decoded.

It may import what wire may, but nothing of blocks.
"""
