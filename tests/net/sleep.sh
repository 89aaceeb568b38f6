#!/usr/bin/env bash
# sleep.sh: how a port waits. With "poll" its worker never sleeps; without, a daemon and a duck that have nothing to do take next
# to no CPU time, and wake for the next step: the same text either way. Over a memif: no root.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
listen=$((40000 + $$ % 20000))
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; } # of CPU time, 100 a second
# serve POLL: a daemon and a duck; sets idle_host to the CPU time in percent of two idle seconds; the answer is in first-POLL.
serve() {
    local duck daemon before
    memif_flock "$1"
    rm -f "$work/memif" "$work/duck.log"
    "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 64 >"$work/duck.log" 2>&1 &
    duck=$!
    pids+=("$duck")
    wait_for ready "$work/duck.log"
    "$build/duckd" serve --backend cpu --listen "127.0.0.1:$listen" --flock "$work/flock" >"$work/serve.log" 2>&1 &
    daemon=$!
    pids+=("$daemon")
    ask_ready "$listen" "first-$1"
    sleep 0.3
    before=$(ticks "$daemon")
    sleep 2
    idle_host=$((($(ticks "$daemon") - before) / 2))
    ask "$listen" "again-$1"
    [ "$(answer "first-$1")" = "$(answer "again-$1")" ] || fail "another answer after a pause"
    kill "$daemon" "$duck"
    wait "$daemon" "$duck" 2>/dev/null || true
}
serve true
polling=$idle_host
serve false
echo "an idle daemon takes $idle_host % of a CPU, $polling % with \"poll\""
[ "$idle_host" -le 4 ] || fail "a daemon that may sleep takes $idle_host % of a CPU"
[ "$polling" -ge 20 ] || fail "a daemon that polls takes only $polling %: what is measured here?"
[ "$(answer first-true)" = "$(answer first-false)" ] || fail "the answers differ"
echo "ok"
