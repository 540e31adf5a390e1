"""The command `wirehouse`.

It may import every other room.
"""
