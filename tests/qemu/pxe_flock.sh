#!/usr/bin/env bash
# pxe_flock.sh BUILD_DIR GUESTS: machines with neither disk nor options boot from duckd itself: OVMF's PXE gets address,
# image and key through a DPDK port's tap from the dnsmasq that duckd runs, and the ducks compute. Logits equal local ones
# bit for bit, every expert was read by a guest, and a machine that is not in the flock's file gets no address.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/../net/lib.sh"
guests=$2
ovmf=
for f in /usr/share/ovmf/OVMF.fd /usr/share/OVMF/OVMF.fd /usr/share/qemu/OVMF.fd; do [ -z "$ovmf" ] && [ -f "$f" ] && ovmf=$f; done
[ -n "$ovmf" ] || skip "needs OVMF: apt-get install ovmf"
command -v qemu-system-x86_64 >/dev/null || skip "needs QEMU: apt-get install qemu-system-x86"
command -v dnsmasq >/dev/null || skip "needs dnsmasq: apt-get install dnsmasq-base"

make_namespace
x sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.default.arp_ignore=1 # bridge and tap are in one namespace here
bridge 0

# guest I: 02:00:00:00:00:I on the bridge; its serial line goes to guest_I.log.
guest() {
    x ip tuntap add dev "t$1" mode tap
    x ip link set "t$1" master br0 up
    ip netns exec "$ns" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 96 -nodefaults -display none \
        -no-reboot -bios "$ovmf" -serial "file:$work/guest_$1.log" -monitor none \
        -netdev "tap,id=n,ifname=t$1,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=n,romfile=,mac=02:00:00:00:00:0$1,bootindex=0" </dev/null >"$work/qemu_$1.log" 2>&1 &
    pids+=($!)
}

ducks=""
for ((i = 1; i <= guests; i++)); do
    ducks+="${ducks:+, }{\"mac\": \"02:00:00:00:00:0$i\", \"address\": \"10.21.0.$((100 + i))\"}"
done
cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 128, "boot": true,
 "find_ms": 150000, "dead_ms": 10000,
 "ports": [{"device": "net_af_packet0,iface=p0", "lcore": 2, "address": "10.21.0.1/24", "ducks": [$ducks]}]}
END
echo '[0,5,9,14]' >"$work/tokens"
local_duckd logits --tokens "$work/tokens" --out "$work/local.f32"
start=$(date +%s)
for ((i = 1; i <= guests; i++)); do guest "$i"; done
guest 9 # is not in the flock's file
timeout 200 ip netns exec "$ns" "$build/duckd" logits --tokens "$work/tokens" --out "$work/net.f32" --flock "$work/flock" -v \
    2>"$work/net.log" || fail "duckd: $(tail -n 3 "$work/net.log"); dnsmasq: $(tail -n 5 "$work/state/boot/dnsmasq.log")"
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of local ducks"
reads=$(expert_reads "$work/net.log") counted=$(grep -c " steps, [1-9][0-9]* expert reads" "$work/net.log")
if [ "$reads" -eq 0 ] || [ "$counted" -ne "$guests" ]; then fail "$counted guests have read experts, $guests must"; fi
for ((i = 1; i <= guests; i++)); do
    grep -aq "DHCP: have an address" "$work/guest_$i.log" || fail "guest $i has no address"
    grep -q "DHCPACK(duckd0) 10.21.0.$((100 + i)) 02:00:00:00:00:0$i" "$work/state/boot/dnsmasq.log" || fail "guest $i was not served"
done
if grep -q "DHCPACK.*02:00:00:00:00:09" "$work/state/boot/dnsmasq.log"; then fail "a machine that is not in the flock's file was served"; fi
[ "$(stat -c %a "$work/state/boot")" = 700 ] || fail "others can get at duck.conf"
if pgrep -f "conf-file=$work/state/boot" >/dev/null; then fail "dnsmasq is left running"; fi
echo "$guests guests booted from duckd; logits equal bit for bit; $reads expert reads; $(($(date +%s) - start)) s from power-on to logits"
