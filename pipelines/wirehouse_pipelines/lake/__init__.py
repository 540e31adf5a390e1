"""What a lake is: sources, windows, options, protocols, the hash key.

It may import storage and tables.
"""
