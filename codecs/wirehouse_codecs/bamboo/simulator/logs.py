"""Simulated Bamboo logs: authors with real keys, entries with right links, and their payloads.

A seed decides everything. A log grows entry by entry. Long logs don't keep their entries, only the hashes to which
later entries link.
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import Final, NamedTuple

import nacl.signing

from wirehouse_codecs.bamboo.session.proposals import open_targets
from wirehouse_codecs.bamboo.wire import varu64, yamf
from wirehouse_codecs.bamboo.wire.entries import END_OF_LOG, REGULAR, SIGNATURE_BYTES, Entry, publish
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets

#: Payloads are cut from one text: its number of words, that of different words, and the number of payload sizes.
_TEXT_WORDS: Final = 8_000
_WORDS: Final = 300
_SIZES: Final = 509
_LETTERS: Final = "aabcdeeefghiiklmnnoooprsttuvw"
#: A log whose entries aren't kept forgets old hashes each time after this many entries.
_PRUNED_EVERY: Final = 1024
#: The first byte of an entry's metadata on the data channel.
_METADATA: Final = {REGULAR: b"\x80", END_OF_LOG: b"\x81"}


def author_key(seed: int, name: str) -> nacl.signing.SigningKey:
    """The key of an author."""
    return nacl.signing.SigningKey(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=32).digest())


class Contents:
    """Payloads by log and sequence number. They consist of words that repeat; no two payloads are equal."""

    def __init__(self, seed: int, mean_bytes: int) -> None:
        random = Random(f"{seed} contents")
        words = ["".join(random.choices(_LETTERS, k=random.randint(2, 9))) for _ in range(_WORDS)]
        text = " ".join(random.choices(words, k=_TEXT_WORDS))
        most = mean_bytes + mean_bytes // 2
        self._text = (text * (2 + most // len(text))).encode()
        self._begins = len(text)
        self._sizes = [random.randint(mean_bytes - mean_bytes // 2, most) for _ in range(_SIZES)]

    def payload(self, log: int, seq: int) -> bytes:
        """The payload of entry `seq` of log number `log`."""
        begin = (seq * 7919 + log * 4447) % self._begins
        return self._text[begin : begin + self._sizes[(seq + log) % _SIZES]] + b" %d.%d" % (log, seq)


class Published(NamedTuple):
    """An entry with its payload."""

    entry: Entry
    payload: bytes
    #: The entry as it is hashed, and its digest.
    data: bytes
    hash: bytes

    @property
    def seq(self) -> int:
        """Its sequence number."""
        return self.entry.seq

    def metadata(self, *, backlink: bool = False) -> bytes:
        """The packet of the data channel, with its backlink or without."""
        entry = self.entry
        size = yamf.HASH_BYTES + SIGNATURE_BYTES + len(varu64.encode(entry.payload_size))
        link = yamf.encode(entry.backlink) if backlink and entry.backlink is not None else b""
        return _METADATA[self.data[0]] + link + self.data[-size:]


class Chain:
    """A log as it grows, of which only what later entries link to is remembered."""

    def __init__(self, key: nacl.signing.SigningKey, log_id: int = 0) -> None:
        self.key, self.log_id = key, log_id
        self.author = bytes(key.verify_key)
        self.length = 0
        self._hashes: dict[int, bytes] = {}

    def hash_of(self, seq: int) -> bytes:
        """The hash of an entry that later ones link to."""
        return self._hashes[seq]

    def append(self, payload: bytes, *, end_of_log: bool = False) -> Published:
        """The next entry."""
        made = self.make(self.length + 1, payload, end_of_log=end_of_log)
        self.length += 1
        self._hashes[self.length] = made.hash
        if self.length % _PRUNED_EVERY == 0:
            self._hashes = {seq: self._hashes[seq] for seq in open_targets(self.length)}
        return made

    def make(
        self,
        seq: int,
        payload: bytes,
        *,
        end_of_log: bool = False,
        lipmaalink: bytes | None = None,
        backlink: bytes | None = None,
    ) -> Published:
        """An entry that isn't added. `lipmaalink` and `backlink` take the place of the right ones."""
        targets = link_targets(seq)
        if targets and backlink is None:
            backlink = self._hashes[targets[-1]]
        if len(targets) == 2 and lipmaalink is None:
            lipmaalink = self._hashes[targets[0]]
        entry = publish(
            self.key,
            payload,
            log_id=self.log_id,
            seq=seq,
            lipmaalink=lipmaalink,
            backlink=backlink,
            end_of_log=end_of_log,
        )
        data = entry.encode()
        return Published(entry, payload, data, yamf.digest(data))


class Journal:
    """A log with the payloads that its author writes to it, from entry 1 to the last."""

    def __init__(self, chain: Chain, contents: Contents, number: int, length: int, *, ends: bool = False) -> None:
        self.chain = chain
        self._contents, self._number, self._length = contents, number, length
        #: Its last entry is an end-of-log entry.
        self.ends = ends

    def next(self) -> Published:
        """The next entry."""
        seq = self.chain.length + 1
        return self.chain.append(
            self._contents.payload(self._number, seq), end_of_log=self.ends and seq == self._length
        )


class Log(Chain):
    """A short log, all of which is kept: by sequence number."""

    def __init__(self, key: nacl.signing.SigningKey, log_id: int = 0) -> None:
        super().__init__(key, log_id)
        self.entries: dict[int, Published] = {}

    def append(self, payload: bytes, *, end_of_log: bool = False) -> Published:
        """The next entry."""
        made = super().append(payload, end_of_log=end_of_log)
        self.entries[made.seq] = made
        return made

    def branch(self, after: int) -> Log:
        """A log that is the same up to entry `after`."""
        other = Log(self.key, self.log_id)
        for seq in range(1, after + 1):
            other.entries[seq] = self.entries[seq]
            other._hashes[seq] = self.entries[seq].hash
        other.length = after
        return other
