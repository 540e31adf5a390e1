#!/usr/bin/env bash
# Apache Superset over `wirehouse sql-server`: installs it into infra/.run/superset, imports the boards, serves on loopback.
# WIREHOUSE_SQL_URI says where the tables are served, else port 10000 of this machine; SUPERSET_PORT its own port, else 8088.
# With `--import-only` it stops before it serves.
set -euo pipefail
cd "$(dirname "$0")/.."

here=$PWD/infra/superset
home=${SUPERSET_HOME:-$PWD/infra/.run/superset}
python=${PYTHON:-.venv/bin/python}
port=${SUPERSET_PORT:-8088}
log=$home/set-up.log
export SUPERSET_HOME=$home SUPERSET_CONFIG_PATH=$here/superset_config.py FLASK_APP=superset SCARF_ANALYTICS=false

say() { printf '  %s\n' "$*"; }
quietly() { "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "superset: failed: $* (all of it in $log)" >&2; exit 1; }; }

umask 077
mkdir -p "$home"
: >"$log"
[ -s "$home/secret_key" ] || head -c 48 /dev/urandom | base64 >"$home/secret_key"
[ -s "$home/password" ] || head -c 15 /dev/urandom | base64 >"$home/password"

if ! cmp -s "$here/constraints.txt" "$home/installed"; then
    say "Superset into an environment of its own (once; 800 MB) ..."
    [ -x "$home/venv/bin/python" ] || "$python" -m venv "$home/venv"
    quietly "$home/venv/bin/python" -m pip install --disable-pip-version-check --quiet --requirement "$here/constraints.txt"
    cp "$here/constraints.txt" "$home/installed"
fi
superset=$home/venv/bin/superset
say "its own database ..."
quietly "$superset" db upgrade
"$superset" fab list-users 2>/dev/null | grep -q "username:admin" || quietly "$superset" fab create-admin \
    --username admin --firstname Wirehouse --lastname Admin --email admin@localhost --password "$(cat "$home/password")"
quietly "$superset" init
say "the boards ..."
rm -rf "$home/bundle"
"$python" -m wirehouse_orchestration.dashboards.superset "$home/bundle"
quietly "$superset" import-directory --overwrite "$home/bundle"
[ "${1:-}" != --import-only ] || exit 0
say "Superset is at http://127.0.0.1:$port/dashboard/list/ (user admin, password in $home/password; stop with Ctrl-C)"
say "it asks the tables of \`wirehouse sql-server\`, which has to run beside it"
exec "$home/venv/bin/gunicorn" --bind "127.0.0.1:$port" --workers 1 --threads 8 --timeout 300 --log-level warning "superset.app:create_app()"
