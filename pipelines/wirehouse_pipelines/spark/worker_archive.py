"""The worker archive: what a session sends to the workers of a cluster, namely an environment, our code, and the jars.

The environment is a virtual environment with the packages that decoding imports. Spark is on workers already; Dagster
and the expectations are needed only by the driver. It is packed again when the version of a package changes. It uses
the worker's own Python, which must have the same minor version.

Code is packed for each session, together with numba's cache of compiled functions. The archive is a tar, because a zip
doesn't keep the modification times by which numba validates its cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tempfile
import venv
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from wirehouse_pipelines.spark import jars

#: Names of the unpacked archives in the executor's folder.
ENVIRONMENT: Final = "environment"
CODE: Final = "code"
_PACKAGES: Final = ("wirehouse_codecs", "wirehouse_pipelines")
#: The requirements that workers import.
_OF_WORKERS: Final = (
    *("boto3", "cramjam", "cryptography", "deltalake", "fastavro", "google-re2", "hpack", "hyperframe", "numba"),
    *("numpy", "packaging", "pandas", "pyarrow", "pynacl", "pyyaml"),
)
#: Packing time matters more than size.
_COMPRESSION: Final = 1


def settings() -> dict[str, str]:
    """The settings of a session that sends the archives and the jars to its workers."""
    return {
        "spark.archives": f"{_environment()}#{ENVIRONMENT},{_code()}#{CODE}",
        "spark.jars": ",".join(map(str, sorted(jars.folder().glob("*.jar")))),
        "spark.executorEnv.PYTHONPATH": CODE,
    }


def python() -> str:
    """The path of the workers' Python, relative to the executor's folder."""
    return f"./{ENVIRONMENT}/bin/python"


def _sent() -> list[Distribution]:
    """The distributions that workers import, with all that these require."""
    found: dict[str, Distribution] = {}
    asked = [*_OF_WORKERS]
    while asked:
        name = asked.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                asked.append(re.sub(r"[-_.]+", "-", requirement.name).lower())
    return [found[name] for name in sorted(found)]


def _environment() -> Path:
    """The archive of the environment; it is packed if there is none for these versions."""
    sent = _sent()
    names = "\n".join([sys.version, *(f"{one.name} {one.version}" for one in sent)])
    archive = jars.folder().parent / f"environment-{hashlib.sha256(names.encode()).hexdigest()[:16]}.tar.gz"
    if archive.exists():
        return archive
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        empty = Path(folder, ENVIRONMENT)
        venv.create(empty, symlinks=True)
        packages = next(empty.glob("lib*/python*/site-packages")).relative_to(empty)
        packed = Path(folder, archive.name)
        with tarfile.open(packed, "w:gz", compresslevel=_COMPRESSION) as tar:
            tar.add(empty, ".")
            for one in sent:
                for file in one.files or ():
                    place = Path(str(one.locate_file(file)))
                    if ".." not in file.parts and file.suffix != ".pyc" and "tests" not in file.parts:
                        tar.add(place, str(packages / file))
        packed.rename(archive)
    return archive


def _code() -> Path:
    """An archive of our code, which this process deletes when it ends."""
    archive = Path(_kept().name, "code.tar.gz")
    with tarfile.open(archive, "w:gz", compresslevel=_COMPRESSION) as tar:
        for package in _PACKAGES:
            found = find_spec(package)
            assert found is not None
            assert found.origin is not None
            tar.add(os.path.dirname(found.origin), package)
    return archive


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that is deleted when this process ends."""
    return tempfile.TemporaryDirectory(prefix="wirehouse-code-")
