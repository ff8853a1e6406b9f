//! Connects to the servers that the settings describe.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::access::RedisAccess;
use super::finder::Finder;
use super::node::ConnectionMode;
use super::pool::Pool;
use super::scripts::Scripts;
use crate::Result;
use crate::credentials::Credentials;
use crate::mailbox::{RedisConfig, RedisMode};

/// The servers, and the tasks that watch them and the credential files.
pub(crate) struct RedisConnection {
    pub(crate) pool: Arc<Pool>,
    _watch: AbortOnDropHandle<()>,
    _reloader: Option<AbortOnDropHandle<()>>,
}

/// Requests in one pipeline.
const PIPELINE_MAX: usize = 128;
/// Interval between checks of each connection: that the server answers and is still the same
/// master.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
const PASSWORD: &str = "password_file";
const SENTINEL_PASSWORD: &str = "sentinel_password_file";

/// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` if a master is
/// unreachable or older than Redis 7.0.
pub(crate) async fn connect(seam: &'static str, config: &RedisConfig) -> Result<RedisConnection> {
    let credentials = credentials(seam, config)?;
    let access = |username: &Option<String>, password| RedisAccess {
        credentials: Arc::clone(&credentials),
        username: username.clone(),
        password,
    };
    let mode = ConnectionMode {
        access: access(&config.username, PASSWORD),
        deadline: config.deadline,
        connect_wait: config.connect_wait,
        in_flight_max: config.in_flight_max,
        scripts: Scripts::new(),
    };
    let addresses = || config.addresses.iter().map(|address| address.trim());
    let finder = match config.mode {
        RedisMode::Single => Finder::Single(addresses().next().unwrap_or_default().into()),
        RedisMode::Cluster => Finder::Cluster {
            seeds: addresses().map(Into::into).collect(),
        },
        RedisMode::Sentinel => Finder::Sentinel {
            addresses: addresses().map(str::to_owned).collect(),
            master: config.master.clone(),
            access: access(&config.sentinel_username, SENTINEL_PASSWORD),
        },
    };
    // Boxed because the nested futures of a start are too deep for the compiler.
    let pool = Box::pin(Pool::open(mode, finder, PIPELINE_MAX)).await;
    let pool = Arc::new(pool.map_err(|failure| failure.at(seam))?);
    let changes = credentials.changes();
    let watch = tokio::spawn(Arc::clone(&pool).watch(WATCH_INTERVAL, changes));
    Ok(RedisConnection {
        pool,
        _watch: AbortOnDropHandle::new(watch),
        _reloader: credentials.spawn_reloader(),
    })
}

fn credentials(seam: &'static str, config: &RedisConfig) -> Result<Arc<Credentials>> {
    let secrets = [
        (PASSWORD, &config.password_file),
        (SENTINEL_PASSWORD, &config.sentinel_password_file),
    ];
    let secrets = secrets.into_iter();
    let secrets = secrets.filter_map(|(key, file)| Some((key, file.as_deref()?)));
    Credentials::load(seam, "redis", &config.tls, secrets)
}
