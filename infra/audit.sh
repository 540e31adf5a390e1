#!/usr/bin/env bash
# Checks the packages pinned in constraints.txt for known vulnerabilities in OSV (api.osv.dev), with pip-audit in its
# own environment. If the service can't be reached, that is reported, and the check doesn't fail.
set -uo pipefail
cd "$(dirname "$0")/.."

tool=.venv/audit
skipped() { printf 'dependency audit: SKIPPED, nothing was looked up: %s\n' "$1" >&2; exit 0; }

if ! [ -x $tool/bin/pip-audit ]; then
    .venv/bin/python -m venv $tool &&
        $tool/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt pip-audit==2.10.1 ||
        skipped "pip-audit can't be installed"
fi
# PyPI's vulnerability data isn't used: a mirror has none, and would report that everything is fine.
said=$($tool/bin/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip --vulnerability-service osv \
    --progress-spinner off 2>&1) && exit 0
grep -q -e '^requests\.exceptions\.' -e 'Could not connect to' <<<"$said" &&
    skipped "api.osv.dev can't be reached"
printf '%s\n' "$said" >&2
exit 1
