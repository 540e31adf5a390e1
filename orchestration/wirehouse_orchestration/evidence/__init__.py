"""From a row back to the bytes: inspection, trace, excerpts, landed packets.

It may import config, servers and terminal.
"""
