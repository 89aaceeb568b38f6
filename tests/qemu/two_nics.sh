#!/usr/bin/env bash
# two_nics.sh BUILD_DIR: a bare-metal duck with two NICs, the first one (a modelled RTL8125) without a cable: it takes the
# second one, and gets an address.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
wire_port=$((base_port + 100))
launcher=("$build/tests/nic-pci" rtl8125:unplugged 02:00:5e:10:20:30 "$wire_port" "$((wire_port + 1))")
machine duck-1 2 96 -kernel "$build/duck/BOOTX64.EFI" -append "name=duck-1 key=$key" \
    -object memory-backend-memfd,id=ram,size=96M,share=on -machine memory-backend=ram \
    -netdev user,id=n -device virtio-net-pci,netdev=n,romfile=,addr=0x10
launcher=()
wait_for duck-1 "DHCP: have an address"
grep -q "rtl8125 at .*: no link" "$work/duck-1.log" || fail "the NIC without a cable was not looked at"
grep -q "NIC: virtio-net, 52:54:00:12:34:56" "$work/duck-1.log" || fail "another NIC than the one with a link was taken"
kill -0 "${pids[0]}" 2>/dev/null || fail "the modelled device has gone: $(cat "$work/duck-1.qemu.log")"
