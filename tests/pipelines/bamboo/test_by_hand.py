"""Gold of connections that are written by hand: what a service knows of entries counts in all later windows.

The stages run in this process, without a JVM.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codecs.bamboo.test_by_hand import BEGIN, LOG, RIGHT, WRONG
from tests.pipelines.bamboo.test_gold import run_gold, window_of, written_log
from tests.support.bamboo_by_hand import PORT, Chain, Talk, raw, shown
from tests.support.bamboo_networks import SECOND, SERVER, digest
from tests.support.landed import landed_packets, read_log, segments
from tests.support.running import select
from wirehouse_codecs.bamboo.log.schema import SCHEMA, starter
from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_pipelines.lake.lake import Lake

pytestmark = pytest.mark.usefixtures("stages_run_here")
HOUR = 3_600 * SECOND


def gold_of(folder: Path, talks: list[Talk], step: int) -> Lake:
    packets = [packet for talk in talks for packet in talk.packets()]
    rows = read_log(segments(landed_packets(packets), PORT), starter(BambooOptions()), SCHEMA)
    listed = [{**row, "source": "s", "window_start": window_of(row["arrived_at_ns"])} for row in rows]
    lake, windows = written_log(folder, {"s": listed})
    run_gold(lake, windows, step)
    return lake


def later(number: int, hour: int, *data: bytes, log: Chain = LOG, end: int | None = 4) -> Talk:
    """Over its own connection the server sends payloads alone."""
    proposal = log.propose(0, 1, end, payload_only=True)
    return Talk(number, BEGIN + hour * HOUR).agreed(proposal).data(SERVER, *data)


@pytest.mark.parametrize("step", [1, 2, 100])
def test_payloads_of_later_windows_are_judged_by_entries_of_earlier_ones(tmp_path: Path, step: int) -> None:
    talks = [
        shown(LOG, range(1, 5), 0, BEGIN),
        later(1, 2, RIGHT[1], WRONG[2], RIGHT[3], RIGHT[4]),
        later(2, 4, RIGHT[1], RIGHT[2], RIGHT[3], end=2),
        later(3, 4, RIGHT[1], LOG.metadata(2)),
        later(4, 6, raw(LOG.payloads[1] + b"!")),
        later(5, 6, RIGHT[1], RIGHT[2], RIGHT[3], RIGHT[4]),
        # Nobody knows these.
        later(6, 6, WRONG[1], WRONG[2], log=Chain(seed=9).grow(2)),
    ]
    lake = gold_of(tmp_path, talks, step)
    found = "SELECT rule, window_start FROM gold.bamboo_found WHERE severity <> 'note' ORDER BY window_start, rule"
    assert [(row["rule"].removeprefix("bamboo."), row["window_start"][-2:]) for row in select(lake, found)] == [
        ("invalid_data_in_safe_mode", "00"),
        ("out_of_turn", "02"),
        ("past_end", "02"),
        ("payload_overrun", "04"),
    ]


@pytest.mark.parametrize("step", [1, 100])
@pytest.mark.parametrize(("after", "length"), [(4, 12), (4, 7), (9, 11), (8, 14)])
def test_a_fork_is_one_row_with_both_branches_and_who_served_them(
    tmp_path: Path, step: int, after: int, length: int
) -> None:
    other = LOG.branch(after).grow(length, b"other")
    talks = [shown(LOG, range(1, 11), 0, BEGIN), shown(other, range(1, length + 1), 1, BEGIN + 2 * HOUR)]
    lake = gold_of(tmp_path, talks, step)
    (fork,) = select(lake, "SELECT * FROM gold.bamboo_forks")
    assert int(fork["position"]) == after + 1
    assert (int(fork["first_length"]), fork["first_head"]) == (10, digest(LOG.entries[10]))
    assert (int(fork["second_length"]), fork["second_head"]) == (length, digest(other.entries[length]))
    assert fork["first_served_by"] == fork["second_served_by"] == ["10.9.0.9:9000"]
    found = "SELECT rule FROM gold.bamboo_found WHERE severity <> 'note'"
    assert [row["rule"] for row in select(lake, found)] == ["bamboo.fork"]
