"""Community ID, version 1 (github.com/corelight/community-id-spec): one name for a connection in all tools."""

from __future__ import annotations

import hashlib
import struct
from base64 import b64encode

from wirehouse_codecs.tcp.endpoints import Endpoint
from wirehouse_codecs.tcp.packet_scan import TCP


def community_id(one: Endpoint, other: Endpoint) -> str:
    """The Community ID, with seed 0, of the TCP connections between two endpoints, in any order."""
    low, high = sorted((endpoint.packed, endpoint.port) for endpoint in (one, other))
    hashed = struct.pack(">H", 0) + low[0] + high[0] + struct.pack(">BxHH", TCP, low[1], high[1])
    return "1:" + b64encode(hashlib.sha1(hashed).digest()).decode()
