#!/usr/bin/env bash
# lanes.sh: two lanes over frames: token and draft at the ducks at the same time, with the text of local ducks.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
for i in 1 2; do udp_duck $i; done
ducks_ready 1 2
cat >"$work/flock" <<EOF
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state", "find_ms": 5000,
 "ports": [{"address": "127.0.0.1", "ducks": [{"address": "127.0.0.11:$port"}, {"address": "127.0.0.12:$port"}]}]}
EOF
answer=(--tokens "$work/prompt" --ignore-eos --json -q)
seq -s, 10 610 | sed 's/^/[/; s/$/]/' >"$work/prompt" # two chunks
timeout 120 "$build/duckd" generate "${answer[@]}" -n 40 --flock local:3 --mtp 0 >"$work/local.json"
timeout 120 "$build/duckd" generate "${answer[@]}" -n 40 --flock "$work/flock" --drafts always --trace "$work/trace.json" \
    >"$work/net.json" 2>"$work/net.log" || fail "duckd: $(tail -n 3 "$work/net.log")"
for f in local net; do sed 's/.*"tokens": \[\([0-9, ]*\)\].*/\1/' "$work/$f.json" >"$work/$f.ids"; done
[ "$(tr -cd , <"$work/local.ids" | wc -c)" -eq 39 ] || fail "no 40 tokens: $(cat "$work/local.json")"
cmp "$work/local.ids" "$work/net.ids" || fail "the tokens differ from those of local ducks without drafts"
"$build/tests/trace-lanes" "$work/trace.json" || fail "the trace does not show it"
# Random weights go over too, whichever layers and experts share them.
synthetic=(bench --synthetic "$(dirname "$0")/../../models/duckling/config.json" --synthetic-layers 2 --synthetic-experts 6 -n 20 -q)
for f in local:2 "$work/flock"; do
    timeout 120 "$build/duckd" "${synthetic[@]}" --csv "$work/${f##*/}.bench" --flock "$f" >"$work/bench.out" 2>"$work/bench.log" ||
        fail "bench --synthetic: $(tail -n 3 "$work/bench.log")"
    cut -d, -f2 "$work/${f##*/}.bench/synthetic.csv" >"$work/${f##*/}.ids"
done
cmp "$work/local:2.ids" "$work/flock.ids" || fail "random weights give other tokens than with local ducks"
echo "ok"
