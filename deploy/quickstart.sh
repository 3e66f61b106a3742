#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing, builds, starts a daemon, and trains a byte-level GPT of about 3 M
# parameters on the source of the Python standard library with its optimizer in the service.
#
#   bash deploy/quickstart.sh [options]
#     --steps N            training steps (150)
#     --nodes N            nodes, each with a daemon of its own, in network namespaces (1)
#     --workers N          PyTorch workers on each node (2)
#     --optimizer NAME     muon, or adamw for every parameter (muon)
#     --parallel NAME      zero3, zero2, ddp or hsdp: a replica a node (zero3; hsdp on several nodes)
#     --checkpoints DIR    keeps checkpoints there, of every 50 steps and of the end, which is named "last"
#     --load NAME          goes on from one of them, with any --nodes, --workers and --parallel
#     --replication MODE   none, async or sync: copies of each daemon's state on another of several nodes (none)
#     --report FILE        writes the numbers as JSON
#     --keep-running       leaves the daemon up and says how to look at it
set -euo pipefail
invoked_from=$PWD
cd "$(dirname "$0")/.."

usage() { sed -n '8,18s/^# \{0,1\}//p' "$0"; }
die() { echo "quickstart: $*" >&2; exit 1; }

steps=150 nodes=1 workers=2 optimizer=muon parallel= checkpoints= load= replication=none report= keep=no
while [ $# -gt 0 ]; do
  case "$1" in
    --steps | --nodes | --workers | --optimizer | --parallel | --checkpoints | --load | --replication | --report)
      [ $# -ge 2 ] || die "$1 needs a value"
      printf -v "${1#--}" '%s' "$2"
      shift 2 ;;
    --keep-running) keep=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "quickstart: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ $steps =~ ^[1-9][0-9]*$ ]] || die "--steps is '$steps'; it must be a whole number from 1"
[[ $nodes =~ ^[1-9][0-9]?$ ]] || die "--nodes is '$nodes'; it must be a whole number from 1 to 99"
[[ $workers =~ ^[1-9][0-9]*$ ]] || die "--workers is '$workers'; it must be a whole number from 1"
[ -n "$parallel" ] || parallel=$([ "$nodes" -eq 1 ] && echo zero3 || echo hsdp)
. deploy/namespaces.sh
[[ -z $report || $report = /* ]] || report=$invoked_from/$report
[[ -z $checkpoints || $checkpoints = /* ]] || checkpoints=$invoked_from/$checkpoints
[ -z "$load" ] || [ -n "$checkpoints" ] || die "--load $load: say where it is with --checkpoints DIR"

build() {
  local log=build/quickstart.log
  mkdir -p build
  echo "quickstart: building (minutes, the first time; log in $log)"
  { [ -f build/release/build.ninja ] || cmake --preset release; } >"$log" 2>&1 &&
    cmake --build build/release --target dmuond dmuon-coordinator dmuonctl dmuon >>"$log" 2>&1 || {
    tail -n 40 "$log" >&2
    die "the build failed"
  }
}

coordinator=
daemons=()
trainers=()
runtime=
# Ends what this script started, by pid: the trainers first, so that the daemons have nothing to wait for.
finish() {
  local code=$? pid
  trap - EXIT INT TERM HUP
  for pid in ${trainers[@]+"${trainers[@]}"}; do stop "$pid" 20; done
  if [ "$keep" = no ] || [ "$code" -ne 0 ]; then
    for pid in ${daemons[@]+"${daemons[@]}"}; do stop "$pid" 20; done
    stop "$coordinator" 20
    [ -z "$runtime" ] || rm -rf "$runtime"
    namespaces_down
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

# Waits for a socket that a process of ours makes: await NAME PID.
await() {
  for _ in $(seq 200); do
    [ -S "$runtime/$1.sock" ] && return
    kill -0 "$2" 2>/dev/null || break
    sleep 0.05
  done
  cat "$runtime/$1.log" >&2
  die "$1 did not start"
}

# Sets `on`: the words that run a command on the node's network, where nodes have one.
choose_node() {
  on=()
  [ "${#namespaces[@]}" -eq 0 ] || on=(ip netns exec "$(node_namespace "$1")")
}

address_of() { if [ "${#namespaces[@]}" -gt 0 ]; then node_address "$1"; else echo 127.0.0.1; fi; }

# Slots run matrices side by side, one BLAS thread each; more than 8 are seldom busy at once. Setsid
# keeps Ctrl-C from the daemons, which end after the trainers.
start_daemons() {
  local cores slots node side
  cores=$(($(nproc) / nodes))
  cores=$((cores > 1 ? cores : 1))
  slots=$((cores < 8 ? cores : 8))
  runtime=$(mktemp -d "${TMPDIR:-/tmp}/dmuon-quickstart.XXXXXX")
  mkdir "$runtime/state"
  if [ "$nodes" -gt 1 ]; then
    namespaces_up "$nodes" || echo "quickstart: no network namespaces here; the nodes share the loopback network"
    setsid build/release/bin/dmuon-coordinator --listen "unix:$runtime/coordinator.sock" \
      --state-dir "$runtime/state" </dev/null >"$runtime/coordinator.log" 2>&1 &
    coordinator=$!
    await coordinator "$coordinator"
  fi
  for node in $(seq 0 $((nodes - 1))); do
    side=(--standalone --state-dir "$runtime/state" --metrics 127.0.0.1:0)
    [ "$nodes" -eq 1 ] || side=(--coordinator "unix:$runtime/coordinator.sock" --node-id "node-$node"
      --data-address "$(address_of "$node")" --metrics "$(address_of "$node"):0")
    choose_node "$node"
    "${on[@]}" setsid build/release/bin/dmuond --listen "unix:$runtime/dmuond-$node.sock" "${side[@]}" \
      --slots "$slots" --threads-per-slot $((cores / slots)) --step-timeout 60 --log-level info \
      ${checkpoints:+--checkpoint-dir "$checkpoints"} \
      </dev/null >"$runtime/dmuond-$node.log" 2>&1 &
    daemons+=($!)
    await "dmuond-$node" "$!"
  done
}

# One torchrun a node, as on a cluster.
train() {
  local threads=$(($(nproc) / (nodes * workers))) node options interface=lo port job=quickstart-$$
  [ -z "$checkpoints" ] || job=quickstart  # a checkpoint belongs to a job
  port=$((20000 + $$ % 20000))
  [ "${#namespaces[@]}" -eq 0 ] || interface=$node_interface
  for node in $(seq 0 $((nodes - 1))); do
    options=(--steps "$steps" --optimizer "$optimizer" --parallel "$parallel" --plot out/loss.png)
    [ -z "$report" ] || options+=(--report "$report")
    [ -z "$checkpoints" ] || options+=(--checkpoints 50)
    [ -z "$load" ] || options+=(--load "$load")
    [ "$replication" = none ] || options+=(--replication "$replication")
    choose_node "$node"
    DMUON_ADDRESS=unix:$runtime/dmuond-$node.sock DMUON_JOB=$job GLOO_SOCKET_IFNAME=$interface \
      OMP_NUM_THREADS=$((threads > 1 ? threads : 1)) "${on[@]}" .venv/bin/python -m torch.distributed.run \
      --nnodes "$nodes" --node-rank "$node" --nproc-per-node "$workers" --master-addr "$(address_of 0)" \
      --master-port "$port" client/examples/train_gpt.py "${options[@]}" &
    trainers+=($!)
  done
  for node in "${trainers[@]}"; do wait "$node"; done  # one that fails ends the script, and finish the others
  trainers=()
}

how_to_look() {
  cat <<TEXT

Still running: ${#daemons[@]} of dmuond. To look at the first:
  build/release/bin/dmuonctl --address unix:$runtime/dmuond-0.sock status
  $([ "${#namespaces[@]}" -eq 0 ] || echo "ip netns exec $(node_namespace 0) ")curl -s http://$(metrics_address)/metrics | grep ^dmuon_
Logs are $runtime/*.log. To stop:
  kill ${daemons[*]} $coordinator && rm -rf $runtime$(for name in ${namespaces[@]+"${namespaces[@]}"}; do echo -n " && ip netns delete $name"; done)
TEXT
}

metrics_address() {
  build/release/bin/dmuonctl --address "unix:$runtime/dmuond-0.sock" --json status |
    grep -o '"metrics_address": *"[^"]*"' | cut -d '"' -f 4
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
bash deploy/setup.sh
build
start_daemons
train
[ "$keep" = no ] || how_to_look
