"""gRPC over one HTTP/2 connection: from the events of HTTP/2 to calls and messages.

It may import http2 and what wire may.
"""
