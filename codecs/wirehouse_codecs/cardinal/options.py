"""Options of a Cardinal source: the configuration of the consumer whose view the tables show.

The specification leaves prefixes, topics and the reorg threshold to the application (Application Layer Requirements,
Reorg Handling). The regular expressions are searched in names that come from the wire, so they run on RE2: its time
grows only with the length of the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import re2

from wirehouse_codecs.core.errors import OptionError
from wirehouse_codecs.core.option_tables import OptionTable, Read, list_of, record, table, text, unsigned, whole

HASH_BYTES = 32
NUMBER_BITS = 64
WEIGHT_BITS = 256
#: Verdicts on entry names that a matcher keeps. Most names contain a block hash, so old ones never come back.
MATCHER_NAMES = 65_536
#: Verdicts on longer names aren't kept, so that hostile names can't fill the memory.
MATCHER_NAME_BYTES = 512

_HASH_HEX = re.compile(r"[0-9a-fA-F]{64}")
_DECIMAL = re.compile(r"[0-9]{1,78}")


@dataclass(frozen=True, slots=True)
class Start:
    """The block that a consumer starts from: the head before the first message."""

    number: int
    hash: bytes
    weight: int = 0


def _weight(value: Any, key: str) -> int:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        value = int(value)
    elif isinstance(value, str):
        raise OptionError(key=key, reason=f"must be a whole number in decimal digits, not {value!r}")
    return int(unsigned(WEIGHT_BITS)(value, key))


def _hash(value: Any, key: str) -> bytes:
    if not isinstance(value, str) or not _HASH_HEX.fullmatch(value):
        raise OptionError(key=key, reason=f"must be a hash of 64 hex digits, not {value!r}")
    return bytes.fromhex(value)


_BLOCK: Final[dict[str, Read]] = {"number": unsigned(NUMBER_BITS), "hash": _hash}


def _regex(value: Any, key: str) -> str:
    compile_regex(text(value, key), key)
    return str(value)


def _start(value: Any, key: str) -> Start:
    return Start(**record(_BLOCK | {"weight": _weight}, needed=_BLOCK)(value, key))


def _pinned(value: Any, key: str) -> tuple[int, bytes]:
    block = record(_BLOCK, needed=_BLOCK)(value, key)
    return block["number"], block["hash"]


def _whitelist(value: Any, key: str) -> dict[int, bytes]:
    pinned: dict[int, bytes] = {}
    for number, block in list_of(_pinned)(value, key):
        if pinned.setdefault(number, block) != block:
            raise OptionError(key=key, reason=f"block {number} has two hashes")
    return pinned


def _topics(value: Any, key: str) -> dict[str, str]:
    return {_regex(name, f"{key}.{name}"): text(topic, f"{key}.{name}") for name, topic in table(value, key).items()}


def _reorg_topic(value: Any, key: str) -> str:
    if text(value, key).count("{hash}") != 1:
        raise OptionError(key=key, reason=f"must hold {{hash}} once, not {value!r}")
    return str(value)


@dataclass(frozen=True, slots=True)
class CardinalOptions(OptionTable):
    """See docs/cardinal.md for what each option does."""

    READERS: ClassVar[Mapping[str, Read]] = {
        "tracked_prefixes": list_of(_regex),
        "reorg_threshold": whole((1 << 31) - 1),
        "start": _start,
        "whitelist": _whitelist,
        "prefixes": list_of(_regex),
        "topics": _topics,
        "reorg_topic": _reorg_topic,
    }

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
    #: Topic of a reorg channel, where `{hash}` is the ancestor's hash in hex; None = `*-re-{hash}`.
    reorg_topic: str | None = None

    def written(self) -> Mapping[str, Any]:
        """Hashes as hex, a weight as its digits; the order of the topics is part of their meaning."""
        start = self.start and {
            "number": self.start.number,
            "hash": self.start.hash.hex(),
            "weight": str(self.start.weight),
        }
        whitelist = [{"number": number, "hash": block.hex()} for number, block in sorted(self.whitelist.items())]
        topics = None if self.topics is None else dict(self.topics)
        return {**OptionTable.written(self), "start": start, "whitelist": whitelist, "topics": topics}


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
    """What the options declare about an entry name or an application key."""

    #: Whether a tracked prefix matches anywhere in the name.
    tracked: bool
    #: Whether a declared prefix begins the name, or none are declared.
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
