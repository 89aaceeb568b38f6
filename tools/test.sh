#!/usr/bin/env bash
# test.sh: install what the tests need, build, run every test; ends with ctest's summary.
set -euo pipefail
usage() {
    cat <<'EOF'
usage: tools/test.sh [--preset release|asan|tsan] [CTEST OPTION ...]
  tools/test.sh                        every test, optimised build
  tools/test.sh -L golden              only those with this label (unit golden net qemu web fault cuda)
  tools/test.sh -R tokenizer           only those whose name matches
  tools/test.sh --preset asan          under AddressSanitizer and UndefinedBehaviorSanitizer
  tools/test.sh --preset tsan          under ThreadSanitizer
EOF
}
preset=release
case "${1-}" in
-h | --help) usage; exit 0 ;;
--preset)
    preset=${2-}
    case "$preset" in
    release | asan | tsan) ;;
    *) echo "error: --preset is '$preset'; it can be release, asan or tsan" >&2; usage >&2; exit 2 ;;
    esac
    shift 2
    ;;
esac
# shellcheck source=tools/setup.sh
. "$(dirname "$0")/setup.sh"

TEST_PACKAGES="iproute2 ethtool procps strace iputils-ping tshark" # net tests: namespaces, veth cables
TEST_PACKAGES="$TEST_PACKAGES qemu-system-x86 ovmf dnsmasq-base qemu-user busybox-static" # qemu tests, cli-old-cpu
if ! command -v chromium >/dev/null; then TEST_PACKAGES="$TEST_PACKAGES chromium"; fi # web-chat
if ! command -v npm >/dev/null; then TEST_PACKAGES="$TEST_PACKAGES nodejs npm"; fi
# shellcheck disable=SC2086
install_packages $BUILD_PACKAGES $TEST_PACKAGES
build "$preset"

dir=build
[ "$preset" = release ] || dir=build-$preset
# What the tests compare with comes as pinned npm packages, into the build tree.
if [ -x tests/text/npm_setup.sh ]; then tests/text/npm_setup.sh "$dir"; fi
tests/web/npm_setup.sh "$dir"
tests/qemu/linux_setup.sh "$dir"

say "ctest in $dir"
exec ctest --test-dir "$dir" -j "$(nproc)" --output-on-failure "$@"
