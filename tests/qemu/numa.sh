#!/usr/bin/env bash
# numa.sh: where the host's own ducks have their memory on a machine with two NUMA nodes, asked of the kernel: a Linux guest
# of two nodes with two CPUs each runs `duckd serve`. A duck a node lies on its node alone; a single duck on both alike.
# shellcheck source=tests/qemu/lib.sh
. "$(dirname "$0")/lib.sh"
kernel=$build/linux/vmlinuz
[ -f "$kernel" ] || skip "needs a Linux kernel: tests/qemu/linux_setup.sh $build"
busybox=$(command -v busybox) || skip "needs busybox: apt-get install busybox-static"
! ldd "$busybox" >/dev/null 2>&1 || skip "needs a busybox that is static: apt-get install busybox-static"

root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,model,lib/x86_64-linux-gnu,lib64}
cp "$busybox" "$root/bin/busybox"
strip -o "$root/bin/duckd" "$build/duckd"
ldd "$build/duckd" | awk '$3 ~ /^\// { print $3 }' | xargs -I{} cp -L {} "$root/lib/x86_64-linux-gnu/"
cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
cp models/duckling/*.json models/duckling/*.safetensors "$root/model/"
cat >"$root/init" <<'E2'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t tmpfs tmp /tmp && $b mount -t devtmpfs dev /dev
$b ifconfig lo up
body='{"messages": [{"role": "user", "content": "What is a duck?"}], "max_tokens": 12, "temperature": 0}'
for flock in local local:1; do
    /bin/duckd serve --model /model --backend cpu --flock $flock --threads 4 </dev/null >/tmp/log 2>&1 &
    duckd=$!
    tries=0
    until $b wget -q -O /dev/null http://127.0.0.1:8080/health 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || { $b cat /tmp/log; $b poweroff -f; }
        $b sleep 0.2
    done
    answer=$($b wget -q -O - --header "Content-Type: application/json" --post-data "$body" http://127.0.0.1:8080/v1/chat/completions)
    echo "answer $flock: $answer"
    $b grep -E 'prefer|interleave' /proc/$duckd/numa_maps | $b sed "s/^/pages $flock: /"
    $b kill $duckd
    wait $duckd
done
echo "guest done"
$b poweroff -f
E2
chmod +x "$root/init"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null) >"$work/initrd"

memory() { echo "memory-backend-ram,id=$1,size=384M"; }
qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 4,sockets=2 -m 768 -nodefaults -display none -no-reboot -net none \
    -object "$(memory near)" -object "$(memory far)" -numa node,cpus=0-1,memdev=near -numa node,cpus=2-3,memdev=far \
    -kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=1" \
    -serial "file:$work/guest.log" -monitor none </dev/null >"$work/guest.qemu.log" 2>&1 &
pids+=($!)
ended "${pids[0]}" guest 700 # two servers and two answers on emulated CPUs; the guest has deadlines of its own
tr -d '\r' <"$work/guest.log" >"$work/said"
grep -q "^guest done" "$work/said" || fail "the guest has not come to its end"

expected=$("$build/duckd" generate --model models/duckling --backend cpu -q --temperature 0 -n 12 -p "What is a duck?")
for flock in local local:1; do
    grep "^answer $flock: " "$work/said" | grep -qF "$expected" || fail "$flock does not answer '$expected'"
done

# pages FLOCK POLICY: "on node 0, on node 1" of each range of more than 1000 pages with this policy.
pages() {
    grep "^pages $1: [0-9a-f]* $2 " "$work/said" | awk '{
        n[0] = n[1] = 0
        for (i = 1; i <= NF; i++) if (split($i, f, "=") == 2 && f[1] ~ /^N[01]$/) n[substr(f[1], 2)] = f[2]
        if (n[0] + n[1] > 1000) print n[0], n[1] }'
}
read -r near0 far0 < <(pages local prefer:0) || fail "local: no duck on node 0"
read -r near1 far1 < <(pages local prefer:1) || fail "local: no duck on node 1"
if [ "$far0" -ne 0 ] || [ "$near1" -ne 0 ]; then fail "local: $far0 of node 0's pages lie on node 1, $near1 of node 1's on node 0"; fi
read -r half0 half1 < <(pages local:1 interleave:0-1) || fail "local:1: no memory on both nodes"
apart=$((half0 - half1))
[ ${apart#-} -le 8 ] || fail "local:1: $half0 pages on node 0, $half1 on node 1"
echo "a duck a node: $near0 pages on node 0, $far1 on node 1, none elsewhere; one duck: $half0 and $half1"
