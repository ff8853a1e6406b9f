# Sources of the servers: Debian's packages and Maven Central. Sourced by the parts.

# debian WHAT-FOR PACKAGE...: installs packages without starting the services in them. One at a time,
# because apt has one lock.
debian() {
  local purpose=$1
  shift
  if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    fail "$purpose is missing: install it (Debian, as root: apt-get install $*)."
  fi
  say "installing $* …"
  (
    flock -w 300 9 || fail "another installation does not end."
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
      trap 'rm -f $policy' EXIT
      printf '#!/bin/sh\nexit 101\n' >$policy
      chmod +x $policy
    fi
    export DEBIAN_FRONTEND=noninteractive
    log=$real/apt.log
    deadline=$((SECONDS + 300))
    until apt_get "$@" >"$log" 2>&1 9>&-; do
      # Another apt-get may be running.
      if ! grep -q 'Could not get lock' "$log" || [ $SECONDS -ge $deadline ]; then
        tail -n 20 "$log" >&2
        fail "apt-get did not install $*."
      fi
      sleep 2
    done
  ) 9>"$real/apt.lock"
}
apt_get() {
  # Finishes an interrupted installation first; otherwise every later one fails.
  dpkg --configure -a >/dev/null
  timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends "$@"
}

# program NAME PACKAGE...: installs a program from Debian unless it is present.
program() {
  command -v "$1" >/dev/null || debian "$@"
}

# Java 17: both Kafka and Cassandra run on it, and Cassandra on no newer release.
java_17() {
  local java
  for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} java /usr/lib/jvm/java-17-*/bin/java; do
    if "$java" -version 2>&1 | grep -q 'version "17\.'; then
      command -v "$java"
      return
    fi
  done
  return 1
}

# jars FILE: fetches the artifacts of scripts/real/$part.pom.xml with their dependencies into $jars, unless FILE
# exists. The directory appears once it is complete.
jars() {
  java_17 >/dev/null || debian "Java 17" openjdk-17-jre-headless
  [ ! -e "$jars/$1" ] || return 0
  program mvn maven
  say "fetching $1 and what it needs from Maven Central …"
  rm -rf "$jars" "$jars.new"
  # Two parts fetch into one local repository in parallel; a retry resolves a clash.
  fetch || fetch || { tail -n 20 "$home/maven.log" >&2; fail "Maven did not fetch the jars; see $home/maven.log."; }
  rm -f "$jars.new"/*{osx,windows,aarch_64,riscv64}*.jar
  [ -e "$jars.new/$1" ] || fail "Maven fetched no $1; see $home/maven.log."
  mv "$jars.new" "$jars"
}
fetch() {
  timeout 300 mvn -q -B -f "$repository/scripts/real/$part.pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$jars.new" -DincludeScope=runtime >>"$home/maven.log" 2>&1 </dev/null
}

# Compiling little makes a JVM start quickly. For measuring under load: PACKETBOAT_REAL_JIT=full.
quick_start() { [ "${PACKETBOAT_REAL_JIT:-}" = full ] || echo -XX:TieredStopAtLevel=1; }
