#!/usr/bin/env bash
# Asks OSV (api.osv.dev) for known weaknesses of what constraints.txt pins, by pip-audit in an environment of its own.
# Where the service can't be reached that is said, and fails nothing.
set -uo pipefail
cd "$(dirname "$0")/.."

tool=.venv/audit
skipped() { printf 'dependency audit: SKIPPED, nothing was looked up: %s\n' "$1" >&2; exit 0; }

if ! [ -x $tool/bin/pip-audit ]; then
    .venv/bin/python -m venv $tool &&
        $tool/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt pip-audit==2.10.1 ||
        skipped "pip-audit can't be installed"
fi
# PyPI's own answers are no use: an index that is a copy has none, and then all is said to be well.
said=$($tool/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --vulnerability-service osv \
    --progress-spinner off 2>&1) && exit 0
grep -q -e '^requests\.exceptions\.' -e 'Could not connect to' <<<"$said" &&
    skipped "api.osv.dev can't be reached"
printf '%s\n' "$said" >&2
exit 1
