"""A small capture of each protocol, made by other implementations, and the configuration of a lake of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors"
#: Protocol -> kind, capture and the ports of its servers.
CAPTURES: Mapping[str, tuple[str, str, tuple[int, ...]]] = {
    "cardinal": ("messages", "cardinal/d2_equal_weight/messages.jsonl", ()),
    "ockam": ("pcap", "ockam/sessions/bad_consumer_hole.pcap", (25798,)),
    "hiero": ("pcap", "hiero/new/behind_resend.pcap", (40840,)),
    "wallaroo": ("pcap", "wallaroo/v3/c_restart.pcap", (27103,)),
    "bamboo": ("pcap", "bamboo/sessions/v09_wrong_turn.pcap", (7070,)),
}
#: Lakes with another one hash the same differently.
HASH_KEY = "one for all"


def configure(folder: Path, *protocols: str, further: str = "", inbox: Path | None = None) -> Path:
    """Write the configuration of a lake in `folder`: a source of each of `protocols` (all if none), named like it.

    With an `inbox` each has a folder there, to which `deliver` brings its capture.
    """
    lines = ["[lakehouse]", 'root = "lake"', further]
    for protocol in protocols or CAPTURES:
        kind, path, ports = CAPTURES[protocol]
        place = VECTORS / path
        if inbox:
            place = inbox / protocol
            place.mkdir(parents=True)
        lines += ["[[source]]", f'name = "{protocol}"', f'protocol = "{protocol}"', f'kind = "{kind}"']
        lines += [f"path = {json.dumps(str(place))}", *([f"ports = {list(ports)}"] if ports else [])]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "wirehouse.toml"
    file.write_text("\n".join(lines))
    return file


def deliver(inbox: Path, *protocols: str) -> None:
    """Put the captures of `protocols` into their folders."""
    for protocol in protocols:
        shutil.copy(VECTORS / CAPTURES[protocol][1], inbox / protocol)
