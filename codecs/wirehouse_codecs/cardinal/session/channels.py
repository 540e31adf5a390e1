"""The names of reorg channels (specification, "Reorg", the Producers part)."""

from __future__ import annotations

import re
from collections.abc import Callable

from wirehouse_codecs.cardinal.options import CardinalOptions


def reorg_channel_pattern(options: CardinalOptions) -> str:
    """The regular expression for names of reorg channels, for `search` in Python and in Java."""
    name, start = ("-re-{hash}", "") if options.reorg_topic is None else (options.reorg_topic, "^")
    return start + "[0-9a-f]{64}".join(map(re.escape, name.split("{hash}"))) + r"(?![\s\S])"


def reorg_channel_name(options: CardinalOptions) -> Callable[[str], bool]:
    """A test whether a topic has the name of a reorg channel."""
    named = re.compile(reorg_channel_pattern(options))
    return lambda topic: named.search(topic) is not None
