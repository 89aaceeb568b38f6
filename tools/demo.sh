#!/usr/bin/env bash
# demo.sh: from a fresh Debian or Ubuntu machine to the first answer.
# Installs missing packages, builds, asks the embedded model a question and says what to try next.
set -euo pipefail
case "${1-}" in
-h | --help)
    echo "usage: tools/demo.sh [QUESTION]    install what is missing, build, answer QUESTION with the embedded model"
    exit 0
    ;;
-*)
    echo "error: '$1' is no option of tools/demo.sh (try: tools/demo.sh --help)" >&2
    exit 2
    ;;
esac
# shellcheck source=tools/setup.sh
. "$(dirname "$0")/setup.sh"

# shellcheck disable=SC2086
install_packages $BUILD_PACKAGES
build release program # not the tests, which test.sh builds

question=${1:-What is a duck?}
say "build/duckd generate -p \"$question\""
build/duckd generate -p "$question"

cat >&2 <<'EOF'

That was duckling: a small model with exactly DeepSeek-V3.2's architecture, its routed experts computed in fp9 by
ducks that are threads of this process. Next:

  build/duckd chat                                  talk to it (try: What does grep do?   你好   Is 91 prime?)
  build/duckd generate -p "Who are you?" --json     the same with token ids and timings
  build/duckd generate -p "Hello" --flock local:7   seven ducks, the same bits
  build/duckd bench --csv /tmp/bench                per-token times, a table and plots
  build/duckd --help                                everything else
  tools/test.sh                                     run every test
EOF
