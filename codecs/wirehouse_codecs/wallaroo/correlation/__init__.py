"""The rules that several sessions break together, and the progress of a stream over its sessions.

It may import log and what is below it.
"""
