#!/usr/bin/env bash
# logits.sh: two bare-metal ducks behind different NICs compute all routed experts: logits equal local ones bit for bit.
# One is switched off and on in between: the next session finds it again.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
boot duck-1 1 virtio-net-pci 2 "key=$key"
boot duck-2 2 e1000e 2 "key=$key"
flock_file flock 1 2
wait_for duck-1 "DHCP: have an address"
wait_for duck-2 "DHCP: have an address"
grep -q "NIC: e1000e, 52:54:00:12:34:56, 1000 Mb/s" "$work/duck-2.log" || fail "duck-2 has no e1000e"

echo '[0,5,9,14,22,31]' >"$work/tokens"
compute local:2 local.f32 local.log
compute "$work/flock" net.f32 net.log
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of local ducks"
local_reads=$(expert_reads "$work/local.log") net_reads=$(expert_reads "$work/net.log")
if [ "$net_reads" -eq 0 ] || [ "$net_reads" -ne "$local_reads" ]; then
    fail "$net_reads expert reads, local ducks make $local_reads"
fi

# The same experts kept as e4m3.
compute "$work/flock" e4m3.f32 e4m3.log --expert-format e4m3
cmp "$work/local.f32" "$work/e4m3.f32" || fail "experts kept as e4m3 give other logits"
grep -q "MB of e4m3; .* [1-9][0-9]* expert reads" "$work/e4m3.log" || fail "not of e4m3: $(tail -n 3 "$work/e4m3.log")"

kill "${pids[0]}"
wait "${pids[0]}" 2>/dev/null || true
: >"$work/duck-1.log"
boot duck-1 1 virtio-net-pci 2 "key=$key"
wait_for duck-1 "DHCP: have an address"
compute "$work/flock" again.f32 again.log
cmp "$work/local.f32" "$work/again.f32" || fail "logits differ after a power cycle"
echo "logits equal bit for bit; expert reads: $net_reads on bare metal, $local_reads with local ducks"
