"""Reads wirehouse.toml: where the lake is, its windows, and the sources of its captures.

Whatever is wrong there is one line that names the file and the key. Relative places start at the file's folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from wirehouse_codecs.errors import OptionError, UsageError
from wirehouse_codecs.inflate import LIMITS, Limits
from wirehouse_codecs.option_values import MOST_PORT, read_options, source_name, whole
from wirehouse_codecs.tcp_options import TcpOptions
from wirehouse_orchestration.render import shell_word
from wirehouse_pipelines import lake_json
from wirehouse_pipelines.kafka_options import KafkaOptions
from wirehouse_pipelines.lake import KAFKA, PACKET_KINDS, Lake, Source
from wirehouse_pipelines.protocols import PROTOCOLS
from wirehouse_pipelines.spark_options import SparkOptions
from wirehouse_pipelines.storage import is_local
from wirehouse_pipelines.upkeep_options import UpkeepOptions
from wirehouse_pipelines.windows import Size, WindowNameError, Windows

VARIABLE = "WIREHOUSE_CONFIG"
#: The lake's root, before what the file says.
ROOT_VARIABLE = "WIREHOUSE_ROOT"
#: Beside the configuration file: what the runs of a lake in a bucket share on this machine.
HOME = ".wirehouse"
DEFAULT = "wirehouse.toml"
#: The folder of the demo's lake.
DEMO = "demo-lake"
FIRST_DAY = "2015-01-01"
SIZES: tuple[str, ...] = get_args(Size)

_BUCKET_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/]+)*/?")
#: Spark reads them as patterns, others as parts of an address, so that tables would go elsewhere than captures.
_NOT_IN_ROOTS = "*?[]{}\\%|^"
_NOT_IN_BUCKETS = f"{_NOT_IN_ROOTS}#"
_OWNER = re.compile(r"team:[\w.-]+|[\w.+-]+@[\w-]+(\.[\w-]+)+")
_SITE = re.compile(r"https?://[^\s/]+(/\S*)?")
_LAKEHOUSE_KEYS = ("root", "window", "start", "owners", "docs")
_SOURCE_KEYS = ("name", "protocol", "kind", "path", "ports", "tcp", "kafka", "options", "max_inflated_ratio")
_MOST_RATIO = 1_000_000


class ConfigError(UsageError):
    """The configuration can't be used. `key` is empty where the file as a whole is meant."""

    template = "{file}: {key}: {reason}"

    def __init__(self, *, file: str, key: str, reason: str) -> None:
        super().__init__(file=file, key=key, reason=reason)
        if not key:
            self.args = (f"{file}: {reason}",)


T = TypeVar("T")
Refuse = Callable[[str, str], ConfigError]


def place(path: str | Path | None) -> Path:
    """The configuration file: `path`, else that of WIREHOUSE_CONFIG, else ./wirehouse.toml."""
    return Path(path or os.environ.get(VARIABLE) or DEFAULT)


def command() -> str:
    """How a command that is shown begins: with the configuration, if this process was told of one."""
    named = os.environ.get(VARIABLE)
    return f"wirehouse --config {shell_word(os.path.abspath(named))}" if named else "wirehouse"


def load(path: str | Path | None = None) -> Lake:
    """The lake that the configuration at `place(path)` describes. Raises ConfigError."""
    file = place(path)

    def refuse(key: str, reason: str) -> ConfigError:
        return ConfigError(file=str(file), key=key, reason=reason)

    raw = _parse(file, refuse)
    _refuse_unknown(raw, ("lakehouse", "spark", "upkeep", "source"), "", refuse)
    folder = file.absolute().parent
    spark = _read_options(SparkOptions.from_mapping, _table(raw, "spark", "", refuse), "spark", refuse)
    upkeep = _read_options(UpkeepOptions.from_mapping, _table(raw, "upkeep", "", refuse), "upkeep", refuse)
    sources = _sources(raw.get("source", []), folder, refuse)
    lake = replace(_lake(_table(raw, "lakehouse", "", refuse), sources, folder, refuse), spark=spark, upkeep=upkeep)
    # A bucket is asked when something is landed: to load definitions no socket is opened.
    if is_local(lake.root):
        try:
            lake_json.check(lake)
        except lake_json.WindowSizeError as error:
            raise refuse("lakehouse.window", str(error)) from None
        except lake_json.StartError as error:
            raise refuse("lakehouse.start", str(error)) from None
    return lake


def _parse(file: Path, refuse: Refuse) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"write one as README shows, or name another with --config or {VARIABLE}"
        raise refuse("", f"there is no such file: {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse("", f"is not TOML: {error}") from None
    except OSError as error:
        raise refuse("", f"can't be read: {error.strerror}") from None


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], within: str, refuse: Refuse) -> None:
    for key in table:
        if key not in known:
            raise refuse(f"{within}{key}", f"unknown key, expected one of {', '.join(known)}")


def _table(table: Mapping[str, Any], key: str, within: str, refuse: Refuse) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise refuse(f"{within}{key}", f"must be a table, not {value!r}")
    return value


def _text(table: Mapping[str, Any], key: str, within: str, refuse: Refuse, default: str | None = None) -> str:
    value = table.get(key, default)
    if value is None:
        raise refuse(f"{within}{key}", "is missing")
    if not isinstance(value, str) or not value or "\0" in value:
        raise refuse(f"{within}{key}", f"must be a text that isn't empty, not {_shown(value)}")
    return value


def _choice(table: Mapping[str, Any], key: str, within: str, refuse: Refuse, choices: tuple[str, ...]) -> str:
    value = _text(table, key, within, refuse)
    if value not in choices:
        raise refuse(f"{within}{key}", f"must be one of {', '.join(choices)}, not {value!r}")
    return value


def _shown(value: object) -> str:
    """A wrong value in words: dates and times of TOML are not text."""
    return value.isoformat() + " without quotes" if hasattr(value, "isoformat") else repr(value)


def _lake(table: Mapping[str, Any], sources: tuple[Source, ...], folder: Path, refuse: Refuse) -> Lake:
    within = "lakehouse."
    _refuse_unknown(table, _LAKEHOUSE_KEYS, within, refuse)
    root = os.environ.get(ROOT_VARIABLE) or _text(table, "root", within, refuse)
    remote = root.startswith("s3://")
    root = _bucket(root, refuse) if remote else _resolved(root, "lakehouse.root", folder, refuse)
    size: Size = "day"
    if "window" in table:
        size = "hour" if _choice(table, "window", within, refuse, SIZES) == "hour" else "day"
    if size == "hour" and "start" not in table:
        raise refuse("lakehouse.start", "is missing: with hour windows the first one has to be said, as 2026-11-14T22")
    start = _text(table, "start", within, refuse, FIRST_DAY)
    windows = Windows(size, start)
    try:
        moment = windows.parse(start)
    except WindowNameError as error:
        raise refuse("lakehouse.start", str(error)) from None
    if not datetime(1970, 1, 1, tzinfo=UTC) <= moment <= datetime.now(UTC):
        raise refuse("lakehouse.start", f"{start} is not between 1970 and now")
    signs = _NOT_IN_BUCKETS if remote else _NOT_IN_ROOTS
    if not root.isprintable() or set(root) & set(signs):
        raise refuse("lakehouse.root", f"{root!r} must not have any of {' '.join(signs)} or a line break in it")
    try:
        if not remote and Path(root).is_file():
            raise refuse("lakehouse.root", f"{root} is a file, not a folder")
    except OSError as error:
        raise refuse("lakehouse.root", f"{root} can't be looked at: {error.strerror}") from None
    home = str(folder / HOME / root.removeprefix("s3://")) if remote else None
    return Lake(root, windows, sources, home, owners=_owners(table, refuse), docs=_docs(table, refuse))


def _owners(table: Mapping[str, Any], refuse: Refuse) -> tuple[str, ...]:
    """Who answers for the lake; nobody is said to."""
    listed = table.get("owners", [])
    known = isinstance(listed, list) and all(isinstance(item, str) and _OWNER.fullmatch(item) for item in listed)
    if not known:
        reason = f'must be a list of addresses and teams, as ["ann@example.org", "team:network"], not {_shown(listed)}'
        raise refuse("lakehouse.owners", reason)
    return tuple(dict.fromkeys(listed))


def _docs(table: Mapping[str, Any], refuse: Refuse) -> str:
    """Where the site of docs/ is served, if it is."""
    if "docs" not in table:
        return ""
    address = _text(table, "docs", "lakehouse.", refuse)
    if not _SITE.fullmatch(address):
        raise refuse("lakehouse.docs", f"must be the address of the site of docs/, as https://HOST/, not {address!r}")
    return address.rstrip("/")


def _bucket(root: str, refuse: Refuse) -> str:
    """The address of a lake in a bucket."""
    if not _BUCKET_ADDRESS.fullmatch(root) or {".", ".."} & set(root.split("/")):
        raise refuse("lakehouse.root", f"{root!r} is no s3://bucket/prefix")
    return root.rstrip("/")


def _sources(listed: Any, folder: Path, refuse: Refuse) -> tuple[Source, ...]:
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise refuse("source", "must be written as [[source]]")
    sources: dict[str, Source] = {}
    for number, item in enumerate(listed):
        source = _source(item, number, folder, refuse)
        if source.name in sources:
            raise refuse("source.name", f"two sources are called {source.name!r}")
        sources[source.name] = source
    for source in sources.values():
        _check_service(source, sources, refuse)
    return tuple(sources.values())


def _check_service(source: Source, sources: Mapping[str, Source], refuse: Refuse) -> None:
    """Rows have a service's name as their source: it has to be that of no source of another service."""
    key = f"source.{source.name}.options.service"
    if sources.get(source.service, source).service != source.service:
        raise refuse(key, f"{source.service} is a source that belongs to another service")
    for other in sources.values():
        if other.service == source.service and other.protocol != source.protocol:
            raise refuse(key, f"source {other.name} of that service is of the protocol {other.protocol}")
        if other.service == source.service and dict(other.options) != dict(source.options):
            raise refuse(key, f"source {other.name} of that service has other options: they have to be the same")


def _source(table: Mapping[str, Any], number: int, folder: Path, refuse: Refuse) -> Source:
    name = _text(table, "name", f"source[{number}].", refuse)
    try:
        source_name(name, "name")
    except OptionError as error:
        raise refuse(f"source[{number}].name", str(error.fields["reason"])) from None
    within = f"source.{name}."
    _refuse_unknown(table, _SOURCE_KEYS, within, refuse)
    protocol = PROTOCOLS[_choice(table, "protocol", within, refuse, tuple(PROTOCOLS))]
    kind = _choice(table, "kind", within, refuse, protocol.kinds)
    path = _text(table, "path", within, refuse)
    if kind != KAFKA and not path.startswith("s3://"):
        path = _resolved(path, f"{within}path", folder, refuse)
    options = _table(table, "options", within, refuse)
    named = _read_options(protocol.parse_options, options, f"{within}options", refuse).ports
    ports, tcp = _ports(table, kind, named, f"{within}ports", refuse), _tcp(table, kind, within, refuse)
    kafka = _kafka(table, kind, within, refuse)
    return Source(name, protocol.name, kind, path, options, ports, tcp, kafka, _limits(table, name, refuse))


def _kafka(table: Mapping[str, Any], kind: str, within: str, refuse: Refuse) -> Mapping[str, Any]:
    """Which broker, of a source of its records."""
    if "kafka" in table and kind != KAFKA:
        raise refuse(f"{within}kafka", f"is of kind {KAFKA} alone, not of {kind}")
    kafka = _table(table, "kafka", within, refuse)
    _read_options(KafkaOptions.from_mapping, kafka, f"{within}kafka", refuse)
    return kafka


def _limits(table: Mapping[str, Any], name: str, refuse: Refuse) -> Limits:
    """How much captures may inflate to, for those that compress better than most."""
    key = "max_inflated_ratio"
    if key not in table:
        return LIMITS
    read = _read_options(
        partial(read_options, readers={key: whole(_MOST_RATIO)}), {key: table[key]}, f"source.{name}", refuse
    )
    return Limits(inflated_ratio=read[key])


def _ports(table: Mapping[str, Any], kind: str, named: tuple[int, ...], key: str, refuse: Refuse) -> tuple[int, ...]:
    """The servers' ports: a source of packets needs them, others have none. `named` are those that options tell."""
    if kind not in PACKET_KINDS:
        if "ports" in table:
            raise refuse(key, f"are of kind {' or '.join(PACKET_KINDS)} alone, not of {kind}")
        return ()
    if "ports" not in table and named:
        return tuple(sorted(named))
    if "ports" not in table:
        raise refuse(key, "are missing: the TCP ports of the servers, as [5555]")
    listed = table["ports"]
    if not isinstance(listed, list) or not listed or not all(_is_port(port) for port in listed):
        raise refuse(key, f"must be a list of TCP ports from 1 to {MOST_PORT}, as [5555], not {_shown(listed)}")
    if named and set(named) != set(listed):
        raise refuse(key, f"must be those that the options name, {_shown(sorted(named))}, or be left out")
    return tuple(sorted(set(listed)))


def _tcp(table: Mapping[str, Any], kind: str, within: str, refuse: Refuse) -> TcpOptions:
    """How connections are put together: of a source of packets alone."""
    if "tcp" in table and kind not in PACKET_KINDS:
        raise refuse(f"{within}tcp", f"is of kind {' or '.join(PACKET_KINDS)} alone, not of {kind}")
    return _read_options(TcpOptions.from_mapping, _table(table, "tcp", within, refuse), f"{within}tcp", refuse)


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PORT


def _resolved(path: str, key: str, folder: Path, refuse: Refuse) -> str:
    """`path` from the configuration's folder."""
    if not is_local(path):
        raise refuse(key, f"must be a folder or s3://bucket/prefix, not {path!r}")
    return os.path.normpath(folder / path)


def _read_options(read: Callable[[Mapping[str, Any]], T], options: Mapping[str, Any], within: str, refuse: Refuse) -> T:
    try:
        return read(options)
    except OptionError as error:
        raise refuse(f"{within}.{error.fields['key']}", str(error.fields["reason"])) from None
