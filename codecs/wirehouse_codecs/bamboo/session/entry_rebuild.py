"""Rebuilds entries from the metadata on the data channel (specification, "Encodings", bytes 128 and 129).

Metadata omits what follows from its position: author and log id (of the proposal), the sequence number (of the cursor),
the lipmaalink, and the backlink if its target was sent before. The hash of a link target comes from what the same side
sent for the proposal, from the expected starting hash, or from entries that are known from elsewhere. If it is unknown,
the entry is complete except that link.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from wirehouse_codecs.bamboo.session.proposals import Heard
from wirehouse_codecs.bamboo.wire import varu64, yamf
from wirehouse_codecs.bamboo.wire.entries import END_OF_LOG, REGULAR, SIGNATURE_BYTES, signature_rule
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets
from wirehouse_codecs.bamboo.wire.messages import Metadata

#: How many entries of a connection are remembered besides those that its proposals need.
MOST_KNOWN: Final = 256

#: The hash of an entry of the log, and whether it is only assumed that the sender means this entry.
HashOf = Callable[[int], tuple[bytes | None, bool]]


class Rebuilt(NamedTuple):
    """An entry as one side sent it. Hashes have 66 bytes, as on the wire. None: unknown, or there is none."""

    author: bytes
    log_id: int
    seq: int
    end_of_log: bool
    lipmaalink: bytes | None
    backlink: bytes | None
    payload_size: int
    payload_hash: bytes
    signature: bytes
    #: The full entry. None: links are unknown, see `unknown`.
    data: bytes | None
    #: Digest of `data`.
    entry_hash: bytes | None
    #: The names of the fields that were not sent.
    omitted: tuple[str, ...]
    unknown: tuple[int, ...] = ()
    #: Whether a link is assumed: it is known from elsewhere, and the sender may mean another entry.
    assumed: bool = False
    #: The rule that it breaks, judged without other entries and without the signature.
    rule: str | None = None
    reason: str = ""


def rebuild(
    metadata: Metadata, author: bytes, log_id: int, seq: int, hash_of: HashOf, *, noncanonical: bool = False
) -> Rebuilt:
    """The entry `seq` of a log that `metadata` stands for. `noncanonical`: its payload size isn't the shortest."""
    targets = link_targets(seq)
    omitted = ["author", "log_id", "seqnum"]
    links: list[bytes | None] = []
    assumed = False
    for target in targets:
        if target == seq - 1 and metadata.backlink is not None:
            links.append(metadata.backlink)
            continue
        digest, elsewhere = hash_of(target)
        links.append(None if digest is None else yamf.encode(digest))
        assumed = assumed or (elsewhere and digest is not None)
        omitted.append("backlink" if target == seq - 1 else "lipmaalink")
    rule, reason = _broken(metadata, seq, noncanonical)
    entry = Rebuilt(
        author,
        log_id,
        seq,
        metadata.end_of_log,
        links[0] if len(links) == 2 else None,
        links[-1] if links else None,
        metadata.payload_size,
        metadata.payload_hash,
        metadata.signature,
        None,
        None,
        tuple(omitted),
        tuple(target for target, link in zip(targets, links, strict=True) if link is None),
        assumed,
        rule,
        reason,
    )
    return entry if entry.unknown else _with_data(entry)


def _with_data(entry: Rebuilt) -> Rebuilt:
    """`entry`, all of whose links are known, with its bytes and their hash."""
    data = b"".join(
        [
            bytes([END_OF_LOG if entry.end_of_log else REGULAR]),
            entry.author,
            varu64.encode(entry.log_id),
            varu64.encode(entry.seq),
            *(link for link in (entry.lipmaalink, entry.backlink) if link is not None),
            varu64.encode(entry.payload_size),
            entry.payload_hash,
            entry.signature,
        ]
    )
    return entry._replace(data=data, entry_hash=yamf.digest(data))


def complete(entries: Iterable[Rebuilt], known: Mapping[int, Sequence[bytes]]) -> list[Rebuilt]:
    """Complete the unknown links of entries of one log by `known`: digests by sequence number.

    If a sequence number has several hashes, the one counts that makes the signature right. The result is in ascending
    order. An entry that can't be completed is unchanged.
    """
    hashes = {seq: list(digests) for seq, digests in known.items()}
    completed = []
    for entry in sorted(entries, key=lambda one: one.seq):
        right = entry if entry.data is not None else next(_signed(entry, hashes), entry)
        completed.append(right)
        if right.entry_hash is not None:
            hashes.setdefault(right.seq, []).append(right.entry_hash)
    return completed


def _signed(entry: Rebuilt, hashes: Mapping[int, Sequence[bytes]]) -> Iterator[Rebuilt]:
    for links in product(*(hashes.get(seq, ()) for seq in entry.unknown)):
        filled = entry
        for seq, digest in zip(entry.unknown, links, strict=True):
            link = yamf.encode(digest)
            is_back = seq == entry.seq - 1
            filled = filled._replace(backlink=link) if is_back else filled._replace(lipmaalink=link)
        filled = filled._replace(unknown=())
        filled = _with_data(filled)
        assert filled.data is not None
        if signature_rule(entry.author, filled.data[:-SIGNATURE_BYTES], entry.signature) is None:
            yield filled


def _broken(metadata: Metadata, seq: int, noncanonical: bool) -> tuple[str | None, str]:
    if metadata.backlink is not None and seq == 1:
        return "malformed", "entry 1 has no backlink, one is sent"
    if noncanonical:
        return "noncanonical_varu64", f"payload_size {metadata.payload_size} is longer than it needs to be"
    hashes = [one for one in (metadata.backlink, metadata.payload_hash) if one is not None]
    broken = sorted({rule for one in hashes if (rule := yamf.broken(one)) is not None})
    return (broken[0], "the hash of the payload, or of the backlink") if broken else (None, "")


Key = tuple[bytes, int, int]


class Known:
    """The most recent entries of a connection, by author, log id and sequence number."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Key, Heard] = OrderedDict()

    def get(self, author: bytes, log_id: int, seq: int) -> Heard | None:
        """The entry, if it is known."""
        return self._entries.get((author, log_id, seq))

    def hashed(self, author: bytes, log_id: int) -> list[int]:
        """The sequence numbers of entries of a log whose hashes are known."""
        return [
            seq
            for (of, number, seq), one in self._entries.items()
            if number == log_id and of == author and one.entry_hash is not None
        ]

    def add(self, author: bytes, log_id: int, seq: int, heard: Heard) -> None:
        """Remember an entry. An entry without a hash doesn't replace one with a hash."""
        key = (author, log_id, seq)
        before = self._entries.get(key)
        if before is None or before.entry_hash is None or heard.entry_hash is not None:
            self._entries[key] = heard.with_senders(before)
        else:
            self._entries[key] = before.with_senders(heard)
        self._entries.move_to_end(key)
        if len(self._entries) > MOST_KNOWN:
            self._entries.popitem(last=False)

    def add_all(self, heard: Iterable[tuple[Key, Heard]]) -> None:
        """Remember entries one after the other. The caller gives none without its hash that is known with one."""
        for key, one in heard:
            self._entries[key] = one.with_senders(self._entries.get(key))
            self._entries.move_to_end(key)
            if len(self._entries) > MOST_KNOWN:
                self._entries.popitem(last=False)

    def forget(self, author: bytes, log_id: int, seq: int, heard: Heard) -> None:
        """Forget an entry that its senders retracted."""
        known = self._entries.get((author, log_id, seq))
        if known is None or known._replace(senders=()) != heard._replace(senders=()):
            return
        left = tuple(role for role in known.senders if role not in heard.senders)
        if left:
            self._entries[author, log_id, seq] = known._replace(senders=left)
        else:
            del self._entries[author, log_id, seq]

    @property
    def state(self) -> dict[Key, Heard]:
        """The entries, the most recent one last."""
        return self._entries

    @classmethod
    def from_state(cls, entries: dict[Key, Heard]) -> Known:
        """What knows these entries."""
        known = cls()
        known._entries.update(entries)
        return known
