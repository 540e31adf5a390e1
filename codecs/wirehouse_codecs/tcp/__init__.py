"""From packets to the bytes of TCP connections.

It may import captures and what is below it.
"""
