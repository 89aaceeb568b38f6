#!/usr/bin/env bash
# flock.sh: the whole path in one process: CUDA graphs, DPDK lcores and, on the other side of real frames, duck-linux
# processes on the same machine's cores answer duckling's goldens. usage: flock.sh BUILD_DIR [udp]
# shellcheck source=tests/net/lib.sh
. "$(dirname "$0")/../net/lib.sh"
if [ "${2-}" = udp ]; then
    for i in 1 2 3; do udp_duck $i; done
    ducks_ready 1 2 3
    cat >"$work/flock" <<EOF
{"transport": "udp", "key_file": "$work/key", "state_dir": "$work/state",
 "ports": [{"address": "127.0.0.1", "ducks": [{"address": "127.0.0.11:$port"}, {"address": "127.0.0.12:$port"},
                                              {"address": "127.0.0.13:$port"}]}]}
EOF
    x() { "$@"; }
else
    make_namespace
    for k in 0 1; do
        bridge $k
        for i in 1 2; do duck $k $i 64M; done
    done
    flock_file flock 2 2
fi
# DPDK starts once in a process.
for case in f32_plain bf16_mtp; do
    status=0
    x timeout 120 "$build/tests/test-cuda-engine" "$work/flock" $case || status=$?
    [ $status -eq 0 ] || exit $status
done
