#!/usr/bin/env bash
# mixed.sh: two ducks on the network and one in the host's own memory compute together: the same bits, and each its part.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
for i in 1 2; do udp_duck $i; done
ducks_ready 1 2
# flock NAME CORES: what is in the host's memory gets half of everything.
flock() {
    cat >"$work/$1" <<EOF
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state", "find_ms": 5000, "dead_ms": 1500,
 "host": {"name": "mine", "memory_gb": 0.1, "weight": 2, "cores": $2},
 "ports": [{"address": "127.0.0.1", "ducks": [{"address": "127.0.0.11:$port", "weight": 1}, {"address": "127.0.0.12:$port", "weight": 1}]}]}
EOF
}
net_duckd() {
    local flock=$1
    shift
    timeout 300 "$build/duckd" "$@" --flock "$work/$flock" -v 2>"$work/net.log" ||
        fail "duckd $* ended with $?: $(tail -n 3 "$work/net.log")"
}
flock one 1
flock three 3
for dtype in f32 fp8; do compare_logits one --wire-activation $dtype; done
compare_logits three --wire-activation bf16
for duck in mine udp-0 udp-1; do
    grep -q "duck $duck: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log" || fail "$duck has done nothing"
done
slices() { sed -n "s/.*duck $1: \([0-9]*\) slices.*/\1/p" "$work/net.log"; }
[ "$(slices mine)" -eq $(($(slices udp-0) + $(slices udp-1))) ] || fail "the host's duck has not half of the slices: $(grep slices "$work/net.log")"
compare_text three -p "hello there" -n 40 --temperature 0

# A duck of the network dies: the host's takes over, too.
endless one
grown "$work/net.txt" 200
kill -9 "${pids[1]}"
wait_for "going on without it" "$work/net.log"
grown "$work/net.txt" 200
same_as_local
echo "ok"
