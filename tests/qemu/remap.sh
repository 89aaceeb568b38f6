#!/usr/bin/env bash
# remap.sh: a machine whose firmware left DMA remapping on, with tables that let no device reach memory: the duck switches it
# off, says so, and joins a flock through a NIC that would be deaf and dumb otherwise. What firmware would have done, this
# script does through qtest before the first instruction.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
mkfifo "$work/monitor.in" "$work/monitor.out"
boot duck-1 1 e1000e 2 "key=$key" -S -machine kernel-irqchip=split -device intel-iommu,intremap=off \
    -chardev "pipe,id=m,path=$work/monitor" -mon chardev=m -qtest "unix:$work/qtest,server=on,wait=off" -qtest-log /dev/null
exec 7<>"$work/monitor.in" 8<>"$work/monitor.out"
python3 - "$work/qtest" <<'END' || fail "DMA remapping cannot be switched on: $(cat "$work/duck-1.qemu.log")"
import socket, sys, time
for _ in range(300):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect(sys.argv[1])
        break
    except OSError:
        time.sleep(0.1)
f = s.makefile("rw")
def ask(line):
    f.write(line + "\n")
    f.flush()
    while True:
        answer = f.readline().split()
        if answer[0] != "IRQ":
            return int(answer[1], 16) if len(answer) > 1 else 0
unit, root_table = 0xfed90000, 0x1000      # a page of zeros: no device has an entry
command, status, root = unit + 0x18, unit + 0x1c, unit + 0x20
ask(f"writeq {root:#x} {root_table:#x}")
ask(f"writel {command:#x} {1 << 30:#x}")   # the root table
ask(f"writel {command:#x} {1 << 31:#x}")   # translation
sys.exit(0 if ask(f"readl {status:#x}") >> 31 else 1)
END
echo cont >&7
wait_for duck-1 "DHCP: have an address"
grep -q "DMA remapping: the unit at 0xfed90000 was on, is off now (translation)" "$work/duck-1.log" ||
    fail "the log says nothing of DMA remapping: $(cat "$work/duck-1.log")"
flock_file flock 1
echo '[0,5]' >"$work/tokens"
compute local:1 local.f32 local.log
compute "$work/flock" net.f32 net.log
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of a local duck"
[ "$(expert_reads "$work/net.log")" -gt 0 ] || fail "no expert was read"
echo "logits equal bit for bit behind a unit that was left on"
