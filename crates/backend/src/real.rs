//! Where contract tests find the real parts. `make real-up` starts them and writes their addresses down;
//! `make e2e` hands those over in the environment and runs the tests that are otherwise ignored.

/// The address list of a part (`kafka`, `redis-single`, `redis-sentinel`, `redis-cluster`, `etcd`,
/// `cql`): `host:port`, separated by commas.
pub(crate) fn addresses(part: &str) -> Vec<String> {
    let name = format!(
        "PACKETBOAT_REAL_{}",
        part.to_ascii_uppercase().replace('-', "_")
    );
    let list = std::env::var(&name).unwrap_or_else(|_| {
        panic!("{name} is not set: `make real-up` starts the real parts, `make e2e` tests on them")
    });
    list.split(',').map(str::to_owned).collect()
}

/// Says that a contract suite has run on a backend, for the check that none was skipped.
#[allow(clippy::print_stdout, reason = "what tests print is looked for")]
pub(crate) fn ran(suite: &str, backend: &str) {
    println!("contract {suite} held by {backend}");
}
