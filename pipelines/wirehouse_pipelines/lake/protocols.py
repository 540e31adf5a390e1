"""PROTOCOLS: the one list of protocols. The layers above the codecs loop over it and name no protocol themselves."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO

from wirehouse_codecs.bamboo.options import BambooOptions
from wirehouse_codecs.bamboo.rules import RULES as BAMBOO_RULES
from wirehouse_codecs.captures import rules as capture_rules
from wirehouse_codecs.captures.source import Capture, Origin, Reader
from wirehouse_codecs.cardinal.options import CardinalOptions
from wirehouse_codecs.cardinal.rules import RULES as CARDINAL_RULES
from wirehouse_codecs.core.option_tables import OptionTable
from wirehouse_codecs.core.rules import Rule
from wirehouse_codecs.hiero.options import HieroOptions
from wirehouse_codecs.hiero.rules import RULES as HIERO_RULES
from wirehouse_codecs.ockam.options import OckamOptions
from wirehouse_codecs.ockam.rules import RULES as OCKAM_RULES
from wirehouse_codecs.wallaroo.options import WallarooOptions
from wirehouse_codecs.wallaroo.rules import RULES as WALLAROO_RULES

if TYPE_CHECKING:
    from wirehouse_pipelines.jobs.job import Job


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol, as the layers above the codecs need it."""

    name: str
    title: str
    #: Kinds of source that can carry it.
    kinds: tuple[str, ...]
    rules: tuple[Rule, ...]
    #: The type that parses `[source.options]`.
    options: type[OptionTable]

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Its jobs; a job comes after the jobs whose tables it reads. Imported on use, because they need pyspark."""
        jobs: tuple[Job, ...] = import_module(f"wirehouse_pipelines.{self.name}").JOBS
        return jobs


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol("bamboo", "Bamboo Point-2-Point", ("pcap", "entries"), BAMBOO_RULES, BambooOptions),
        Protocol("cardinal", "Cardinal Streams", ("messages", "kafka"), CARDINAL_RULES, CardinalOptions),
        Protocol("hiero", "Hiero block node", ("pcap", "grpc_log", "blocks"), HIERO_RULES, HieroOptions),
        Protocol("ockam", "Ockam stream service", ("pcap",), OCKAM_RULES, OckamOptions),
        Protocol("wallaroo", "Wallaroo connector protocol", ("pcap",), WALLAROO_RULES, WallarooOptions),
    )
}


def all_rules() -> dict[str, Rule]:
    """All rules by id: those of the protocols and those of captures."""
    rules = (*(rule for protocol in PROTOCOLS.values() for rule in protocol.rules), *capture_rules.RULES)
    return {rule.id: rule for rule in rules}


def _reader(module: str, name: str) -> Reader:
    """A reader of a protocol's own files. Imported on use: compiling it takes time, and most commands read none."""

    def read(stream: BinaryIO, origin: Origin) -> Capture:
        capture: Capture = getattr(import_module(f"wirehouse_codecs.{module}"), name)(stream, origin)
        return capture

    return read


#: Kinds of source that hold files of a protocol's own format, with their readers.
FILE_READERS: dict[str, Reader] = {
    "blocks": _reader("hiero.wire.captures", "BlockCapture"),
    "grpc_log": _reader("hiero.wire.captures", "log_capture"),
    "entries": _reader("bamboo.wire.captures", "entry_capture"),
}
FILE_KINDS = tuple(FILE_READERS)
