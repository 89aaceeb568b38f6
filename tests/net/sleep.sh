#!/usr/bin/env bash
# sleep.sh: how a port waits. With "poll" its worker never sleeps; without, a daemon and a duck that have nothing to do take next
# to no CPU time, and wake for the next step: the same text either way. Over a memif: no root.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
# session POLL: a daemon and a duck; the least of three times two idle seconds is in `on` and `ready`; the answer in first-POLL.
session() {
    local duck daemon now
    memif_flock "$1"
    rm -f "$work/memif" "$work/duck.log"
    "$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 64 >"$work/duck.log" 2>&1 &
    duck=$!
    pids+=("$duck")
    wait_for ready "$work/duck.log"
    serve "serve-$1.log" --backend cpu --flock "$work/flock"
    daemon=${pids[-1]}
    ask_ready "$listen" "first-$1"
    sleep 0.3
    on=1000 ready=1000
    for _ in 1 2 3; do
        read -r -a now < <(idle "$daemon")
        [ "${now[0]}" -ge "$on" ] || on=${now[0]}
        [ "${now[1]}" -ge "$ready" ] || ready=${now[1]}
        [ "$on" -gt 4 ] || break
    done
    ask "$listen" "again-$1"
    [ "$(answer "first-$1")" = "$(answer "again-$1")" ] || fail "another answer after a pause"
    kill "$daemon" "$duck"
    wait "$daemon" "$duck" 2>/dev/null || true
}
session true
polling=$ready
session false
echo "an idle daemon is on a CPU for $on % of the time; with \"poll\" it is runnable for $polling %"
[ "$on" -le 4 ] || fail "a daemon that may sleep takes $on % of a CPU"
[ "$polling" -ge 90 ] || fail "a daemon that polls is runnable for only $polling % of the time: what is measured here?"
[ "$(answer first-true)" = "$(answer first-false)" ] || fail "the answers differ"
echo "ok"
