#!/usr/bin/env bash
# old_cpu_test.sh DUCKD: a CPU without what the kernels need is refused by name, never by SIGILL. The CPUs are
# qemu-user's.
set -euo pipefail
duckd=$1

on() { qemu-x86_64 -cpu "$1" "$duckd" generate -p Hello 2>&1 | grep -v '^qemu-x86_64: warning'; }

refused() { # CPU FEATURE
    local said status=0
    said=$(on "$1") || status=$?
    if [ "$status" != 1 ] || ! grep -q "^duckd: this CPU has no $2" <<<"$said"; then
        echo "on $1: status $status, '$said'; expected status 1 and 'this CPU has no $2'" >&2
        exit 1
    fi
}
refused Nehalem OSXSAVE
refused Haswell,-f16c F16C
refused Haswell,-fma FMA
refused Haswell,-avx2 AVX2
