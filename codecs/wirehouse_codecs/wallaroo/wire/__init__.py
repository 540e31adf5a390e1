"""Bytes to messages and back.

It may import the options, profiles and rules of the protocol, and the shared sub-packages.
"""
