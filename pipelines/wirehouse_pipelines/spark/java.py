"""Finds a Java that Spark can run on; installs nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

#: Spark 4.1 is built for Java 17 and also runs on 21.
SUPPORTED = (17, 21)
#: The folder in which Debian and other distributions install Java.
INSTALLED = Path("/usr/lib/jvm")
#: Timeout in seconds for `java -version`.
_PATIENCE = 10
HOW_TO_INSTALL = (
    "install Java 17 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
    "or point JAVA_HOME at one"
)


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java: its executable and its major version."""

    executable: Path
    major: int

    @property
    def supported(self) -> bool:
        """Whether Spark runs on it."""
        return self.major in SUPPORTED

    @property
    def home(self) -> Path:
        """The value of JAVA_HOME for it."""
        return self.executable.resolve().parent.parent


def find() -> Java | None:
    """The first supported Java in JAVA_HOME, PATH and /usr/lib/jvm; else the first of any version; else None."""
    candidates = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    candidates += [Path(on_path)] if on_path else []
    candidates += sorted(INSTALLED.glob("*/bin/java"))
    found = [java for java in map(_ask, candidates) if java]
    return next((java for java in found if java.supported), found[0] if found else None)


def _ask(executable: Path) -> Java | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return Java(executable, int(match[1])) if match else None


def trouble(found: Java | None) -> str | None:
    """Why Spark can't run on `found`, and what to do; None if it can."""
    if found is None:
        return f"no Java found: {HOW_TO_INSTALL}"
    if not found.supported:
        return f"Java {found.major} ({found.executable}) is not one Spark runs on: {HOW_TO_INSTALL}"
    return None


if __name__ == "__main__":
    if reason := trouble(find()):
        print(reason)
        sys.exit(1)
