"""The scenarios of the reference's own tests of its ordering layer.

Letters are blocks, digits their numbers, weight is the number: `c1:a0` is c on a. An update is `+added -removed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.codecs.cardinal.conftest import Story

TREE = "a0 b1:a0 c1:a0 d2:c1 e2:b1 g2:b1 f3:e2 j4:f3 h3:g2 i4:h3 k5:i4"
ABEFJ = ["+b1", "+e2", "+f3", "+j4", "+g2,h3,i4,k5 -e2,f3,j4"]

SCENARIOS = {
    "ABCD": ("a0", "a0 b1 c1 d2", ["+b1", "+c1,d2 -b1"]),
    "ABDC": ("a0", "a0 b1 d2 c1", ["+b1", "+c1,d2 -b1"]),
    "ACDB": ("a0", "a0 c1 d2 b1", ["+c1", "+d2"]),
    "adc": ("a0", "a0 d2 c1", ["+c1,d2"]),
    "ABCDEF": ("a0", "a0 b1 c1 d2 e2 f3", ["+b1", "+c1,d2 -b1", "+b1,e2,f3 -c1,d2"]),
    "AEGFBHI": ("a0", "a0 e2 g2 f3 b1 h3 i4", ["+b1,e2,f3", "+g2,h3,i4 -e2,f3"]),
    "AEGFHIB": ("a0", "a0 e2 g2 f3 h3 i4 b1", ["+b1,g2,h3,i4"]),
    "AEFHIGB": ("a0", "a0 e2 f3 h3 i4 g2 b1", ["+b1,g2,h3,i4"]),
    "ABEFJHIKG": ("a0", "a0 b1 e2 f3 j4 h3 i4 k5 g2", ABEFJ),
    "ABEFJGIKH": ("a0", "a0 b1 e2 f3 j4 g2 i4 k5 h3", ABEFJ),
    "ABEFJGHIK": ("a0", "a0 b1 e2 f3 j4 g2 h3 i4 k5", ABEFJ),
    "ABEFJIKHG": ("a0", "a0 b1 e2 f3 j4 i4 k5 h3 g2", ABEFJ),
    "ABEFJGHKI": ("a0", "a0 b1 e2 f3 j4 g2 h3 k5 i4", ABEFJ),
    "start(c) ACDBEF": ("c1", "a0 c1 d2 b1 e2 f3", ["+d2", "+b1,e2,f3 -c1,d2"]),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_small_trees(story: Callable[..., Story], name: str) -> None:
    start, sent, updates = SCENARIOS[name]
    told = story(TREE, start=start)
    told.send(sent)
    assert told.updates == updates
    assert told.head == updates[-1].split()[0].rpartition(",")[2].lstrip("+")


@pytest.fixture
def two_chains(chain_of: Callable[..., str]) -> str:
    """Two chains of 99 blocks on one genesis, as heavy as they are long."""
    return " ".join(("a0", chain_of("p", 1, 99, "a0"), chain_of("q", 1, 99, "a0")))


def _listed(name: str, numbers: range) -> str:
    return ",".join(f"{name}{number}" for number in numbers)


@pytest.mark.property
def test_a_longer_chain_sent_in_pieces_takes_over_at_once(
    story: Callable[..., Story], named: Callable[..., str], two_chains: str
) -> None:
    told = story(two_chains, start="a0")
    told.send("a0 " + named("p", 1, 49))
    told.send("a0 " + named("q", 1, 24) + " " + named("q", 30, 52) + " q25 q26 q27 q28 q53 q29")
    singles = [f"+p{number}" for number in range(1, 50)]
    assert told.updates == [*singles, f"+{_listed('q', range(1, 54))} -{_listed('p', range(1, 50))}"]


def test_a_chain_sent_top_first_takes_over_when_it_links(
    story: Callable[..., Story], named: Callable[..., str], two_chains: str
) -> None:
    told = story(two_chains, start="a0")
    told.send("a0 " + named("p", 1, 5) + " q5 q6 q3 q4 q1 q2")
    singles = [f"+p{number}" for number in range(1, 6)]
    assert told.updates == [*singles, f"+{_listed('q', range(1, 7))} -{_listed('p', range(1, 6))}"]


def test_a_restart_learns_its_history_again_and_reorgs_below_its_start(
    story: Callable[..., Story], named: Callable[..., str], two_chains: str
) -> None:
    told = story(two_chains, start="p6")
    told.send("a0 " + named("p", 1, 6) + " a0 " + named("q", 1, 7))
    assert told.updates == [f"+{_listed('q', range(1, 8))} -{_listed('p', range(1, 7))}"]


def test_history_out_of_order_moves_no_head(
    story: Callable[..., Story], named: Callable[..., str], two_chains: str
) -> None:
    told = story(two_chains, start="p6")
    told.send("a0 " + named("p", 1, 5) + " a0 " + named("q", 1, 7) + " p6 q8")
    assert told.updates == [f"+{_listed('q', range(1, 9))} -{_listed('p', range(1, 7))}"]


def test_without_its_history_a_restart_keeps_its_start(
    story: Callable[..., Story], named: Callable[..., str], two_chains: str
) -> None:
    told = story(two_chains, start="p6")
    told.send(named("q", 1, 9))
    assert (told.updates, told.head) == ([], "p6")
