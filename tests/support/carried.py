"""Carries values to another window, as snapshots do."""

from __future__ import annotations

from typing import Any, TypeVar

from wirehouse_codecs.core.snapshots import SnapshotCodec

Value = TypeVar("Value")
_CODECS: dict[type[Any], SnapshotCodec[Any]] = {}


def _codec(kind: type[Any]) -> SnapshotCodec[Any]:
    if kind not in _CODECS:
        _CODECS[kind] = SnapshotCodec(kind, what="tested state", version=1)
    return _CODECS[kind]


def as_text(value: Any, kind: type[Any] | None = None) -> str:
    """The value as a snapshot writes it. `kind` is the class whose fields are written, else the class of the value."""
    return _codec(kind or type(value)).write(value)


def carry(value: Value, kind: type[Value] | None = None) -> Value:
    """The value, written and read again."""
    read: Value = _codec(kind or type(value)).read(as_text(value, kind))
    return read
