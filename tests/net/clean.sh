#!/usr/bin/env bash
# clean.sh: four ducks in two domains through DPDK: logits and text are those of local ducks, bit for bit.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
make_namespace
for k in 0 1; do
    bridge $k
    for i in 1 2; do duck $k $i 64M; done
done
flock_file flock 2 2
for dtype in f32 bf16 fp8; do
    compare_logits flock --wire-activation $dtype
    [ "$reads_net" -eq "$reads_local" ] || fail "$reads_net expert reads on the network, $reads_local with as many local ducks"
done
# The same with the program that bare-metal ducks get: sent once, told by the ducks, held afterwards.
flock_file judged 2 2 "\"program\": \"$build/duck/fp9_kernels.elf\","
compare_logits judged --wire-activation bf16
[ "$(grep -c "program loaded" "$work"/duck*.log | grep -c ":1$")" -eq 4 ] || fail "not all ducks have loaded the program"
# And with a fifth duck, in this host's memory.
flock_file mixed 2 2 '"host": {"memory_gb": 0.1, "weight": 1, "cores": 2},'
compare_logits mixed
grep -q "duck host: [1-9][0-9]* slices.* [1-9][0-9]* expert reads" "$work/net.log" || fail "the host's own duck has done nothing"
compare_text flock -p "hello there" -n 60 --temperature 0
echo "ok"
