"""The real servers a team runs, installed and started on this machine.

It may import config, servers and terminal.
"""
