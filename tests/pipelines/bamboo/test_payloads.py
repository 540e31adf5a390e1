"""Payloads without metadata are judged by what the service knows: of other connections, earlier windows, and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.codecs.bamboo.conftest import grown
from tests.codecs.bamboo.correlation.test_payload_replay import PORT, found, sends, shows
from tests.codecs.bamboo.log.test_log import SECOND
from tests.codecs.bamboo.session.peers import raw
from tests.support.running import land, run, select
from wirehouse_codecs.bamboo.wire.entry_files import Written, write_lines
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.windows import Windows

pytestmark = pytest.mark.property

DAY = 86_400 * SECOND
BEGIN = 1_699_956_000 * SECOND


def test_gold_judges_payloads_by_all_entries_of_the_service(in_process: Any, tmp_path: Path) -> None:
    log = grown(4)
    said = [raw(log.payloads[1]), raw(b"?" * 9), raw(log.payloads[3] + b"!"), raw(log.payloads[4])]

    def at(packets: list[CapturedPacket], ns: int) -> list[CapturedPacket]:
        return [packet._replace(ts_ns=packet.ts_ns + BEGIN + ns) for packet in packets]

    captures = {
        "one_capture": [*at(shows(log, 4), 0), *at(sends(log, said), 0)],
        "two_windows": [*at(shows(log, 4), 0), *at(sends(log, said), DAY)],
        "by_file": at(sends(log, said), DAY),
        "knows_nothing": at(sends(log, said), 0),
    }
    sources = []
    for name, packets in captures.items():
        path = str(tmp_path / f"{name}.pcap")
        write_file(packets, Path(path))
        sources.append(Source(name, "bamboo", "pcap", path, {"service": f"of_{name}"}, ports=(PORT,)))
    write_lines([Written(entry.encode()) for entry in log.entries.values()], tmp_path / "known.jsonl")
    stored = str(tmp_path / "known.jsonl")
    sources.append(Source("known", "bamboo", "entries", stored, {"service": "of_by_file"}))
    lake = Lake(str(tmp_path / "lake"), Windows("day", "2015-01-01"), tuple(sources))
    land(lake)
    run(in_process, lake)
    rows = select(lake, "SELECT * FROM gold.bamboo_violations WHERE severity <> 'note' ORDER BY source, byte_start")
    told = found(shows(log, 4), sends(log, said))
    assert [rule for rule, _ in told] == ["invalid_data_in_safe_mode", "payload_overrun"]
    for name in captures:
        of_source = [row for row in rows if row["source"] == f"of_{name}"]
        wanted = [] if name == "knows_nothing" else told
        assert [(row["rule"].removeprefix("bamboo."), row["message"]) for row in of_source] == wanted, name
        assert {(row["channel"], row["direction"], row["proposal_number"]) for row in of_source} <= {
            ("data", "server", 0)
        }
