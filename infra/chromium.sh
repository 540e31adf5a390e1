#!/usr/bin/env bash
# Prints the path of a Chromium for the tests in a browser; installs Debian's where it may, else says how.
set -euo pipefail

find_browser() {
    for name in chromium chromium-browser google-chrome; do
        command -v "$name" && return
    done
    return 1
}

if ! find_browser; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core; } >&2
        find_browser
    else
        echo "Chromium is needed (Debian, Ubuntu: apt-get install chromium; macOS: brew install --cask chromium)" >&2
        exit 1
    fi
fi
