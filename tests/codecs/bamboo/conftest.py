"""Logs of bamboo entries for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import nacl.signing
import pytest

from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import Entry, publish
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets


@cache
def key(number: int) -> nacl.signing.SigningKey:
    return nacl.signing.SigningKey(bytes([number]) * 32)


@dataclass
class Log:
    """A log that grows: entries by sequence number, and their hashes, which links go to."""

    author: int = 1
    log_id: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    hashes: dict[int, bytes] = field(default_factory=dict)

    def make(self, seq: int, payload: bytes = b"", *, end_of_log: bool = False, **links: bytes) -> Entry:
        """An entry that isn't added. `links` take the place of the right ones."""
        targets = link_targets(seq)
        right = {"backlink": self.hashes[seq - 1]} if targets else {}
        if len(targets) == 2:
            right["lipmaalink"] = self.hashes[targets[0]]
        return publish(key(self.author), payload, log_id=self.log_id, seq=seq, end_of_log=end_of_log, **(right | links))

    def add(self, payload: bytes = b"", *, end_of_log: bool = False, **links: bytes) -> Entry:
        seq = len(self.entries) + 1
        entry = self.make(seq, payload, end_of_log=end_of_log, **links)
        self.entries[seq], self.payloads[seq] = entry, payload
        self.hashes[seq] = yamf.digest(entry.encode())
        return entry

    def branch(self, after: int) -> Log:
        """The same log up to entry `after`."""
        kept = range(1, after + 1)
        return Log(
            self.author,
            self.log_id,
            {seq: self.entries[seq] for seq in kept},
            {seq: self.payloads[seq] for seq in kept},
            {seq: self.hashes[seq] for seq in kept},
        )

    def encoded(self, *seqs: int) -> list[bytes]:
        return [self.entries[seq].encode() for seq in seqs or self.entries]


def grown(size: int, author: int = 1, log_id: int = 0) -> Log:
    log = Log(author, log_id)
    for seq in range(1, size + 1):
        log.add(b"payload %d" % seq)
    return log


@pytest.fixture(scope="session")
def make_log() -> Callable[..., Log]:
    return grown
