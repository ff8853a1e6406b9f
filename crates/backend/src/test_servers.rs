//! Addresses of the real parts, for contract tests. `make real-up` starts them and writes their
//! addresses down; `make e2e` hands those over in the environment and runs the tests that are
//! otherwise ignored.

/// Addresses of a part (`kafka`, `redis-single`, `redis-sentinel`, `redis-cluster`, `etcd`, `cql`):
/// `host:port`, separated by commas.
#[cfg(any(
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
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

#[cfg(any(
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
pub(crate) use self::access::{Access, access};

#[cfg(any(
    feature = "etcd",
    feature = "kafka",
    feature = "redis",
    feature = "scylla"
))]
mod access {
    use std::path::PathBuf;

    use crate::tls::ClientTlsConfig;

    /// Credentials for the parts of `TLS=1`; none if the parts are open.
    #[derive(Clone, Default)]
    pub(crate) struct Access {
        pub(crate) tls: ClientTlsConfig,
        pub(crate) username: Option<String>,
        pub(crate) password_file: Option<PathBuf>,
    }

    /// Credentials for `kafka`, `redis`, `etcd` or `cql`.
    pub(crate) fn access(part: &str) -> Access {
        let Some(folder) = std::env::var_os("PACKETBOAT_REAL_TLS").map(PathBuf::from) else {
            return Access::default();
        };
        let file = |name: &str| Some(folder.join(name));
        Access {
            tls: ClientTlsConfig {
                ca_file: file("ca.crt"),
                cert_file: file("client.crt"),
                key_file: file("client.key"),
            },
            username: Some("packetboat".into()),
            password_file: file(&format!("{part}.password")),
        }
    }
}

/// Reports that a contract suite has run on a backend, for the check that none was skipped.
#[allow(clippy::print_stdout, reason = "what tests print is looked for")]
pub(crate) fn ran(suite: &str, backend: &str) {
    println!("contract {suite} held by {backend}");
}
