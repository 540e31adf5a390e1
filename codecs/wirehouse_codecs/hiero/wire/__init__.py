"""Bytes to messages and back.

Of the protocol it may import its options, `profiles.py` and rules; besides, the shared sub-packages.
"""
