"""The fast path: compiled decoding of messages in columns. It gives the same rows as the reference path in `wire`.

It may import session and what is below it.
"""
