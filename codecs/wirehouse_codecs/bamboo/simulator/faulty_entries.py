"""Entries that break a rule, beside others that are right: what faults.py writes to files, and shows in cancels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wirehouse_codecs.bamboo.simulator.logs import Log, author_key
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES


class Bad(NamedTuple):
    """An entry that breaks a rule beside others that are right."""

    right: tuple[Log, ...]
    data: bytes
    payload: bytes | None = None


#: Makes it by a seed.
Make = Callable[[int], Bad]


def made_log(seed: int, length: int, payload_bytes: int = 40, *, ends: bool = False, log_id: int = 0) -> Log:
    """A log whose payloads have the same size."""
    log = Log(author_key(seed, "faulty"), log_id)
    for seq in range(1, length + 1):
        payload = (b"%d of %d, " % (seq, seed) * payload_bytes)[:payload_bytes]
        log.append(payload, end_of_log=ends and seq == length)
    return log


def changed(at: int, byte: int, seq: int = 2) -> Make:
    """Entry `seq` of a log with another byte at `at`."""

    def make(seed: int) -> Bad:
        log = made_log(seed, seq - 1)
        data = bytearray(log.make(seq, b"changed").data)
        data[at] = byte
        return Bad((log,), bytes(data))

    return make


def cut(seed: int) -> Bad:
    """The last byte of an entry is missing."""
    log = made_log(seed, 1)
    return Bad((log,), log.make(2, b"two").data[:-1])


def longer(seed: int) -> Bad:
    """A byte follows an entry."""
    log = made_log(seed, 1)
    return Bad((log,), log.make(2, b"two").data + b"\x02")


def without_link(seed: int) -> Bad:
    """The backlink of an entry is left out."""
    log = made_log(seed, 1)
    data = log.make(2, b"two").data
    at = 1 + AUTHOR_BYTES + 2
    return Bad((log,), data[:at] + data[at + yamf.HASH_BYTES :])


def long_log_id(seed: int) -> Bad:
    """A log id of 0 takes two bytes."""
    log = made_log(seed, 1)
    data = log.make(2, b"two").data
    at = 1 + AUTHOR_BYTES
    return Bad((log,), data[:at] + b"\xf8\x00" + data[at + 1 :])


def with_payload(payload: bytes, size: int) -> Make:
    """Entry 2 of a log, and a payload; the entry states the size `size`."""

    def make(seed: int) -> Bad:
        log = made_log(seed, 1)
        made = log.make(2, b"two")
        signed = made.data[:-SIGNATURE_BYTES]
        at = len(signed) - yamf.HASH_BYTES - 1
        signed = signed[:at] + bytes([size]) + signed[at + 1 :]
        return Bad((log,), signed + log.key.sign(signed).signature, payload)

    return make


def other_link(seq: int, *, lipmaa: bool) -> Make:
    """Entry `seq` of a log links to an entry that there isn't, by one of its links."""

    def make(seed: int) -> Bad:
        log = made_log(seed, seq - 1)
        link = yamf.digest(b"no entry")
        made = log.make(seq, b"bad", lipmaalink=link) if lipmaa else log.make(seq, b"bad", backlink=link)
        return Bad((log,), made.data)

    return make


def links_into(author: int, log_id: int) -> Make:
    """Entry 5 of a log, of which three entries are there, links to entry 4 of another log."""

    def make(seed: int) -> Bad:
        other = made_log(seed + author, 4, log_id=log_id)
        log = made_log(seed, 3)
        return Bad((log, other), log.make(5, b"bad", backlink=other.entries[4].hash).data)

    return make


def after_last(seed: int) -> Bad:
    """An entry follows the end-of-log entry."""
    log = made_log(seed, 3, ends=True)
    return Bad((log,), log.make(4, b"more").data)


def no_author(seed: int) -> Bad:
    """The author of entry 1 is no point of the curve."""
    log = made_log(seed, 1)
    data = log.entries[1].data
    return Bad((), data[:1] + b"\xff" * AUTHOR_BYTES + data[1 + AUTHOR_BYTES :])


def forks(seed: int) -> Bad:
    """A log has two entries 3."""
    log = made_log(seed, 4)
    return Bad((log,), log.make(3, b"another entry 3").data)
