# The verbs of a part. Sourced last by each part, which defines
#   wanted         the nodes that `up` starts
#   address NODE   address for its clients
#   answers NODE   does it serve?
#   run NODE       launches it, with its data
#   install        fetches what is missing
#   version        of the server
#   together       joins the started nodes to one cluster (waits)
#   settings       lines for the env file
# and may set patience (seconds a node may take) and one_by_one=yes (nodes join one after the other).

start() {
  alive "$1" && return
  ! listening "$(address "$1")" || fail "$(address "$1") is taken by another program; end it first."
  run "$1"
}

up() {
  local nodes node begin=$SECONDS
  nodes=$(wanted)
  [ -n "$nodes" ] || return 0
  agree_on_tls
  install
  for node in $nodes; do
    start "$node"
    [ "${one_by_one:-no}" = no ] || await "$patience" "$node" answers "$node"
  done
  for node in $nodes; do await "$patience" "$node" answers "$node"; done
  together
  say "$(version) is up: $(for node in $nodes; do address "$node"; done | paste -sd' ') ($((SECONDS - begin)) s)"
}

# Asks first, so that no write is torn; kills a server that does not react.
down() {
  local nodes
  mapfile -t nodes < <(started)
  kill_nodes TERM "${nodes[@]}"
  gone 10 "${nodes[@]}" || kill_nodes KILL "${nodes[@]}"
  gone 10 "${nodes[@]}" || fail "still runs after SIGKILL."
  rm -f "$home"/node-*/pid
  if [ "${WIPE:-}" = 1 ]; then rm -rf "$home"/node-* "$home/size" "$home/secured"; fi
  if [ ${#nodes[@]} -gt 0 ]; then say "is down"; fi
}

status() {
  local node state healthy=0
  for node in $(started); do
    state=down
    if alive "$node"; then state=silent; fi
    if [ $state = silent ] && answers "$node"; then state=up; fi
    [ $state = up ] || healthy=1
    row "$node" $state
  done
  return $healthy
}

row() {
  local pid='-' resident='-'
  if [ "$2" != down ]; then
    pid=$(pid "$1")
    resident=$(awk '/^VmRSS/ { printf "%.0f", $2 / 1024 }' "/proc/$pid/status")
  fi
  printf '%-7s %-10s %-7s %-17s %8s %6s  %s\n' "$part" "$(version)" "$1" "$(address "$1")" "$pid" "$resident" "$2"
}

known() {
  local node
  [ $# -gt 0 ] || fail "which node? Known: $(wanted | paste -sd' ')"
  for node in "$@"; do
    wanted | grep -qx -- "$node" || started | grep -qx -- "$node" || fail "there is no node $node. Known: $(wanted | paste -sd' ')"
  done
}

# Starts all stopped nodes before it waits for one, since one may need the others.
bring_back() {
  local node failed=0
  known "$@"
  for node in "$@"; do
    # Not "start || …", which would ignore failures inside; and not in parallel: nodes share files.
    start "$node" &
    wait $! || failed=1
  done
  [ $failed = 0 ] || exit 1
  for node in "$@"; do await "$patience" "$node" answers "$node"; done
}

stop() {
  known "$@"
  kill_nodes KILL "$@"
  gone 10 "$@" || fail "still runs after SIGKILL: $*"
}

# Wipes the data of nodes: `start` brings them back empty.
wipe() {
  local node
  stop "$@"
  for node in "$@"; do rm -rf "$(directory "$node")/data"; done
}

verb=${1:-}
[ $# -eq 0 ] || shift

case $verb in
  install | up | down | status) "$verb" ;;
  start) bring_back "$@" ;;
  stop | wipe) "$verb" "$@" ;;
  env) if [ -n "$(started)" ]; then settings; fi ;;
  *) echo "usage: $0 install | up | down | status | env | start NODE… | stop NODE… (kill -9) | wipe NODE… (and their data)" >&2; exit 2 ;;
esac
