"""Messages of the wire: bytes to messages and back, the reference path.

It may import the options, profiles and rules of the protocol and the shared sub-packages.
"""
