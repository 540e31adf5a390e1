"""A lake as plain data: its sources, windows, options, protocols and hash key.

It may import storage and tables.
"""
