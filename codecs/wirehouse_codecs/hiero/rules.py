"""The rules of the block node's connect protocol: on messages, on calls, and on several calls of one node.

`MESSAGE_RULES` judge the bytes of one message, `CALL_RULES` the messages of one call in their order, and `NODE_RULES`
compare the calls of one node, or of one publisher at several. Where the specification and real nodes differ, the
specification is the default; `TOLERANT` are the severities of the tolerant reading.

N is the number of an offered header, L the last block that the node is known to have verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL: Final = "hiero"


def _violation(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.VIOLATION, sentence, place, quarantines)


def _warning(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.WARNING, sentence, place)


def _note(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place)


MESSAGE_RULES: tuple[Rule, ...] = (
    _violation(
        "malformed_message",
        "A message can't be read: a field reaches beyond its end, a tag or a number is no valid one, or it is a group.",
        "Block node API, the messages of each method",
        quarantines=True,
    ),
    _violation(
        "item_refused",
        "A block has an item of a reserved number, of a class that a reader must refuse, or of several fields.",
        "Block stream, BlockItem: reserved numbers and classes of numbers from 20 on",
    ),
    _violation(
        "code_set",
        "A message that ends a stream or a subscription has the code 0.",
        'Block node API, the code enumerations: "SHALL NOT be used"',
    ),
)

CALL_RULES: tuple[Rule, ...] = (
    _violation(
        "structure",
        "A block isn't one header first, then items, then its footer and proofs last, or BlockEnd names another block, "
        "or a set holds items of two blocks.",
        "Block node API, BlockItemSet and PublishStreamRequest",
    ),
    _violation(
        "next",
        "The header of L+1 is answered by Behind, or by a duplicate answer that names a lower block.",
        'Base Protocol: "If this is the next block, no problem, start streaming"',
    ),
    _violation(
        "duplicate",
        "A header below L isn't answered as a duplicate: the block is acknowledged again, the answer is Behind, or "
        "there is none before the next acknowledgement.",
        'Base Protocol: "respond with DuplicateBlock"',
    ),
    _violation(
        "behind",
        "A header above L+1 isn't answered by Behind: the block is acknowledged although the one before it was never "
        "seen, acknowledged or fetched.",
        'Base Protocol: "Respond with Behind"',
    ),
    _violation(
        "last_known_set",
        "A duplicate answer, a Behind or an EndOfStream with an error carries no block number although the node has "
        "verified blocks.",
        'Base Protocol: "Response includes the last known block"',
    ),
    _violation(
        "recheck",
        "After a duplicate answer the publisher offers the same or a lower block, or goes on with its items.",
        'Base Protocol: "REQUIRES Publisher to check and resend block header, or end the stream and restart"',
    ),
    _violation(
        "resend_from_l1",
        "After Behind the publisher's next header on the call isn't that of the block after the reported one.",
        'Base Protocol: "Publisher will send from block after that block, or send EndOfStream"',
    ),
    _violation(
        "earliest",
        "The publisher's EndStream has no range of blocks, or one whose earliest block is above its latest.",
        'Base Protocol: "Publisher will include earliest known block with end of stream"',
    ),
    _warning(
        "too_far_code",
        "An EndStream that follows Behind has another code than TOO_FAR_BEHIND.",
        "Block node API, EndStream codes",
    ),
    _violation(
        "reenter",
        "A header that isn't the expected one, offered later on a call, gets another decision than one on connect.",
        'Base Protocol, note: "can (re)enter catch up any time"',
    ),
    _violation(
        "end_last",
        "A publisher sends something on a call after its EndStream, or goes on after the node's EndOfStream.",
        "Base Protocol; Block node API, EndStream and EndOfStream",
    ),
    _violation(
        "ack_order",
        "Acknowledgements of a call don't rise, repeat a number, or come before the block's proof.",
        "Block node API, BlockAcknowledgement",
    ),
    _violation(
        "skip_pair",
        "SkipBlock doesn't name the publisher's last header, or neither an acknowledgement nor ResendBlock follows, or "
        "ResendBlock names an acknowledged block, or the publisher goes on with the items of a skipped block, or with "
        "another header than that of the block to be sent again.",
        "Block node API, SkipBlock and ResendBlock",
    ),
    _warning(
        "ended_without_end_stream",
        "The publisher's call is reset or closed inside an unproven block without an EndStream.",
        'Error Handling: "Next BlockItem will be an EndStream item"',
    ),
    _warning(
        "node_ended_without_status",
        "The node ends a publisher's call without an EndOfStream.",
        'Error Handling: "will send an EndStream response"',
    ),
    _violation(
        "subscriber_order",
        "A subscriber is sent a block again, or one below the last, or blocks or another status after the status.",
        'Block node API, SubscribeStreamRequest: "The blocks SHALL be streamed in ascending order"',
    ),
    _violation(
        "subscriber_gap",
        "A subscriber misses a block, or the end of one, before the next block begins.",
        'Block node API, SubscribeStreamRequest: "SHALL stream the full contents of the blocks requested"',
    ),
    _violation(
        "subscriber_range",
        "The first block of a subscription isn't the first one asked for, or a block comes after the last one asked "
        "for, or SUCCESS before that.",
        "Block node API, SubscribeStreamRequest, start_block_number and end_block_number",
    ),
    _warning(
        "subscriber_ended_without_status",
        "The node ends a subscription without a status.",
        'Block node API, SubscribeStreamResponse: "a single `status` message"; Error Handling',
    ),
    _warning(
        "block_not_acknowledged",
        "A block was sent with its proof, and neither acknowledged nor refused by the end.",
        "Block node API, BlockAcknowledgement",
    ),
)

NODE_RULES: tuple[Rule, ...] = (
    _violation(
        "last_known",
        "A duplicate answer, Behind or EndOfStream reports a block below one acknowledged earlier by the same node.",
        'Base Protocol: "SHALL always respond to Publisher with the very latest known and verified block"',
    ),
    _violation(
        "backoff",
        "The gaps between a publisher's failed attempts don't grow.",
        'Base Protocol: "retry with exponential backoff"',
    ),
    _violation(
        "behind_repeat",
        "A publisher that retries before the node has caught up isn't answered by Behind with the current L.",
        'Base Protocol: "The response is still Behind with the last known block number"',
    ),
    _warning(
        "target_closer",
        "The distance between the offered block and L doesn't shrink over three attempts: catching up has stalled.",
        'Base Protocol: "if the required target block doesn\'t get closer with each connection"',
    ),
    _violation(
        "recorded_target",
        "The node's own subscription for catching up ends before the block below the last offered one.",
        'Base Protocol: "MUST record the offered block number, and continue trying to catch up to that"',
    ),
    _warning(
        "catchup_range",
        "The node doesn't ask for the blocks from L+1 to the last available one of the status, or an open end.",
        'Base Protocol: "Ask for a range, last-known-block+1 to last-available-block"',
    ),
    _violation(
        "drop_unproven",
        "A block that no stream delivered with a proof is acknowledged after its publisher ended with an error.",
        'Error Handling: "drop any in-progress unproven block from that Publisher"',
    ),
    _violation(
        "source_error_only_if_last",
        "Subscribers get a source error while another publisher still streams.",
        'Error Handling: "if no remaining active incoming streams, notify all Subscribers"',
    ),
    _warning(
        "source_error_sent",
        "The last publisher ended with an error, and an open-ended subscriber gets no source error.",
        'Error Handling: "notify all Subscribers with an EndStream item specifying source error"',
    ),
    _violation(
        "continue",
        "After one publisher's error, blocks of the others are no longer acknowledged and forwarded.",
        'Error Handling: "will continue streaming from other incoming stream sources"',
    ),
    _violation(
        "node_error_all",
        "The node ends one publisher's call by an error of its own, and another call stays open.",
        'Error Handling: "will send an EndStream response to all incoming streams"',
    ),
    _violation(
        "node_error_subscribers",
        "The node ends publishers' calls by an error of its own, and doesn't end a subscription with it.",
        'Error Handling: "will send EndStream to all Subscribers with appropriate status code"',
    ),
    _note(
        "retry_after_node_error",
        "A publisher doesn't come back after the node's error, here or at another captured node.",
        'Error Handling: "Publisher, on receiving the end stream, will retry publishing the stream"',
    ),
    _violation(
        "chain",
        "The previous hash of a block isn't the recomputed root of the block before it.",
        "Block stream, BlockHeader, BlockFooter and BlockProof",
    ),
    _note(
        "gap_not_filled",
        "A node that was behind doesn't fetch the missing blocks in its captured calls.",
        'Base Protocol: "needs to catch up from another Block Node"',
    ),
    _note(
        "catch_up_not_started",
        "A node that was behind starts no call for catching up although its outgoing calls are captured.",
        'Base Protocol: "Query a Block Node status API"',
    ),
    _note(
        "catch_up_overrun",
        "A node goes on fetching blocks after it has caught up.",
        'Base Protocol: "quit when caught up"',
    ),
    _note(
        "last_block_again",
        "The header of L, which the node had acknowledged, is acknowledged again and not answered as a duplicate.",
        "Base Protocol Diagram, which leaves N = L out",
    ),
    _note(
        "ack_unoffered",
        "A block is acknowledged that no captured call ever offered to the node.",
        "Block node API, BlockAcknowledgement",
    ),
    _note(
        "subscriber_not_resumed",
        "A subscriber that got an error doesn't come back, here or at another captured node.",
        'Error Handling: "Subscribers should resume streaming from another Block Node"',
    ),
)

RULES: tuple[Rule, ...] = MESSAGE_RULES + CALL_RULES + NODE_RULES

#: The same rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)

#: Severities that the tolerant reading changes: real nodes end single calls by errors of one handler.
TOLERANT: Mapping[str, Severity] = MappingProxyType({"node_error_all": Severity.WARNING})
#: Rules of one call that may take other calls of its node to be judged: found where calls are compared.
ALSO_TOGETHER: Final = frozenset(
    {
        *("next", "duplicate", "behind", "recheck", "earliest", "reenter", "ack_order", "block_not_acknowledged"),
        "last_known_set",
    }
)
