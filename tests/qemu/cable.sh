#!/usr/bin/env bash
# cable.sh BUILD_DIR: bare-metal ducks behind virtio-net and e1000e on a network of 9000-byte packets: steps go in jumbo
# frames, logits equal local ones. Their cables are pulled and put back (QEMU's set_link) one after the other: who has no
# link does not answer, the other one does, and both compute again afterwards.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/../net/lib.sh"
# shellcheck source=tests/qemu/ovmf.sh
. "$(dirname "$0")/ovmf.sh"
command -v qemu-system-x86_64 >/dev/null || skip "needs QEMU: apt-get install qemu-system-x86"
command -v tshark >/dev/null || skip "needs tshark: apt-get install tshark"

make_namespace
bridge 0
x ip link set br0 mtu 9000
for i in p0 p0b; do x ip link set "$i" mtu 9000; done
driver=(- virtio-net-pci e1000e)

# guest I: duck I, 10.21.0.(100 + I); its monitor reads from descriptor 10 + I.
guest() {
    x ip tuntap add dev "t$1" mode tap
    x ip link set "t$1" mtu 9000 master br0 up
    mkfifo "$work/monitor_$1.in" "$work/monitor_$1.out"
    ip netns exec "$ns" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 128 -nodefaults -display none \
        -no-reboot -bios "$ovmf" -serial "file:$work/guest_$1.log" -chardev "pipe,id=m,path=$work/monitor_$1" -mon chardev=m \
        -kernel "$build/duck/BOOTX64.EFI" -append "name=duck-$1 spin_us=200 key=$key address=10.21.0.10$1" \
        -netdev "tap,id=n,ifname=t$1,script=no,downscript=no" \
        -device "${driver[$1]},id=nic,netdev=n,romfile=,mac=02:00:00:00:00:0$1" </dev/null >"$work/qemu_$1.log" 2>&1 &
    pids+=($!)
}
cable() { # I on|off
    echo "set_link nic $2" >"$work/monitor_$1.in"
}

guest 1
guest 2
for i in 1 2; do
    wait_for "ready: duck-$i" "$work/guest_$i.log" 200
    exec {hold}<>"$work/monitor_$i.in" {hold}<>"$work/monitor_$i.out" # the monitor's ends stay open
done
grep -q "NIC: virtio-net" "$work/guest_1.log" || fail "guest 1 has no virtio-net"
grep -q "NIC: e1000e" "$work/guest_2.log" || fail "guest 2 has no e1000e"

device="net_af_packet0,iface=p0,framesz=9216,blocksz=36864,framecnt=512"
flock() { # NAME DUCKS FIND_MS
    echo "{\"transport\": \"dpdk\", \"key_file\": \"$work/key\", \"state_dir\": \"$work/state\", \"memory_mb\": 192,
        \"program\": \"$build/duck/fp9_kernels.elf\", \"payload\": 8928, \"find_ms\": $3, \"dead_ms\": 20000,
        \"ports\": [{\"device\": \"$device\", \"address\": \"10.21.0.1/24\", \"ducks\": [$2]}]}" >"$work/$1"
}
flock both '{"address": "10.21.0.101"}, {"address": "10.21.0.102"}' 60000
flock short '{"address": "10.21.0.101"}, {"address": "10.21.0.102"}' 2000

# Both ways frames are larger than any of 1500-byte packets.
ip netns exec "$ns" tshark -l -i p0b -f "greater 1515" -T fields -e eth.src -e frame.len >"$work/large" 2>"$work/tshark.log" &
pids+=($!)
wait_for "Capture started" "$work/tshark.log"
compare_logits both
for i in 1 2; do wait_for "02:00:00:00:00:0$i" "$work/large"; done
kill "${pids[-1]}"
largest() { awk -v from="$1" '(($1 ~ /^02:00:00:00:00:0[12]$/) ? "ducks" : "host") == from && $2 > n { n = $2 } END { print n + 0 }' "$work/large"; }
[ "$(largest host)" -gt 8000 ] || fail "the largest frame of the host has $(largest host) bytes"
echo "largest frames: host $(largest host), ducks $(largest ducks) bytes"

# answers I: duck I does, to a host that asks for two seconds.
answers() { x "$build/duckd" flock status "dpdk-$(($1 - 1))" --flock "$work/short" >"$work/status.log" 2>&1; }
within() { # TEXT COMMAND...: it succeeds at last
    until_true 180 "${@:2}" || fail "$1: $(cat "$work/status.log")"
}
silent() { # I: three times in a row, not just too slow once
    local n
    for n in 1 2 3; do if answers "$1"; then return 1; fi; done
}
for i in 1 2; do within "duck $i does not answer" answers $i; done
for i in 1 2; do
    cable $i off
    within "duck $i answers without a cable" silent $i
    within "the other duck has lost its cable as well" answers $((3 - i))
    cable $i on
    within "duck $i does not answer with its cable back" answers $i
done
compare_logits both
echo "cables pulled and put back: virtio-net, e1000e"
