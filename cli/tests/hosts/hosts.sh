#!/usr/bin/env bash
# Imitates several hosts on one machine: a network namespace each, joined by a bridge in one more. Needs root and iproute2.
#   hosts.sh up N                  hosts h1 … hN at 10.77.0.1 …
#   hosts.sh run I COMMAND …       runs a command on host I
#   hosts.sh agent HOST COMMAND …  a remote shell for mpirun: HOST is 10.77.0.I; so is `hosts.sh -x HOST COMMAND …`, as MPICH calls ssh
#   hosts.sh reach HOST COMMAND …  the same, and exit 255 where HOST has no link or no power
#   hosts.sh cut I | mend I        takes host I's link down, or up again
#   hosts.sh slow I RATE           host I sends no more than this (tc: 20mbit)
#   hosts.sh power I               host I is gone: its link is down, its processes are killed, and its remote shells say nothing of it
#   hosts.sh sent I                bytes that host I has sent
#   hosts.sh down                  removes all of them
# HOSTS_PREFIX (cwx) and HOSTS_NET (10.77.0) let several sets stand side by side. A host has its own network; files and processes are the
# machine's. HOSTS_NAMES: `known` to all (the default), `unknown` to the others, or `one` for all hosts. HOSTS_SHM: `own` (the default), or
# `common` to all hosts. Both are given to `up`, which writes them down.
set -euo pipefail
prefix=${HOSTS_PREFIX:-cwx} net=${HOSTS_NET:-10.77.0}
# A folder for temporary files may lie in the machine's /dev/shm, and a host has its own.
unset TMPDIR
state=/tmp/hosts-$prefix
# Enters host $1: its name, its /dev/shm, its network (and /etc/hosts, which `ip netns exec` binds from /etc/netns).
enter() {
  local i=$1; shift
  . "$state/set"
  local name=h$i
  [ "$names" != one ] || name=node
  unshare --uts --mount sh -c 'hostname "$0"; [ "$1" = common ] || mount --bind "$2" /dev/shm; n=$3; shift 3; exec ip netns exec "$n" "$@"' \
    "$name" "$shm" "$state/shm$i" "$prefix$i" "$@"
}
agent() {
  local i=${1##*.}; shift
  local rc=0
  enter "$i" sh -c "$*" <&0 || rc=$?
  # A host without power does not end its connections: the shell stays, silent, until the hosts are removed.
  while [ -e "$state/$i.off" ]; do sleep 1; done
  return $rc
}
case ${1:-} in
  up)
    n=$2 names=${HOSTS_NAMES:-known}
    mkdir -p "$state"
    echo "names=$names shm=${HOSTS_SHM:-own}" >"$state/set"
    ip netns add ${prefix}0
    ip -n ${prefix}0 link add br0 type bridge
    ip -n ${prefix}0 link set br0 up
    for ((i = 1; i <= n; i++)); do
      ip netns add $prefix$i
      mkdir -p "$state/shm$i" /etc/netns/$prefix$i
      mount -t tmpfs tmpfs "$state/shm$i"
      {
        echo "127.0.0.1 localhost"
        case $names in
          known) for ((j = 1; j <= n; j++)); do echo "$net.$j h$j"; done ;;
          unknown) echo "$net.$i h$i" ;;
          one) echo "$net.$i node" ;;
        esac
      } >/etc/netns/$prefix$i/hosts
      ip -n $prefix$i link set lo up
      ip -n $prefix$i link add eth0 type veth peer name p$i netns ${prefix}0
      ip -n $prefix$i addr add $net.$i/24 dev eth0
      ip -n $prefix$i link set eth0 up
      ip -n ${prefix}0 link set p$i master br0 up
    done ;;
  run) enter "${@:2}" ;;
  agent | -x) agent "${@:2}" ;;
  reach)
    # As a remote shell with a time limit: a host without link or power is not reached.
    i=${2##*.}
    [ ! -e "$state/$i.off" ] && [[ $(ip -n $prefix$i link show eth0) == *"state UP"* ]] || exit 255
    agent "${@:2}" ;;
  cut) ip -n $prefix$2 link set eth0 down ;;
  mend)
    rm -f "$state/$2.off"
    ip -n $prefix$2 link set eth0 up ;;
  slow) tc -n $prefix$2 qdisc replace dev eth0 root tbf rate "$3" burst 32kbit latency 400ms ;;
  power)
    : >"$state/$2.off"
    ip -n $prefix$2 link set eth0 down
    for p in $(ip netns pids $prefix$2); do kill -9 "$p" 2>/dev/null || true; done ;;
  sent) ip -n $prefix$2 -s link show eth0 | awk '/TX:/ {getline; print $1}' ;;
  down)
    while read -r ns _; do
      [[ $ns =~ ^${prefix}[0-9]+$ ]] || continue
      for p in $(ip netns pids "$ns"); do kill -9 "$p" 2>/dev/null || true; done
      ip netns del "$ns"
      rm -rf /etc/netns/"$ns"
    done < <(ip netns list 2>/dev/null)
    for d in "$state"/shm*; do [ ! -d "$d" ] || umount "$d" || true; done
    rm -rf "$state" ;;
  *) sed -n '2,14p' "$0"; exit 2 ;;
esac
