"""Capture files: their formats, compression and archives.

It may import core and compiled.
"""
