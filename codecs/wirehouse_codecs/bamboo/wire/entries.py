"""Entries of Bamboo logs: fields, encoding, signing, and the strict decoder (Bamboo specification, "Encoding").

`decode` is the reference path for one entry. `scan` decodes many entries and leaves unusual ones to `decode`. Both are
strict. If an implementation repaired an entry before checking its signature, it would have another hash, so it would be
another entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import nacl.bindings
import nacl.exceptions
import nacl.signing
import numpy as np
import pyarrow as pa

from wirehouse_codecs.bamboo.rules import ENTRY_RULE
from wirehouse_codecs.bamboo.wire import varu64, yamf
from wirehouse_codecs.bamboo.wire.lipmaa import link_targets, lipmaa_of
from wirehouse_codecs.compiled.jit import compiled, copy_bytes, inlined, wide
from wirehouse_codecs.core.rules import Rule

Array = np.ndarray[Any, Any]
_WORD: Any = np.uint64

REGULAR, END_OF_LOG = 0, 1
AUTHOR_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
#: The largest entry: two links, and every number in nine bytes.
MAX_ENTRY_BYTES: Final = 1 + AUTHOR_BYTES + 3 * varu64.MAX_BYTES + 3 * yamf.HASH_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry. Hashes are Blake2b digests of 64 bytes.

    `lipmaalink` is None where it isn't written: in entry 1, and where it is the backlink.
    """

    author: bytes
    log_id: int
    seq: int
    lipmaalink: bytes | None
    backlink: bytes | None
    payload_size: int
    payload_hash: bytes
    signature: bytes
    end_of_log: bool = False

    def signed_bytes(self) -> bytes:
        """What the signature is about: every field before it."""
        links = [yamf.encode(link) for link in (self.lipmaalink, self.backlink) if link is not None]
        return b"".join(
            [
                bytes([END_OF_LOG if self.end_of_log else REGULAR]),
                self.author,
                varu64.encode(self.log_id),
                varu64.encode(self.seq),
                *links,
                varu64.encode(self.payload_size),
                yamf.encode(self.payload_hash),
            ]
        )

    def encode(self) -> bytes:
        """The entry as it is hashed and sent."""
        return self.signed_bytes() + self.signature


def publish(
    key: nacl.signing.SigningKey,
    payload: bytes,
    *,
    log_id: int = 0,
    seq: int = 1,
    lipmaalink: bytes | None = None,
    backlink: bytes | None = None,
    end_of_log: bool = False,
) -> Entry:
    """A new entry for `payload`, signed.

    `lipmaalink` and `backlink` are the hashes of the entries linked to. ValueError: `seq` asks for others.
    """
    targets = link_targets(seq)
    if (backlink is not None) != bool(targets) or (lipmaalink is not None) != (len(targets) == 2):
        raise ValueError(f"entry {seq} links to {targets or 'none'}")
    author = bytes(key.verify_key)
    hashed = yamf.digest(payload)
    entry = Entry(author, log_id, seq, lipmaalink, backlink, len(payload), hashed, b"", end_of_log)
    signature = key.sign(entry.signed_bytes()).signature
    return Entry(author, log_id, seq, lipmaalink, backlink, len(payload), hashed, signature, end_of_log)


def signature_rule(author: bytes, signed: bytes, signature: bytes) -> str | None:
    """The rule that a signature breaks: `bad_author_key`, `bad_signature`, or none. PyNaCl has the last word."""
    try:
        nacl.bindings.crypto_sign_open(signature + signed, author)
    except nacl.exceptions.BadSignatureError:
        return "bad_signature" if _is_point(author) else "bad_author_key"
    return None


def wrongly_signed(data: bytes) -> bool:
    """Whether an entry in full has a wrong signature."""
    return signature_rule(data[1 : 1 + AUTHOR_BYTES], data[:-SIGNATURE_BYTES], data[-SIGNATURE_BYTES:]) is not None


_FIELD_PRIME: Final = 2**255 - 19


def _is_point(author: bytes) -> bool:
    """Whether `author` is the canonical encoding of a point of the curve (RFC 8032, 5.1.3)."""
    if int.from_bytes(author, "little") & ~(1 << 255) >= _FIELD_PRIME:
        return False
    try:
        nacl.bindings.crypto_core_ed25519_add(author, author)
    except nacl.exceptions.RuntimeError:
        return False
    return True


# Decode


@dataclass(frozen=True, slots=True)
class Decoded:
    """An entry, or the rule that the bytes break; and what of its place in a log can be read all the same."""

    entry: Entry | None = None
    rule: Rule | None = None
    #: The offending values in a sentence; empty without a rule.
    reason: str = ""
    author: bytes | None = None
    log_id: int | None = None
    seq: int | None = None


class _Fields(NamedTuple):
    """Where the fields of an entry stand, whatever their values. `links` are the begins of the written links."""

    log_id: varu64.VarU64
    seq: varu64.VarU64
    links: tuple[int, ...]
    payload_size: varu64.VarU64
    payload_hash: int
    end: int


def decode(data: bytes) -> Decoded:
    """The entry that `data` is, by the rules of encoding in their order."""
    log_id, seq = _place(data)
    author = data[1 : 1 + AUTHOR_BYTES] if len(data) > AUTHOR_BYTES else None
    if author is None or log_id is None or seq is None:
        return _refuse("truncated", f"{len(data)} bytes", author, log_id, seq)
    count = len(link_targets(seq.value)) if seq.value else 0
    fields = _fields(data, log_id, seq, count)
    if fields is None or fields.end != len(data):
        for other in {0, 1, 2} - {count}:
            if _fits(data, _fields(data, log_id, seq, other)):
                reason = f"entry {seq.value} has {count} links, {other} are written"
                return _refuse("malformed", reason, author, log_id, seq)
        if fields is None:
            return _refuse("truncated", f"{len(data)} bytes", author, log_id, seq)
        return _refuse("trailing_bytes", f"{len(data) - fields.end} bytes", author, log_id, seq)
    broken = _broken(data, fields)
    if broken is not None:
        return _refuse(*broken, author, log_id, seq)
    return Decoded(_entry(data, fields), author=author, log_id=log_id.value, seq=seq.value)


def end_of(data: bytes | bytearray, at: int = 0) -> int | None:
    """Where the entry at `at` ends if its numbers are right; None = it is cut."""
    log_id = varu64.decode(data, at + 1 + AUTHOR_BYTES)
    seq = log_id and varu64.decode(data, log_id.end)
    if log_id is None or seq is None:
        return None
    fields = _fields(data, log_id, seq, len(link_targets(seq.value)) if seq.value else 0)
    return None if fields is None else fields.end


def begins_right(data: bytes | bytearray, at: int, *, whole: bool = True) -> tuple[bool, int | None]:
    """Whether the bytes from `at` on are the begin of an entry, as far as they go; and where it ends, None = it is cut.

    Without `whole`, author and log id are left out.
    """
    if at < len(data) and data[at] not in (REGULAR, END_OF_LOG):
        return False, None
    at += 1
    numbers = []
    for name in ("log_id", "seq") if whole else ("seq",):
        at += AUTHOR_BYTES if name == "log_id" else 0
        number = varu64.decode(data, at)
        if number is None:
            return True, None
        if not number.canonical:
            return False, None
        numbers.append(number.value)
        at = number.end
    if numbers[-1] == 0:
        return False, None
    for _ in link_targets(numbers[-1]):
        if not _may_be_hash(data, at):
            return False, None
        at += yamf.HASH_BYTES
    size = varu64.decode(data, at)
    if size is None:
        return True, None
    end = size.end + yamf.HASH_BYTES + SIGNATURE_BYTES
    right = size.canonical and _may_be_hash(data, size.end)
    return right, end if right and end <= len(data) else None


def _may_be_hash(data: bytes | bytearray, at: int) -> bool:
    return yamf.PREFIX.startswith(data[at : at + len(yamf.PREFIX)])


def _refuse(
    rule: str, reason: str, author: bytes | None, log_id: varu64.VarU64 | None, seq: varu64.VarU64 | None
) -> Decoded:
    return Decoded(
        None,
        ENTRY_RULE[rule],
        reason,
        author,
        None if log_id is None else log_id.value,
        None if seq is None else seq.value,
    )


def _place(data: bytes) -> tuple[varu64.VarU64 | None, varu64.VarU64 | None]:
    log_id = varu64.decode(data, 1 + AUTHOR_BYTES)
    return log_id, None if log_id is None else varu64.decode(data, log_id.end)


def _fields(data: bytes | bytearray, log_id: varu64.VarU64, seq: varu64.VarU64, links: int) -> _Fields | None:
    """The fields with that many links; None = the entry is cut."""
    size = varu64.decode(data, seq.end + links * yamf.HASH_BYTES)
    if size is None or size.end + yamf.HASH_BYTES + SIGNATURE_BYTES > len(data):
        return None
    begins = tuple(seq.end + i * yamf.HASH_BYTES for i in range(links))
    return _Fields(log_id, seq, begins, size, size.end, size.end + yamf.HASH_BYTES + SIGNATURE_BYTES)


def _fits(data: bytes, fields: _Fields | None) -> bool:
    if fields is None or fields.end != len(data):
        return False
    return all(data.startswith(yamf.PREFIX, begin) for begin in (*fields.links, fields.payload_hash))


def _broken(data: bytes, fields: _Fields) -> tuple[str, str] | None:
    """The first rule, in their order, that fields break which fit."""
    if data[0] not in (REGULAR, END_OF_LOG):
        return "bad_tag", f"tag {data[0]}"
    if fields.seq.value == 0:
        return "seq_zero", "sequence number 0"
    for name in ("log_id", "seq", "payload_size"):
        if not getattr(fields, name).canonical:
            return "noncanonical_varu64", f"{name} {getattr(fields, name).value} is longer than it needs to be"
    hashes = (*fields.links, fields.payload_hash)
    for begin in hashes:
        if data[begin] != yamf.PREFIX[0]:
            return "bad_yamf_id", f"hash of type {data[begin]} at byte {begin}"
    for begin in hashes:
        if data[begin + 1] != yamf.PREFIX[1]:
            return "bad_yamf_length", f"hash of length {data[begin + 1]} at byte {begin}"
    return None


def _entry(data: bytes, fields: _Fields) -> Entry:
    links = [data[begin + 2 : begin + yamf.HASH_BYTES] for begin in fields.links]
    signature_at = fields.end - SIGNATURE_BYTES
    return Entry(
        author=data[1 : 1 + AUTHOR_BYTES],
        log_id=fields.log_id.value,
        seq=fields.seq.value,
        lipmaalink=links[0] if len(links) == 2 else None,
        backlink=links[-1] if links else None,
        payload_size=fields.payload_size.value,
        payload_hash=data[fields.payload_hash + 2 : signature_at],
        signature=data[signature_at : fields.end],
        end_of_log=data[0] == END_OF_LOG,
    )


# Many entries


class Scanned(NamedTuple):
    """The fields of many entries, a row each. Only rows that are `right` mean anything."""

    #: Bytes among which the entries stand, and where each begins.
    data: Array
    begin: Array
    #: The entry is correctly encoded.
    right: Array
    end_of_log: Array
    log_id: Array
    seq: Array
    payload_size: Array
    #: How many links are written, and where the first begins in `data`.
    links: Array
    links_at: Array
    #: Where the payload's hash begins in `data`; it ends where the signature begins.
    payload_hash_at: Array


def scan(entries: pa.Array) -> Scanned:
    """The fields of `entries`, a binary column: the fast path of `decode`, for correctly encoded entries."""
    count = len(entries)
    _, offsets, held = entries.buffers()
    data = np.frombuffer(held or b"", np.uint8)
    bounds = np.frombuffer(offsets, np.int32)[entries.offset :][: count + 1].astype(np.int64)
    numbers = np.zeros((3, count), np.uint64)
    marks = np.zeros((4, count), np.int64)
    right = np.zeros(count, np.bool_)
    _scan(data, bounds, numbers, marks, right)
    return Scanned(data, bounds[:-1], right, marks[3] == END_OF_LOG, *numbers, *marks[:3])


def windows(data: Array, at: Array, size: int) -> Array:
    """The `size` bytes at each place, as rows."""
    if not len(at):
        return np.empty((0, size), np.uint8)
    rows: Array = np.lib.stride_tricks.sliding_window_view(data, size)[at]
    return rows


def fixed(rows: Array, there: Array) -> pa.Array:
    """Rows of bytes as an array of binary of that size; null where they aren't there."""
    buffers = [pa.array(there).buffers()[1], pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), buffers)


#: What follows from an entry that is correctly encoded.
FOLLOWING: Final = ("lipmaalink", "backlink", "payload_hash", "signature")


def following(entries: pa.Array) -> tuple[Array, dict[str, pa.Array]]:
    """Which of `entries`, of binary, are correctly encoded; of these the fields of FOLLOWING, as `Entry` has them."""
    scanned = scan(entries)
    hash_at, right = scanned.payload_hash_at, scanned.right
    places = {
        "lipmaalink": (scanned.links_at, right & (scanned.links == 2)),
        "backlink": (scanned.links_at + (scanned.links - 1) * yamf.HASH_BYTES, right & (scanned.links > 0)),
        "payload_hash": (hash_at, right),
        # Its slice has the length of a hash without its prefix.
        "signature": (hash_at + yamf.HASH_BYTES - len(yamf.PREFIX), right),
    }
    columns = {}
    for name, (at, there) in places.items():
        ends = np.zeros(len(at) + 1, np.int32)
        np.cumsum(there * yamf.DIGEST_BYTES, out=ends[1:])
        cut = np.empty(ends[-1], np.uint8)
        _copy(scanned.data, at[there] + len(yamf.PREFIX), yamf.DIGEST_BYTES, cut)
        columns[name] = pa.Array.from_buffers(
            pa.binary(), len(at), [pa.array(there).buffers()[1], pa.py_buffer(ends), pa.py_buffer(cut)]
        )
    return right, columns


@compiled
def _copy(data: Array, at: Array, size: int, out: Array) -> None:
    """The `size` bytes at each place, one after the other."""
    for row in range(len(at)):
        copy_bytes(data, at[row], size, out, row * size)


@inlined
def _canonical(data: Array, at: int, end: int) -> tuple[Any, int]:
    """The number at `at` and its end; an end of -1: it is cut or longer than it needs to be."""
    value, after = _WORD(0), -1
    if at < end:
        first = wide(data[at])
        if first < 248:
            value, after = _WORD(first), at + 1
        elif at + 1 + first - 247 <= end:
            for i in range(at + 1, at + 1 + first - 247):
                value = value << _WORD(8) | _WORD(data[i])
            lead = wide(data[at + 1])
            if (first == 248 and lead >= 248) or (first > 248 and lead != 0):
                after = at + 1 + first - 247
    return value, after


@compiled
def _scan(data: Array, bounds: Array, numbers: Array, marks: Array, right: Array) -> None:
    for row in range(len(right)):
        begin, end = bounds[row], bounds[row + 1]
        right[row] = begin < end and _walk(data, begin, end, row, numbers, marks) == end


@compiled
def _walk(data: Array, begin: int, end: int, row: int, numbers: Array, marks: Array) -> int:
    """Where the entry at `begin` ends; -1 = it is none, or cut by `end`. Its fields go to row `row`."""
    if end - begin < 33 or data[begin] > 1:
        return -1
    log_id, at = _canonical(data, begin + 33, end)
    if at < 0:
        return -1
    seq, at = _canonical(data, at, end)
    if at < 0 or seq == _WORD(0):
        return -1
    links = 0 if seq == _WORD(1) else 1 if lipmaa_of(seq) == seq - _WORD(1) else 2
    links_at = at
    for _ in range(links):
        if at + 66 > end or data[at] != 0 or data[at + 1] != 64:
            return -1
        at += 66
    size, at = _canonical(data, at, end)
    if at < 0 or at + 66 + 64 > end or data[at] != 0 or data[at + 1] != 64:
        return -1
    numbers[0, row], numbers[1, row], numbers[2, row] = log_id, seq, size
    marks[0, row], marks[1, row], marks[2, row], marks[3, row] = links, links_at, at, data[begin]
    return at + 66 + 64


def find(data: bytes | bytearray, at: int = 0) -> int:
    """Where the next correctly encoded entry begins, `at` or later; -1 = none is there in full."""
    numbers, marks = np.zeros((3, 1), np.uint64), np.zeros((4, 1), np.int64)
    return int(_find(np.frombuffer(data, np.uint8), at, numbers, marks))


@compiled
def _find(data: Array, at: int, numbers: Array, marks: Array) -> int:
    for begin in range(at, len(data)):
        if _walk(data, begin, len(data), 0, numbers, marks) > 0:
            return begin
    return -1
