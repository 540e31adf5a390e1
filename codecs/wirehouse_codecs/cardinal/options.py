"""Options of a Cardinal source: what a consumer would have been configured with.

The specification leaves prefixes, topics and the reorg threshold to the application (Application Layer Requirements,
Reorg Handling). Their regular expressions are searched in names that come from the wire, so they run on RE2, whose
time grows only with the length of the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import re2

from wirehouse_codecs.errors import OptionError
from wirehouse_codecs.option_values import Read, read_options, refuse_unknown

HASH_BYTES = 32
NUMBER_BITS = 64
WEIGHT_BITS = 256
#: Verdicts on entry names that a matcher keeps; names mostly hold a block hash, so old ones never come back.
MATCHER_NAMES = 65_536
#: A longer name is judged anew each time, so that hostile names can't fill the memory.
MATCHER_NAME_BYTES = 512

T = TypeVar("T")
_HASH_HEX = re.compile(r"[0-9a-fA-F]{64}")
_DECIMAL = re.compile(r"[0-9]{1,78}")


@dataclass(frozen=True, slots=True)
class Start:
    """The block a consumer starts from (it is the head before the first message)."""

    number: int
    hash: bytes
    weight: int = 0


@dataclass(frozen=True, slots=True)
class CardinalOptions:
    """See docs/cardinal.md for what each option does."""

    #: Regular expressions, unanchored, searched in each entry name of Batch.updates.
    tracked_prefixes: tuple[str, ...] = (".*",)
    reorg_threshold: int = 128
    #: None = "nowhere": the first block becomes the head.
    start: Start | None = None
    #: Block number -> the only hash accepted at that number.
    whitelist: Mapping[int, bytes] = field(default_factory=dict)
    #: Declared prefixes as regular expressions (anchored at the start); None = any.
    prefixes: tuple[str, ...] | None = None
    #: Regular expression of a prefix (anchored at the start) -> topic, the first that matches; None = not judged.
    topics: Mapping[str, str] | None = None
    #: Topic of a reorg channel, `{hash}` stands for the ancestor's hash in hex; None = `*-re-{hash}`.
    reorg_topic: str | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> CardinalOptions:
        """Options from a table of the configuration file.

        Raises OptionError for an unknown key, a wrong type, a hash that isn't 64 hex digits, a number out of range
        or a regular expression that RE2 refuses.
        """
        return cls(**read_options(mapping, _READERS))

    def canonical(self) -> str:
        """One JSON text for equal options: for digests, and read back by `from_canonical`."""
        start = self.start and {
            "number": self.start.number,
            "hash": self.start.hash.hex(),
            "weight": str(self.start.weight),
        }
        table = {
            "tracked_prefixes": list(self.tracked_prefixes),
            "reorg_threshold": self.reorg_threshold,
            "start": start,
            "whitelist": [{"number": n, "hash": block.hex()} for n, block in sorted(self.whitelist.items())],
            "prefixes": None if self.prefixes is None else list(self.prefixes),
            # The order of the topics is part of their meaning, so it is kept.
            "topics": None if self.topics is None else dict(self.topics),
            "reorg_topic": self.reorg_topic,
        }
        return json.dumps({key: value for key, value in table.items() if value is not None}, separators=(",", ":"))

    @classmethod
    def from_canonical(cls, text: str) -> CardinalOptions:
        """The options whose `canonical()` is `text`."""
        return cls.from_mapping(json.loads(text))


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(key=key, reason=f"must be a table, not {value!r}")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(key=key, reason=f"must be a text that isn't empty, not {value!r}")
    return value


def _list_of(read: Callable[[Any, str], T]) -> Callable[[Any, str], tuple[T, ...]]:
    def read_all(value: Any, key: str) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise OptionError(key=key, reason=f"must be a list, not {value!r}")
        return tuple(read(item, f"{key}[{i}]") for i, item in enumerate(value))

    return read_all


def _unsigned(value: Any, key: str, bits: int, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(key=key, reason=f"must be a whole number, not {value!r}")
    if not least <= value < 1 << bits:
        raise OptionError(key=key, reason=f"must be at least {least} and below 2^{bits}, not {value}")
    return value


def _number(value: Any, key: str) -> int:
    return _unsigned(value, key, NUMBER_BITS)


def _threshold(value: Any, key: str) -> int:
    return _unsigned(value, key, 31, least=1)


def _weight(value: Any, key: str) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    elif isinstance(value, str):
        raise OptionError(key=key, reason=f"must be a whole number in decimal digits, not {value!r}")
    return _unsigned(value, key, WEIGHT_BITS)


def _hash(value: Any, key: str) -> bytes:
    if not isinstance(value, str) or not _HASH_HEX.fullmatch(value):
        raise OptionError(key=key, reason=f"must be a hash of 64 hex digits, not {value!r}")
    return bytes.fromhex(value)


def _regex(value: Any, key: str) -> str:
    compile_regex(_text(value, key), key)
    return str(value)


def _record(value: Any, key: str, readers: Mapping[str, Callable[[Any, str], Any]], needed: tuple[str, ...]) -> Any:
    table = _table(value, key)
    refuse_unknown(table, readers, f"{key}.")
    for name in needed:
        if name not in table:
            raise OptionError(key=f"{key}.{name}", reason="is missing")
    return {name: read(table[name], f"{key}.{name}") for name, read in readers.items() if name in table}


def _start(value: Any, key: str) -> Start:
    return Start(**_record(value, key, {"number": _number, "hash": _hash, "weight": _weight}, ("number", "hash")))


def _pinned(value: Any, key: str) -> tuple[int, bytes]:
    block = _record(value, key, {"number": _number, "hash": _hash}, ("number", "hash"))
    return block["number"], block["hash"]


def _whitelist(value: Any, key: str) -> dict[int, bytes]:
    pinned: dict[int, bytes] = {}
    for number, block in _list_of(_pinned)(value, key):
        if pinned.setdefault(number, block) != block:
            raise OptionError(key=key, reason=f"block {number} has two hashes")
    return pinned


def _topics(value: Any, key: str) -> dict[str, str]:
    return {_regex(name, f"{key}.{name}"): _text(topic, f"{key}.{name}") for name, topic in _table(value, key).items()}


def _reorg_topic(value: Any, key: str) -> str:
    if _text(value, key).count("{hash}") != 1:
        raise OptionError(key=key, reason=f"must hold {{hash}} once, not {value!r}")
    return str(value)


_READERS: Mapping[str, Read] = {
    "tracked_prefixes": _list_of(_regex),
    "reorg_threshold": _threshold,
    "start": _start,
    "whitelist": _whitelist,
    "prefixes": _list_of(_regex),
    "topics": _topics,
    "reorg_topic": _reorg_topic,
}


class Regex(Protocol):
    """A compiled RE2 expression; it takes text as UTF-8 bytes."""

    def search(self, text: bytes) -> object | None: ...

    def match(self, text: bytes) -> object | None: ...


def compile_regex(pattern: str, key: str) -> Regex:
    """`pattern` for RE2. Raises OptionError under `key` if RE2 refuses it."""
    quiet = re2.Options()
    quiet.log_errors = False
    try:
        compiled: Regex = re2.compile(pattern, quiet)
    except (re2.error, UnicodeEncodeError) as error:
        cause = error.args[0] if error.args else error
        reason = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(error)
        raise OptionError(key=key, reason=f"RE2 refuses the regular expression {pattern!r}: {reason}") from None
    return compiled


class NameVerdict(NamedTuple):
    """What the options say about an entry name or an application key."""

    #: Some tracked prefix is found anywhere in the name.
    tracked: bool
    #: Some declared prefix begins the name, or none are declared.
    declared: bool
    #: The topic declared for it; None = none declared.
    topic: str | None


class NameMatcher:
    """Judges names by the expressions of the options, and remembers up to `MATCHER_NAMES` verdicts.

    As in the reference (Go), a byte that isn't UTF-8 is seen as U+FFFD.
    """

    def __init__(self, options: CardinalOptions) -> None:
        self._tracked = [compile_regex(p, "tracked_prefixes") for p in options.tracked_prefixes]
        self._declared = options.prefixes and [compile_regex(p, "prefixes") for p in options.prefixes]
        self._all_declared = options.prefixes is None
        self._topics = [(compile_regex(p, "topics"), topic) for p, topic in (options.topics or {}).items()]
        self._seen: dict[bytes, NameVerdict] = {}

    def judge(self, name: bytes) -> NameVerdict:
        """The verdict on `name`, an entry of Batch.updates or the key of a BatchMsg or BatchDeleteMsg."""
        verdict = self._seen.get(name)
        if verdict is None:
            verdict = self._judge(name.decode("utf-8", "replace").encode())
            if len(self._seen) >= MATCHER_NAMES:
                self._seen.clear()
            if len(name) <= MATCHER_NAME_BYTES:
                self._seen[name] = verdict
        return verdict

    def _judge(self, text: bytes) -> NameVerdict:
        return NameVerdict(
            tracked=any(regex.search(text) for regex in self._tracked),
            declared=self._all_declared or any(regex.match(text) for regex in self._declared or ()),
            topic=next((topic for regex, topic in self._topics if regex.match(text)), None),
        )
