"""Turns the bytes of connections and files into the rows of a protocol's log, window by window.

It may import tcp and what is below it.
"""
