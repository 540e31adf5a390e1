"""What the simulators of all protocols share: scripts of connections, packets, files.

It may import logs and what is below it; only simulators, tools and commands import it.
"""
