"""For every rule what breaks it, connections and files of entries: what simulator.py adds if it is asked for a fault.

A fault breaks its rule for certain, and of the others only those that follow from it by the specification. It has peers
and logs of its own. Rules of entries are broken in files of entries; and on a connection by a cancel that shows such an
entry, if it can hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from wirehouse_codecs.bamboo.rules import BYMUX_RULES, ENDS
from wirehouse_codecs.bamboo.setup import Role, Setup
from wirehouse_codecs.bamboo.simulator import fault_scripts
from wirehouse_codecs.bamboo.simulator import faulty_entries as broken
from wirehouse_codecs.bamboo.simulator.fault_scripts import Act, FaultScript
from wirehouse_codecs.bamboo.simulator.faulty_entries import Make
from wirehouse_codecs.bamboo.simulator.peers import Manner
from wirehouse_codecs.bamboo.wire import yamf
from wirehouse_codecs.bamboo.wire.bymux_packets import Type
from wirehouse_codecs.bamboo.wire.entries import AUTHOR_BYTES, SIGNATURE_BYTES
from wirehouse_codecs.bamboo.wire.entry_files import Written
from wirehouse_codecs.simulate.script import Ending


@dataclass(frozen=True, slots=True)
class Fault:
    """A script that breaks one rule."""

    #: What is wrong, one sentence.
    sentence: str
    #: What happens on the connection; None: only a file of entries can break the rule.
    act: Act | None
    #: Whether the peers send greedily.
    greedy: bool = False
    window: int = 1024
    #: Rules that are broken by it, too.
    also: tuple[str, ...] = ()
    #: For a rule of entries: what a file has.
    entries: Make | None = None
    #: What is broken, for faults with other names.
    rule: str | None = None

    def manner(self, client: Role, *, two_connections: bool) -> Manner:
        """How the peers speak."""
        setup = Setup(self.greedy, self.greedy, self.window, self.window)
        return Manner(dict.fromkeys(Role, setup), client, two_connections=two_connections)

    def play(self, name: str, script: FaultScript) -> None:
        """Everything that is sent on the connection."""
        assert self.act is not None
        script.begin()
        self.act(script)
        if (self.rule or name) in ENDS:
            script.close(Ending.RESET)
        elif name not in LEFT_OPEN:
            script.end()

    def written(self, seed: int) -> list[Written]:
        """The entries of a file."""
        if self.entries is None:
            return []
        bad = self.entries(seed)
        right = [Written(one.data, one.payload) for log in bad.right for one in log.entries.values()]
        return [*right, Written(bad.data, bad.payload)]


#: Scripts that end their connections themselves.
LEFT_OPEN: Final = frozenset({"close_not_answered", "truncated_packet"})
#: Broken only where there is bymux: also what comes of a set-up, and of packets that are found again.
OF_BYMUX: Final = frozenset(rule.name for rule in BYMUX_RULES) - {"truncated_packet", "noncanonical_varu64"} | {
    "history_unknown"
}


def first_sentence(made: Callable[..., object]) -> str:
    """The first line of a function's docstring."""
    return (made.__doc__ or "").strip().split("\n")[0]


def _fault(act: Act, sentence: str = "", **more: Any) -> Fault:
    return Fault(sentence or first_sentence(act), act, **more)


def _entry(make: Make, sentence: str = "", *, shown: bool = True, also: tuple[str, ...] = ()) -> Fault:
    return Fault(
        sentence or first_sentence(make), fault_scripts.shows(make) if shown else None, also=also, entries=make
    )


_TAG, _SEQ = 0, 2 + AUTHOR_BYTES
#: Position of the payload's hash, from the end.
_HASH: Final = -(SIGNATURE_BYTES + yamf.HASH_BYTES)

#: By the rule that is broken.
FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "unknown_type": _fault(fault_scripts.unassigned_type),
        "unknown_stream": _fault(fault_scripts.strange_stream),
        "write_without_credit": _fault(fault_scripts.writes_at_once),
        "credit_overflow": _fault(fault_scripts.too_much_credit),
        "credit_on_infinite": _fault(fault_scripts.credit_for_control),
        "global_credit_overflow": _fault(fault_scripts.too_many_creations),
        "create_without_credit": _fault(fault_scripts.creates_without_credit),
        "stream_id_parity": _fault(fault_scripts.creates_odd),
        "stream_id_in_use": _fault(fault_scripts.creates_again),
        "write_after_close": _fault(fault_scripts.writes_after_close),
        "close_twice": _fault(
            fault_scripts.about_a_stream(Type.CLOSE, Type.CLOSE), "The data channel is closed twice."
        ),
        "stopread_twice": _fault(
            fault_scripts.about_a_stream(Type.STOP_READ, Type.STOP_READ), "The data channel is stopped twice."
        ),
        "credit_after_stopread": _fault(
            fault_scripts.about_a_stream(Type.STOP_READ, Type.CREDIT, amount=9),
            "Credit follows the StopRead of the data channel.",
        ),
        "global_credit_after_stopread": _fault(
            fault_scripts.about_a_stream(Type.STOP_READ, Type.CREDIT, stream_id=None, amount=1),
            "Credit for creations follows a StopRead.",
        ),
        "create_after_global_close": _fault(fault_scripts.creates_after_close),
        "ping_after_end": _fault(
            fault_scripts.about_a_stream(Type.CLOSE, Type.STOP_READ, Type.PING),
            "A Ping follows Close and StopRead of the data channel.",
        ),
        "close_not_answered": _fault(fault_scripts.closes_alone),
        "wide_integer": _fault(fault_scripts.wide_ping),
        "channel_backpressure_wrong": _fault(fault_scripts.infinite_data),
        "no_setup_seen": _fault(fault_scripts.captured_late),
        "truncated_packet": _fault(fault_scripts.half_a_packet),
        "noncanonical_varu64": _fault(fault_scripts.long_number, entries=broken.long_log_id),
        "unused_control_byte": _fault(fault_scripts.unused_control),
        "seqnum_zero": _fault(fault_scripts.end_zero),
        "proposal_credit_overflow": _fault(fault_scripts.too_much_proposal_credit),
        "proposal_without_credit": _fault(fault_scripts.proposes_too_often),
        "id_parity": _fault(fault_scripts.odd_id),
        "id_in_use": _fault(fault_scripts.id_again),
        "cancel_or_adjust_inactive": _fault(fault_scripts.adjusts_unknown),
        "cancel_or_adjust_after_cancel": _fault(fault_scripts.cancels_again),
        "confirmation_without_eagerness": _fault(fault_scripts.confirms_nothing),
        "end_before_start": _fault(fault_scripts.proposes(5, 3), "A range ends before it begins."),
        "upper_info_before_end": _fault(fault_scripts.proposes(5, 8, upper=5), "An upper info is below the end."),
        "lower_info_after_start": _fault(fault_scripts.proposes(5, 8, lower=8), "A lower info is above the start."),
        "lower_info_not_in_pool": _fault(
            fault_scripts.proposes(8, 8, lower=5), "Entry 5 isn't in the lower pool of entry 8."
        ),
        "upper_info_not_in_pool": _fault(
            fault_scripts.proposes(8, 8, upper=10), "Entry 10 isn't in the upper pool of entry 8."
        ),
        "min_payload_lowered": _fault(fault_scripts.lowers_minimum),
        "max_payload_raised": _fault(fault_scripts.raises_maximum),
        "cancel_reason_untrue": _fault(fault_scripts.confirms_no_cancel),
        "starting_hash_differs": _fault(fault_scripts.expects_another),
        "cancel_not_confirmed": _fault(fault_scripts.cancels_alone),
        "proposal_not_answered": _fault(fault_scripts.never_answered),
        "unused_data_byte": _fault(fault_scripts.unused_data),
        "switch_inactive": _fault(fault_scripts.switches_to_unknown),
        "cancelled_inactive": _fault(fault_scripts.cancelled_unknown),
        "data_without_switch": _fault(fault_scripts.forgets_to_switch),
        "data_after_cancel": _fault(fault_scripts.goes_on_after_cancel),
        "out_of_turn": _fault(fault_scripts.payload_first),
        "past_end": _fault(fault_scripts.one_too_many),
        "data_after_end_of_log": _fault(fault_scripts.after_end),
        "payload_overrun": _fault(fault_scripts.byte_too_many),
        "compression_without_window": _fault(
            fault_scripts.compressed(3, b"\x03abc"), "A payload is compressed without a window.", window=0
        ),
        "window_exceeded": _fault(
            fault_scripts.compressed(15, b"\x0a0123456789\x85\x0a"),
            "A copy is from 10 bytes back, the window is 9.",
            window=9,
        ),
        "offset_zero": _fault(fault_scripts.compressed(6, b"\x03abc\x83\x00"), "A copy is from 0 bytes back."),
        "offset_before_start": _fault(
            fault_scripts.compressed(6, b"\x03abc\x83\x04"), "A copy is from before the first byte."
        ),
        "lzfoo_truncated": _fault(fault_scripts.compressed(6, b"\x06abc"), "A literal of 6 bytes has 3."),
        "length_mismatch": _fault(fault_scripts.compressed(6, b"\x03abc"), "A payload announces 6 bytes and has 3."),
        "eagerness_ignored": _fault(fault_scripts.unasked_data),
        "skip_size_untrue": _fault(fault_scripts.called_small),
        "skip_of_mandatory_payload": _fault(fault_scripts.not_at_hand),
        "skip_beyond_peer": _fault(fault_scripts.skips_ahead),
        "apology_without_data": _fault(fault_scripts.sorry_for_nothing),
        "apology_repeated": _fault(fault_scripts.sorry_twice, greedy=True),
        "apology_for_valid_data": _fault(fault_scripts.sorry_for_right, greedy=True),
        "invalid_data_not_apologised": _fault(fault_scripts.other_payload, greedy=True),
        "invalid_data_in_safe_mode": _fault(fault_scripts.other_payload),
        "unwanted_payload_size": _fault(fault_scripts.below_minimum),
        "settings_suspect": _fault(fault_scripts.crossed),
        "link_unknown": _fault(fault_scripts.far_link),
        "history_unknown": _fault(fault_scripts.lost_history, also=("no_setup_seen",)),
        "truncated": _entry(broken.cut, shown=False),
        "trailing_bytes": _entry(broken.longer, shown=False),
        "malformed": _entry(broken.without_link, shown=False),
        "bad_tag": _entry(broken.changed(_TAG, 2), "The tag of an entry is 2."),
        "seq_zero": _entry(broken.changed(_SEQ, 0, seq=1), "An entry has the sequence number 0."),
        "bad_yamf_id": _entry(broken.changed(_HASH, 1), "The hash of a payload has type 1."),
        "bad_yamf_length": _entry(broken.changed(_HASH + 1, 63), "The hash of a payload has length 63."),
        "payload_hash_mismatch": _entry(
            broken.with_payload(b"2!!", 3), "A payload has another hash than its entry states.", shown=False
        ),
        "payload_size_mismatch": _entry(
            broken.with_payload(b"two", 4), "A payload has another size than its entry states.", shown=False
        ),
        "lipmaalink_mismatch": _entry(
            broken.other_link(8, lipmaa=True),
            "A lipmaalink names another entry than the one that is known.",
            also=("fork",),
        ),
        "backlink_mismatch": _entry(
            broken.other_link(3, lipmaa=False),
            "A backlink names another entry than the one that is known.",
            also=("fork",),
        ),
        "log_id_mismatch": _entry(broken.links_into(0, 1), "A link leads into another log of the author."),
        "author_mismatch": _entry(broken.links_into(1, 0), "A link leads into the log of another author."),
        "after_end_of_log": _entry(broken.after_last, also=("fork",)),
        "bad_author_key": _entry(broken.no_author),
        "bad_signature": _entry(broken.changed(-1, 0xFF), "The last byte of a signature is another one."),
        "fork": Fault(first_sentence(broken.forks), fault_scripts.proves_fork, entries=broken.forks),
    }
)

#: Faults that only the check of signatures shows.
SIGNATURE_FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "signature_in_safe_mode": _fault(fault_scripts.wrong_signature, rule="invalid_data_in_safe_mode"),
        "signature_not_apologised": _fault(
            fault_scripts.wrong_signature, greedy=True, rule="invalid_data_not_apologised"
        ),
        "apology_for_signed_data": _fault(fault_scripts.sorry_for_signed, greedy=True, rule="apology_for_valid_data"),
    }
)
#: All that a configuration may ask for.
ALL_FAULTS: Final[Mapping[str, Fault]] = MappingProxyType({**FAULTS, **SIGNATURE_FAULTS})
