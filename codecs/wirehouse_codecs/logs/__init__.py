"""From the bytes of connections and files to the rows of a log, window by window.

It may import tcp and what is below it.
"""
