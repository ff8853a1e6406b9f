//! A server, and the connection to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, Value};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::access::RedisAccess;
use super::failure::Failure;
use super::scripts::{ScriptName, Scripts};

/// Number of consecutive unanswered pipelines after which a server is no longer asked.
const UNANSWERED_MAX: u32 = 8;

/// Parameters for connections and calls to servers.
pub(crate) struct ConnectionMode {
    pub(crate) access: RedisAccess,
    pub(crate) deadline: Duration,
    pub(crate) connect_wait: Duration,
    pub(crate) in_flight_max: usize,
    pub(crate) scripts: Scripts,
}

/// A server; connects when first needed, and again after the connection broke.
pub(crate) struct Node {
    pub(crate) address: Arc<str>,
    live: Mutex<Option<Arc<LiveNode>>>,
    in_flight: Semaphore,
    /// Number of consecutive pipelines and connection attempts without a timely answer.
    unanswered_count: AtomicU32,
    /// Held while connecting, so that only one attempt runs at a time.
    connect_lock: Arc<tokio::sync::Mutex<()>>,
    /// Failure of the last connection attempt, `None` after a success; changes with each attempt.
    attempt: watch::Sender<Option<Failure>>,
}

/// A connection to a master that knows the scripts.
pub(crate) struct LiveNode {
    connection: MultiplexedConnection,
    /// Identifies the master's data; changes with each promotion and each restart without saving.
    pub(crate) replid: String,
}

/// A wait for a server's answers. Dropping it gives up, as callers with deadlines of their own do.
struct Wait<'a> {
    node: &'a Node,
    /// Giving up before this time says nothing about the server.
    blame_after: Instant,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if Instant::now() >= self.blame_after {
            self.node.unanswered_count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Node {
    pub(crate) fn new(address: Arc<str>, in_flight_max: usize) -> Node {
        Node {
            address,
            live: Mutex::default(),
            in_flight: Semaphore::new(in_flight_max),
            unanswered_count: AtomicU32::new(0),
            connect_lock: Arc::default(),
            attempt: watch::Sender::new(None),
        }
    }

    /// Returns the connection, establishing it if there is none. An attempt outlives its caller,
    /// because it may take more than one deadline.
    pub(crate) async fn live(
        self: &Arc<Node>,
        mode: &Arc<ConnectionMode>,
        deadline: Instant,
    ) -> Result<Arc<LiveNode>, Failure> {
        let mut attempts = self.attempt.subscribe();
        if let Some(live) = self.present() {
            return Ok(live);
        }
        if let Ok(guard) = Arc::clone(&self.connect_lock).try_lock_owned() {
            let (node, mode) = (Arc::clone(self), Arc::clone(mode));
            tokio::spawn(async move {
                let attempt = node.connect(&mode).await;
                let failure = match attempt {
                    Ok(live) => {
                        *node.live.lock() = Some(Arc::new(live));
                        None
                    }
                    Err(failure) => {
                        node.unanswered_count.fetch_add(1, Ordering::Relaxed);
                        Some(failure)
                    }
                };
                drop(guard);
                node.attempt.send_replace(failure);
            });
        }
        let deadline_error = || Failure::Deadline {
            address: self.address.to_string(),
            after: mode.deadline,
        };
        if timeout_at(deadline, attempts.changed()).await.is_err() {
            self.unanswered_count.fetch_add(1, Ordering::Relaxed);
            return Err(deadline_error());
        }
        let failure = attempts.borrow().clone();
        match (self.present(), failure) {
            (Some(live), _) => Ok(live),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(deadline_error()),
        }
    }

    /// Whether the server left so many calls unanswered that callers stop waiting, until it answers
    /// a check.
    pub(crate) fn is_silent(&self) -> bool {
        self.unanswered_count.load(Ordering::Relaxed) >= UNANSWERED_MAX
    }

    pub(crate) fn present(&self) -> Option<Arc<LiveNode>> {
        self.live.lock().clone()
    }

    /// Drops a connection that is of no more use, but not a newer one.
    pub(crate) fn forget(&self, old: &Arc<LiveNode>) {
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, old)) {
            *live = None;
        }
    }

    /// Sends commands as one pipeline; returns one answer each, errors included. If the whole
    /// pipeline fails, its commands may or may not have taken effect.
    pub(crate) async fn send(
        &self,
        live: &LiveNode,
        commands: Pipeline,
        deadline: Instant,
        mode: &ConnectionMode,
    ) -> Result<Vec<Value>, Failure> {
        let permit = timeout_at(deadline, self.in_flight.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            let address = self.address.to_string();
            return Err(Failure::Busy { address });
        };
        let count = commands.len();
        let mut connection = live.connection.clone();
        let answers = connection.send_packed_commands(&commands, 0, count);
        let wait = Wait {
            node: self,
            blame_after: Instant::now() + mode.deadline / 2,
        };
        let answers = match timeout_at(deadline, answers).await {
            Ok(answers) => {
                self.unanswered_count.store(0, Ordering::Relaxed);
                std::mem::forget(wait);
                answers?
            }
            Err(_) => {
                drop(wait);
                return Err(Failure::Deadline {
                    address: self.address.to_string(),
                    after: mode.deadline,
                });
            }
        };
        if answers.len() == count {
            Ok(answers)
        } else {
            Err(Failure::Reply(format!(
                "{} answers to {count} requests",
                answers.len()
            )))
        }
    }

    /// Loads the scripts again.
    pub(crate) async fn load(
        &self,
        live: &LiveNode,
        deadline: Instant,
        mode: &ConnectionMode,
    ) -> Result<(), Failure> {
        let answers = self
            .send(live, pipeline(mode.scripts.load()), deadline, mode)
            .await?;
        for answer in answers {
            answer.extract_error()?;
        }
        Ok(())
    }

    /// Checks that the server answers, is a master and still has the same data; drops its
    /// connection otherwise. A server without a connection passes unless it is silent.
    pub(crate) async fn verify(
        self: &Arc<Node>,
        mode: &Arc<ConnectionMode>,
        deadline: Instant,
    ) -> bool {
        let live = if self.is_silent() {
            self.live(mode, deadline).await.ok()
        } else {
            self.present()
        };
        let Some(live) = live else {
            return !self.is_silent();
        };
        let mut connection = live.connection.clone();
        let mut command = redis::cmd("INFO");
        command.arg("replication");
        let answer = timeout_at(deadline, command.query_async::<String>(&mut connection)).await;
        let is_healthy = match answer {
            Ok(Ok(info)) => {
                field(&info, "role") == Some("master")
                    && field(&info, "master_replid") == Some(live.replid.as_str())
            }
            _ => false,
        };
        if is_healthy {
            self.unanswered_count.store(0, Ordering::Relaxed)
        } else {
            self.forget(&live)
        }
        is_healthy
    }

    /// Replaces an existing connection after credentials changed. The old connection finishes the
    /// calls in flight, and stays if the new one is refused.
    pub(crate) async fn renew(&self, mode: &ConnectionMode) -> Result<(), Failure> {
        let Some(old) = self.present() else {
            return Ok(());
        };
        let new = Arc::new(self.connect(mode).await?);
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, &old)) {
            *live = Some(new);
        }
        Ok(())
    }

    async fn connect(&self, mode: &ConnectionMode) -> Result<LiveNode, Failure> {
        let wait = mode.connect_wait;
        let connect = timeout(wait, async {
            let mut connection = open(&self.address, mode).await?;
            let mut command = redis::cmd("INFO");
            command.arg(&["server", "replication", "memory"]);
            let info: String = command.query_async(&mut connection).await?;
            let live = self.read_info(connection, &info)?;
            for answer in (live.connection.clone())
                .send_packed_commands(&pipeline(mode.scripts.load()), 0, ScriptName::ALL.len())
                .await?
            {
                answer.extract_error()?;
            }
            Ok(live)
        });
        connect.await.unwrap_or_else(|_| {
            Err(Failure::Deadline {
                address: self.address.to_string(),
                after: wait,
            })
        })
    }

    fn read_info(
        &self,
        connection: MultiplexedConnection,
        info: &str,
    ) -> Result<LiveNode, Failure> {
        let address = || self.address.to_string();
        let version = field(info, "redis_version").unwrap_or("of an unknown version");
        let major = version
            .split('.')
            .next()
            .and_then(|n| n.parse::<u32>().ok());
        if major.is_some_and(|major| major < 7) {
            return Err(Failure::TooOld {
                address: address(),
                version: version.to_owned(),
            });
        }
        if field(info, "role") != Some("master") {
            return Err(Failure::Replica { address: address() });
        }
        if let Some(policy) = field(info, "maxmemory_policy")
            && policy != "noeviction"
        {
            tracing::warn!(
                server = %self.address,
                policy,
                "Redis may evict mailboxes: set maxmemory-policy noeviction"
            );
        }
        let replid = field(info, "master_replid")
            .ok_or_else(|| Failure::Reply("INFO without master_replid".to_owned()))?;
        Ok(LiveNode {
            connection,
            replid: replid.to_owned(),
        })
    }
}

/// Connects to a server without checking its role.
pub(crate) async fn open(
    address: &str,
    mode: &ConnectionMode,
) -> Result<MultiplexedConnection, Failure> {
    let info = mode.access.info(address)?;
    // The callers enforce deadlines.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(mode.connect_wait))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(mode.in_flight_max);
    let client = Client::open(info)?;
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    let to_failure = |error| mode.access.failure(address, error);
    connection.await.map_err(to_failure)
}

/// Parses `host:port` and `[v6]:port`.
pub(crate) fn read_address(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

fn pipeline(commands: impl Iterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Value of a field in the output of INFO.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        let read = |text| read_address(text).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(read("redis-1:6379").as_deref(), Some("redis-1 6379"));
        assert_eq!(read("[::1]:6379").as_deref(), Some("::1 6379"));
        assert_eq!(read("redis-1"), None);
        assert_eq!(read(":6379"), None);
        assert_eq!(read("redis-1:port"), None);
    }

    #[test]
    fn info_is_read_by_line() {
        let info = "# Replication\r\nrole:master\r\nmaster_replid:abc\r\nmaster_replid2:def\r\n";
        assert_eq!(field(info, "role"), Some("master"));
        assert_eq!(field(info, "master_replid"), Some("abc"));
        assert_eq!(field(info, "slave"), None);
    }
}
