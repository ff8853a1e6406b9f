//! Who serves a slot: one server, the master that sentinels name, or the cluster's map.

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, RedisResult, TlsMode, Value};
use tokio::time::timeout;

use super::access::Access;
use super::failure::Failure;
use super::node::{self, Manner, read_address};
use super::reply;
use super::slots::SLOTS;

/// An address, `host:port`.
pub(crate) type Address = Arc<str>;

/// Who serves which slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    One(Address),
    /// By slot; `None` where nobody serves it.
    Slots(Vec<Option<Address>>),
}

/// Finds out who serves which slot.
pub(crate) enum Finder {
    Single(Address),
    Sentinel {
        addresses: Vec<String>,
        master: String,
        access: Access,
    },
    Cluster {
        seeds: Vec<Address>,
    },
}

impl Map {
    pub(crate) fn of(&self, slot: u16) -> Option<Address> {
        match self {
            Map::One(address) => Some(Arc::clone(address)),
            Map::Slots(slots) => slots.get(usize::from(slot))?.clone(),
        }
    }

    /// A server said that another one has this slot.
    pub(crate) fn moved(&mut self, slot: u16, address: Address) {
        if let Map::Slots(slots) = self
            && let Some(place) = slots.get_mut(usize::from(slot))
        {
            *place = Some(address);
        }
    }

    pub(crate) fn holds(&self, address: &str) -> bool {
        match self {
            Map::One(one) => **one == *address,
            Map::Slots(slots) => slots.iter().flatten().any(|one| **one == *address),
        }
    }
}

impl Finder {
    /// `known` are servers that were asked before.
    pub(crate) async fn find(&self, known: &[Address], manner: &Manner) -> Result<Map, Failure> {
        match self {
            Finder::Single(address) => Ok(Map::One(Arc::clone(address))),
            Finder::Sentinel {
                addresses,
                master,
                access,
            } => find_master(addresses, master, access, manner).await,
            Finder::Cluster { seeds } => find_slots(known.iter().chain(seeds), manner).await,
        }
    }
}

/// Asks sentinels, each time anew: one that hangs is not kept.
async fn find_master(
    addresses: &[String],
    master: &str,
    access: &Access,
    manner: &Manner,
) -> Result<Map, Failure> {
    let sentinels: Vec<ConnectionAddr> = addresses
        .iter()
        .filter_map(|address| access.address(address).ok())
        .collect();
    let mut sentinels = sentinel_client(sentinels, master, access, &manner.access)?.build()?;
    let found = timeout(find_wait(manner.connect_wait), sentinels.async_get_client());
    let client = found
        .await
        .map_err(|_| Failure::Deadline {
            address: format!("sentinels asked for {master:?}"),
            after: find_wait(manner.connect_wait),
        })?
        .map_err(|error| {
            let reason = match access.failure("", error) {
                Failure::Tls { advice, source, .. } => format!("{source}: {advice}"),
                other => other.to_string(),
            };
            Failure::NoMaster(format!("sentinels name no {master:?}: {reason}"))
        })?;
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Map::One(join(host, *port)))
        }
        other => Err(Failure::NoMaster(format!("{other} is not host:port"))),
    }
}

/// Sentinels are asked with credentials of theirs, and the master that they name with its own.
fn sentinel_client(
    sentinels: Vec<ConnectionAddr>,
    master: &str,
    access: &Access,
    servers: &Access,
) -> RedisResult<SentinelClientBuilder> {
    let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?;
    if let Some(username) = &access.username {
        builder = builder.set_client_to_sentinel_username(username);
    }
    if let Some(secret) = access.secret() {
        builder = builder.set_client_to_sentinel_password(secret);
    }
    if let Some(username) = &servers.username {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(secret) = servers.secret() {
        builder = builder.set_client_to_redis_password(secret);
    }
    if let (Some(theirs), Some(own)) = (access.certificates(), servers.certificates()) {
        builder = builder
            .set_client_to_sentinel_certificates(theirs)
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(own);
    }
    Ok(builder)
}

async fn find_slots(
    servers: impl Iterator<Item = &Address>,
    manner: &Manner,
) -> Result<Map, Failure> {
    let mut last = Failure::NoMaster("no server of the cluster is known".to_owned());
    for server in servers {
        let asked = timeout(manner.connect_wait, ask_slots(server, manner));
        match asked.await {
            Ok(Ok(map)) => return Ok(map),
            Ok(Err(failure)) => last = failure,
            Err(_) => {
                last = Failure::Deadline {
                    address: server.to_string(),
                    after: manner.connect_wait,
                }
            }
        }
    }
    match last {
        late if late.is_late() => Err(late),
        other => Err(Failure::NoMaster(other.to_string())),
    }
}

async fn ask_slots(server: &Address, manner: &Manner) -> Result<Map, Failure> {
    let mut connection = node::open(server, manner).await?;
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    let told: Value = ask.query_async(&mut connection).await?;
    read_slots(told, server)
}

/// Each range of slots is (first, last, (host, port, …) of its master, …).
fn read_slots(told: Value, asked: &str) -> Result<Map, Failure> {
    let mut ranges = Vec::new();
    for range in reply::list(told)? {
        let mut range = reply::list(range)?.into_iter();
        let mut next = || range.next().unwrap_or(Value::Nil);
        let (first, last) = (reply::integer(next())?, reply::integer(next())?);
        let mut master = reply::list(next())?.into_iter();
        let host = match master.next() {
            None | Some(Value::Nil) => String::new(),
            Some(host) => reply::text(host)?,
        };
        let port = reply::integer(master.next().unwrap_or(Value::Nil))?;
        let port = u16::try_from(port).map_err(|_| Failure::Reply(format!("port {port}")))?;
        ranges.push((first, last, beside(&host, port, asked)));
    }
    let master_of = |slot| {
        let slot = i64::from(slot);
        let range = ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, address)| Arc::clone(address))
    };
    Ok(Map::Slots((0..SLOTS).map(master_of).collect()))
}

/// A server that does not know its own host means the one that was asked.
fn beside(host: &str, port: u16, asked: &str) -> Address {
    match read_address(asked) {
        Some((asked, _)) if host.is_empty() => join(&asked, port),
        _ => join(host, port),
    }
}

/// As `MOVED` and `ASK` name a server.
pub(crate) fn redirected(address: &str, asked: &str) -> Address {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match port.parse() {
        Ok(port) => beside(host.trim_matches(['[', ']']), port, asked),
        Err(_) => address.into(),
    }
}

fn join(host: &str, port: u16) -> Address {
    match host.contains(':') {
        true => format!("[{host}]:{port}").into(),
        false => format!("{host}:{port}").into(),
    }
}

/// Sentinels ask the master in turn.
fn find_wait(connect_wait: Duration) -> Duration {
    2 * connect_wait
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let master = Value::Array(vec![host, Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), master])
    }

    fn host(name: &str) -> Value {
        Value::BulkString(name.as_bytes().to_vec())
    }

    #[test]
    fn every_slot_has_its_master() {
        let told = Value::Array(vec![
            range(0, 8_000, host("10.0.0.1"), 7001),
            range(8_001, 16_383, Value::Nil, 7002),
        ]);
        let map = read_slots(told, "redis:7009").expect("slots");
        for slot in 0..SLOTS {
            let expected = match slot <= 8_000 {
                true => "10.0.0.1:7001",
                false => "redis:7002",
            };
            assert_eq!(map.of(slot).as_deref(), Some(expected));
        }
    }

    #[test]
    fn slots_that_nobody_serves_have_no_address() {
        let mut map = read_slots(Value::Array(Vec::new()), "redis:7009").expect("slots");
        assert_eq!(map.of(5), None);
        map.moved(5, redirected(":7001", "redis:7009"));
        assert_eq!(map.of(5).as_deref(), Some("redis:7001"));
        assert!(map.holds("redis:7001") && !map.holds("redis:7002"));
    }
}
