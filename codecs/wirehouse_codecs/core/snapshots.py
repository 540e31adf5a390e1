"""Carried state as text: a dataclass becomes versioned JSON, and JSON becomes the dataclass again.

    CODEC = SnapshotCodec(Counters, what="counters", version=4)
    text = CODEC.write(state)
    state = CODEC.read(text)

A dataclass is declared once, and both directions follow from its annotations. Fields may be `int`, `float`, `str`,
`bool`, `bytes`, `bytearray`, None, literals, members of an enumeration, further dataclasses and named tuples,
`list[X]`, `set[X]`, `dict[K, V]`, `Counter[K]`, `tuple[A, B, C]`, `tuple[X, ...]` and unions with None. They may also
be objects of a class that hides its attributes: its property `state` is a value of one of these types, and its class
method `from_state` makes an equal object of it. Fields with `init=False` are not written: they follow from others, or
whoever reads the state sets them.

The text is compact, because some states have many rows. A dataclass is a list of its fields in order, without names.
All its `bool` fields together are one number at the beginning of the list, the first field being the lowest bit. Bytes
are hex, and buffers (`bytearray`, `bytes | memoryview`), which may be large, base64. A dictionary is a list of keys
and a list of values. A set is sorted. Equal states give equal text, except that dictionaries keep their order.

A class that has more than it carries (options, callables, what follows from the rest) inherits from the dataclass of
what it carries. Its instances are written as that dataclass, and are made of one that was read by `carried_fields`.

What is read is checked: the version, a digest of the layout (so that a changed dataclass with an old version number is
noticed), the number of fields, and the type of each value. `StateVersionError` means another version wrote the text.
`StateDamagedError` means that no version can have written it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter, itemgetter
from types import NoneType, UnionType
from typing import Any, Final, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from zlib import crc32

from wirehouse_codecs.core.errors import StateDamagedError, StateVersionError

State = TypeVar("State")
Convert = Callable[[Any], Any]

#: What is raised where text is read that no version has written: by this codec, and by what is still read by hand.
NO_STATE: Final = (ValueError, LookupError, TypeError, AttributeError, AssertionError, OverflowError)


class _Mismatch(ValueError):
    """A value in the text doesn't fit the layout."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a type is written. The converters never see None; without one, a value is written as it is."""

    layout: str
    #: Types that the value has in JSON.
    types: frozenset[type]
    encode: Convert | None = None
    decode: Convert | None = None


class SnapshotCodec(Generic[State]):
    """Writes and reads values of one type. Make it once, at import: it takes the annotations apart."""

    def __init__(self, kind: type[State], *, what: str, version: int) -> None:
        """`what` names the state in error messages. Raise `version` whenever `kind` or its meaning changes."""
        form = _form(kind)
        self._what = what
        self._version = version
        self._layout = f"{crc32(form.layout.encode()):08x}"
        self._types, self._encode, self._decode = form.types, form.encode or _same, form.decode or _same

    def write(self, state: State) -> str:
        """The state as text."""
        content = {"version": self._version, "layout": self._layout, "state": self._encode(state)}
        return json.dumps(content, separators=(",", ":"))

    def read(self, text: str) -> State:
        """The state that `write` wrote. StateVersionError and StateDamagedError: see the module."""
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StateDamagedError(what=self._what, reason=f"no JSON: {error}") from error
        if not isinstance(content, dict):
            raise StateDamagedError(what=self._what, reason="the JSON is no object")
        found = content.get("version"), content.get("layout")
        if found != (self._version, self._layout):
            if found[0] != self._version:
                raise StateVersionError(what=self._what, found=found[0], expected=self._version)
            name = f"{found[0]} with the layout {found[1]}"
            raise StateVersionError(what=self._what, found=name, expected=f"the layout {self._layout} of it")
        try:
            state: State = self._decode(_checked(content.get("state"), *self._types))
        except NO_STATE as error:
            raise StateDamagedError(what=self._what, reason=str(error)) from error
        return state


def carried_fields(kind: type[Any], state: Any) -> dict[str, Any]:
    """The fields of `kind`, a dataclass, that are carried, with their values in `state`."""
    return {field.name: getattr(state, field.name) for field in fields(kind) if field.init}


def _checked(value: Any, *types: type) -> Any:
    if type(value) not in types:
        raise _Mismatch(f"{type(value).__name__} where {' or '.join(sorted(one.__name__ for one in types))} belongs")
    return value


# Forms of types


def _base64(data: bytearray | memoryview) -> str:
    return b64encode(data).decode()


_SCALARS: dict[Any, _Form] = {
    int: _Form("int", frozenset({int})),
    float: _Form("float", frozenset({float, int})),
    str: _Form("str", frozenset({str})),
    bool: _Form("bool", frozenset({bool})),
    None: _Form("None", frozenset({NoneType})),
    bytes: _Form("bytes", frozenset({str}), bytes.hex, bytes.fromhex),
    bytearray: _Form("bytearray", frozenset({str}), _base64, lambda text: bytearray(b64decode(text, validate=True))),
    bytes | memoryview: _Form("buffer", frozenset({str}), _base64, lambda text: b64decode(text, validate=True)),
}


def _form(kind: Any) -> _Form:
    """How values of a type annotation are written. TypeError: this type can't be."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if origin in (UnionType, Union):
        return _optional(kind, arguments)
    if origin in (list, set):
        return _collection(origin, _form(arguments[0]))
    if origin is dict:
        return _mapping(dict, *map(_form, arguments))
    if origin is Counter:
        return _mapping(Counter, _form(arguments[0]), _SCALARS[int])
    if origin is tuple:
        return _collection(tuple, _form(arguments[0])) if arguments[-1] is Ellipsis else _fixed(tuple, arguments)
    if origin is Literal:
        return _literal(arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        types = frozenset(type(member.value) for member in kind)
        return _Form(f"{kind.__name__}{[member.value for member in kind]}", types, attrgetter("value"), kind)
    if isinstance(kind, type) and hasattr(kind, "from_state"):
        return _of_state(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind} can't be part of a snapshot")


def _literal(values: Sequence[Any]) -> _Form:
    def decode(value: Any) -> Any:
        if value not in values:
            raise _Mismatch(f"{value!r} is none of {', '.join(map(repr, values))}")
        return value

    return _Form(f"Literal{values}", frozenset(map(type, values)), decode=decode)


def _optional(kind: Any, arguments: Sequence[Any]) -> _Form:
    kinds = [one for one in arguments if one is not NoneType]
    if len(kinds) != 1:
        raise TypeError(f"{kind} can't be part of a snapshot: of a union only `X | None` can")
    form = _form(kinds[0])
    return _Form(f"{form.layout}|None", form.types | {NoneType}, form.encode, form.decode)


def _all(form: _Form, convert: Convert | None) -> Callable[[Iterable[Any]], list[Any]]:
    """Converts each of several values."""
    if convert is None:
        return list
    if NoneType in form.types:
        return lambda values: [None if value is None else convert(value) for value in values]
    return lambda values: list(map(convert, values))


def _decode_all(form: _Form) -> Callable[[list[Any]], list[Any]]:
    convert = _all(form, form.decode)

    def decode(values: list[Any]) -> list[Any]:
        wrong = set(map(type, values)) - form.types
        if wrong:
            raise _Mismatch(f"{wrong.pop().__name__} in a list of {form.layout}")
        return convert(values)

    return decode


def _collection(origin: Callable[[Iterable[Any]], Any], form: _Form) -> _Form:
    encode, decode = _all(form, form.encode), _decode_all(form)
    name = f"[{form.layout}]"
    if origin is list:
        return _Form(name, frozenset({list}), encode, decode)
    if origin is tuple:
        return _Form(f"tuple{name}", frozenset({list}), encode, lambda row: tuple(decode(row)))
    return _Form(f"set{name}", frozenset({list}), lambda values: sorted(encode(values)), lambda row: set(decode(row)))


def _mapping(make: type[dict[Any, Any]], key: _Form, value: _Form) -> _Form:
    encode_keys, encode_values = _all(key, key.encode), _all(value, value.encode)
    decode_keys, decode_values = _decode_all(key), _decode_all(value)

    def encode(mapping: dict[Any, Any]) -> list[Any]:
        return [encode_keys(mapping), encode_values(mapping.values())]

    def decode(row: list[Any]) -> dict[Any, Any]:
        keys, values = (_checked(part, list) for part in row)
        return make(dict(zip(decode_keys(keys), decode_values(values), strict=True)))

    return _Form(f"{{{key.layout}:{value.layout}}}", frozenset({list}), encode, decode)


# Rows: values of several types in one list


class _Row:
    """A list with a form for each place."""

    def __init__(self, forms: Sequence[_Form]) -> None:
        self._forms = forms
        self._encoders = [(at, form.encode) for at, form in enumerate(forms) if form.encode is not None]
        self._decoders = [(at, form.decode) for at, form in enumerate(forms) if form.decode is not None]
        #: Types of rows that fit. Most rows have the types of one before, so each is checked once.
        self._fitting: set[tuple[type, ...]] = set()

    @property
    def layout(self) -> str:
        return ",".join(form.layout for form in self._forms)

    def encode(self, values: Iterable[Any]) -> list[Any]:
        row = list(values)
        for at, convert in self._encoders:
            value = row[at]
            if value is not None:
                row[at] = convert(value)
        return row

    def decode(self, row: list[Any]) -> list[Any]:
        """Converts `row` in place."""
        types = tuple(map(type, row))
        if types not in self._fitting:
            self._check(row)
            self._fitting.add(types)
        for at, convert in self._decoders:
            value = row[at]
            if value is not None:
                row[at] = convert(value)
        return row

    def _check(self, row: list[Any]) -> None:
        if len(row) != len(self._forms):
            raise _Mismatch(f"{len(row)} values where {len(self._forms)} belong")
        for value, form in zip(row, self._forms, strict=True):
            _checked(value, *form.types)


def _fixed(make: Callable[[Iterable[Any]], Any], kinds: Iterable[Any], name: str = "") -> _Form:
    row = _Row([_form(kind) for kind in kinds])
    return _Form(f"{name}({row.layout})", frozenset({list}), row.encode, lambda values: make(row.decode(values)))


def _named_tuple(kind: Any) -> _Form:
    hints = get_type_hints(kind)
    return _fixed(kind._make, [hints[name] for name in kind._fields], f"{kind.__name__}{kind._fields}")


def _of_state(kind: Any) -> _Form:
    """An object whose attributes are hidden: its state is written in its place."""
    form = _form(get_type_hints(kind.state.fget)["return"])
    encode, decode = form.encode or _same, form.decode or _same
    return _Form(
        f"{kind.__name__}:{form.layout}",
        form.types,
        lambda value: encode(value.state),
        lambda state: kind.from_state(decode(state)),
    )


def _same(value: Any) -> Any:
    return value


def _dataclass(kind: type[Any]) -> _Form:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init]
    if any(field.kw_only for field in fields(kind)):
        raise TypeError(f"{kind.__name__} can't be part of a snapshot: a field isn't set by position")
    flags = [name for name in names if hints[name] is bool]
    others = [name for name in names if hints[name] is not bool]
    row = _Row([*([_SCALARS[int]] if flags else []), *(_form(hints[name]) for name in others)])
    layout = f"{kind.__name__}({','.join([*flags, *others])};{row.layout})"
    get = _values_of(others)
    make = _maker(kind, [[*flags, *others].index(name) for name in names])
    if not flags:
        return _Form(layout, frozenset({list}), lambda state: row.encode(get(state)), lambda r: make(row.decode(r)))
    get_flags = _values_of(flags)

    @lru_cache(maxsize=4096)
    def packed(bits: tuple[bool, ...]) -> int:
        return sum(1 << at for at, bit in enumerate(bits) if bit)

    @lru_cache(maxsize=4096)
    def unpacked(number: int) -> tuple[bool, ...]:
        if not 0 <= number < 1 << len(flags):
            raise _Mismatch(f"{number} isn't a sum of {len(flags)} flags of {kind.__name__}")
        return tuple(bool(number >> at & 1) for at in range(len(flags)))

    def encode(state: Any) -> list[Any]:
        return row.encode((packed(get_flags(state)), *get(state)))

    def decode(values: list[Any]) -> Any:
        number, *rest = row.decode(values)
        return make((*unpacked(number), *rest))

    return _Form(layout, frozenset({list}), encode, decode)


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Gets these attributes as a tuple, however few they are."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda state: tuple(getattr(state, name) for name in names)


def _maker(kind: type[Any], order: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    """Makes a dataclass of values, whose positions in the order of fields are `order`."""
    if list(order) == list(range(len(order))):
        return lambda values: kind(*values)
    arranged = itemgetter(*order)
    return lambda values: kind(*arranged(values))
