"""The rows of the log of a decoding pass.

It may import fast, session and what is below them.
"""
