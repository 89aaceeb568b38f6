#!/usr/bin/env bash
# huge.sh: frames in huge pages: some 2 MiB pages are reserved, "huge_pages" takes them, weights and steps go through, and
# without any the reason is named. What was reserved before is there again at the end.
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/lib.sh"
pages=/sys/kernel/mm/hugepages/hugepages-2048kB
[ -w "$pages/nr_hugepages" ] || skip "needs root and a kernel with 2 MiB pages, to reserve some"
before=$(cat "$pages/nr_hugepages")
trap 'status=$?; echo "$before" >"$pages/nr_hugepages"; (exit $status) || cleanup; cleanup' EXIT
memif_flock false
sed -i 's/"memory_mb": 64/"huge_pages": true/' "$work/flock"
"$build/tests/duck-dpdk" "net_memif0,role=server,$memif" 10.21.0.101 "$(cat "$work/key")" 64 >"$work/duck.log" 2>&1 &
pids+=($!)
wait_for ready "$work/duck.log"
small=(--hidden 1024 --experts 16 --lanes 1)
run() { timeout 300 "$build/bench-net" --flock "$work/flock" "${small[@]}" "$@" >"$work/bench.log" 2>"$work/bench.err"; }

free=$(cat "$pages/free_hugepages")
if [ "$free" -eq 0 ]; then
    if run --steps 1; then fail "it works without huge pages"; fi
    grep "no huge page is free: reserve some" "$work/bench.err" || fail "what was said without huge pages: $(cat "$work/bench.err")"
fi
echo $((before + 96)) >"$pages/nr_hugepages"
[ $(($(cat "$pages/free_hugepages") - free)) -eq 96 ] ||
    skip "the kernel has no 96 free pieces of 2 MiB, only $(($(cat "$pages/free_hugepages") - free))"
rm -f "$work/bench.log"
timeout 300 "$build/bench-net" --flock "$work/flock" "${small[@]}" --steps 4000000 >"$work/bench.log" 2>"$work/bench.err" &
bench=$!
pids+=("$bench")
wait_for "steps begin" "$work/bench.log"
taken=$((free + 96 - $(cat "$pages/free_hugepages")))
sleep 0.3 # some steps
kill -INT "$bench" || fail "bench-net has ended: $(cat "$work/bench.err")"
wait "$bench" || fail "bench-net: $(cat "$work/bench.err")"
echo "$taken of 96 pages taken" # 4095 buffers of 2.3 KB
[ "$taken" -ge 5 ] || fail "frames are not in huge pages: $taken of 96 taken"
grep "1 lane" "$work/bench.log"
run --steps 100 || fail "bench-net a second time: $(cat "$work/bench.err")"
given_back() { [ "$(cat "$pages/free_hugepages")" -eq $((free + 96)) ]; }
until_true 10 given_back || fail "pages were not given back: $(cat "$pages/free_hugepages") are free, must be $((free + 96))"
echo "ok"
