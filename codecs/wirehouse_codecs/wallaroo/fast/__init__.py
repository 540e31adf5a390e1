"""The fast path: wire and session as compiled loops over many frames. Both paths give the same rows.

It may import session and what is below it.
"""
