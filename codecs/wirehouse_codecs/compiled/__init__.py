"""Loops compiled to machine code by Numba, and hashes that such loops can call.

It may import core.
"""
