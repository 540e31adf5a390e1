"""One cleartext HTTP/2 connection, from the bytes of both sides to header blocks and the content of streams.

`reader` knows the connection, `side` one direction, `frames` their bytes, and `events` is what comes out. It may import
`spans`, `loops`, tcp and core.
"""
