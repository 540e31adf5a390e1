#!/usr/bin/env bash
# Prints the folder of `prometheus` and `promtool`: the machine's, else Debian's, unpacked into infra/.run without a service.
set -euo pipefail
cd "$(dirname "$0")/.."

if program=$(command -v prometheus) && command -v promtool >/dev/null; then
    dirname "$program"
    exit
fi
folder=$PWD/.run/prometheus
if ! [ -x "$folder/usr/bin/promtool" ]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "Prometheus is needed: install prometheus and promtool (https://prometheus.io)" >&2
        exit 1
    }
    mkdir -p "$folder"
    cd "$folder"
    { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } >&2
    dpkg-deb --extract prometheus_*.deb .
    rm prometheus_*.deb
fi
echo "$folder/usr/bin"
