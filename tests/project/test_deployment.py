"""The files that deploy Wirehouse: text that validators accept, and that agrees with what is tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pyspark
import pytest
import yaml
from dagster import DagsterInstance
from dagster import __version__ as dagster_version

from wirehouse_orchestration import config
from wirehouse_orchestration.dagster import instance
from wirehouse_orchestration.infra import kafka, store
from wirehouse_pipelines.query import sql
from wirehouse_pipelines.spark import session

INFRA = Path(__file__).parents[2] / "infra"
COMPOSE = yaml.safe_load((INFRA / "compose.yaml").read_text())
VALUES = yaml.safe_load((INFRA / "kubernetes" / "values.yaml").read_text())
OBJECTS = list(yaml.safe_load_all((INFRA / "kubernetes" / "wirehouse.yaml").read_text()))
IMAGE_FOLDER = "/opt/wirehouse"


def _tool(*arguments: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name(arguments[0]), *arguments[1:]], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _of_kind(kind: str, name: str) -> dict[str, Any]:
    return next(item for item in OBJECTS if (item["kind"], item["metadata"]["name"]) == (kind, name))


def test_the_compose_file_is_one() -> None:
    _tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(INFRA / "compose.yaml"))


@pytest.mark.property
def test_the_dockerfile_is_sound() -> None:
    _tool("hadolint", str(INFRA / "Dockerfile"))


def test_the_image_is_given_all_that_the_package_is_made_of() -> None:
    copied = set()
    for line in (INFRA / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY --chown"):
            copied.update(line.split()[2:-1])
    admitted = {line[1:] for line in (INFRA / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    wheel = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["force-include"], *(package.partition("/")[0] for package in wheel["packages"])}
    assert needed | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"} == copied == admitted


def test_what_the_services_name_is_there() -> None:
    """Services that others wait for, volumes, and addresses of services with their ports."""
    services = COMPOSE["services"]
    named = {name for service in services.values() for name in service.get("depends_on", ())}
    assert named <= services.keys()
    mounted = {volume.partition(":")[0] for service in services.values() for volume in service.get("volumes", ())}
    assert {name for name in mounted if re.fullmatch(r"[\w-]+", name)} == COMPOSE["volumes"].keys()
    told = {name: _address(value) for name, value in COMPOSE["x-environment"].items()}
    addresses = {name: address for name, address in told.items() if address}
    listening = {name: str(service) for name, service in services.items()}
    assert {"AWS_ENDPOINT_URL", "KAFKA_BOOTSTRAP_SERVERS", "SPARK_MASTER", "WIREHOUSE_POSTGRES_URL"} <= addresses.keys()
    for name, (host, port) in addresses.items():
        # PostgreSQL listens where it always does.
        assert port in listening[host] or (host, port) == ("postgres", "5432"), name
    worker = " ".join(services["spark-worker"]["command"])
    assert COMPOSE["x-environment"]["SPARK_MASTER"] in worker


def _address(value: str) -> tuple[str, str] | None:
    found = re.search(r"(?:^|//|@)([a-z-]+):([0-9]+)", value)
    return (found[1], found[2]) if found else None


def test_what_the_broker_keeps_lies_in_its_volume() -> None:
    (volume,) = COMPOSE["services"]["kafka"]["volumes"]
    assert volume.partition(":")[2] == COMPOSE["services"]["kafka"]["environment"]["KAFKA_LOG_DIRS"]


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
def test_the_objects_of_kubernetes_are_valid(item: dict[str, Any]) -> None:
    kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


def test_what_a_pod_is_given_is_there() -> None:
    (code,) = VALUES["dagster-user-deployments"]["deployments"]
    for source in code["envConfigMaps"]:
        _of_kind("ConfigMap", source["name"])
    for volume in code["volumes"]:
        if "configMap" in volume:
            _of_kind("ConfigMap", volume["configMap"]["name"])
    run = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]
    _of_kind("ServiceAccount", run["podSpecConfig"]["serviceAccountName"])
    place = Path(_of_kind("ConfigMap", "wirehouse-settings")["data"][config.VARIABLE])
    assert str(place.parent) == code["volumeMounts"][0]["mountPath"]
    assert place.name in _of_kind("ConfigMap", "wirehouse-configuration")["data"]


def test_the_configuration_in_kubernetes_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(config.ROOT_VARIABLE, raising=False)
    file = tmp_path / "wirehouse.toml"
    file.write_text(_of_kind("ConfigMap", "wirehouse-configuration")["data"][file.name])
    lake = config.load(file)
    assert lake.root == "s3://wirehouse/lake"
    assert lake.spark.master.startswith("k8s://")
    assert not lake.spark.ship


def _as_the_chart_writes_it() -> str:
    """Its dagster.yaml with its own setting of the queue and what is added beside it, without database and launcher."""
    queue = VALUES["dagsterDaemon"]["runCoordinator"]["config"]["queuedRunCoordinator"]
    # The chart's default is -1: no limit, which is one, too.
    limits = {
        "max_concurrent_runs": queue.get("maxConcurrentRuns", -1),
        "tag_concurrency_limits": queue["tagConcurrencyLimits"],
    }
    coordinator = {"module": "dagster._core.run_coordinator", "class": "QueuedRunCoordinator", "config": limits}
    return yaml.safe_dump(
        VALUES["additionalInstanceConfig"] | {"run_coordinator": coordinator, "telemetry": VALUES["telemetry"]}
    )


def test_dagsters_settings_are_those_of_one_machine_with_a_longer_queue(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    (ours / "dagster.yaml").write_text(instance.SETTINGS)
    (theirs / "dagster.yaml").write_text(_as_the_chart_writes_it())
    with DagsterInstance.from_config(str(ours)) as one, DagsterInstance.from_config(str(theirs)) as other:
        here, there = one.get_concurrency_config(), other.get_concurrency_config()
    assert here.pool_config.default_pool_limit == there.pool_config.default_pool_limit == 1
    assert here.run_queue_config is not None
    assert there.run_queue_config is not None
    assert there.run_queue_config.tag_concurrency_limits == here.run_queue_config.tag_concurrency_limits
    assert there.run_queue_config.max_concurrent_runs > here.run_queue_config.max_concurrent_runs


def test_a_run_knows_the_name_of_its_pod() -> None:
    run = VALUES["runLauncher"]["config"]["k8sRunLauncher"]["runK8sConfig"]["containerConfig"]
    told = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in run["env"]}
    assert told == {"SPARK_LOCAL_IP": "status.podIP", session.POD_VARIABLE: "metadata.name"}
    # Spark asks for the pod before it makes others belong to it.
    assert all(
        "get" in rule["verbs"] and "pods" in rule["resources"] for rule in _of_kind("Role", "wirehouse-spark")["rules"]
    )


def test_every_pod_can_write_dagsters_folder() -> None:
    home = VALUES["global"]["dagsterHome"]
    (code,) = VALUES["dagster-user-deployments"]["deployments"]
    for pod in (code, VALUES["dagsterWebserver"], VALUES["dagsterDaemon"]):
        (mount,) = (mount for mount in pod["volumeMounts"] if mount["mountPath"] == home)
        assert not mount.get("readOnly")
        assert {"name": mount["name"], "emptyDir": {}} in pod["volumes"]
    # A run has what the code server has.
    assert code["includeConfigInLaunchedRuns"] == {"enabled": True}


#: Becomes another user, in a view of the file system that has one folder to write to. What root alone may read stays
#: readable: Python may lie there.
_AS_IN_A_POD = """
mount --bind "$0" "$0" && mount -o remount,bind,ro / &&
exec setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all,+dac_read_search \\
  --ambient-caps=-all,+dac_read_search "$@"
"""


@pytest.mark.spark
@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv"))),
    reason="root alone can become another user, and mount: on Linux",
)
def test_a_run_works_as_another_user_with_a_root_that_is_read_only(tmp_path: Path) -> None:
    """What a pod of a run does: lands and runs one window with the chart's settings, and can write Dagster's folder."""
    home, lake, temporary = (tmp_path / name for name in ("dagster_home", "lake", "tmp"))
    for folder in (home, lake, temporary, tmp_path / "inbox"):
        folder.mkdir()
    (home / "dagster.yaml").write_text(_as_the_chart_writes_it())
    place = tmp_path / "wirehouse.toml"
    place.write_text(
        f'[lakehouse]\nroot = "{lake}"\nwindow = "day"\nstart = "2026-11-01"\n'
        f'[[source]]\nname = "live"\nprotocol = "cardinal"\nkind = "messages"\npath = "{tmp_path / "inbox"}"\n'
    )
    heartbeat = {"key_b64": "", "value_b64": "", "timestamp_ms": 1_793_620_800_000}
    (tmp_path / "inbox" / "a.jsonl").write_text(json.dumps(heartbeat) + "\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 1000, 1000)
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "HOME": str(temporary),
        # What a pod has at /tmp.
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}",
        "WIREHOUSE_CONFIG": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def as_in_a_pod(*command: str) -> str:
        folder = Path(sys.executable).parent
        isolated = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _AS_IN_A_POD, str(tmp_path)]
        words = [*isolated, str(folder / command[0]), *command[1:]]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = as_in_a_pod("python", "-c", f"import os; print(os.getuid(), os.access({str(INFRA)!r}, os.W_OK))")
    assert said.split() == ["1000", "False"]
    as_in_a_pod("wirehouse", "land")
    (window,) = (path.name for path in (lake / "landing" / "messages" / "live").iterdir())
    code = ("-m", "wirehouse_orchestration.definitions", "-a", "defs")
    as_in_a_pod("dagster", "asset", "materialize", *code, "--select", "bronze/messages", "--partition", window)
    found = sql.rows(config.load(place), "SELECT source, window_start FROM bronze.messages").to_pylist()
    assert found == [{"source": "live", "window_start": window}]
    assert list((home / "runs").glob("*.lock"))


def test_the_servers_in_containers_find_the_settings_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = COMPOSE["x-environment"]
    monkeypatch.setenv(config.ROOT_VARIABLE, environment["WIREHOUSE_ROOT"])
    monkeypatch.setenv(instance.POSTGRES_VARIABLE, environment[instance.POSTGRES_VARIABLE])
    (tmp_path / "wirehouse.toml").write_text("")
    written = instance.home(config.load(tmp_path / "wirehouse.toml")).relative_to(tmp_path)
    assert environment["DAGSTER_HOME"] == f"{IMAGE_FOLDER}/{written}"
    (server,) = yaml.safe_load((INFRA / "workspace.yaml").read_text())["load_from"]
    code = COMPOSE["services"][server["grpc_server"]["host"]]
    assert str(server["grpc_server"]["port"]) in code["command"]


def test_secrets_come_from_the_environment() -> None:
    secret = re.compile(r"(SECRET|PASSWORD|CREDENTIAL|KEY)")
    for service in COMPOSE["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not secret.search(name) or re.fullmatch(r"\$\{WIREHOUSE_\w+:\?\}", str(value)), name


def test_images_are_of_the_versions_that_are_tested() -> None:
    tags = {name: service["image"].partition(":")[2] for name, service in COMPOSE["services"].items()}
    assert [tags["store"]] == [f"s3proxy-{_version(name)}" for name in store.JARS.coordinates]
    assert tags["kafka"] == _version(kafka.JARS.coordinates[0])
    assert f"FROM apache/spark:{pyspark.__version__} " in (INFRA / "Dockerfile").read_text()
    assert f"--version {dagster_version} " in (INFRA / "kubernetes" / "values.yaml").read_text()


def _version(coordinates: str) -> str:
    return coordinates.split(":")[2]
