#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Everything that needs a GPU, in one go: builds, runs the tests labelled gpu, times Newton-Schulz beside PyTorch, in
# batches and without CUDA graphs, and writes a report. Within 4 minutes on one GPU, of which at most 90 s are tests
# and 90 s timings.
#
#   bash tests/gpu/run.sh [--prebuilt] [--json FILE]
#
#   --prebuilt   takes build/release as it is
#   --json FILE  the report; build/gpu/report.json without it
#
# Ends with 0 when every test passed and all was timed, 3 when there is no GPU, 1 otherwise.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
prebuilt=no json=$root/build/gpu/report.json
while [ $# -gt 0 ]; do
  case "$1" in
    --prebuilt) prebuilt=yes ;;
    --json) json=$(realpath -m "${2:?--json needs a file}"); shift ;;
    -h | --help) sed -n '5,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option $1; try --help" >&2; exit 2 ;;
  esac
  shift
done
cd "$root" || exit 1

no_gpu() { echo "tests/gpu/run.sh: no GPU, nothing was tested: $1" >&2; exit 3; }
die() { echo "tests/gpu/run.sh: $1" >&2; exit 1; }

# Before a build that may take minutes.
if ! command -v nvidia-smi >/dev/null; then
  [ -e /dev/nvidiactl ] || no_gpu "there is neither nvidia-smi nor /dev/nvidiactl"
elif ! devices=$(nvidia-smi -L 2>&1) || [ -z "$devices" ]; then
  no_gpu "nvidia-smi -L: ${devices:-lists none}"
fi

mkdir -p build/gpu
if [ "$prebuilt" = no ]; then
  { cmake --preset release -DDMUON_CUDA=ON -DDMUON_BUILD_BENCH=ON &&
    cmake --build --preset release -j "$(nproc)" --target dmuon_cuda kernels_test kernels_cuda_test ns_runner
  } >build/gpu/build.log 2>&1 || { tail -n 30 build/gpu/build.log >&2; die "the build failed; all of it is in build/gpu/build.log"; }
fi

failed=0
timeout 90 ctest --test-dir build/release -L gpu --no-tests=error --output-on-failure --output-junit "$PWD/build/gpu/tests.xml" \
  >build/gpu/tests.log 2>&1 || failed=1
# A device that lies there but cannot be used shows as a skipped test, with the reason.
if grep -q 'Skipped' build/gpu/tests.log; then
  reason=$(build/release/bin/kernels_test --gtest_filter=Gpu/MeasureTest.BackendSaysItsName/cuda 2>&1 | grep -m 1 'kernels backend')
  no_gpu "${reason:-a test was skipped, see build/gpu/tests.log}"
fi
[ "$failed" = 0 ] || { tail -n 60 build/gpu/tests.log; echo "tests/gpu/run.sh: tests failed" >&2; }

python=python3
[ ! -x .venv/bin/python ] || python=.venv/bin/python
timeout 90 "$python" tests/gpu/report.py --tests build/gpu/tests.xml --json "$json" || failed=1
exit "$failed"
