"""Ports of this machine's loopback."""

from __future__ import annotations

import socket
from typing import Final

from wirehouse_codecs.core.errors import UsageError

HOST: Final = "127.0.0.1"
#: Default ports of Dagster, the metrics beside it, the dashboard, Superset (infra/superset.sh) and the SQL server.
UI, METRICS, DASHBOARD, SUPERSET, SQL = 3000, 3001, 3100, 8088, 10000


class PortTakenError(UsageError):
    """The requested port is in use."""

    template = "port {port} is in use: name another with --port"


def taken(asked: int | None, usual: int) -> socket.socket:
    """A socket bound to port `asked`; if None, to port `usual` or any free one. Raises PortTakenError."""
    for port in (asked,) if asked else (usual, 0):
        probe = socket.socket()
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            probe.close()
            continue
        return probe
    raise PortTakenError(port=asked)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Whether a server listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
