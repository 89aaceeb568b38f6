#!/bin/sh
# Puts the clients that the web tests drive the server with into BUILD/npm-web. Idempotent, quick when nothing is
# to do. usage: npm_setup.sh [BUILD]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../../build}
mkdir -p "$build/npm-web"
into=$(cd "$build/npm-web" && pwd)

if ! cmp -s "$here/package.json" "$into/installed.json"; then
    command -v npm >/dev/null || { echo "npm_setup.sh: npm is missing: apt-get install npm" >&2; exit 1; }
    echo "npm_setup.sh: installing the packages of tests/web/package.json into $into"
    cp "$here/package.json" "$into/package.json"
    (cd "$into" && npm install --no-package-lock --no-audit --no-fund --fetch-retries=5 --loglevel=error)
    cp "$here/package.json" "$into/installed.json"
fi
echo "npm_setup.sh: packages are in $into"
