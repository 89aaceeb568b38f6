#!/bin/sh
# run.sh NODE SCRIPT BUILD: runs a web test, or says what is missing and exits with 77.
node=$1 script=$2 build=$3
case $node in
*NOTFOUND | '') echo "skipped: node is missing (apt-get install nodejs)"; exit 77 ;;
esac
exec "$node" "$script" "$build"
