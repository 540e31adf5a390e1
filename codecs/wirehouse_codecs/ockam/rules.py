"""The rules of the Ockam stream service, in the order in which a message is judged.

A message breaks at most one rule of its own, the first in this order. `WAIT_RULES` are about what never came, and are
found when the connection closes or the wait is over; `SET_RULES` compare connections. Both are found besides;
`ALSO_OF_A_MESSAGE` are those of them that a message breaks too. Judging goes on after each of them; after
`frame` nothing more of its direction can be read.
"""

from __future__ import annotations

from typing import Final

from wirehouse_codecs.core.rules import Rule, Severity, by_name

PROTOCOL: Final = "ockam"


def _violation(name: str, sentence: str, place: str, *, quarantines: bool = False) -> Rule:
    return Rule(PROTOCOL, name, Severity.VIOLATION, sentence, place, quarantines)


def _warning(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.WARNING, sentence, place)


def _note(name: str, sentence: str, place: str) -> Rule:
    return Rule(PROTOCOL, name, Severity.NOTE, sentence, place)


RULES: tuple[Rule, ...] = (
    _violation(
        "frame",
        "A length does not lead to the next frame, or is above the limit.",
        "Not in the text: the frames of the TCP transport",
        quarantines=True,
    ),
    _violation(
        "routed",
        "A frame is not one routed message from its first byte to its last.",
        "Messages: onward_route, return_route, payload",
        quarantines=True,
    ),
    _violation(
        "payload",
        "A payload at a service or stream is no BasePayload, its protocol is unknown, or its data does not follow "
        "the protocol's schema.",
        "Payload BARE specs",
        quarantines=True,
    ),
    _violation(
        "reply_to_unknown_address",
        "A response goes to a route that no earlier request of its connection gave as its return route.",
        "Stream creation: <CREATE_RETURN_ROUTE>; Pushing/pulling messages: return_route",
    ),
    _violation(
        "address_not_from_init",
        "A push or pull goes to an address that no Init gave.",
        'Stream creation: "MUST use stream address from the return route"',
    ),
    _violation(
        "create_not_answered",
        "A create is answered neither by an Init nor by an error.",
        'Stream creation: "MUST send the INIT response"',
    ),
    _violation(
        "create_other_name",
        "An Init has another name than its request, or, where the request has none, an empty name or one in use.",
        "Stream creation; Create partitioned stream",
    ),
    _violation(
        "address_changed",
        "One name and partition has two addresses, and the former answers although the later one has.",
        'Addresses: "Each stream is given it\'s own address"',
    ),
    _violation(
        "address_shared",
        "Two names, or two partitions of one, have the same address.",
        'Addresses: "Each stream is given it\'s own address"',
    ),
    _violation(
        "partition_not_answered",
        "A partitioned create of n is not answered exactly once for each partition below n, each from its own address.",
        'Create partitioned stream: "Each partition instance MUST send CreatePartitionedStreamResponse"',
    ),
    _violation(
        "unknown_request_id",
        "A PushConfirm or PullResponse matches no request of its id, stream and requester that is unanswered.",
        "Pushing/pulling messages: PushConfirm, PullResponse",
    ),
    _violation(
        "duplicate_index",
        "Two confirmed messages of one stream have the same index.",
        'Pushing/pulling messages: "Each message in the stream MUST have unique index"',
    ),
    _violation(
        "index_decreases",
        "A confirmed index is lower than one that was confirmed before on its connection, or before its message was "
        "pushed.",
        'Pushing/pulling messages: "Index MUST be monotonically increasing"',
    ),
    _warning(
        "request_id_reused",
        "A client pushes different data under one request id, or the same data again although it was saved.",
        'Pushing/pulling messages: "SHOULD use different request_id for different messages"',
    ),
    _note(
        "push_unanswered",
        "A push has no PushConfirm.",
        'Pushing/pulling messages: "When message is saved, the stream will respond"',
    ),
    _violation(
        "pull_not_answered",
        "A pull has no PullResponse.",
        'Pushing/pulling messages: "The stream worker MUST send a PullResponse"',
    ),
    _violation(
        "too_many_messages",
        "A PullResponse has more messages than the limit of its request.",
        'Pushing/pulling messages: "with 0 - `limit` messages"',
    ),
    _violation(
        "below_requested_index",
        "A PullResponse has a message below the requested index.",
        'Pushing/pulling messages: "MUST NOT be lower than the requested index"',
    ),
    _violation(
        "data_changed",
        "A pulled message has other data than the push that was confirmed with its index, or than an earlier pull.",
        'Pushing/pulling messages: "MUST be the same as `data` sent in PushRequest"',
    ),
    _violation(
        "index_never_confirmed",
        "A pulled index was never confirmed, and no push is open that it may belong to.",
        'Pushing/pulling messages: "Index in the response identifies the saved message"',
    ),
    _warning(
        "response_order",
        "The indexes in a PullResponse do not rise.",
        "Not in the text: what both implementations do",
    ),
    _note(
        "pull_skips",
        "A PullResponse passes over an index that was confirmed and is at or above the requested one.",
        'Reliable delivery: "it MAY delete messages at any time"',
    ),
    _violation(
        "index_for_other_key",
        "An Index has another client, stream or partition than the GetIndex that it answers, or answers no request.",
        "Creating/retrieving a stream index",
    ),
    _note(
        "index_missing_record",
        "A GetIndex is answered without an index, where a record with index 0 is created.",
        'Creating/retrieving a stream index: "a new record MUST be created with an index 0"',
    ),
    _violation(
        "saved_index_lowered",
        "An Index is below one that was saved, or answered, before the GetIndex was sent.",
        'Updating an index: "Index storage MUST be monototnic"',
    ),
    _violation(
        "index_never_saved",
        "An Index is above all that was saved for its client and stream.",
        'Index management: "keep an index per consumer/stream pair"',
    ),
    _violation(
        "consumer_hole",
        "A client saves an index although a confirmed message below it was never delivered to it.",
        'Reliable delivery: "the client MUST keep track of received indexes, detect holes"',
    ),
    _warning(
        "save_ahead",
        "A client saves an index beyond the one that follows what was delivered to it.",
        'Updating an index: "SHOULD NOT save a higher index if it did not processed lower index messages yet"',
    ),
    _note(
        "non_canonical",
        "A number, tag or enum is written longer than needed.",
        "Not in the text: BARE, uint",
    ),
    _note(
        "init_extra_bytes",
        "Bytes follow the fields of an Init.",
        'Stream creation: "Payload MAY contain some additional information"',
    ),
    _violation(
        "init_without_address",
        "The return route of an Init is empty, or is the service's own address.",
        "Stream creation: return_route: [<stream_address>]",
    ),
    _note("init_unasked", "An Init answers no create that is open.", "Stream creation"),
    _note(
        "address_not_from_name",
        "The address of a stream does not contain the requested name.",
        'Stream creation: "SHOULD be created based on the `stream_name`"',
    ),
    _warning(
        "index_not_answered",
        "A GetIndex has no answer.",
        'Creating/retrieving a stream index: "Response contains"',
    ),
    _violation(
        "wrong_service",
        "A protocol is sent to, or comes from, an address that does not support it.",
        "Stream services support the following protocols",
    ),
    _note(
        "partition_route_mixed",
        "A client saves an index for one partition, but pulls only from the address of another.",
        'Create partitioned stream: "Client SHOULD associate partition number with return route"',
    ),
)

#: The same rules by their short name.
RULE: dict[str, Rule] = by_name(RULES)

#: Found by comparing connections.
SET_RULES: Final = frozenset(
    {
        "duplicate_index",
        "index_decreases",
        "data_changed",
        "address_not_from_init",
        "address_changed",
        "address_shared",
        "index_never_confirmed",
        "pull_skips",
        "index_never_saved",
        "consumer_hole",
        "save_ahead",
        "create_other_name",
        "saved_index_lowered",
    }
)
#: Rules that a connection breaks by itself too.
ALSO_OF_A_MESSAGE: Final = frozenset(
    {"address_not_from_init", "address_changed", "index_decreases", "create_other_name", "saved_index_lowered"}
)
#: About what never came; the finding stands at what should have brought it.
WAIT_RULES: Final = frozenset(
    {
        "create_not_answered",
        "partition_not_answered",
        "push_unanswered",
        "pull_not_answered",
        "index_not_answered",
        "partition_route_mixed",
    }
)
#: What follows in the same direction can't be cut into frames any more.
LOSES_FRAMING: Final = frozenset({"frame"})
