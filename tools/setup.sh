# shellcheck shell=bash disable=SC2034
# setup.sh: what demo.sh and test.sh share: packages and the build. Sourced, not run.
# Idempotent: asks dpkg first and installs only what is missing; the build does nothing when nothing changed.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

BUILD_PACKAGES="gcc libc6-dev make cmake ninja-build pkg-config ccache
    libcjson-dev libpcre2-dev libedit-dev libcmocka-dev libuv1-dev node-llhttp libdpdk-dev gnu-efi binutils gnuplot-nox"

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# install PACKAGE...: the Debian/Ubuntu packages that are not there yet.
install_packages() {
    local missing=() p
    for p in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    command -v apt-get >/dev/null || die "these packages are missing and apt-get is not there to install them: ${missing[*]}"
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "run as root, or install first: apt-get install ${missing[*]}"
        root=(sudo)
    fi
    say "installing ${#missing[@]} missing packages: ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { "${root[@]}" apt-get -o Acquire::Retries=3 update -qq &&
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "apt-get could not install them (whole log: $log)"
    fi
    rm -f "$log"
}

# build PRESET [TARGET ...]: configure (once) and build into build/, build-asan/ or build-tsan/, everything unless
# targets are named. Compiler output is shown only when it matters.
build() {
    local preset=$1 dir=build
    shift
    [ "$preset" = release ] || dir=build-$preset
    if [ ! -f "$dir/build.ninja" ]; then
        say "configuring $dir"
        cmake --preset "$preset" -DCMAKE_C_COMPILER_LAUNCHER=ccache ${CI:+-DDUCKD_WERROR=ON} >"/tmp/duckd-configure.$$" 2>&1 ||
            { cat "/tmp/duckd-configure.$$" >&2; rm -f "/tmp/duckd-configure.$$"; die "cmake failed"; }
        rm -f "/tmp/duckd-configure.$$"
    fi
    say "building $dir"
    ninja -C "$dir" --quiet "$@" >&2 || die "the build failed"
}
