#!/usr/bin/env bash
# udp.sh: three ducks behind UDP sockets of the loopback interface: no root, no DPDK.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
for i in 1 2 3; do udp_duck $i; done
ducks_ready 1 2 3
cat >"$work/flock" <<EOF
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state", "dead_ms": 1500, "find_ms": 5000,
 "ports": [{"address": "127.0.0.1", "ducks": [{"address": "127.0.0.11:$port"}, {"address": "127.0.0.12:$port"},
                                              {"address": "127.0.0.13:$port"}]}]}
EOF
net_duckd() {
    shift
    timeout 300 "$build/duckd" "$@" --flock "$work/flock" -v 2>"$work/net.log" ||
        fail "duckd $* ended with $?: $(tail -n 3 "$work/net.log")"
}
for dtype in f32 bf16 fp8; do compare_logits flock --wire-activation $dtype; done
grep -q "weights: 0 units sent" "$work/net.log" || fail "the third daemon has sent weights again"
# Experts kept as e4m3: the same bits as local ducks' fp9, and smaller.
held() { sed -n "s/.*duck udp-0: .* slices, \([0-9]*\)\.[0-9] MB of $1.*/\1/p" "$work/net.log"; }
fp9=$(held fp9)
net_duckd flock logits --wire-activation fp8 --expert-format e4m3 --tokens "$work/tokens" --out "$work/net.f32"
cmp "$work/local.f32" "$work/net.f32" || fail "experts kept as e4m3 give other logits"
[ "$(held e4m3)" -lt "$fp9" ] || fail "experts kept as e4m3 take $(held e4m3) MB, as fp9 $fp9 MB"
compare_text flock -p "hello there" -n 40 --temperature 0

# Other weights behind the same name, size and time of modification are other weights.
cp -r models/duckling "$work/model"
shard=$work/model/model-00002-of-00003.safetensors
logits() { "$1" "${@:3}" logits --model "$work/model" --tokens "$work/tokens" --out "$work/$2"; }
logits net_duckd was.f32 flock
touch -r "$shard" "$work/time"
head -c 2000000 /dev/zero | tr '\0' '@' | dd of="$shard" bs=1M seek=4 conv=notrunc status=none
touch -r "$work/time" "$shard"
logits local_duckd local.f32
! cmp -s "$work/was.f32" "$work/local.f32" || fail "other weights give the same logits"
logits net_duckd net.f32 flock
cmp "$work/local.f32" "$work/net.f32" || fail "the ducks have computed with weights that are gone"

# What serve tells Prometheus of each duck and of the stages of a step, and a trace of both.
serve serve.log --flock "$work/flock"
serve=${pids[-1]}
metrics() {
    (exec 3<>"/dev/tcp/127.0.0.1/$listen" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3) >"$work/metrics" 2>/dev/null &&
        grep -q "^duckd_ready 1" "$work/metrics"
}
until_true 60 metrics || fail "it is not ready: $(cat "$work/metrics")"
kill "$serve"
wait "$serve" || true
for line in 'duck_present{duck="udp-2"} 1' 'duck_slices{duck="udp-0"} [1-9]' 'duck_received_frames_total{duck="udp-1"} [1-9]' \
    "duck_info{duck=\"udp-0\",address=\"127.0.0.11:$port\",firmware=\"duck-linux" 'flock_stage_seconds_total{stage="judge_wait"} ' \
    'flock_duck_compute_seconds{quantile="0.9"} ' 'flock_sessions_total 1'; do
    grep -q "^duckd_$line" "$work/metrics" || fail "/metrics has no duckd_$line: $(cat "$work/metrics")"
done
net_duckd flock generate -p "hello there" -n 5 --trace "$work/trace" >/dev/null
for name in prepare send judge_wait fetch reduce compute; do
    grep -q "\"$name\"" "$work/trace" || fail "the trace has no $name"
done

# A bench beside its projection: the ducks' time is none of this process.
net_duckd flock bench --synthetic models/duckling/config.json --threads 1 -n 8 --csv "$work/bench" >/dev/null
"$build/duckd" plan --hardware configs/hardware-epyc-1thread.json --bench "$work/bench" --json >"$work/plan.json" ||
    fail "plan --bench ended with $?"
grep -q '"ducks": 3, "local": false, .*"clock": "wall"' "$work/bench/summary.json" || fail "bench: $(cat "$work/bench/summary.json")"
grep -q '"clock": "wall time", "ducks": 3, "duck_bandwidth_gb_s": [0-9.]*[1-9]' "$work/plan.json" || fail "plan: $(cat "$work/plan.json")"

# A wrong key: nobody answers, and that is said.
(umask 077 && echo ffffffffffffffffffffffffffffffff >"$work/other_key")
sed "s,$work/key,$work/other_key,;s/\"find_ms\": 5000/\"find_ms\": 500/" "$work/flock" >"$work/wrong"
if timeout 60 "$build/duckd" generate -p x -n 1 --flock "$work/wrong" >/dev/null 2>"$work/wrong.log"; then
    fail "a wrong key was taken"
fi
grep -q "3 of 3 ducks have not answered" "$work/wrong.log" || fail "a wrong key: $(cat "$work/wrong.log")"

# No key at all: the same, and a warning.
sed "s,\"key_file\": \"[^\"]*\"\,,,;s/\"find_ms\": 5000/\"find_ms\": 300/" "$work/flock" >"$work/keyless"
if timeout 60 "$build/duckd" generate -p x -n 1 --flock "$work/keyless" >/dev/null 2>"$work/wrong.log"; then
    fail "no key was taken"
fi
[ "$(grep -c "key is all zero" "$work/wrong.log")" -eq 1 ] || fail "no key: $(cat "$work/wrong.log")"

# A duck dies in the middle of an answer: the others take over, and the text is the same.
endless flock
grown "$work/net.txt" 200
kill -9 "${pids[1]}"
wait_for "duck 1 (.*127.0.0.12.*) has not answered for .* the others take over its slices" "$work/net.log"
wait_for "going on without it" "$work/net.log"
grown "$work/net.txt" 200
grep "weights: [1-9][0-9]* units sent, [1-9][0-9]* were held" "$work/net.log" || fail "the others forgot what they held"
same_as_local

# Who is there, without a session: two answer, and say what they have done.
if timeout 60 "$build/duckd" flock status --json --flock "$work/flock" >"$work/status.json" 2>"$work/status.log"; then
    fail "a dead duck counts as present"
fi
[ "$(grep -c '"found": true.*"steps": [1-9]' "$work/status.json")" -eq 2 ] || fail "status: $(cat "$work/status.json")"
grep -q "1 of 3 ducks does not answer" "$work/status.log" || fail "status: $(cat "$work/status.log")"
echo "ok"
