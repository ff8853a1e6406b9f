# Number of nodes of a part: set at the first `up`, and fixed from then on, because a cluster's members know
# each other. Sourced by the parts with numbered nodes; expects $asked and $usual.

size() {
  if [ -s "$home/size" ]; then cat "$home/size"; else echo "${asked:-$usual}"; fi
}

nodes_of_size() {
  case ${asked:-$usual} in
    0) return ;; # left out
    1 | 3) ;;
    *) fail "may have 0, 1 or 3 nodes, not $asked." ;;
  esac
  [ -z "$asked" ] || [ "$asked" = "$(size)" ] ||
    fail "was set up with $(size) node(s), not $asked: take it down with WIPE=1 first, or do not name a number."
  seq "$(size)"
}

keep_size() {
  size >"$home/size.new"
  mv "$home/size.new" "$home/size"
}

endpoints() { for node in $(started); do address "$node"; done | paste -sd,; }
