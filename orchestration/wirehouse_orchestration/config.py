"""Reads the configuration file, wirehouse.toml: the lake's location, its windows, and the sources of its captures.

All mistakes in the file are reported at once, one per line with the file, the key and the expected value. Relative
paths start at the file's folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from wirehouse_codecs.captures.inflate import LIMITS, Limits
from wirehouse_codecs.core.errors import OptionError, UsageError
from wirehouse_codecs.core.option_tables import MOST_PORT, Options, read_options, source_name, whole
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_orchestration.terminal.render import shell_word
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.kafka_options import KafkaOptions
from wirehouse_pipelines.lake.lake import KAFKA, PACKET_KINDS, Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.spark_options import SparkOptions
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import Size, WindowNameError, Windows
from wirehouse_pipelines.storage.storage import is_local, masked

VARIABLE = "WIREHOUSE_CONFIG"
#: The lake's root; it overrides the file.
ROOT_VARIABLE = "WIREHOUSE_ROOT"
#: A folder beside the configuration file, for local data that the runs of a lake in a bucket share.
HOME = ".wirehouse"
DEFAULT = "wirehouse.toml"
#: The folder of the demo's lake.
DEMO = "demo-lake"
FIRST_DAY = "2015-01-01"
SIZES: tuple[str, ...] = get_args(Size)

_BUCKET_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/]+)*/?")
#: Spark reads them as patterns, other tools as parts of an address: tables would be elsewhere than captures.
_NOT_IN_ROOTS = "*?[]{}\\%|^"
_NOT_IN_BUCKETS = f"{_NOT_IN_ROOTS}#"
_OWNER = re.compile(r"team:[\w.-]+|[\w.+-]+@[\w-]+(\.[\w-]+)+")
_SITE = re.compile(r"https?://[^\s/]+(/\S*)?")
_MOST_RATIO = 1_000_000
_NO_FOLDER = "must be a folder or s3://bucket/prefix, not {!r}"


T = TypeVar("T", bound=Options)


class Mistake(NamedTuple):
    """What is wrong at a key of the file, or with the whole file if `key` is empty."""

    key: str
    reason: str


class ConfigError(UsageError):
    """The configuration is invalid. The message has a line for each of `mistakes`."""

    template = "{file}"

    def __init__(self, *, file: str, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__(file=file, mistakes=mistakes)
        # An address may have a password in it.
        self.args = (masked("\n".join(": ".join(filter(None, (file, *mistake))) for mistake in mistakes)),)


def place(path: str | Path | None) -> Path:
    """The path of the configuration file: `path`, else the value of WIREHOUSE_CONFIG, else ./wirehouse.toml."""
    return Path(path or os.environ.get(VARIABLE) or DEFAULT)


def command() -> str:
    """The start of commands shown to people. It names the configuration if WIREHOUSE_CONFIG is set."""
    named = os.environ.get(VARIABLE)
    return f"wirehouse --config {shell_word(os.path.abspath(named))}" if named else "wirehouse"


def load(path: str | Path | None = None) -> Lake:
    """The lake that the configuration at `place(path)` describes. Raises ConfigError."""
    file = place(path)
    raw, folder = _parse(file), file.absolute().parent
    try:
        lake = _lake(_File.model_validate(raw, context=folder), folder)
        mistakes = [*_between(lake.sources)]
    except ValidationError as error:
        mistakes = [mistake for details in error.errors() for mistake in _mistakes(details, raw)]
    if mistakes:
        raise ConfigError(file=str(file), mistakes=tuple(mistakes))
    # For a lake in a bucket, landing checks this: loading definitions must not open a socket.
    if is_local(lake.root):
        try:
            lake_json.check(lake)
        except lake_json.WindowSizeError as error:
            raise _of(file, str(error), "lakehouse.window") from None
        except lake_json.StartError as error:
            raise _of(file, str(error), "lakehouse.start") from None
    return lake


def _of(file: Path, reason: str, key: str = "") -> ConfigError:
    return ConfigError(file=str(file), mistakes=(Mistake(key, reason),))


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = f"write one as README shows, or name another with --config or {VARIABLE}"
        raise _of(file, f"there is no such file: {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _of(file, f"is not TOML: {error}") from None
    except OSError as error:
        raise _of(file, f"can't be read: {error.strerror}") from None


# Mistakes


def _refuse(*mistakes: Mistake) -> NoReturn:
    """Refuse the value being validated. Keys of `mistakes` are relative to it."""
    raise PydanticCustomError("refused", "refused", {"mistakes": mistakes})


def _because(reason: str) -> NoReturn:
    _refuse(Mistake("", reason))


def _mistakes(details: ErrorDetails, raw: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistakes in one error of pydantic, in our words and with the keys of the file."""
    key = _key(details["loc"], raw)
    match details["type"]:
        case "refused":
            for inner, reason in details["ctx"]["mistakes"]:
                yield Mistake(".".join(filter(None, (key, inner))), reason)
        case "missing":
            yield Mistake(key, "is missing")
        case "extra_forbidden":
            yield Mistake(key, f"unknown key, expected one of {', '.join(_known(details['loc']))}")
        case "model_type":
            yield Mistake(key, f"must be a table, not {_shown(details['input'])}")
        case kind:
            raise AssertionError(f"{kind} at {key}")  # Our validators report all other mistakes.


def _key(path: tuple[int | str, ...], raw: Mapping[str, Any]) -> str:
    """The key of a value in the file. It contains the name of a source, or its number if the name is invalid."""
    if path[:1] != ("source",) or len(path) == 1:
        return ".".join(map(str, path))
    number = path[1]
    assert isinstance(number, int)
    name = raw["source"][number].get("name")
    named = path[2:] != ("name",) and _is_name(name)
    return ".".join((f"source.{name}" if named else f"source[{number}]", *map(str, path[2:])))


def _known(path: tuple[int | str, ...]) -> Iterator[str]:
    """The valid keys of the table that contains `path`."""
    tables: dict[tuple[int | str, ...], type[BaseModel]] = {(): _File, ("lakehouse",): _Lakehouse}
    return iter(tables.get(path[:-1], _Source).model_fields)


def _shown(value: object) -> str:
    """A wrong value in words. TOML's dates and times need a hint, because they are not text."""
    return value.isoformat() + " without quotes" if hasattr(value, "isoformat") else repr(value)


# Values


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        _because(f"must be a text that isn't empty, not {_shown(value)}")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if _text(value) not in choices:
            _because(f"must be one of {', '.join(choices)}, not {value!r}")
        return str(value)

    return read


def _is_name(value: Any) -> bool:
    return not any(_refusals(partial(source_name, value, "")))


def _options(table: type[T], value: Any) -> T:
    """The options in a table. Each invalid key is a mistake; if all are valid, contradictions between them are."""
    alone = [{name: value[name]} for name in value] if isinstance(value, dict) else []
    mistakes = [mistake for one in alone for mistake in _refusals(partial(read_options, one, table.READERS))]
    mistakes = mistakes or list(_refusals(partial(table.from_mapping, value)))
    if mistakes:
        _refuse(*mistakes)
    return table.from_mapping(value)


def _refusals(read: Callable[[], object]) -> Iterator[Mistake]:
    try:
        read()
    except OptionError as error:
        yield Mistake(error.fields["key"], str(error.fields["reason"]))


def _as_written(table: type[Options], value: Any) -> Mapping[str, Any]:
    """A table, unchanged, after checking that it can be read."""
    _options(table, value)
    return dict(value)


def _owners(value: Any) -> tuple[str, ...]:
    known = isinstance(value, list) and all(isinstance(item, str) and _OWNER.fullmatch(item) for item in value)
    if not known:
        shown = _shown(value)
        _because(f'must be a list of addresses and teams, as ["ann@example.org", "team:network"], not {shown}')
    return tuple(dict.fromkeys(value))


def _docs(value: Any) -> str:
    if not _SITE.fullmatch(_text(value)):
        _because(f"must be the address of the site of docs/, as https://HOST/, not {value!r}")
    return str(value).rstrip("/")


def _ports(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(_is_port(port) for port in value):
        _because(f"must be a list of TCP ports from 1 to {MOST_PORT}, as [5555], not {_shown(value)}")
    return tuple(sorted(set(value)))


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_PORT


def _name(value: Any) -> str:
    for _, reason in _refusals(partial(source_name, _text(value), "")):
        _because(reason)
    return str(value)


def _tables(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        _because("must be written as [[source]]")
    return tuple(value)


def _ratio(value: Any) -> Limits:
    for _, reason in _refusals(partial(whole(_MOST_RATIO), value, "")):
        _because(reason)
    return Limits(inflated_ratio=value)


def _resolved(path: str, folder: Path) -> str:
    """`path`, relative to the folder of the configuration."""
    if not is_local(path):
        _because(_NO_FOLDER.format(path))
    return os.path.normpath(folder / path)


def _root(value: Any, info: ValidationInfo[Path]) -> str:
    """The lake's root: a folder, or an address s3://bucket/prefix."""
    value = os.environ.get(ROOT_VARIABLE) or value
    if value is None:
        _because("is missing")
    root = _text(value)
    remote = root.startswith("s3://")
    if remote and (not _BUCKET_ADDRESS.fullmatch(root) or {".", ".."} & set(root.split("/"))):
        _because(f"{root!r} is not s3://bucket/prefix")
    root = root.rstrip("/") if remote else _resolved(root, info.context)
    signs = _NOT_IN_BUCKETS if remote else _NOT_IN_ROOTS
    if not root.isprintable() or set(root) & set(signs):
        _because(f"{root!r} must not have any of {' '.join(signs)} or a line break in it")
    try:
        if not remote and Path(root).is_file():
            _because(f"{root} is a file, not a folder")
    except OSError as error:
        _because(f"{root} can't be looked at: {error.strerror}")
    return root


# The file


class _Part(BaseModel):
    """A table of the file. Functions of this module validate the values, so that messages are in our words."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_NOTHING: Any = Field(default_factory=dict)


class _Lakehouse(_Part):
    root: Annotated[str, PlainValidator(_root)] = Field(default=None, validate_default=True)
    window: Annotated[Size, PlainValidator(_one_of(*SIZES))] = "day"
    start: Annotated[str, PlainValidator(_text)] = FIRST_DAY
    owners: Annotated[tuple[str, ...], PlainValidator(_owners)] = ()
    docs: Annotated[str, PlainValidator(_docs)] = ""

    @model_validator(mode="after")
    def _begins_when_it_can(self) -> Self:
        if self.window == "hour" and "start" not in self.model_fields_set:
            _refuse(Mistake("start", "is missing: hour windows need the first window, such as 2026-11-14T22"))
        try:
            moment = self.windows.parse(self.start)
        except WindowNameError as error:
            _refuse(Mistake("start", str(error)))
        if not datetime(1970, 1, 1, tzinfo=UTC) <= moment <= datetime.now(UTC):
            _refuse(Mistake("start", f"{self.start} is not between 1970 and now"))
        return self

    @property
    def windows(self) -> Windows:
        return Windows(self.window, self.start)


class _Source(_Part):
    name: Annotated[str, PlainValidator(_name)]
    protocol: Annotated[str, PlainValidator(_one_of(*PROTOCOLS))]
    kind: Annotated[str, PlainValidator(_text)]
    path: Annotated[str, PlainValidator(_text)]
    ports: Annotated[tuple[int, ...], PlainValidator(_ports)] = ()
    tcp: Annotated[TcpOptions, PlainValidator(partial(_options, TcpOptions))] = TcpOptions()
    kafka: Annotated[Mapping[str, Any], PlainValidator(partial(_as_written, KafkaOptions))] = _NOTHING
    options: Mapping[str, Any] = _NOTHING
    max_inflated_ratio: Annotated[Limits, PlainValidator(_ratio)] = LIMITS

    @field_validator("options", mode="plain")
    @classmethod
    def _are_of_the_protocol(cls, value: Any, info: ValidationInfo) -> Mapping[str, Any]:
        protocol = info.data.get("protocol")
        return _as_written(PROTOCOLS[protocol].options, value) if protocol else {}

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        mistakes = [*self._wrong_for_kind()]
        if mistakes:
            _refuse(*mistakes)
        return self

    def _wrong_for_kind(self) -> Iterator[Mistake]:
        kinds = PROTOCOLS[self.protocol].kinds
        if self.kind not in kinds:
            yield Mistake("kind", f"must be one of {', '.join(kinds)}, not {self.kind!r}")
            return
        given = self.model_fields_set
        if self.kind not in PACKET_KINDS:
            of = " or ".join(PACKET_KINDS)
            if "ports" in given:
                yield Mistake("ports", f"are of kind {of} alone, not of {self.kind}")
            if "tcp" in given:
                yield Mistake("tcp", f"is of kind {of} alone, not of {self.kind}")
        elif self._named_ports and "ports" in given and self._named_ports != self.ports:
            yield Mistake("ports", f"must be those that the options name, {[*self._named_ports]}, or be left out")
        elif not self._named_ports and "ports" not in given:
            yield Mistake("ports", "are missing: the TCP ports of the servers, as [5555]")
        if "kafka" in given and self.kind != KAFKA:
            yield Mistake("kafka", f"is of kind {KAFKA} alone, not of {self.kind}")
        if self.kind != KAFKA and not self._in_bucket and not is_local(self.path):
            yield Mistake("path", _NO_FOLDER.format(self.path))

    @property
    def _in_bucket(self) -> bool:
        return self.path.startswith("s3://")

    @property
    def _named_ports(self) -> tuple[int, ...]:
        """The ports named in the options, if the protocol's options define the purpose of each port."""
        return tuple(sorted(PROTOCOLS[self.protocol].options.from_mapping(self.options).ports))

    def source(self, folder: Path) -> Source:
        """The source. A relative path starts at `folder`."""
        path = self.path if self.kind == KAFKA or self._in_bucket else os.path.normpath(folder / self.path)
        ports = self.ports or (self._named_ports if self.kind in PACKET_KINDS else ())
        return Source(
            self.name,
            self.protocol,
            self.kind,
            path,
            self.options,
            ports,
            self.tcp,
            self.kafka,
            self.max_inflated_ratio,
        )


class _File(_Part):
    lakehouse: _Lakehouse = Field(default_factory=dict, validate_default=True)
    spark: Annotated[SparkOptions, PlainValidator(partial(_options, SparkOptions))] = SparkOptions()
    upkeep: Annotated[UpkeepOptions, PlainValidator(partial(_options, UpkeepOptions))] = UpkeepOptions()
    source: Annotated[tuple[_Source, ...], BeforeValidator(_tables)] = ()


def _lake(written: _File, folder: Path) -> Lake:
    lakehouse, sources = written.lakehouse, tuple(source.source(folder) for source in written.source)
    root = lakehouse.root
    home = None if is_local(root) else str(folder / HOME / root.removeprefix("s3://"))
    return Lake(
        root,
        lakehouse.windows,
        sources,
        home,
        spark=written.spark,
        upkeep=written.upkeep,
        owners=lakehouse.owners,
        docs=lakehouse.docs,
    )


def _between(sources: Sequence[Source]) -> Iterator[Mistake]:
    """The mistakes of sources that contradict each other."""
    by_name = {source.name: source for source in sources}
    for name, count in Counter(source.name for source in sources).items():
        if count > 1:
            yield Mistake("source.name", f"two sources are called {name!r}")
    for source in sources:
        key = f"source.{source.name}.options.service"
        # Rows have the service's name as their source, so a source of another service must not have that name.
        if by_name.get(source.service, source).service != source.service:
            yield Mistake(key, f"{source.service} is a source that belongs to another service")
        of_service = [other for other in sources if other.service == source.service]
        for other in of_service:
            if other.protocol != source.protocol:
                yield Mistake(key, f"source {other.name} of that service is of the protocol {other.protocol}")
            elif dict(other.options) != dict(source.options):
                yield Mistake(key, f"source {other.name} of that service has other options: they have to be the same")
