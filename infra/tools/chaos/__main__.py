"""`make chaos`: makes each fault at random moments, given by a seed; then runs the lake again and compares all rows."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from infra.tools.chaos.disturbed_lake import HASH_KEY_VALUE, NextRunError, Scene, captured, differences, made
from infra.tools.chaos.faults import FAULTS, Fault, Measured, MissingError, quiet
from wirehouse_orchestration.infra import server
from wirehouse_pipelines.lake.hash_key import VARIABLE as HASH_KEY
from wirehouse_pipelines.lake.lake import Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS


def _default_protocols() -> tuple[str, ...]:
    """One for each kind of record."""
    first: dict[str, str] = {}
    for name, protocol in PROTOCOLS.items():
        first.setdefault(protocol.kinds[0], name)
    return tuple(first.values())


@click.command()
@click.option("--fault", "names", type=click.Choice([fault.name for fault in FAULTS]), multiple=True, help="Only this.")
@click.option("--protocol", "protocols", type=click.Choice(list(PROTOCOLS)), multiple=True, help="Captures of this.")
@click.option("--moments", type=click.IntRange(min=1), default=10, show_default=True, help="Of each fault.")
@click.option("--seed", default=1, show_default=True, help="What moments are drawn from.")
@click.option("--keep", is_flag=True, help="Keep the lakes whose tables differed.")
def main(names: Sequence[str], protocols: Sequence[str], moments: int, seed: int, keep: bool) -> None:
    """Disturb small lakes, and report whether the next run made every table equal to the undisturbed one."""
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    folder = Path(tempfile.mkdtemp(prefix="wirehouse-chaos-"))
    _own_servers(folder / "servers")
    sources = captured(folder / "captures", protocols or _default_protocols())
    click.echo(f"{'fault':<10}{'moments':>8}{'equal':>7}{'seconds':>9}  what it is")
    bad = 0
    for fault in chosen:
        bad += _table_line(fault, folder, sources, moments, seed)
    if bad and keep:
        click.echo(f"the lakes are in {folder}")
    else:
        shutil.rmtree(folder)
    raise SystemExit(bool(bad))


def _own_servers(folder: Path) -> None:
    """Use servers of our own, because they are killed here. Only their installations are shared."""
    installed = server.run_folder() / "installed"
    installed.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "installed").symlink_to(installed)
    os.environ[server.VARIABLE] = str(folder)


def _table_line(fault: Fault, folder: Path, sources: Sequence[Source], moments: int, seed: int) -> int:
    """Make the fault at its moments and print its line. Returns how many times tables differed."""
    begun, equal, results = time.monotonic(), 0, list[str]()
    if fault.servers:
        server.up(fault.servers, quiet)
    try:
        # Rows are read by this process, too. Where a lake lies and what computes it changes none of them: the
        # undisturbed one is in a folder, and on this machine's cores.
        servers = {key: value for key, value in fault.environment().items() if key.startswith(("AWS_", "KAFKA_"))}
        os.environ |= servers | {HASH_KEY: HASH_KEY_VALUE}
        mine = fault.sources(list(sources))
        whole = made(folder / fault.name / "undisturbed", mine, servers)
        measured = Measured(whole.finish(), _size(whole.folder / "lake"))
        for number in range(moments):
            scene = made(folder / fault.name / str(number), mine, fault.environment())
            line, same = _once(fault, scene, whole, random.Random(f"{seed} {fault.name} {number}"), measured)
            equal += same
            results.append(f"  {'equal' if same else 'NOT EQUAL'}: {line}")
            click.echo(results[-1], err=True)
            if same:
                shutil.rmtree(scene.folder)
    except MissingError as error:
        click.echo(f"{fault.name:<10}{'-':>8}{'-':>7}{'-':>9}  {fault.title}: not made, {error}")
        return 0
    finally:
        if fault.servers:
            server.down(fault.servers, quiet)
    click.echo(f"{fault.name:<10}{moments:>8}{equal:>7}{time.monotonic() - begun:>9.0f}  {fault.title}")
    return moments - equal


def _once(fault: Fault, scene: Scene, whole: Scene, draw: random.Random, measured: Measured) -> tuple[str, bool]:
    """Disturb the scene, run again, compare: what was done, and whether every row is the same."""
    line = ""
    try:
        line = fault.disturb(scene, draw, measured)
        scene.finish()
    except (NextRunError, subprocess.TimeoutExpired) as error:
        return f"{line}: {error}", False
    found = differences(scene.lake, whole.lake)
    return "; ".join([line, *found[:3]]), not found


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
