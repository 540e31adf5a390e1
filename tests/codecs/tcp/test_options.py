"""Options of how connections are put together: what is read, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.tcp.options import MOST_IDLE_S, MOST_WAITING_BYTES, MOST_WAITING_SEGMENTS, TcpOptions


def test_reads_every_option() -> None:
    table = {"idle_s": 60, "hole_wait_s": 0.5, "max_waiting_bytes": 10, "max_waiting_segments": 2}
    assert TcpOptions.from_mapping(table) == TcpOptions(60 * 10**9, 500_000_000, 10, 2)
    assert TcpOptions.from_mapping({}) == TcpOptions()


def test_every_option_is_part_of_the_digest() -> None:
    tables: list[dict[str, Any]] = [
        {},
        {"idle_s": 60},
        {"hole_wait_s": 60},
        {"max_waiting_bytes": 60},
        {"max_waiting_segments": 60},
    ]
    texts = [TcpOptions.from_mapping(table).canonical() for table in tables]
    assert len(set(texts)) == len(tables)
    assert TcpOptions.from_mapping({"idle_s": 60.0}).canonical() == texts[1]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("idle", 60, "unknown option, expected one of idle_s, hole_wait_s, max_waiting_bytes, max_waiting_segments"),
        ("idle_s", "2h", "must be a number of seconds"),
        ("idle_s", True, "must be a number of seconds"),
        ("idle_s", float("nan"), "above 0"),
        ("idle_s", MOST_IDLE_S + 1, f"at most {MOST_IDLE_S} seconds"),
        ("hole_wait_s", 0, "above 0"),
        ("hole_wait_s", 7201, "must be at most idle_s, which is 7200"),
        ("max_waiting_bytes", 1.5, "must be a whole number"),
        ("max_waiting_bytes", MOST_WAITING_BYTES + 1, f"at most {MOST_WAITING_BYTES}"),
        ("max_waiting_segments", 0, "must be at least 1"),
        ("max_waiting_segments", MOST_WAITING_SEGMENTS + 1, f"at most {MOST_WAITING_SEGMENTS}"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason) as refused:
        TcpOptions.from_mapping({key: value})
    assert refused.value.fields["key"] == key
