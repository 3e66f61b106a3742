#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Builds what a benchmark needs and runs it: bash tests/bench/run.sh NAME [--json FILE] [its own flags]
# Each prints a table; --json writes {"rows": [...], "summary": {...}}. Without a name: lists them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
name=${1:-}
list() {
  local file
  for file in "$here"/*_bench.cc "$here"/*_bench.py; do
    if [ -f "$file" ]; then basename "${file%.*}"; fi
  done
}
case "$name" in
  '' | -h | --help)
    sed -n '5,6s/^# \{0,1\}//p' "$0"
    list | sed 's/^/  /'
    exit 0
    ;;
esac
shift
if [ ! -f "$here/$name.py" ] && [ ! -f "$here/$name.cc" ]; then
  echo "no benchmark \"$name\"; there are: $(list | xargs)" >&2
  exit 2
fi
# A relative --json FILE means the caller's directory, so nothing below changes it.
build_log=$root/build/bench-build.log
mkdir -p "$root/build"
quietly() { "$@" >"$build_log" 2>&1 || { tail -n 40 "$build_log" >&2; exit 1; }; }
bash "$root/deploy/setup.sh" >&2
(cd "$root" && quietly cmake --preset release -DDMUON_BUILD_BENCH=ON)
if [ -f "$here/$name.py" ]; then
  (cd "$root" && quietly cmake --build --preset release)
  exec "$root/.venv/bin/python" "$here/$name.py" "$@"
fi
(cd "$root" && quietly cmake --build --preset release --target "$name")
exec "$root/build/release/bin/$name" "$@"
