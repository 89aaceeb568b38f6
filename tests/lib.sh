# shellcheck shell=bash disable=SC2034
# lib.sh: what every test in shell has: a temporary folder $work, processes $pids, and an end. Sourced by tests/net/lib.sh and
# tests/qemu/lib.sh. usage of every test: TEST.sh BUILD_DIR.
#
# Everything lives in the folder and is removed at the end; only processes started here are ended. at_end() may be defined for
# what a test has besides.
set -euo pipefail

build=$(cd "$1" && pwd)
work=$(mktemp -d /tmp/duckd-test-XXXXXX)
pids=()
key=00112233445566778899aabbccddeeff

# Everything that anybody has said, for who has to find out why a test failed where it cannot be run again.
tell() {
    local f
    uptime
    for f in "$work"/*; do
        if [ -f "$f" ] && { [[ $f == *.log ]] || LC_ALL=C grep -qI . "$f"; }; then
            printf '==> %s\n' "${f##*/}" && tail -n 400 "$f" | tr -d '\r\000'
        fi
    done
} >&2

at_end() { :; }
cleanup() {
    local status=$?
    trap - ERR
    set +e
    for p in "${pids[@]}"; do
        kill -CONT "$p" 2>/dev/null
        kill "$p" 2>/dev/null
    done
    for p in "${pids[@]}"; do wait "$p" 2>/dev/null; done
    at_end
    if [ $status -ne 0 ] && [ $status -ne 77 ]; then tell; fi
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 1' INT TERM
# A command that fails where none may: which. Not for subshells, whose callers may not mind.
set -E
trap 'if [ $BASHPID -eq $$ ]; then echo "FAIL: line $LINENO of ${BASH_SOURCE[0]##*/}: $BASH_COMMAND" >&2; fi' ERR

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

skip() {
    echo "skipped: $*"
    exit 77
}

(umask 077 && echo $key >"$work/key")

# until_true SECONDS COMMAND...: until the command succeeds; false if it never does.
until_true() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.1
    done
}

# The sum of all ducks' expert reads in a -v log.
expert_reads() {
    awk '/ steps, [0-9]+ expert reads/ { for (i = 2; i < NF; i++) if ($i == "steps,") n += $(i + 1) } END { print n + 0 }' "$1"
}
