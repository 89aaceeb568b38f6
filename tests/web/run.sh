#!/bin/sh
# run.sh NODE SCRIPT BUILD [needs-npm] [needs-chromium]: runs a web test, or says what is missing and exits with 77.
node=$1 script=$2 build=$3
shift 3
case $node in
*NOTFOUND | '') echo "skipped: node is missing (apt-get install nodejs)"; exit 77 ;;
esac
for need; do
    case $need in
    needs-npm)
        [ -f "$build/npm-web/installed.json" ] || { echo "skipped: run tests/web/npm_setup.sh first"; exit 77; } ;;
    needs-chromium)
        command -v chromium >/dev/null || { echo "skipped: chromium is missing (apt-get install chromium)"; exit 77; } ;;
    esac
done
exec "$node" "$script" "$build"
