"""The rows of the log of a decoding pass.

It may import session and what is below it.
"""
