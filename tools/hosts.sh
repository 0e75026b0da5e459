#!/usr/bin/env bash
# Several hosts on this one machine: network namespaces with an address each, joined by links of limited rate, so that
# ranks cross a real TCP network. For the tests and benchmarks that are about several hosts.
#
#   tools/hosts.sh start HOSTS RATE          make them, e.g. 2 500mbit
#   tools/hosts.sh run RANKS_PER_HOST WORD…  run a command by mpirun on all of them
#   tools/hosts.sh sent                      bytes that each has sent so far, a line a host
#   tools/hosts.sh cut HOST                  take a host's link down
#   tools/hosts.sh stop
#
# Needs root, iproute2 and Open MPI. Nothing leaves the namespaces.
set -euo pipefail
state=/run/trireme-hosts  # where root alone writes: a program lies there that root runs
subnet=10.78.0

remove() {
  # A host that was cut off may still hold a part of mpirun that nobody told to end.
  for name in $(ip netns list | awk '/^trihost/ {print $1}'); do
    ip netns pids "$name" | xargs -r kill -9 2>/dev/null || true
    ip netns del "$name"
  done
  for link in $(ip -o link show | awk -F'[ :@]+' '$2 ~ /^tri[0-9]+$/ {print $2}'); do
    ip link del "$link" 2>/dev/null || true  # it goes with its host, a moment later
  done
  rm -rf "$state"
}

case ${1:-} in
start)
  count=$2 rate=$3
  remove
  mkdir -m 700 "$state"
  echo "$count" >"$state/count"
  ip link add tri0 type bridge
  ip link set tri0 up
  for i in $(seq "$count"); do
    ip netns add "trihost$i"
    ip link add "tri$i" type veth peer name eth0 netns "trihost$i"
    ip link set "tri$i" master tri0 up
    ip -n "trihost$i" addr add "$subnet.$i/24" dev eth0
    ip -n "trihost$i" link set eth0 up
    ip -n "trihost$i" link set lo up
    ip netns exec "trihost$i" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 100ms
  done
  # mpirun starts its part on another host by this instead of ssh.
  cat >"$state/enter" <<'AGENT'
#!/bin/sh
name=trihost${1##*.}
shift
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
AGENT
  chmod +x "$state/enter"
  ;;
run)
  per=$2
  shift 2
  count=$(cat "$state/count")
  for i in $(seq "$count"); do echo "$subnet.$i slots=$per"; done >"$state/hostfile"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  exec ip netns exec trihost1 unshare --uts sh -c 'hostname trihost1; exec "$@"' sh \
    mpirun -q --mca plm_rsh_agent "$state/enter" --mca btl tcp,vader,self --mca btl_tcp_if_include "$subnet.0/24" \
    --mca oob_tcp_if_include "$subnet.0/24" --mca odls_base_sigkill_timeout 3 --bind-to none --oversubscribe \
    --hostfile "$state/hostfile" -n $((per * count)) "$@"
  ;;
sent)
  for i in $(seq "$(cat "$state/count")"); do
    ip netns exec "trihost$i" cat /sys/class/net/eth0/statistics/tx_bytes
  done
  ;;
cut) ip -n "trihost$2" link set eth0 down ;;
stop)
  remove
  ;;
*)
  sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
