"""Community IDs are those that the specification publishes (its baseline, default seed; Zeek's own test)."""

from __future__ import annotations

import pytest

from wirehouse_codecs.tcp.community_id import community_id
from wirehouse_codecs.tcp.endpoints import Endpoint

PUBLISHED = [
    (Endpoint("128.232.110.120", 34855), Endpoint("66.35.250.204", 80), "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
    (
        Endpoint("2001:470:e5bf:dead:4957:2174:e82c:4887", 63943),
        Endpoint("2607:f8b0:400c:c03::1a", 25),
        "1:/qFaeAR+gFe1KYjMzVDsMv+wgU4=",
    ),
    (Endpoint("1.2.3.4", 1122), Endpoint("5.6.7.8", 3344), "1:wCb3OG7yAFWelaUydu0D+125CLM="),
]


@pytest.mark.parametrize(("one", "other", "published"), PUBLISHED)
def test_it_is_the_published_one_in_both_directions(one: Endpoint, other: Endpoint, published: str) -> None:
    assert community_id(one, other) == community_id(other, one) == published


def test_ports_order_endpoints_of_one_address() -> None:
    low, high = Endpoint("127.0.0.1", 9), Endpoint("127.0.0.1", 1000)
    assert community_id(low, high) == community_id(high, low) != community_id(low, low)
