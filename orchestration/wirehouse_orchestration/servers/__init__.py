"""Servers on this machine: ports, and running in the foreground.

It imports no other sub-package of orchestration.
"""
