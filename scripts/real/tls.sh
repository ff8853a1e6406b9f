# TLS and sign-in of a part: set by TLS=1 at its first `up`, and fixed from then on, because its data contains its users.
# Sourced by the parts, after process.sh.
#
# $tls holds the root, a pair for servers, one for clients (servers trust both roots), another root that
# signed nothing here, and a password per part and user. Packetboat's user is `packetboat`; these scripts use `operator`.

tls=$real/tls

secured() { [ -e "$home/secured" ]; }

# Runs before the first node of an `up`.
agree_on_tls() {
  local nodes
  nodes=$(find "$home" -maxdepth 1 -name 'node-*' | head -n 1)
  if [ "${TLS:-}" = 1 ] && ! secured; then
    [ -z "$nodes" ] || fail "was set up without TLS: take it down with WIPE=1 first."
    touch "$home/secured"
  fi
  [ "${TLS:-}" != 0 ] || ! secured || fail "was set up with TLS: take it down with WIPE=1 first."
  if secured; then certificates; fi
}

certificates() {
  (
    flock -w 60 8 || fail "another part does not end with its certificates."
    [ ! -e "$tls/made" ] || exit 0
    command -v openssl >/dev/null || debian openssl openssl
    rm -rf "$tls"
    mkdir -p "$tls"
    chmod 700 "$tls"
    cd "$tls"
    root ca "Packetboat's real parts"
    root other-ca "Nobody's parts"
    # The name 127.0.0.1 for librdkafka on OpenSSL 3.0, which compares text.
    leaf server serverAuth,clientAuth "DNS:localhost,DNS:127.0.0.1,IP:127.0.0.1,IP:127.0.0.2,IP:127.0.0.3"
    leaf client clientAuth DNS:packetboat
    for name in kafka redis etcd cql operator; do
      (umask 077 && openssl rand -hex 16 >"$name.password")
    done
    # Java's servers read key and chain from one file.
    cat server.key server.crt >server.pem
    touch made
  ) 8>"$real/tls.lock"
}
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }
root() {
  key "$1"
  openssl req -x509 -new -key "$1.key" -subj "/CN=$2" -days 365 -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
}
leaf() {
  key "$1"
  openssl req -new -key "$1.key" -subj "/CN=packetboat" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" -extfile <(
      echo "subjectAltName=$3"
      echo "extendedKeyUsage=$2"
      echo "basicConstraints=critical,CA:FALSE"
    ) 2>/dev/null
}

# password NAME: password of a part's user `packetboat`, or of `operator` in all parts.
password() { cat "$tls/$1.password"; }
