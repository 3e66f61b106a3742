#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
#
# Installs what building and running dmuon needs and this machine lacks: Debian packages (12 and 13)
# and a Python environment in .venv. Asks nothing; a second run only looks.
#
#   bash deploy/setup.sh           to build and run
#   bash deploy/setup.sh --tests   also what the tests and the lint need
set -euo pipefail
cd "$(dirname "$0")/.."

# "a|b": the first one that this release has.
PACKAGES=(
  build-essential cmake ninja-build pkg-config ccache git
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  prometheus-cpp-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libssl-dev libgtest-dev libgmock-dev
  libopenblas-openmp-dev libgloo-dev iproute2
)
# llvm: names in the reports of sanitizers.
TEST_PACKAGES=(clang 'libclang-rt-14-dev|libclang-rt-19-dev' llvm curl nftables)
PYTHON_PACKAGES=(torch==2.13.0 numpy safetensors pytest matplotlib tqdm)
# Other users of gRPC and protobuf in one process with the client.
TEST_PYTHON_PACKAGES=(grpcio tensorboard)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

# Debian packages ------------------------------------------------------------------------------------

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "packages are missing and there is neither root nor sudo; as root: $*"
  fi
}

# Prints those of its arguments of which no alternative is installed.
missing_packages() {
  local installed entry name found
  installed=" $(dpkg-query -W -f='${Package}/${db:Status-Status} ' 2>/dev/null) "
  for entry in "$@"; do
    found=no
    for name in ${entry//|/ }; do
      case "$installed" in *" $name/installed "*) found=yes ;; esac
    done
    [ "$found" = yes ] || echo "$entry"
  done
}

# The first alternative of "a|b" that the package lists know.
choose() {
  local name
  for name in ${1//|/ }; do
    if apt-cache show "$name" >/dev/null 2>&1; then echo "$name"; return; fi
  done
  die "no Debian package for $1; is this Debian 12 or 13?"
}

# Debian starts a freshly installed Prometheus. The tests run their own, so the unit is masked first;
# RUNLEVEL=1 says the same to machines without systemd.
keep_prometheus_quiet() {
  [ -e /etc/systemd/system/prometheus.service ] && return
  say "masking prometheus.service, so that installing Prometheus starts nothing;" \
      "undo with: systemctl unmask prometheus"
  as_root mkdir -p /etc/systemd/system
  for unit in prometheus prometheus-node-exporter; do
    [ -e "/etc/systemd/system/$unit.service" ] || as_root ln -s /dev/null "/etc/systemd/system/$unit.service"
  done
}

install_packages() {
  local entry name missing=() names=()
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -gt 0 ] || { say "Debian packages: all there"; return; }
  command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${missing[*]}"
  say "Debian packages missing: ${missing[*]}"
  as_root apt-get update -qq
  for entry in "${missing[@]}"; do
    name=$(choose "$entry")
    [ "$name" = prometheus ] && keep_prometheus_quiet
    names+=("$name")
  done
  as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "${names[@]}" >/dev/null
  say "installed ${#names[@]} packages and what they need"
}

# Python ---------------------------------------------------------------------------------------------

# The first python3 that is new enough and can make an environment.
usable_python() {
  local python
  for python in ${DMUON_PYTHON:-} python3 /usr/bin/python3; do
    if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$python"; return
    fi
  done
}

python_complete() {
  .venv/bin/python - "${PYTHON_PACKAGES[@]}" 2>/dev/null <<'PY'
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    if not importlib.metadata.version(name).startswith(version):
        sys.exit(1)
PY
}

setup_python() {
  if python_complete; then say "Python environment: all there"; return; fi
  local python
  python=$(usable_python)
  if [ -z "$python" ]; then
    install_packages python3 python3-venv
    python=$(usable_python)
  fi
  [ -n "$python" ] || die "no python3 >= 3.10 with venv; set DMUON_PYTHON to one"
  .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
  say "installing into .venv: ${PYTHON_PACKAGES[*]} (minutes, the first time)"
  .venv/bin/python -m pip install -q --disable-pip-version-check "${PYTHON_PACKAGES[@]}"
}

# Reports --------------------------------------------------------------------------------------------

report_cuda() {
  local nvcc gpu
  nvcc=$( (command -v nvcc || ls /usr/local/cuda/bin/nvcc) 2>/dev/null | head -n 1 || true)
  gpu=$( (nvidia-smi --query-gpu=name --format=csv,noheader | sort | uniq -c | xargs) 2>/dev/null || true)
  say "CUDA toolkit: ${nvcc:-none}; GPU: ${gpu:-none} (neither is needed)"
}

tests=no
case "${1:-}" in
  '') ;;
  --tests) tests=yes ;;
  -h | --help) sed -n '5,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "setup: unknown option $1; try --help" >&2; exit 2 ;;
esac
wanted=("${PACKAGES[@]}")
if [ "$tests" = yes ]; then
  wanted+=("${TEST_PACKAGES[@]}")
  command -v prometheus >/dev/null || wanted+=(prometheus)
  command -v npm >/dev/null || wanted+=(npm)
fi
[ "$tests" = no ] || PYTHON_PACKAGES+=("${TEST_PYTHON_PACKAGES[@]}")
install_packages "${wanted[@]}"
setup_python
report_cuda
