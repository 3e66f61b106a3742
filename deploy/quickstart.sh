#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds, starts a daemon, and trains a byte-level GPT of about 3 M
# parameters on the source of the Python standard library with its optimizer in the service.
#
#   bash deploy/quickstart.sh [options]
#     --steps N            training steps (150)
#     --workers N          PyTorch FSDP2 workers (2)
#     --optimizer NAME     muon, or adamw for every parameter (muon)
#     --parallel NAME      zero3, zero2 or ddp (zero3)
#     --report FILE        writes the numbers as JSON
#     --keep-running       leaves the daemon up and says how to look at it
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."

usage() { sed -n '8,15s/^# \{0,1\}//p' "$0"; }
die() { echo "quickstart: $*" >&2; exit 1; }

steps=150 workers=2 optimizer=muon parallel=zero3 report= keep=no
while [ $# -gt 0 ]; do
  case "$1" in
    --steps | --workers | --optimizer | --parallel | --report)
      [ $# -ge 2 ] || die "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2 ;;
    --keep-running) keep=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ $steps =~ ^[1-9][0-9]*$ ]] || die "--steps is '$steps'; it must be a whole number from 1"
[[ $workers =~ ^[1-9][0-9]*$ ]] || die "--workers is '$workers'; it must be a whole number from 1"
[[ -z $report || $report = /* ]] || report=$invoked_from/$report

build() {
  local log=build/quickstart.log
  mkdir -p build
  echo "quickstart: building (minutes, the first time; log in $log)"
  { [ -f build/release/build.ninja ] || cmake --preset release; } >"$log" 2>&1 &&
    cmake --build build/release --target dmuond dmuonctl dmuon >>"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the build failed"
  }
}

daemon=
trainer=
runtime=
# Ends what this script started, by pid: the trainer first, so that the daemon has nothing to wait for.
finish() {
  local code=$?
  trap - EXIT INT TERM HUP
  stop "$trainer" 20
  if [ "$keep" = no ] || [ "$code" -ne 0 ]; then
    stop "$daemon" 20
    [ -z "$runtime" ] || rm -rf "$runtime"
  fi
  exit "$code"
}

# SIGTERM, then SIGKILL after so many seconds.
stop() {
  local pid=$1 tenths=$(($2 * 10))
  [ -n "$pid" ] || return 0
  kill -TERM "$pid" 2>/dev/null || return 0
  while kill -0 "$pid" 2>/dev/null && [ $((tenths -= 1)) -gt 0 ]; do sleep 0.1; done
  kill -KILL "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
}

# Slots run matrices side by side, one BLAS thread each; more than 8 are seldom busy at once.
start_daemon() {
  local cores slots
  cores=$(nproc)
  slots=$((cores < 8 ? cores : 8))
  runtime=$(mktemp -d "${TMPDIR:-/tmp}/dmuon-quickstart.XXXXXX")
  mkdir "$runtime/state"
  address=unix:$runtime/dmuond.sock
  setsid build/release/bin/dmuond --standalone --listen "$address" --metrics 127.0.0.1:0 \
    --state-dir "$runtime/state" --slots "$slots" --threads-per-slot $((cores / slots)) \
    --step-timeout 60 --log-level info </dev/null >"$runtime/dmuond.log" 2>&1 &
  daemon=$!
  for _ in $(seq 200); do
    [ -S "$runtime/dmuond.sock" ] && return
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.05
  done
  cat "$runtime/dmuond.log" >&2
  die "dmuond did not start"
}

train() {
  local threads=$(($(nproc) / workers)) options=()
  [ -z "$report" ] || options+=(--report "$report")
  DMUON_ADDRESS=$address GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=$((threads > 1 ? threads : 1)) \
    .venv/bin/python -m torch.distributed.run --nnodes 1 --nproc-per-node "$workers" \
    --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1 --rdzv-id "quickstart-$$" \
    client/examples/train_gpt.py --steps "$steps" --optimizer "$optimizer" --parallel "$parallel" \
    --plot out/loss.png ${options[@]+"${options[@]}"} &
  trainer=$!
  wait "$trainer"
  trainer=
}

how_to_look() {
  cat <<TEXT

The daemon is still running (pid $daemon). To look at it:
  build/release/bin/dmuonctl --address $address status
  curl -s http://$(metrics_address)/metrics | grep ^dmuon_
Its log is $runtime/dmuond.log. To stop it:
  kill $daemon && rm -rf $runtime
TEXT
}

metrics_address() {
  build/release/bin/dmuonctl --address "$address" --json status |
    grep -o '"metrics_address": *"[^"]*"' | cut -d '"' -f 4
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
bash deploy/setup.sh
build
start_daemon
train
[ "$keep" = no ] || how_to_look
