#!/usr/bin/env bash
# pxe_flock.sh BUILD_DIR GUESTS: machines with neither disk nor options boot from a running duckd itself: OVMF's PXE gets
# address, image and key through a DPDK port's tap from the dnsmasq that duckd runs, and the ducks compute. Answers equal
# local ones; one guest's power is cut in the middle of one: it survives, the guest boots again, takes part again, and the
# next answer is right as well. Logits equal local ones bit for bit and every expert was read by a guest. A machine that is
# not in the flock's file gets no address, one with another key no answer.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/../net/lib.sh"
guests=$2
# shellcheck source=tests/qemu/ovmf.sh
. "$(dirname "$0")/ovmf.sh"
command -v qemu-system-x86_64 >/dev/null || skip "needs QEMU: apt-get install qemu-system-x86"
command -v dnsmasq >/dev/null || skip "needs dnsmasq: apt-get install dnsmasq-base"

make_namespace
x sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.default.arp_ignore=1 # bridge and tap are in one namespace here
bridge 0

# guest I [ARGUMENT...]: 02:00:00:00:00:I on the bridge; its serial line goes to guest_I.log, its QEMU's id to qemu[I].
declare -A qemu=()
guest() {
    if [ -z "${qemu[$1]-}" ]; then
        x ip tuntap add dev "t$1" mode tap
        x ip link set "t$1" master br0 up
    fi
    ip netns exec "$ns" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 96 -nodefaults -display none \
        -no-reboot -bios "$ovmf" -serial "file:$work/guest_$1.log" -monitor none \
        -netdev "tap,id=n,ifname=t$1,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=n,romfile=,mac=02:00:00:00:00:0$1,bootindex=1" "${@:2}" \
        </dev/null >"$work/qemu_$1.log" 2>&1 &
    qemu[$1]=$!
    pids+=($!)
}

ducks=""
for ((i = 1; i <= guests; i++)); do
    ducks+="${ducks:+, }{\"mac\": \"02:00:00:00:00:0$i\", \"address\": \"10.21.0.$((100 + i))\"}"
done
cat >"$work/flock" <<END
{"transport": "dpdk", "key_file": "$work/key", "state_dir": "$work/state", "memory_mb": 128, "boot": true,
 "find_ms": 300000, "dead_ms": 10000,
 "ports": [{"device": "net_af_packet0,iface=p0", "lcore": 2, "address": "10.21.0.1/24", "ducks": [$ducks]}]}
END
# answer LOG: what the running duckd says to the prompt; generate: what local ducks say.
prompt="Tell me a long story about a duck"
request="{\"messages\": [{\"role\": \"user\", \"content\": \"$prompt\"}], \"max_tokens\": 12, \"temperature\": 0}"
answer() {
    x curl -sS --max-time 300 -H 'Content-Type: application/json' -d "$request" http://127.0.0.1:8080/v1/chat/completions >"$work/$1" ||
        fail "no answer: $(tail -n 3 "$work/serve.log")"
    local text
    text=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["choices"][0]["message"]["content"])' "$work/$1") ||
        fail "no text in $(cat "$work/$1")"
    [ "$text" = "$(cat "$work/local.txt")" ] || fail "$1: '$text', local ducks say '$(cat "$work/local.txt")'"
}
# How often guest 1 was given its address: by the numbers of the exchanges, in which either side may repeat itself.
leases() { sed -n 's/.* \([0-9]*\) DHCPACK(duckd0) 10.21.0.101 02:00:00:00:00:01.*/\1/p' "$work/state/boot/dnsmasq.log" | sort -u | wc -l; }

echo '[0,5,9,14]' >"$work/tokens"
local_duckd generate -p "$prompt" -n 12 --temperature 0 >"$work/local.txt"
start=$(date +%s)
for ((i = 1; i <= guests; i++)); do guest "$i"; done
guest 9 # is not in the flock's file
x ip link set lo up
ip netns exec "$ns" "$build/duckd" serve --flock "$work/flock" -v 2>"$work/serve.log" &
daemon=$!
pids+=("$daemon")
wait_for "DHCPDISCOVER(duckd0) 02:00:00:00:00:09 no address available" "$work/state/boot/dnsmasq.log" 200
kill "${qemu[9]}"
wait_for "model loaded" "$work/serve.log" 400
up=$(($(date +%s) - start))
answer first.json
for ((i = 1; i <= guests; i++)); do
    grep -aq "address: 10.21.0.$((100 + i)) by the boot options" "$work/guest_$i.log" || fail "guest $i has no address"
    grep -q "DHCPACK(duckd0) 10.21.0.$((100 + i)) 02:00:00:00:00:0$i" "$work/state/boot/dnsmasq.log" || fail "guest $i was not served"
done

# The power goes in the middle of an answer.
asked=$(leases)
answer second.json &
second=$!
pids+=("$second")
computes() { x curl -s --max-time 10 http://127.0.0.1:8080/metrics.json | grep '"running":1' >"$work/computes"; }
until_true 60 computes || fail "the second answer has not begun"
kill -0 "$second" 2>/dev/null || fail "the second answer was over before the power went"
kill -KILL "${qemu[1]}"
wait "${qemu[1]}" 2>/dev/null || true
wait_for "the others take over its slices" "$work/serve.log" 200
wait "$second" || fail "the answer did not survive: $(tail -n 3 "$work/serve.log")"
guest 1
wait_for "dpdk-0 is there: it gets its weights" "$work/serve.log" 200
answer third.json & # a duck that is back takes part with the next step
pids+=($!)
third=$!
wait_for "dpdk-0 takes part again" "$work/serve.log" 200
wait "$third" || fail "the answer after the return: $(tail -n 3 "$work/serve.log")"
answer fourth.json
# The address came once by PXE's own DHCP; the duck has not asked again.
[ "$(leases)" -eq $((asked + 1)) ] || fail "guest 1 was given its address $(leases) times, must be $((asked + 1))"
kill -INT "$daemon"
wait "$daemon" || fail "duckd serve ended with $?: $(tail -n 3 "$work/serve.log")"

# Another session finds the same ducks; one with another key is not found.
timeout 120 "$build/duckd" logits --tokens "$work/tokens" --out "$work/local.f32" --flock "local:$guests" -v 2>"$work/local.log" ||
    fail "local: $(tail -n 3 "$work/local.log")"
timeout 400 ip netns exec "$ns" "$build/duckd" logits --tokens "$work/tokens" --out "$work/net.f32" --flock "$work/flock" -v \
    2>"$work/net.log" || fail "duckd: $(tail -n 3 "$work/net.log"); dnsmasq: $(tail -n 5 "$work/state/boot/dnsmasq.log")"
cmp "$work/local.f32" "$work/net.f32" || fail "logits differ from those of local ducks"
reads=$(expert_reads "$work/net.log") counted=$(grep -c " steps, [1-9][0-9]* expert reads" "$work/net.log")
if [ "$reads" -eq 0 ] || [ "$counted" -ne "$guests" ]; then fail "$counted guests have read experts, $guests must"; fi
local_reads=$(expert_reads "$work/local.log")
[ "$reads" -eq "$local_reads" ] || fail "$reads expert reads, as many local ducks make $local_reads"
# Without a session cores sleep after 10 ms: a guest of two that spin is runnable for 200 % of the time, however busy the machine is.
awake=1000
for _ in 1 2 3; do
    read -r -a now < <(idle "${qemu[1]}")
    [ "${now[1]}" -ge "$awake" ] || awake=${now[1]}
done
[ "$awake" -le 100 ] || fail "a guest without a session is runnable for $awake % of the time"
if grep -q "DHCPACK.*02:00:00:00:00:09" "$work/state/boot/dnsmasq.log"; then fail "a machine that is not in the flock's file was served"; fi
guest 8 -kernel "$build/duck/BOOTX64.EFI" -append "address=10.21.0.108 key=ffffffffffffffffffffffffffffffff"
wait_for "ready: " "$work/guest_8.log" 200
sed 's/"ducks": \[/"ducks": [{"name": "stranger", "address": "10.21.0.108"}, /; s/"find_ms": 300000/"find_ms": 8000/' "$work/flock" >"$work/wrong"
if x "$build/duckd" flock doctor --flock "$work/wrong" >"$work/doctor" 2>&1; then fail "a duck with another key is well: $(cat "$work/doctor")"; fi
grep -q "^MISSING  stranger" "$work/doctor" || fail "the doctor says: $(cat "$work/doctor")"
[ "$(grep -c "the known answer is right" "$work/doctor")" -eq "$guests" ] || fail "the doctor says: $(cat "$work/doctor")"

[ "$(stat -c %a "$work/state/boot")" = 700 ] || fail "others can get at duck.conf"
if pgrep -f "conf-file=$work/state/boot" >/dev/null; then fail "dnsmasq is left running"; fi
echo "$guests guests booted from duckd, $up s from power-on to a server that answers; four answers and logits equal; $reads expert reads; asleep $awake %"
