"""Loops compiled to machine code, and the hashes made of them.

It may import core.
"""
