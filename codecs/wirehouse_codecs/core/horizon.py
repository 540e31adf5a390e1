"""HORIZON_NS: how long state of gold lives without being used.

A fold remembers streams, sessions, blocks and clients of earlier windows. What was silent for longer than the horizon
is dropped, and starts again with empty state when it comes back. So the state of a window, and the time to read it,
don't grow with the lake's age. docs/architecture.md explains the horizon of a job ("Windows, jobs and the ledger").
"""

from __future__ import annotations

from typing import Final

#: Seven days of arrival time: longer than a weekend, and than what hosts usually need to reconnect.
HORIZON_NS: Final = 7 * 86_400 * 10**9
