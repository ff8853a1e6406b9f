//! From settings to servers that answer.

use std::path::Path;
use std::sync::Arc;

use redis::RedisConnectionInfo;
use secrecy::{ExposeSecret, SecretString};
use tokio_util::task::AbortOnDropHandle;

use super::finder::Finder;
use super::node::Manner;
use super::pool::Pool;
use super::scripts::Scripts;
use crate::mailbox::{RedisConfig, RedisMode};
use crate::{Error, Result};

/// The servers, and the task that watches them.
pub(crate) struct Connection {
    pub(crate) pool: Arc<Pool>,
    _watch: AbortOnDropHandle<()>,
}

/// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` when a master is not
/// reached or runs something older than Redis 7.0.
pub(crate) async fn connect(seam: &'static str, config: &RedisConfig) -> Result<Connection> {
    let manner = Manner {
        sign_in: sign_in(seam, &config.username, &config.password_file).await?,
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
        RedisMode::Sentinel => {
            let (username, file) = (&config.sentinel_username, &config.sentinel_password_file);
            Finder::Sentinel {
                addresses: addresses().map(str::to_owned).collect(),
                master: config.master.clone(),
                sign_in: sign_in(seam, username, file).await?,
            }
        }
    };
    let pool = Pool::open(manner, finder, config.pipeline_max).await;
    let pool = Arc::new(pool.map_err(|failure| failure.at(seam))?);
    let watch = tokio::spawn(Arc::clone(&pool).watch(config.watch_interval));
    Ok(Connection {
        pool,
        _watch: AbortOnDropHandle::new(watch),
    })
}

async fn sign_in(
    seam: &'static str,
    username: &Option<String>,
    password_file: &Option<impl AsRef<Path>>,
) -> Result<RedisConnectionInfo> {
    let mut sign_in = RedisConnectionInfo::default();
    if let Some(username) = username {
        sign_in = sign_in.set_username(username);
    }
    if let Some(file) = password_file {
        let file = file.as_ref();
        let read = tokio::fs::read_to_string(file).await;
        let password = read.map(SecretString::from).map_err(|error| {
            let text = format!(
                "the password file {} cannot be read: {error}",
                file.display()
            );
            Error::conflict(seam, text)
        })?;
        let password = password.expose_secret();
        sign_in = sign_in.set_password(password.trim_end_matches(['\r', '\n']));
    }
    Ok(sign_in)
}
