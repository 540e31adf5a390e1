"""`wirehouse doctor`: checks what this machine needs to run Wirehouse, and prints how to fix what is missing.

It changes nothing, except that it writes an object to the lake's bucket and deletes it, to test the permissions.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from wirehouse_codecs.core.errors import WirehouseError
from wirehouse_orchestration import config
from wirehouse_orchestration.servers import ports
from wirehouse_orchestration.terminal.render import json_line, terminal
from wirehouse_pipelines.jobs import forgetting
from wirehouse_pipelines.lake.lake import Lake
from wirehouse_pipelines.landing import capture_files
from wirehouse_pipelines.spark import jars, java
from wirehouse_pipelines.storage.storage import Storage, StorageError, is_local, open_storage

OLDEST_PYTHON = (3, 11)
#: Spark sorts and shuffles on disk, and Delta keeps replaced files until they are vacuumed.
LEAST_FREE_BYTES = 2 << 30
#: Memory of the JVM and of Python's workers beside it.
LEAST_MEMORY_BYTES = 4 << 30
#: The default ports of commands.
PORTS = {
    ports.UI: "`wirehouse ui` takes a free one instead",
    ports.METRICS: "`wirehouse ui` takes a free one for /metrics instead",
    ports.DASHBOARD: "`wirehouse dashboard` takes a free one instead",
    ports.SUPERSET: "name another for `make superset` by SUPERSET_PORT",
    ports.SQL: "name another with `wirehouse sql-server --port`",
}
_PROBE = "doctor"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check, its state, and how to fix it if necessary."""

    what: str
    state: str
    mend: str | None = None
    #: Whether Wirehouse works without it.
    optional: bool = False


def examine(file: str | None, *, as_json: bool = False) -> bool:
    """Print all findings, as one JSON object per line if `as_json`. Returns whether everything required is there."""
    console = Console(soft_wrap=True)
    well = True
    for finding in findings(file):
        missing = finding.mend is not None and not finding.optional
        well &= not missing
        if as_json:
            print(json_line({**asdict(finding), "missing": missing}))
            continue
        mark = ("✗ ", "bold red") if missing else ("! ", "yellow") if finding.mend else ("✓ ", "green")
        console.print(Text.assemble(mark, (f"{finding.what}: ", "bold"), terminal(finding.state)))
        if finding.mend:
            console.print(Text(f"    {terminal(finding.mend)}"))
    return well


def findings(file: str | None) -> Iterator[Finding]:
    """All findings; those about the lake only if the configuration can be read."""
    yield from (look() for look in (_python, _versions, _java, _jars, _memory, _temporary))
    yield from (_port(port, use) for port, use in PORTS.items())
    try:
        lake = config.load(file)
    except WirehouseError as error:
        # Without one the demo still runs; one that was named has to be there.
        optional = file is None and config.VARIABLE not in os.environ and not config.place(file).exists()
        yield Finding("configuration", str(error), "README shows a whole one; the demo writes its own", optional)
        return
    sources = ", ".join(source.name for source in lake.sources)
    yield Finding("configuration", f"{config.place(file)}, sources: {sources or 'none'}")
    looks: tuple[Callable[[Lake], Finding], ...] = (_writable, _space)
    yield from (look(lake) for look in looks)
    for source in lake.sources:
        try:
            capture_files.check_place(source)
        except WirehouseError:
            state = f"there is no {source.path}"
            yield Finding(f"source {source.name}", state, "create it, or correct `path` of the source")
    for name in forgetting.gone(lake):
        mend = f"its rows stay; to delete them and its captures: `wirehouse forget {name}`"
        yield Finding(f"source {name}", "not configured any more", mend, optional=True)


def _python() -> Finding:
    state = f"{sys.version.split()[0]} ({sys.executable})"
    old = sys.version_info < OLDEST_PYTHON
    return Finding(
        "Python", state, "make the virtual environment with Python 3.11 or newer: `make setup`" if old else None
    )


def _java() -> Finding:
    found = java.find()
    return Finding("Java", f"{found.major} ({found.executable})" if found else "none", java.trouble(found))


def _jars() -> Finding:
    folder = jars.folder()
    count = len(list(folder.glob("*.jar")))
    if jars.SPARK.up_to_date(folder):
        return Finding("Spark jars", f"{count} in {folder}")
    state = f"{count} in {folder}, not those of this release" if count else f"none in {folder}"
    return Finding("Spark jars", state, "run `make setup`")


def _port(port: int, use: str) -> Finding:
    taken = ports.listens(port)
    state = "taken" if taken else "free"
    return Finding(f"port {port}", state, f"perhaps it runs already; {use}" if taken else None, optional=True)


def _versions() -> Finding:
    """The packages that pyproject asks for, in versions that it allows."""
    wrong = []
    for text in metadata.requires("wirehouse") or ():
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"no {requirement.name}")
            continue
        if version not in requirement.specifier:
            wrong.append(f"{requirement.name} {version}")
    mend = "install those of constraints.txt: `make setup`" if wrong else None
    return Finding("packages", ", ".join(wrong) or f"as wirehouse {metadata.version('wirehouse')} needs them", mend)


def _memory() -> Finding:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    mend = "give Spark less by WIREHOUSE_DRIVER_MEMORY (3g), as 1g" if size < LEAST_MEMORY_BYTES else None
    return Finding("memory", f"{size / (1 << 30):.0f} GiB", mend, optional=True)


def _temporary() -> Finding:
    """Where Spark shuffles and spills."""
    place = os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0]
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("scratch space", f"{place}: {error.strerror}", "make that folder, or set SPARK_LOCAL_DIRS")
    mend = "free some, or name a larger disk by SPARK_LOCAL_DIRS" if free < LEAST_FREE_BYTES else None
    return Finding("scratch space", f"{free >> 30} GiB free in {place}", mend)


def _existing(root: str) -> Path:
    """The folder `root`, or the nearest above it that exists."""
    return next(folder for folder in (Path(root), *Path(root).parents) if folder.exists())


def _writable(lake: Lake) -> Finding:
    try:
        if is_local(lake.root):
            folder = _existing(lake.root)
            with tempfile.TemporaryFile(dir=folder):
                pass
        else:
            _use(open_storage(lake.root))
    except StorageError as error:
        return Finding("lake", str(error), "fix what the message names, or choose another [lakehouse] root")
    except OSError as error:
        return Finding(
            "lake", f"{folder} can't be written: {error.strerror}", "choose another [lakehouse] root, or its owner"
        )
    return Finding("lake", f"{lake.root}, {lake.windows.size} windows")


def _use(storage: Storage) -> None:
    """All that a lake does there; the lock asks for conditional writes. Raises StorageError."""
    with storage.lock(_PROBE):
        storage.write(_PROBE, _PROBE.encode())
        with storage.open(_PROBE) as stream:
            same = stream.read() == _PROBE.encode()
        storage.delete(_PROBE)
    if not same:
        raise StorageError(name=storage.root, reason="the store doesn't give back what was just written")


def _space(lake: Lake) -> Finding:
    free = shutil.disk_usage(_existing(lake.home)).free
    mend = (
        f"free some: Spark needs {LEAST_FREE_BYTES >> 30} GiB and more to shuffle" if free < LEAST_FREE_BYTES else None
    )
    return Finding("disk", f"{free >> 30} GiB free at {lake.home}", mend)
