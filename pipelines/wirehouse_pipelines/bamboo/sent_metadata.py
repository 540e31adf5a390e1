"""Findings that signatures of metadata prove about their senders: invalid data, and missing or wrong apologies.

A message has in `follows_byte_start` the metadata packet (piece) that it directly follows. With the verdict of
`verification.py` on that piece it is clear whether an apology was due. One stage goes through the pieces of each
direction of a connection, with what follows them. The state has the last piece of each side of a proposal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wirehouse_codecs.bamboo.log.rows import ENTRY
from wirehouse_codecs.bamboo.log.schema import SCHEMA
from wirehouse_codecs.bamboo.rules import RULE
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.logs.rows import MESSAGE
from wirehouse_pipelines.bamboo.verification import BAD_PIECES, UNKNOWN, with_rules
from wirehouse_pipelines.bamboo.verification_rows import FOUND_TABLE, SILVER, STATE_TABLE, Array
from wirehouse_pipelines.delta import spark_tables
from wirehouse_pipelines.delta.batches import runs_of, whole_keys, with_all
from wirehouse_pipelines.jobs import services, steps
from wirehouse_pipelines.jobs.job import Work
from wirehouse_pipelines.stages import Input, Order, Stage, Written

_KEY: Final = ("source", "connection_id", "direction")
#: Columns of findings that identify the packet, besides the key.
_PLACE: Final = ("byte_start", "byte_end", "capture_id", "record_number", "arrived_at_ns", "proposal_id")
_COMMON: Final = dict.fromkeys((*_KEY, "window_start", "proposal_number", "byte_start"), ())
_SENT: Final = {**_COMMON, "entry": ("origin", "rule", "assumed_links", "greedy")}
_FOLLOWING: Final = {**_COMMON, **dict.fromkeys((*_PLACE, "channel"), ()), "message": ("kind", "follows_byte_start")}
_BAD: Final = dict.fromkeys((*_KEY, "byte_start", "piece_rule"), ())
_CARRIED: Final = {**_COMMON, "piece_rule": ()}
#: What a row is. Carried pieces come first, then those of the run, their verdicts, and what follows them.
_CARRIED_PIECE, _PIECE, _VERDICT, _MESSAGE = range(4)
#: `at` is where the piece begins that the row is about. `unsure`: not all links of its entry are known.
_ROWS: Final = pa.schema(
    [
        *(SCHEMA.field(name) for name in ("connection_id", "direction", "proposal_number", "channel", *_PLACE)),
        *((name, pa.string()) for name in ("source", "window_start", "state_window", "piece_rule", "kind")),
        *(("at", pa.int64()), ("what", pa.int8()), ("unsure", pa.bool_()), ("greedy", pa.bool_())),
    ]
)
#: Approximate number of rows that are folded at once.
_AT_ONCE: Final = 100_000


def stage(work: Work, written: Written, members: services.Members) -> Stage:
    """The stage of pieces; `written` has the files of verification."""
    bad = steps.passed(work, STATE_TABLE, written[BAD_PIECES])
    # Without a wrong signature, only apologies can be findings.
    may_be_bad = bool(bad or work.before)
    sent = _SENT | dict.fromkeys(_PLACE, ()) if bad else _SENT
    of_kind = partial(spark_tables.files, work.lake, SILVER, work.members())
    return Stage(
        [
            Input(SILVER, of_kind(ENTRY), sent, partial(_pieces, members=members)),
            Input(SILVER, of_kind(MESSAGE), _FOLLOWING, partial(_following, members=members, every=may_be_bad)),
            Input(STATE_TABLE, bad, _BAD, _verdicts),
            Input(STATE_TABLE, spark_tables.files(work.lake, STATE_TABLE, work.alive()), _CARRIED, _carried),
        ],
        _ROWS,
        Order(_KEY, ("at", "what", "window_start", "byte_start")),
        _fold,
        (FOUND_TABLE, STATE_TABLE),
        steps.windows(work.spans),
    )


def _pieces(rows: pa.RecordBatch, members: services.Members) -> pa.RecordBatch:
    """Prepare metadata packets."""
    rows = members.once(rows)
    origin, rule, assumed, greedy = rows.column("entry").flatten()
    # An entry with an unknown link has the rule link_unknown.
    unsure = pc.or_(rule.is_valid(), assumed.fill_null(False))
    made = _as_rows(rows, _PIECE, rows.column("byte_start"), unsure=unsure, greedy=greedy)
    return made.filter(pc.equal(origin, "metadata").fill_null(False))


def _following(rows: pa.RecordBatch, members: services.Members, every: bool) -> pa.RecordBatch:
    """Prepare messages that follow a piece: apologies, or `every` one."""
    rows = members.once(rows)
    kind, follows = rows.column("message").flatten()
    wanted = follows.is_valid() if every else pc.and_(follows.is_valid(), pc.equal(kind, "apology"))
    return _as_rows(rows, _MESSAGE, follows, kind=kind).filter(wanted)


def _verdicts(rows: pa.RecordBatch) -> pa.RecordBatch:
    return _as_rows(rows, _VERDICT, rows.column("byte_start"))


def _carried(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Prepare rows of state."""
    rows = rows.filter(rows.column("connection_id").is_valid())
    state_window = rows.column("window_start")
    return _as_rows(
        rows.drop_columns(["window_start"]), _CARRIED_PIECE, rows.column("byte_start"), state_window=state_window
    )


def _as_rows(rows: pa.RecordBatch, what: int, at: pa.Array, **more: pa.Array) -> pa.RecordBatch:
    rows = rows.append_column("at", at).append_column("what", pa.repeat(pa.scalar(what, pa.int8()), rows.num_rows))
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return with_all(rows, _ROWS)


def _fold(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for rows in whole_keys(batches, _KEY, _AT_ONCE):
        yield from _Pieces(rows).found()


class _Pieces:
    """The pieces of some directions, with what follows them."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._what = np.asarray(rows.column("what"))
        self._at = np.asarray(rows.column("at"))
        self._rules = rows.column("piece_rule").to_pylist()
        number = np.asarray(rows.column("proposal_number").fill_null(-1))
        #: The side of a proposal, and the piece, that each row is about.
        self._side = _numbers(runs_of(rows, _KEY), number)
        self._piece = _numbers(runs_of(rows, (*_KEY, "at")), number)
        self._judge()

    def _judge(self) -> None:
        """Give the pieces of the run the rules that their signatures break."""
        packet = runs_of(self._rows, (*_KEY, "at"))
        verdicts = {int(packet[i]): self._rules[i] for i in np.flatnonzero(self._what == _VERDICT).tolist()}
        if verdicts:
            for i in np.flatnonzero((self._what == _PIECE) & np.isin(packet, list(verdicts))).tolist():
                self._rules[i] = verdicts[int(packet[i])]
        is_bad = np.array([rule is not None for rule in self._rules], np.bool_)
        self._is_unknown = is_bad & np.array([rule == UNKNOWN for rule in self._rules], np.bool_)
        self._is_broken = is_bad & ~self._is_unknown
        self._is_right = ~is_bad & ~np.asarray(self._rows.column("unsure").fill_null(False))
        self._is_greedy = np.asarray(self._rows.column("greedy").fill_null(False))

    def found(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Findings, and the state."""
        invalid = np.flatnonzero((self._what == _PIECE) & self._is_broken & self._is_safe())
        rules = [self._rules[i] for i in invalid.tolist()]
        yield from self._findings(invalid, RULE["invalid_data_in_safe_mode"], rules)
        yield from self._followed()
        yield STATE_TABLE, self._last()

    def _is_safe(self) -> Array:
        return ~np.asarray(self._rows.column("greedy").fill_null(True))

    def _followed(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        sent, carried = self._what == _PIECE, self._newest_carried()
        right = self._piece[(sent | carried) & self._is_right]
        broken = np.flatnonzero(((sent & self._is_greedy) | carried) & self._is_broken)
        rules = {int(self._piece[i]): self._rules[i] for i in broken.tolist()}
        messages = np.flatnonzero(self._what == _MESSAGE)
        apologises = np.asarray(pc.equal(self._rows.column("kind"), "apology").fill_null(False))[messages]
        wrong = messages[apologises & np.isin(self._piece[messages], right)]
        reason = "the entry's signature is right"
        yield from self._findings(wrong, RULE["apology_for_valid_data"], [reason] * len(wrong))
        # Messages after one piece are in the order of their bytes within their window.
        begins = np.asarray(self._rows.column("byte_start"))[messages]
        order = np.lexsort([begins, self._piece[messages]])
        _, first = np.unique(self._piece[messages][order], return_index=True)
        first = order[first]
        missing = messages[first[~apologises[first] & np.isin(self._piece[messages[first]], list(rules))]]
        broken_rules = [rules[int(self._piece[i])] for i in missing.tolist()]
        yield from self._findings(missing, RULE["invalid_data_not_apologised"], broken_rules)

    def _newest_carried(self) -> Array:
        """Which rows are the newest carried piece of their side."""
        carried = np.flatnonzero(self._what == _CARRIED_PIECE)
        state_window = self._rows.column("state_window").take(pa.array(carried)).to_pylist()
        newest = {int(self._side[i]): i for _, i in sorted(zip(state_window, carried.tolist(), strict=True))}
        mask = np.zeros(len(self._what), np.bool_)
        mask[list(newest.values())] = True
        return mask

    def _last(self) -> pa.RecordBatch:
        """The last piece of each side in each window, as rows of state."""
        sent = np.flatnonzero(self._what == _PIECE)
        window = np.asarray(self._rows.column("window_start").dictionary_encode().indices.fill_null(-1))
        of_side = _numbers(self._side, window)[sent]
        order = np.lexsort([self._at[sent], of_side])
        ends = np.flatnonzero(np.diff(of_side[order], append=-1))
        last = sent[order[ends]]
        rules = [
            self._rules[i] if self._is_broken[i] and self._is_greedy[i] else None if self._is_right[i] else UNKNOWN
            for i in last.tolist()
        ]
        places = self._rows.select([*_KEY, "window_start", "proposal_number"]).take(pa.array(last))
        places = places.append_column("byte_start", self._rows.column("at").take(pa.array(last)))
        return places.append_column("piece_rule", pa.array(rules, pa.string()))

    def _findings(self, at: Array, rule: Rule, messages: list[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not len(at):
            return
        rows = self._rows.select([*_KEY, "window_start", "proposal_number", "channel", *_PLACE]).take(pa.array(at))
        # The channel of pieces.
        channel = rows.column("channel").fill_null("data")
        rows = rows.set_column(rows.schema.get_field_index("channel"), "channel", channel)
        yield FOUND_TABLE, with_rules(rows.append_column("message", pa.array(messages, pa.string())), [rule] * len(at))


def _numbers(first: Array, second: Array) -> Array:
    """Number the rows by their distinct pairs of values. The values of `first` are numbers of rows, too."""
    _, seconds = np.unique(second, return_inverse=True)
    _, numbers = np.unique(first * (int(seconds.max()) + 1) + seconds, return_inverse=True)
    return np.asarray(numbers)
