"""Bytes to messages and back.

Of the protocol it may import its options, `dialects.py`, `frames.py` and rules; besides, the shared sub-packages.
"""
