#!/usr/bin/env bash
# pxe.sh: a machine with neither disk nor options: OVMF asks DHCP, loads the image and then duck.conf (with the key) by
# TFTP, and the duck computes. QEMU's own boot server stands in for the daemon's.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
mkdir "$work/tftp"
cp "$build/duck/BOOTX64.EFI" "$work/tftp/"
echo "key=$key name=booted spin_us=200" >"$work/tftp/duck.conf"
start=$(date +%s%N)
machine duck-1 2 96 -netdev "user,id=n,tftp=$work/tftp,bootfile=BOOTX64.EFI,hostfwd=udp:127.0.0.1:$((base_port + 1))-:21210" \
    -device virtio-net-pci,netdev=n,romfile=,bootindex=0
wait_for duck-1 "ready: booted"
wait_for duck-1 "DHCP: have an address"
ms=$((($(date +%s%N) - start) / 1000000))
flock_file flock 1
timeout 180 "$build/duckd" logits --tokens <(echo '[0,5]') --out "$work/net.f32" --flock "$work/flock" -v 2>"$work/duckd.log" ||
    fail "duckd: $(tail -n 3 "$work/duckd.log")"
timeout 180 "$build/duckd" logits --tokens <(echo '[0,5]') --out "$work/local.f32" --flock local:1 2>"$work/local.log"
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of local ducks"
echo "power-on through PXE to an address: $ms ms"
