"""Messages of the wire: bytes to messages and back, the reference path.

Of the protocol it may import its options and rules; besides, the shared sub-packages.
"""
