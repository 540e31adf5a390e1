#!/usr/bin/env bash
# Sets up this folder: .venv with exact pins, Java, Spark's jars in .jars. Run again, it does only what has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
stamp=$venv/set-up-done
log=$venv/set-up.log

say() { printf '  %s\n' "$*"; }
fail() { printf 'set-up: %s\n' "$*" >&2; exit 1; }

fingerprint() {
    cat pyproject.toml constraints.txt infra/setup.sh pipelines/wirehouse_pipelines/spark/{jars.py,*/*.java} | cksum
    printf '%s\n' "$PWD"
}

# Runs a command with its output in the log, and shows the log if the command fails.
quietly() {
    "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "failed: $* (all of it in $log)"; }
}

find_python() {
    for name in python3.11 python3 python3.12 python3.13; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "Python 3.11 or newer is needed (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.11)"
}

# uv takes half the time of pip. It doesn't read pip's settings, so those for a mirror are passed on.
install_packages() {
    local pip="$venv/bin/python -m pip --disable-pip-version-check"
    quietly $pip install --quiet --constraint constraints.txt uv
    local index=${PIP_INDEX_URL:-$($pip config get global.index-url 2>/dev/null || true)}
    local certificates=${PIP_CERT:-$($pip config get global.cert 2>/dev/null || true)}
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [ -z "$certificates" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates}
    [ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX=${UV_INDEX:-$PIP_EXTRA_INDEX_URL}
    [ -z "${PIP_FIND_LINKS:-}" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-$PIP_FIND_LINKS}
    quietly $venv/bin/uv pip install --quiet --python $venv/bin/python \
        --constraint constraints.txt --editable '.[dev]'
}

install_java() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Java 17 (openjdk-17-jre-headless) ..."
        export DEBIAN_FRONTEND=noninteractive
        quietly apt-get update
        quietly apt-get install --yes --no-install-recommends openjdk-17-jre-headless
    fi
    $venv/bin/python -m wirehouse_pipelines.spark.java >>"$log" || fail "$($venv/bin/python -m wirehouse_pipelines.spark.java)"
}

[ -f $stamp ] && [ "$(cat $stamp)" = "$(fingerprint)" ] && [ -x $venv/bin/wirehouse ] && exit 0

say "Setting up (once; a few minutes)"
python=$(find_python)
if ! $venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "virtual environment in $venv, by $("$python" --version) ..."
    "$python" -m venv --clear $venv || fail "$python can't make virtual environments (Debian, Ubuntu: apt-get install python3-venv)"
fi
: >"$log"
say "packages at the versions of constraints.txt ..."
install_packages
$venv/bin/python -m wirehouse_pipelines.spark.java >>"$log" || install_java
say "Spark jars ..."
quietly $venv/bin/python -m wirehouse_pipelines.spark.jars
say "machine code of the readers, library of the dashboards, classes of Spark ..."
quietly $venv/bin/python -m wirehouse_orchestration.cli.precompile
fingerprint >$stamp
say "Ready: $venv/bin/wirehouse --help"
