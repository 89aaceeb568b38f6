#!/usr/bin/env bash
# 4x8.sh: the reference's shape: four ports and eight ducks each, on the 2048-wide synthetic checkpoint.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
"$build/synth-model" --config configs/synth-2048.json --out "$work/model" --seed 5 2>/dev/null
for k in 0 1 2 3; do
    bridge $k
    for i in 1 2 3 4 5 6 7 8; do duck $k $i 32M; done
done
flock_file flock 4 8
local_ducks=32
compare_logits flock --model "$work/model"
# Every duck has computed, and all together what as many local ducks compute.
[ "$(grep -c "^duck dpdk-[0-9]*: .* [1-9][0-9]* expert reads" "$work/net.log")" -eq 32 ] || fail "who has computed: $(grep "expert reads" "$work/net.log")"
[ "$reads_net" -eq "$reads_local" ] || fail "$reads_net expert reads on the network, $reads_local with 32 local ducks"
grep "flock: 32 ducks on 4 ports" "$work/net.log" || fail "not 32 ducks on 4 ports: $(head -n 3 "$work/net.log")"
net_duckd flock logits --model "$work/model" --tokens "$work/tokens" --out "$work/again.f32"
cmp "$work/local.f32" "$work/again.f32" || fail "the second run's logits differ"
grep -q "weights: 0 units sent" "$work/net.log" || fail "the second run has sent weights again"
echo "ok"
