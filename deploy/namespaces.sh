# SPDX-FileCopyrightText: 2026 The dmuon authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Nodes on one machine: a network namespace each, joined by a bridge in a namespace of its own, so that
# the machine's own network is not touched. To be sourced.
#
#   namespaces_up N       makes them; false, and nothing left behind, where that is not permitted
#   node_namespace I      the namespace of node I (0..N-1), for `ip netns exec`
#   node_address I        its address, on interface node_interface
#   namespaces_down       removes what namespaces_up made

namespace_prefix=dmuon-$$
node_interface=eth0
namespaces=()

node_address() { echo "10.77.0.$(($1 + 1))"; }

node_namespace() { echo "$namespace_prefix-$1"; }

namespaces_up() {
  local node
  [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null || return 1
  add_namespace switch && ip -n "$namespace_prefix-switch" link add bridge0 type bridge 2>/dev/null &&
    ip -n "$namespace_prefix-switch" link set bridge0 up || { namespaces_down; return 1; }
  for node in $(seq 0 $(($1 - 1))); do
    add_namespace "$node" && connect_node "$node" || { namespaces_down; return 1; }
  done
}

add_namespace() {
  ip netns add "$namespace_prefix-$1" 2>/dev/null || return 1
  namespaces+=("$namespace_prefix-$1")
}

connect_node() {
  local node=$namespace_prefix-$1 switch=$namespace_prefix-switch
  ip link add "$node_interface" netns "$node" type veth peer name "port$1" netns "$switch" 2>/dev/null &&
    ip -n "$switch" link set "port$1" master bridge0 up &&
    ip -n "$node" address add "$(node_address "$1")/24" dev "$node_interface" &&
    ip -n "$node" link set "$node_interface" up && ip -n "$node" link set lo up
}

namespaces_down() {
  local name
  for name in ${namespaces[@]+"${namespaces[@]}"}; do ip netns delete "$name" 2>/dev/null || true; done
  namespaces=()
}
