"""Configuration: what is read, and that every mistake is one line with the file and the key."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from wirehouse_codecs.captures.inflate import Limits
from wirehouse_codecs.tcp.options import TcpOptions
from wirehouse_orchestration import config
from wirehouse_orchestration.config import ConfigError, Mistake
from wirehouse_pipelines.lake import lake_json
from wirehouse_pipelines.lake.spark_options import MASTER_VARIABLES
from wirehouse_pipelines.lake.upkeep_options import UpkeepOptions
from wirehouse_pipelines.lake.windows import Windows
from wirehouse_pipelines.landing.capture_files import MissingPathError, check_place

LAKEHOUSE = '[lakehouse]\nroot = "lake"\n'
SOURCE = '[[source]]\nname = "mainnet"\nprotocol = "cardinal"\nkind = "messages"\npath = "inbox"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path


def write(folder: Path, text: str) -> Path:
    file = folder / "wirehouse.toml"
    file.write_text(text)
    return file


def test_relative_places_start_at_the_files_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(folder, LAKEHOUSE + SOURCE)
    monkeypatch.chdir("/")
    lake = config.load(file)
    assert lake.root == f"{folder}/lake"
    assert lake.windows == Windows("day", "2015-01-01")
    (source,) = lake.sources
    assert (source.name, source.protocol, source.kind) == ("mainnet", "cardinal", "messages")
    assert source.path == f"{folder}/inbox"


def test_absolute_places_stay(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert config.load(write(folder, f'[lakehouse]\nroot = "{elsewhere}"\n')).root == str(elsewhere)


def test_options_are_kept_as_written(folder: Path) -> None:
    text = LAKEHOUSE + SOURCE + "[source.options]\nreorg_threshold = 12\n"
    assert config.load(write(folder, text)).sources[0].options == {"reorg_threshold": 12}


def test_a_glob_needs_only_the_folder_it_starts_from(folder: Path) -> None:
    lake = config.load(write(folder, LAKEHOUSE + SOURCE.replace('"inbox"', '"inbox/*.jsonl"')))
    assert lake.sources[0].path == f"{folder}/inbox/*.jsonl"


def test_the_place_comes_from_the_argument_then_the_variable_then_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, LAKEHOUSE)
    (folder / "other.toml").write_text('[lakehouse]\nroot = "other"\n')
    monkeypatch.chdir(folder)
    monkeypatch.delenv(config.VARIABLE, raising=False)
    assert config.load().root == f"{folder}/lake"
    monkeypatch.setenv(config.VARIABLE, "other.toml")
    assert config.load().root == f"{folder}/other"
    assert config.load("wirehouse.toml").root == f"{folder}/lake"


HOUR = LAKEHOUSE + 'window = "hour"\n'
#: A mistake, the key that the line must name, and a word of the reason.
MISTAKES = {
    "unknown section": ("[lakehous]\n" + LAKEHOUSE, "lakehous", "unknown key"),
    "unknown key": (LAKEHOUSE + "windows = 'day'\n", "lakehouse.windows", "unknown key"),
    "no setting of Spark": (
        LAKEHOUSE + '[spark.settings]\n"executor.memory" = "2g"\n',
        "spark.settings.executor.memory",
        "none of Spark",
    ),
    "a setting that is ours": (
        LAKEHOUSE + '[spark.settings]\n"spark.sql.session.timeZone" = "CET"\n',
        "spark.settings.spark.sql.session.timeZone",
        "set by Wirehouse",
    ),
    "a setting that is no text": (
        LAKEHOUSE + '[spark.settings]\n"spark.executor.cores" = 2\n',
        "spark.settings.spark.executor.cores",
        "must be a text",
    ),
    "unknown source key": (LAKEHOUSE + SOURCE + "port = 1\n", "source.mainnet.port", "unknown key"),
    "no root": ("[lakehouse]\n", "lakehouse.root", "missing"),
    "nothing at all": ("", "lakehouse.root", "missing"),
    "root of a wrong type": ("[lakehouse]\nroot = 1\n", "lakehouse.root", "text"),
    "root that isn't local": ("[lakehouse]\nroot = 'ftp://a/b'\n", "lakehouse.root", "s3://bucket/prefix"),
    "root with one slash": ("[lakehouse]\nroot = 'dbfs:/lake'\n", "lakehouse.root", "not 'dbfs:/lake'"),
    "root with a password": ("[lakehouse]\nroot = 's3a://u:secret@b/x'\n", "lakehouse.root", "not 's3a://b/x'"),
    "bucket with a password": ("[lakehouse]\nroot = 's3://u:secret@b/x'\n", "lakehouse.root", "'s3://b/x' is not"),
    "root that is a file": ("[lakehouse]\nroot = 'wirehouse.toml'\n", "lakehouse.root", "is a file"),
    "lakehouse that is no table": ("lakehouse = 1\n", "lakehouse", "table"),
    "unknown window": (LAKEHOUSE + "window = 'week'\n", "lakehouse.window", "day, hour"),
    "hours without a start": (HOUR, "lakehouse.start", "2026-11-14T22"),
    "hours with a day": (HOUR + "start = '2026-11-14'\n", "lakehouse.start", "window of one hour"),
    "days with an hour": (LAKEHOUSE + "start = '2026-11-14T22'\n", "lakehouse.start", "window of one day"),
    "a day there is not": (LAKEHOUSE + "start = '2026-02-30'\n", "lakehouse.start", "window of one day"),
    "a start without quotes": (LAKEHOUSE + "start = 2026-01-30\n", "lakehouse.start", "without quotes"),
    "source that is no list": (LAKEHOUSE + "[source]\nname = 'a'\n", "source", "[[source]]"),
    "source without a name": (LAKEHOUSE + SOURCE.replace('name = "mainnet"\n', ""), "source[0].name", "missing"),
    "a bad name": (LAKEHOUSE + SOURCE.replace("mainnet", "Main Net"), "source[0].name", "a-z"),
    "two of one name": (LAKEHOUSE + SOURCE + SOURCE, "source.name", "two sources"),
    "unknown protocol": (LAKEHOUSE + SOURCE.replace("cardinal", "morse"), "source.mainnet.protocol", "cardinal"),
    "a kind the protocol has not": (LAKEHOUSE + SOURCE.replace("messages", "pcap"), "source.mainnet.kind", "messages"),
    "unknown option": (LAKEHOUSE + SOURCE + "[source.options]\nx = 1\n", "source.mainnet.options.x", "unknown"),
    "an option of a wrong type": (
        LAKEHOUSE + SOURCE + "[source.options]\nreorg_threshold = 'many'\n",
        "source.mainnet.options.reorg_threshold",
        "number",
    ),
    "an option deep inside": (
        LAKEHOUSE + SOURCE + "[source.options]\nstart = { number = 0, hash = '4e7a' }\n",
        "source.mainnet.options.start.hash",
        "hex",
    ),
    "owners that nobody is": (LAKEHOUSE + "owners = ['ann']\n", "lakehouse.owners", "team:network"),
    "owners that are no list": (LAKEHOUSE + "owners = 'ann@example.org'\n", "lakehouse.owners", "list"),
    "docs in a folder": (LAKEHOUSE + "docs = 'site/'\n", "lakehouse.docs", "https://"),
    "unknown upkeep": (LAKEHOUSE + "[upkeep]\nkeep = 1\n", "upkeep.keep", "unknown"),
    "landing kept for no day": (LAKEHOUSE + "[upkeep]\nlanding_days = 0\n", "upkeep.landing_days", "at least 1"),
    "upkeep at no time": (LAKEHOUSE + "[upkeep]\nschedule = '1 24 * * *'\n", "upkeep.schedule", "cron"),
    "upkeep some time": (LAKEHOUSE + "[upkeep]\nschedule = 'nightly'\n", "upkeep.schedule", "cron"),
    "options that are no table": (LAKEHOUSE + SOURCE + "options = 3\n", "source.mainnet.options", "table"),
}


def test_a_lake_is_read_though_a_sources_place_is_gone(folder: Path) -> None:
    lake = config.load(write(folder, LAKEHOUSE + SOURCE.replace("inbox", "out/*/x")))
    with pytest.raises(MissingPathError, match=f"source 'mainnet': path {folder}/out does not exist: create it"):
        check_place(lake.sources[0])


def test_whose_a_lake_is_and_where_its_docs_are(folder: Path) -> None:
    lake = config.load(write(folder, LAKEHOUSE))
    assert (lake.owners, lake.docs) == ((), "")
    text = 'owners = ["ann@example.org", "team:network"]\ndocs = "https://docs.example.org/wirehouse/"\n'
    lake = config.load(write(folder, LAKEHOUSE + text))
    assert (lake.owners, lake.docs) == (("ann@example.org", "team:network"), "https://docs.example.org/wirehouse")


def test_what_a_lake_keeps(folder: Path) -> None:
    assert config.load(write(folder, LAKEHOUSE)).upkeep == UpkeepOptions()
    text = "[upkeep]\nlanding_days = 90\nlanding_bytes = 1_000_000\nschedule = '*/5 1-3 * * 0,6'\n"
    assert config.load(write(folder, LAKEHOUSE + text)).upkeep == UpkeepOptions(
        landing_days=90, landing_bytes=1_000_000, schedule="*/5 1-3 * * 0,6"
    )


def test_the_master_of_the_environment_goes_before_that_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MASTER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert config.load(write(folder, LAKEHOUSE)).spark.asked_master == "local[*]"
    spark = config.load(write(folder, LAKEHOUSE + '[spark]\nmaster = "spark://of-file:7077"\n')).spark
    assert spark.asked_master == "spark://of-file:7077"
    monkeypatch.setenv("SPARK_MASTER", "spark://of-servers:7077")
    assert spark.asked_master == "spark://of-servers:7077"
    monkeypatch.setenv("WIREHOUSE_SPARK_MASTER", "local[1]")
    assert spark.asked_master == "local[1]"


def test_a_source_may_say_how_well_its_captures_compress(folder: Path) -> None:
    lake = config.load(write(folder, LAKEHOUSE + SOURCE + "max_inflated_ratio = 2000\n"))
    assert lake.source("mainnet").limits == Limits(inflated_ratio=2000)
    with pytest.raises(ConfigError, match=r"source.mainnet.max_inflated_ratio: must be at least 1"):
        config.load(write(folder, LAKEHOUSE + SOURCE + "max_inflated_ratio = 0\n"))


@pytest.mark.parametrize(("text", "key", "word"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_with_the_file_and_the_key(folder: Path, text: str, key: str, word: str) -> None:
    file = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    line = str(caught.value)
    assert line.startswith(f"{file}: {key}: ")
    assert word in line
    assert "\n" not in line


def test_all_mistakes_of_a_file_are_named_at_once(folder: Path) -> None:
    packets = SOURCE.replace("cardinal", "wallaroo").replace("messages", "pcap").replace("mainnet", "edge")
    text = (
        "[lakehouse]\nwindow = 'week'\nowner = 'ann'\n[upkeep]\nkeep = 1\nlanding_days = 0\n"
        + SOURCE.replace('path = "inbox"', "tcp = 3")
        + "[source.options]\nreorg_threshold = 'many'\nx = 1\n"
        + packets
        + "[source.tcp]\nidle_s = 0\nhole_wait_s = -1\n"
    )
    with pytest.raises(ConfigError) as caught:
        config.load(write(folder, text))
    assert [mistake.key for mistake in caught.value.fields["mistakes"]] == [
        "lakehouse.root",
        "lakehouse.window",
        "lakehouse.owner",
        "upkeep.keep",
        "upkeep.landing_days",
        "source.mainnet.path",
        "source.mainnet.tcp",
        "source.mainnet.options.reorg_threshold",
        "source.mainnet.options.x",
        "source.edge.tcp.idle_s",
        "source.edge.tcp.hole_wait_s",
    ]


def test_one_right_option_beside_a_wrong_one_is_no_mistake(folder: Path) -> None:
    source = SOURCE.replace("messages", "kafka") + "[source.kafka]\nstart = 'committed'\nbroker = 'a'\n"
    text = LAKEHOUSE + source + "[source.kafka.settings]\n\"group.id\" = 'g'\n"
    with pytest.raises(ConfigError) as caught:
        config.load(write(folder, text))
    assert [mistake.key for mistake in caught.value.fields["mistakes"]] == ["source.mainnet.kafka.broker"]


def test_text_that_is_no_toml_is_said_so(folder: Path) -> None:
    with pytest.raises(ConfigError, match="is not TOML"):
        config.load(write(folder, "[lakehouse\n"))


def test_a_missing_file_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file: .*--config"):
        config.load(tmp_path / "nowhere.toml")


def test_the_error_pickles() -> None:
    error = ConfigError(file="a.toml", mistakes=(Mistake("lakehouse.root", "is missing"), Mistake("", "is bad")))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a.toml: lakehouse.root: is missing\na.toml: is bad"


def test_a_lake_keeps_its_window_size_and_start(folder: Path) -> None:
    lake = config.load(write(folder, LAKEHOUSE))
    lake_json.record(lake)
    lake_json.record(lake)
    with pytest.raises(ConfigError, match=r"lakehouse.start: .* begins at 2015-01-01.*before 2016-01-01"):
        config.load(write(folder, LAKEHOUSE + "start = '2016-01-01'\n"))
    earlier = config.load(write(folder, LAKEHOUSE + "start = '2014-01-01'\n"))
    lake_json.record(earlier)
    with pytest.raises(ConfigError, match="begins at 2014-01-01"):
        config.load(write(folder, LAKEHOUSE))
    with pytest.raises(ConfigError, match=r"lakehouse.window: .* has day windows, not hour"):
        config.load(write(folder, HOUR + "start = '2026-11-14T22'\n"))


@pytest.mark.parametrize(
    "root",
    ["lake[1]", "l%41k", "a|b", "a^b", "a?b", "a\\nb", "s3://bucket/l%41k", "s3://bucket/a#b", "s3://bucket/a^b"],
)
def test_a_root_that_spark_or_delta_would_read_otherwise_is_refused(folder: Path, root: str) -> None:
    with pytest.raises(ConfigError, match=r"lakehouse.root: .* must not have any of"):
        config.load(write(folder, f'[lakehouse]\nroot = "{root}"\n'))


@pytest.mark.parametrize("root", ["s3://bucket/a/../b", "s3://bucket/./a", "s3://bucket/a//b", "s3://b"])
def test_a_root_that_is_no_place_in_a_bucket_is_refused(folder: Path, root: str) -> None:
    with pytest.raises(ConfigError, match="is not s3://bucket/prefix"):
        config.load(write(folder, f'[lakehouse]\nroot = "{root}"\n'))


def test_reading_the_configuration_makes_nothing(folder: Path) -> None:
    config.load(write(folder, LAKEHOUSE))
    assert sorted(os.listdir(folder)) == ["inbox", "wirehouse.toml"]


@pytest.mark.property
def test_reading_the_configuration_imports_neither_spark_nor_dagster(folder: Path) -> None:
    program = (
        "import sys; from wirehouse_orchestration import config; config.load(sys.argv[1]); "
        "print(*({'pyspark', 'dagster', 'pandas', 'great_expectations'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", program, str(write(folder, LAKEHOUSE + SOURCE))]
    answer = subprocess.run(run, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""


def test_how_connections_are_put_together_is_read_and_refused(folder: Path) -> None:
    packets = SOURCE.replace("cardinal", "wallaroo").replace("messages", "pcap") + "ports = [7100]\n"
    (source,) = config.load(write(folder, LAKEHOUSE + packets)).sources
    assert source.tcp == TcpOptions()
    (source,) = config.load(write(folder, LAKEHOUSE + packets + "[source.tcp]\nidle_s = 60\n")).sources
    assert source.tcp == TcpOptions(idle_ns=60 * 10**9)
    for text, told in (
        (packets + "[source.tcp]\nidle_s = 0\n", r"source.mainnet.tcp.idle_s: must be above 0"),
        (packets + "tcp = 3\n", r"source.mainnet.tcp: must be a table"),
        (SOURCE + "[source.tcp]\nidle_s = 60\n", r"source.mainnet.tcp: is of kind pcap alone, not of messages"),
    ):
        with pytest.raises(ConfigError, match=told):
            config.load(write(folder, LAKEHOUSE + text))


def test_ports_that_options_name_need_not_be_named_again(folder: Path) -> None:
    packets = SOURCE.replace("cardinal", "bamboo").replace("messages", "pcap")
    options = '[source.options]\ntransport = "two_connections"\ncontrol_port = 8020\ndata_port = 8021\n'
    for ports in ("", "ports = [8021, 8020]\n"):
        (source,) = config.load(write(folder, LAKEHOUSE + packets + ports + options)).sources
        assert source.ports == (8020, 8021)
    with pytest.raises(ConfigError, match="must be those that the options name, "):
        config.load(write(folder, LAKEHOUSE + packets + "ports = [8020]\n" + options))
