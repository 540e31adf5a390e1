"""The link types whose packets are read and written (tcpdump.org/linktypes.html)."""

from __future__ import annotations

from typing import Final

NULL: Final = 0
ETHERNET: Final = 1
RAW: Final = 101
LOOP: Final = 108
LINUX_SLL: Final = 113
IPV4: Final = 228
IPV6: Final = 229
LINUX_SLL2: Final = 276

#: Raw IP. The last two numbers are what some systems use for it internally, and some programs write.
RAW_IP: Final = (RAW, 12, 14)
