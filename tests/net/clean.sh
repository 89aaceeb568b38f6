#!/usr/bin/env bash
# clean.sh: four ducks in two domains through DPDK: logits and text are those of local ducks, bit for bit, and all experts are
# computed by these ducks.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
for k in 0 1; do
    bridge $k
    for i in 1 2; do duck $k $i 64M; done
done
flock_file flock 2 2
counted=0
for dtype in f32 bf16 fp8; do
    compare_logits flock --wire-activation $dtype
    [ "$reads_net" -eq "$reads_local" ] || fail "$reads_net expert reads on the network, $reads_local with as many local ducks"
    [ "$(grep -c "duck dpdk-[0-3]: .* [1-9][0-9]* expert reads" "$work/net.log")" -eq 4 ] || fail "who has computed: $(grep "expert reads" "$work/net.log")"
    counted=$((counted + reads_net))
    mv "$work/net.f32" "$work/$dtype.f32"
done
# The processes themselves say the same: whatever local ducks read, they have read for frames, and nobody else has.
ip netns exec "$ns" "$build/duckd" flock status --flock "$work/flock" --json >"$work/status" || fail "flock status ended with $?"
said=$(grep -o '"expert_reads": [0-9]*' "$work/status" | awk '{ n += $2 } END { print n + 0 }')
[ "$said" -eq "$counted" ] || fail "the ducks count $said expert reads, the host $counted"

# flip_sign DIR TENSOR: of the largest of a matrix's first 2048 e4m3 weights: of gate_proj eight rows, so one slice, so one duck.
flip_sign() {
    local file header from at value
    file=$1/$(sed -n "s/.*\"$2\": *\"\([^\"]*\)\".*/\1/p" "$1/model.safetensors.index.json")
    header=$(od -An -tu8 -N8 "$file")
    from=$(head -c $((8 + header)) "$file" | grep -ao "\"$2\":{[^}]*" | sed 's/.*"data_offsets":\[\([0-9]*\),.*/\1/')
    read -r at value < <(od -An -v -tu1 -w1 -j $((8 + header + from)) -N 2048 "$file" |
        awk '$1 % 128 > most { most = $1 % 128; at = NR - 1; value = $1 } END { print at, value }')
    printf '%b' "\\x$(printf %02x $((value ^ 128)))" | dd of="$file" bs=1 seek=$((8 + header + from + at)) conv=notrunc status=none
}
# One weight of one duck, of a routed expert that these tokens choose, with another sign: other logits.
cp -r models/duckling "$work/model"
flip_sign "$work/model" model.layers.3.mlp.experts.0.gate_proj.weight
bytes=$(for f in "$work"/model/*; do cmp -l "models/duckling/${f##*/}" "$f" || true; done | wc -l)
[ "$bytes" -eq 1 ] || fail "$bytes bytes of the model were changed"
compare_logits flock --wire-activation bf16 --model "$work/model"
if cmp -s "$work/bf16.f32" "$work/net.f32"; then fail "one flipped weight changes nothing"; fi
# The same with the program that bare-metal ducks get: sent once, told by the ducks, held afterwards.
flock_file judged 2 2 "\"program\": \"$build/duck/fp9_kernels.elf\","
compare_logits judged --wire-activation bf16
[ "$(grep -c "program loaded" "$work"/duck*.log | grep -c ":1$")" -eq 4 ] || fail "not all ducks have loaded the program"
# It computes with experts kept as e4m3, too: what ducks held as fp9 is sent again.
net_duckd judged logits --wire-activation bf16 --expert-format e4m3 --tokens "$work/tokens" --out "$work/net.f32"
cmp "$work/local.f32" "$work/net.f32" || fail "experts kept as e4m3 give other logits"
grep -q "duck dpdk-0: .* MB of e4m3; .* [1-9][0-9]* expert reads" "$work/net.log" || fail "not of e4m3: $(grep "expert reads" "$work/net.log")"
# And with a fifth duck, in this host's memory.
flock_file mixed 2 2 '"host": {"memory_gb": 0.1, "weight": 1, "cores": 2},'
compare_logits mixed
grep -q "duck host: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log" || fail "the host's own duck has done nothing"
compare_text flock -p "hello there" -n 60 --temperature 0
echo "ok"
