# One server process of a part: its directory, and functions to launch it so that it outlives the shell, to recognise
# it, to wait for it, and to end it. Sourced by the parts; expects $part.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
real=${PACKETBOAT_REAL_DIR:-$repository/data/real}
mkdir -p "$real/$part"
real=$(cd "$real" && pwd)
home=$real/$part

say() { printf '%-6s %s\n' "$part" "$*"; }
fail() { printf '%-6s %s\n' "$part" "$*" >&2; exit 1; }

# A node's directory holds `pid`, `log` and the server's own `data`.
directory() { echo "$home/node-$1"; }

# Start time of a process in ticks since boot; fails if there is none, or only a zombie.
started_at() {
  local stat fields
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${stat##*) }"
  [ "${fields[0]}" != Z ] && echo "${fields[19]}"
}

# A pid alone may belong to another program by now, so the file also has its start time and the boot id.
alive() {
  local pid ticks boot
  read -r pid ticks boot 2>/dev/null <"$(directory "$1")/pid" || return 1
  [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] && [ "$(started_at "$pid")" = "$ticks" ]
}
pid() { cut -d' ' -f1 "$(directory "$1")/pid"; }

# Nodes that were started and not taken down since, in numerical order.
started() {
  local file
  for file in "$home"/node-*/pid; do
    if [ -e "$file" ]; then basename "$(dirname "$file")"; fi
  done | sed 's/^node-//' | sort -n
}

# launch NODE COMMAND...: the command inherits no descriptors above 2 (locks, make's job server).
launch() {
  local node=$1 directory
  shift
  directory=$(directory "$node")
  mkdir -p "$directory"
  setsid nohup "$@" >>"$directory/log" 2>&1 </dev/null 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
  echo "$! $(started_at $!) $(cat /proc/sys/kernel/random/boot_id)" >"$directory/pid"
}

listening() { (exec 3<>"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }

# await SECONDS NODE CONDITION...: until the condition holds; gives up when the process has ended.
await() {
  local seconds=$1 node=$2 deadline=$((SECONDS + $1))
  shift 2
  until "$@"; do
    alive "$node" || give_up "$node" "ended before it answered"
    [ $SECONDS -lt $deadline ] || give_up "$node" "does not answer after $seconds s (waited for: $*)"
    sleep 0.1
  done
}

give_up() {
  local log
  log=$(directory "$1")/log
  {
    echo "--- $log: errors"
    grep -E 'ERROR|FATAL|Exception|[Aa]ddress already in use' "$log" | tail -n 5 || true
    echo "--- $log: the end"
    tail -n 15 "$log"
    echo "---"
  } >&2
  fail "node $1 $2."
}

# kill_nodes SIGNAL NODE...
kill_nodes() {
  local signal=$1 node
  shift
  for node in "$@"; do
    if alive "$node"; then kill -s "$signal" "$(pid "$node")" 2>/dev/null || true; fi
  done
}

# gone SECONDS NODE...: have they all ended?
gone() {
  local deadline=$((SECONDS + $1)) node
  shift
  for node in "$@"; do
    while alive "$node"; do
      [ $SECONDS -lt $deadline ] || return 1
      sleep 0.05
    done
  done
}
