//! One server, and the connection to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, Value};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::access::Access;
use super::failure::Failure;
use super::scripts::{Name, Scripts};

/// After this many unanswered pipelines in a row a server is asked no more.
const UNANSWERED_MAX: u32 = 8;

/// How servers are spoken to.
pub(crate) struct Manner {
    pub(crate) access: Access,
    pub(crate) deadline: Duration,
    pub(crate) connect_wait: Duration,
    pub(crate) in_flight_max: usize,
    pub(crate) scripts: Scripts,
}

/// A server; connected when it is first needed, and again when the connection broke.
pub(crate) struct Node {
    pub(crate) address: Arc<str>,
    live: Mutex<Option<Arc<Live>>>,
    in_flight: Semaphore,
    /// How many pipelines and attempts to connect in a row were not answered in time.
    unanswered: AtomicU32,
    /// Held while connecting: one at a time.
    connecting: Arc<tokio::sync::Mutex<()>>,
    /// How the last attempt to connect ended; changes with each.
    attempt: watch::Sender<Option<Failure>>,
}

/// A connection to a master that knows the scripts.
pub(crate) struct Live {
    connection: MultiplexedConnection,
    /// Names the master's data; another one after each promotion and unsaved restart.
    pub(crate) replid: String,
}

/// For answers of a server, given up where it is dropped: callers have deadlines of their own.
struct Wait<'a> {
    node: &'a Node,
    /// Before, it says nothing of the server that nobody waits any more.
    long: Instant,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if Instant::now() >= self.long {
            self.node.unanswered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Node {
    pub(crate) fn new(address: Arc<str>, in_flight_max: usize) -> Node {
        Node {
            address,
            live: Mutex::default(),
            in_flight: Semaphore::new(in_flight_max),
            unanswered: AtomicU32::new(0),
            connecting: Arc::default(),
            attempt: watch::Sender::new(None),
        }
    }

    /// The connection; makes one where there is none. Connecting goes on when the caller waits no longer:
    /// it may take more than one deadline.
    pub(crate) async fn live(
        self: &Arc<Node>,
        manner: &Arc<Manner>,
        until: Instant,
    ) -> Result<Arc<Live>, Failure> {
        let mut ended = self.attempt.subscribe();
        if let Some(live) = self.present() {
            return Ok(live);
        }
        if let Ok(alone) = Arc::clone(&self.connecting).try_lock_owned() {
            let (node, manner) = (Arc::clone(self), Arc::clone(manner));
            tokio::spawn(async move {
                let attempt = node.connect(&manner).await;
                let failure = match attempt {
                    Ok(live) => {
                        *node.live.lock() = Some(Arc::new(live));
                        None
                    }
                    Err(failure) => {
                        node.unanswered.fetch_add(1, Ordering::Relaxed);
                        Some(failure)
                    }
                };
                drop(alone);
                node.attempt.send_replace(failure);
            });
        }
        let late = || Failure::Deadline {
            address: self.address.to_string(),
            after: manner.deadline,
        };
        if timeout_at(until, ended.changed()).await.is_err() {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            return Err(late());
        }
        let failure = ended.borrow().clone();
        match (self.present(), failure) {
            (Some(live), _) => Ok(live),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(late()),
        }
    }

    /// It has left so much unanswered that nobody waits for it any more, until a check is answered.
    pub(crate) fn is_silent(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) >= UNANSWERED_MAX
    }

    pub(crate) fn present(&self) -> Option<Arc<Live>> {
        self.live.lock().clone()
    }

    /// This connection is of no more use; a later one stays.
    pub(crate) fn forget(&self, old: &Arc<Live>) {
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, old)) {
            *live = None;
        }
    }

    /// Sends commands as one pipeline; one answer each, errors among them. Whether they were done is not
    /// known where the whole fails.
    pub(crate) async fn send(
        &self,
        live: &Live,
        commands: Pipeline,
        until: Instant,
        manner: &Manner,
    ) -> Result<Vec<Value>, Failure> {
        let place = timeout_at(until, self.in_flight.acquire()).await;
        let Ok(Ok(_place)) = place else {
            let address = self.address.to_string();
            return Err(Failure::Busy { address });
        };
        let count = commands.len();
        let mut connection = live.connection.clone();
        let answers = connection.send_packed_commands(&commands, 0, count);
        let wait = Wait {
            node: self,
            long: Instant::now() + manner.deadline / 2,
        };
        let answers = match timeout_at(until, answers).await {
            Ok(answers) => {
                self.unanswered.store(0, Ordering::Relaxed);
                std::mem::forget(wait);
                answers?
            }
            Err(_) => {
                drop(wait);
                return Err(Failure::Deadline {
                    address: self.address.to_string(),
                    after: manner.deadline,
                });
            }
        };
        match answers.len() == count {
            true => Ok(answers),
            false => Err(Failure::Reply(format!(
                "{} answers to {count} requests",
                answers.len()
            ))),
        }
    }

    /// Teaches it the scripts again.
    pub(crate) async fn load(
        &self,
        live: &Live,
        until: Instant,
        manner: &Manner,
    ) -> Result<(), Failure> {
        let answers = self
            .send(live, pipeline(manner.scripts.load()), until, manner)
            .await?;
        for answer in answers {
            answer.extract_error()?;
        }
        Ok(())
    }

    /// Whether it answers, is a master and has the data it had; its connection is dropped where not.
    pub(crate) async fn verify(self: &Arc<Node>, manner: &Arc<Manner>, until: Instant) -> bool {
        let live = match self.is_silent() {
            true => self.live(manner, until).await.ok(),
            false => self.present(),
        };
        let Some(live) = live else {
            return !self.is_silent();
        };
        let mut connection = live.connection.clone();
        let mut ask = redis::cmd("INFO");
        ask.arg("replication");
        let answer = timeout_at(until, ask.query_async::<String>(&mut connection)).await;
        let is_well = match answer {
            Ok(Ok(told)) => {
                field(&told, "role") == Some("master")
                    && field(&told, "master_replid") == Some(live.replid.as_str())
            }
            _ => false,
        };
        match is_well {
            true => self.unanswered.store(0, Ordering::Relaxed),
            false => self.forget(&live),
        }
        is_well
    }

    /// Connects once more, where it is connected, because credentials are new. The connection of before finishes what
    /// is on its way; where the new one is refused it stays.
    pub(crate) async fn renew(&self, manner: &Manner) -> Result<(), Failure> {
        let Some(old) = self.present() else {
            return Ok(());
        };
        let new = Arc::new(self.connect(manner).await?);
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, &old)) {
            *live = Some(new);
        }
        Ok(())
    }

    async fn connect(&self, manner: &Manner) -> Result<Live, Failure> {
        let wait = manner.connect_wait;
        let connected = timeout(wait, async {
            let mut connection = open(&self.address, manner).await?;
            let mut ask = redis::cmd("INFO");
            ask.arg(&["server", "replication", "memory"]);
            let told: String = ask.query_async(&mut connection).await?;
            let live = self.read_info(connection, &told)?;
            for answer in (live.connection.clone())
                .send_packed_commands(&pipeline(manner.scripts.load()), 0, Name::ALL.len())
                .await?
            {
                answer.extract_error()?;
            }
            Ok(live)
        });
        connected.await.unwrap_or_else(|_| {
            Err(Failure::Deadline {
                address: self.address.to_string(),
                after: wait,
            })
        })
    }

    fn read_info(&self, connection: MultiplexedConnection, told: &str) -> Result<Live, Failure> {
        let address = || self.address.to_string();
        let version = field(told, "redis_version").unwrap_or("of an unknown version");
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
        if field(told, "role") != Some("master") {
            return Err(Failure::Replica { address: address() });
        }
        if let Some(policy) = field(told, "maxmemory_policy")
            && policy != "noeviction"
        {
            tracing::warn!(
                server = %self.address,
                policy,
                "Redis may throw mailboxes away: set maxmemory-policy noeviction"
            );
        }
        let replid = field(told, "master_replid")
            .ok_or_else(|| Failure::Reply("INFO without master_replid".to_owned()))?;
        Ok(Live {
            connection,
            replid: replid.to_owned(),
        })
    }
}

/// A connection to whatever is there, without asking what it is.
pub(crate) async fn open(address: &str, manner: &Manner) -> Result<MultiplexedConnection, Failure> {
    let info = manner.access.info(address)?;
    // Deadlines are kept by whoever waits.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(manner.connect_wait))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(manner.in_flight_max);
    let client = Client::open(info)?;
    let connected = client.get_multiplexed_async_connection_with_config(&config);
    let failed = |error| manner.access.failure(address, error);
    connected.await.map_err(failed)
}

/// `host:port`, and `[v6]:port`.
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

/// A line of what INFO says.
fn field<'a>(told: &'a str, name: &str) -> Option<&'a str> {
    told.lines()
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
        let told = "# Replication\r\nrole:master\r\nmaster_replid:abc\r\nmaster_replid2:def\r\n";
        assert_eq!(field(told, "role"), Some("master"));
        assert_eq!(field(told, "master_replid"), Some("abc"));
        assert_eq!(field(told, "slave"), None);
    }
}
