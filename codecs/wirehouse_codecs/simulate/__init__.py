"""The common part of all simulators: scripts of connections, packets, capture files.

It may import logs and what is below it; only simulators, tools and commands import it.
"""
