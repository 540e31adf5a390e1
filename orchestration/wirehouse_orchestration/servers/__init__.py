"""Servers on this machine: ports, and running in the foreground.

It imports no other room of orchestration.
"""
