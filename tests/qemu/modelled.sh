#!/usr/bin/env bash
# modelled.sh BUILD_DIR DRIVER: a bare-metal duck whose only NIC is a model (tests/nic) in a process of its own: the
# firmware's driver takes it, gets an address and joins a flock through it; logits equal local ones bit for bit, and every
# expert was read by the duck. Switched off, it is not woken by another duck's magic packet, but by its own.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
driver=$2

# The wire: QEMU's user network behind a hub, and from there datagrams to the model.
wire_port=$((base_port + 100))
launcher=("$build/tests/nic-pci" "$driver" 02:00:5e:10:20:30 "$wire_port" "$((wire_port + 1))")
start=$(date +%s%N)
machine duck-1 2 96 -kernel "$build/duck/BOOTX64.EFI" -append "name=duck-1 spin_us=200 key=$key" \
    -object memory-backend-memfd,id=ram,size=96M,share=on -machine memory-backend=ram \
    -netdev "user,id=u,hostfwd=udp:127.0.0.1:$((base_port + 1))-:21210" \
    -netdev "socket,id=w,udp=127.0.0.1:$wire_port,localaddr=127.0.0.1:$((wire_port + 1))" \
    -netdev hubport,id=h1,hubid=0,netdev=u -netdev hubport,id=h2,hubid=0,netdev=w
launcher=()
wait_for duck-1 "DHCP: have an address"
ms=$((($(date +%s%N) - start) / 1000000))
grep -q "NIC: $driver, 02:00:5e:10:20:30, 2500 Mb/s" "$work/duck-1.log" || fail "duck-1 has no $driver with 2500 Mb/s"
flock_file flock 1

echo '[0,5,9,14]' >"$work/tokens"
compute local:1 local.f32 local.log
compute "$work/flock" net.f32 net.log
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of a local duck"
local_reads=$(expert_reads "$work/local.log") net_reads=$(expert_reads "$work/net.log")
if [ "$net_reads" -eq 0 ] || [ "$net_reads" -ne "$local_reads" ]; then
    fail "$net_reads expert reads, a local duck makes $local_reads"
fi
device_lives() { kill -0 "${pids[0]}" 2>/dev/null || fail "the modelled device has gone: $(cat "$work/duck-1.qemu.log")"; }
device_lives

# Power off and Wake on LAN. A magic packet is a frame by itself: it begins with the address of everybody.
magic() { # MAC without its last byte, last byte
    local i frame='\xff\xff\xff\xff\xff\xff'
    for ((i = 0; i < 16; i++)); do frame+="$1\\x$2"; done
    printf '%b' "$frame" >"/dev/udp/127.0.0.1/$wire_port"
}
"$build/duckd" flock off udp-0 --flock "$work/flock" >"$work/off.log" 2>&1 || fail "off: $(cat "$work/off.log")"
wait_for duck-1.qemu "off, waits for a magic packet"
grep -q "wake on LAN: armed" "$work/duck-1.log" || fail "not armed: $(tail -n 3 "$work/duck-1.log")"
mv "$work/duck-1.log" "$work/first-1.log"
magic '\x02\x00\x5e\x10\x20' 31
wait_for duck-1.qemu "a frame does not wake it"
magic '\x02\x00\x5e\x10\x20' 30
wait_for duck-1.qemu "woken by a magic packet"
wait_for duck-1 "DHCP: have an address"
"$build/duckd" flock status --flock "$work/flock" >"$work/status.log" 2>&1 || fail "after waking up: $(cat "$work/status.log")"
device_lives
echo "logits equal bit for bit; $net_reads expert reads, all behind a modelled $driver; power-on to an address: $ms ms"
