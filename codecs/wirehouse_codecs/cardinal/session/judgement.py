"""The rules about what never came, for a block that is judged incomplete at the end of its life."""

from __future__ import annotations

from wirehouse_codecs.cardinal.rules import RULE
from wirehouse_codecs.cardinal.session.block import ITEMS, MESSAGES, SUBBATCH_HEADER, Block, Missing
from wirehouse_codecs.cardinal.session.texts import shown
from wirehouse_codecs.core.rules import Finding


def judged_findings(block: Block, stall: str = "") -> tuple[Finding, ...]:
    """Rules `prefix_count_open`, `subbatch_header_missing` and `subbatch_items_missing`: the Batch breaks them.

    `stall` is what waits for the block in the chain. Messages that came and don't count were reported before.
    """
    return tuple(
        Finding(RULE[rule], block.batch_place or block.first_place, f"block {block.block_hash.hex()}, {text}{stall}")
        for one, counted in zip(block.missing, _counted(block), strict=True)
        for rule, text in (_never_came(one, counted),)
        if rule and (stall or one.uncounted < one.messages)
    )


def _counted(block: Block) -> list[str]:
    """For each of `block.missing`, how much was received of what was expected."""
    expected = {count.name: count.messages for count in block.expected}
    received = {count.name: count.messages for count in block.received}
    return [f"{received.get(missing.name)} of {expected.get(missing.name)} received" for missing in block.missing]


def _never_came(missing: Missing, counted: str) -> tuple[str, str]:
    """The rule, and the words of its finding; the rule is empty if there is none."""
    name, batch_id = shown(missing.name), "" if missing.batch_id is None else missing.batch_id.hex()
    if missing.what == MESSAGES:
        return "prefix_count_open", f"prefix {name}: {counted}"
    if missing.what == SUBBATCH_HEADER:
        return "subbatch_header_missing", f"no header of sub-batch {name}, {batch_id}"
    if missing.what.startswith(ITEMS):
        return "subbatch_items_missing", f"sub-batch {name}, {batch_id}: {missing.what}, {counted}"
    return "", ""
