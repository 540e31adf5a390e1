"""What holds of every protocol's captures: windows cut anywhere, run in any way, files that were rotated or come late.

tests/pipelines/PROTOCOL/test_windows.py says what its captures are, and what makes them worth comparing:

    pytestmark = pytest.mark.property

    class TestWindows(CutAnywhere):
        protocol = "ockam"

        def sources(self, folder: Path) -> list[Source]:
            write({"busy": CONFIG}, simulate, folder)
            return [Source("busy", "ockam", "pcap", str(folder / "busy"), ports=(PORT,))]

        def test_the_captures_are_worth_comparing(self, at_once: Lake, hours: Lake) -> None:
            assert select(at_once, "SELECT * FROM gold.ockam_delivery_holes")

What is compared are the tables that `running.promised` names. A step costs the jobs of the protocol once: captures of
ten hours with data and some silence say as much as those of thirty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.running import assert_same_rows, land, run
from wirehouse_codecs.simulate.pcap_writer import CapturedPacket, write_file
from wirehouse_codecs.simulate.script import Disturbances
from wirehouse_pipelines.jobs import bronze, runner
from wirehouse_pipelines.lake.lake import Lake, Source
from wirehouse_pipelines.lake.protocols import PROTOCOLS
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing import landing

_HOUR_NS = 3_600 * 10**9
#: A simulator that isn't told otherwise begins at 22:13: ten hours of it are two days.
FIRST = {"day": "2023-11-14", "hour": "2023-11-14T22"}
STEP = 3
#: What the captures lack that are called `lossy`.
LOST = Disturbances(seed=1, lost=0.02, reordered=0.02, contradicted=0.01)


def write(
    configs: Mapping[str, Any],
    simulate: Callable[..., Iterable[CapturedPacket]],
    folder: Path,
    later: Callable[[int], Iterable[CapturedPacket]] = lambda after_ns: (),
) -> None:
    """Write what is simulated by each configuration to a folder of its name, as a capture that was rotated.

    Behind it comes what is `later`: five hours after the last packet, so that what was left open has ended by then, in
    windows of any size.
    """
    for name, config in configs.items():
        packets = list(simulate(config, LOST if name == "lossy" else None))
        rotate([*packets, *later(packets[-1].ts_ns + 5 * _HOUR_NS)], folder / name)


def rotate(packets: Iterable[CapturedPacket], folder: Path, files: int = 3) -> None:
    """Write packets to so many files in `folder`, as a capture that was rotated."""
    folder.mkdir(parents=True)
    listed = list(packets)
    rest = iter(listed)
    for number in range(files):
        count = len(listed) // files if number < files - 1 else None
        write_file(islice(rest, count), folder / f"{number}.pcap")


class CutAnywhere(ABC):
    """The tests; a subclass has `protocol` and `sources`, and may add tests with the fixtures `at_once` and `hours`."""

    protocol: ClassVar[str]

    @abstractmethod
    def sources(self, folder: Path) -> Sequence[Source]:
        """Write captures below `folder`, and what reads them.

        The place of each source is a folder of three files or more, in the order of their names. Together they have
        data in two days and six hours or more.
        """

    @pytest.fixture(scope="class")
    def written(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, ...]:
        """The sources, their captures written."""
        return tuple(self.sources(tmp_path_factory.mktemp("captures")))

    @pytest.fixture(scope="class")
    def at_once(self, in_process: Any, written: tuple[Source, ...], tmp_path_factory: pytest.TempPathFactory) -> Lake:
        """Day windows in one range."""
        lake = Lake(str(tmp_path_factory.mktemp("days")), Windows("day", FIRST["day"]), written)
        land(lake)
        run(in_process, lake)
        return lake

    @pytest.fixture(scope="class")
    def hours(self, in_process: Any, written: tuple[Source, ...], tmp_path_factory: pytest.TempPathFactory) -> Lake:
        """Hour windows; the jobs of the protocol in steps of some."""
        lake = Lake(str(tmp_path_factory.mktemp("hours")), Windows("hour", FIRST["hour"]), written)
        land(lake)
        windows = runner.data_windows(lake)
        for job in bronze.JOBS:
            runner.run_job(in_process, lake, job.name, windows[0], windows[-1])
        for begin in range(0, len(windows), STEP):
            step = windows[begin : begin + STEP]
            for job in PROTOCOLS[self.protocol].jobs:
                runner.run_job(in_process, lake, job.name, step[0], step[-1])
        return lake

    def test_there_is_something_to_cut(self, at_once: Lake, hours: Lake) -> None:
        assert len(runner.data_windows(at_once)) >= 2
        assert len(runner.data_windows(hours)) >= 2 * STEP

    def test_hours_step_by_step_are_days_at_once(self, at_once: Lake, hours: Lake) -> None:
        assert_same_rows(at_once, hours, without=["window_start", "window_begin"])

    def test_a_range_again_gives_the_same_rows(self, in_process: Any, at_once: Lake, hours: Lake) -> None:
        windows = runner.data_windows(hours)
        for job in PROTOCOLS[self.protocol].jobs:
            report = runner.run_job(in_process, hours, job.name, windows[2], windows[-1], force=True)
            assert set(report.windows) == set(windows[2:])
        assert_same_rows(at_once, hours, without=["window_start", "window_begin"])
        assert runner.stale(hours) == {}

    def test_a_late_file_gives_the_rows_of_one_in_time(self, in_process: Any, at_once: Lake, tmp_path: Path) -> None:
        """Of each source what lies between its first file and its last comes after the rest was run."""
        lake = Lake(str(tmp_path / "apart"), at_once.windows, at_once.sources)
        for source in lake.sources:
            files = sorted(map(str, Path(source.path).iterdir()))
            landing.land(lake, source, [files[0], files[-1]])
        run(in_process, lake)
        land(lake)
        assert runner.stale(lake)
        run(in_process, lake)
        assert_same_rows(at_once, lake)
