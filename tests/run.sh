#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Runs every test and gate, and ends with one line: N passed, N failed, N skipped.
#
#   bash tests/run.sh                everything (about 22 minutes on 2 cores, the first time)
#   bash tests/run.sh --quick        release build, its tests, and the Python tests
#   bash tests/run.sh --only PART    one of: setup lint release python asan tsan
#
# A failing part does not stop the others. Each test case counts once a build that runs it; setup,
# each lint and each build count as one. Logs and JUnit files are in build/test-results.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
readonly RESULTS="$PWD/build/test-results"
passed=0 failed=0 skipped=0

# Counts one gate by its exit code and shows the end of its log when it failed: gate NAME COMMAND...
gate() {
  local name=$1 log="$RESULTS/$1.log"
  shift
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    return 0
  fi
  failed=$((failed + 1))
  echo "FAILED $name: $*"
  tail -n 40 "$log" | sed 's/^/    /'
  return 1
}

# Adds the cases of a JUnit file: cases NAME EXIT_CODE. A runner that failed without a failed case
# (a crash, no file, no test at all) is a failure of its own.
cases() {
  local name=$1 code=$2 counts p f s
  counts=$(python3 tests/support/junit.py "$RESULTS/$name.xml") || counts="0 0 0"
  read -r p f s <<<"$(tail -n 1 <<<"$counts")"
  head -n -1 <<<"$counts"
  if { [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; } || [ $((p + f + s)) -eq 0 ]; then
    echo "FAILED $name: its runner ended with $code and $((p + f + s)) cases"
    tail -n 40 "$RESULTS/$name.log" | sed 's/^/    /'
    f=$((f + 1))
  fi
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

build() {
  gate "$1-build" bash -c "cmake --preset $1 && cmake --build --preset $1 -j $(nproc)"
}

# Builds a preset and runs its CTest cases.
build_and_test() {
  build "$1" || return
  rm -f "$RESULTS/$1.xml"
  # Twice as many as cores, for most of them wait most of the time.
  ctest --test-dir "build/$1" -j $((2 * $(nproc))) --output-on-failure --output-junit "$RESULTS/$1.xml" \
    >"$RESULTS/$1.log" 2>&1
  cases "$1" $?
}

part_setup() { gate setup bash deploy/setup.sh --tests; }

part_lint() {
  gate lint python3 tests/lint.py
  if [ ! -x node_modules/.bin/buf ]; then
    gate buf-install npm install --no-save --no-package-lock --silent @bufbuild/buf@1 || return
  fi
  gate buf node_modules/.bin/buf lint proto
}

part_release() { build_and_test release; }

# These tests mostly wait, so in a whole run the next builds go on beside them, one after the other, behind all else.
ahead=
build_ahead() {
  local presets=()
  for preset in asan tsan; do
    [[ " ${parts[*]} " != *" $preset "* ]] || presets+=("$preset")
  done
  rm -f "$RESULTS"/*.ahead
  [ ${#presets[@]} -gt 0 ] || return 0
  nice -n 19 bash -c '
    for preset; do
      cmake --preset "$preset" && cmake --build --preset "$preset" -j "$(nproc)"
      touch "$0/$preset.ahead"
    done' "$RESULTS" "${presets[@]}" >/dev/null 2>&1 &
  ahead=$!
  trap 'kill "$ahead" 2>/dev/null' EXIT
}

# Until the build of a preset that goes on beside is done.
await_ahead() {
  while [ -n "$ahead" ] && [ ! -e "$RESULTS/$1.ahead" ] && kill -0 "$ahead" 2>/dev/null; do sleep 1; done
}

part_python() {
  build_ahead
  rm -f "$RESULTS/python.xml"
  .venv/bin/python -m pytest tests/lint_test.py tests/client tests/e2e -q -p no:cacheprovider --junitxml "$RESULTS/python.xml" \
    >"$RESULTS/python.log" 2>&1
  cases python $?
}

part_asan() {
  await_ahead asan
  UBSAN_OPTIONS=print_stacktrace=1 build_and_test asan  # what is left to build, and the verdict
}

# gRPC, protobuf and others come without instrumentation; their accesses are left out, not their
# names: a race of ours inside their callbacks is still found.
part_tsan() {
  await_ahead tsan
  TSAN_OPTIONS="ignore_noninstrumented_modules=1 suppressions=$PWD/tests/tsan.supp" build_and_test tsan
}

run_part() {
  local start=$SECONDS before=$failed
  echo "== $1 ..."
  "part_$1"
  local verdict=ok
  [ "$failed" -eq "$before" ] || verdict="$((failed - before)) failed"
  echo "== $1: $verdict, $((SECONDS - start)) s"
}

parts=(setup lint release python asan tsan)
case "${1:-}" in
  '') ;;
  --quick) parts=(release python) ;;
  --only)
    [[ " ${parts[*]} " == *" ${2:-} "* ]] || { echo "no part \"${2:-}\"; one of: ${parts[*]}" >&2; exit 2; }
    parts=("$2")
    ;;
  -h | --help) sed -n '5,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "unknown option $1; try --help" >&2; exit 2 ;;
esac
mkdir -p "$RESULTS"
for part in "${parts[@]}"; do run_part "$part"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
