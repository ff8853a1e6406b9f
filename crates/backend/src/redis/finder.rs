//! Finds the server of a slot: the only server, the master named by sentinels, or the cluster's
//! map.

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{ConnectionAddr, RedisResult, TlsMode, Value};
use tokio::time::timeout;

use super::access::RedisAccess;
use super::failure::Failure;
use super::node::{self, ConnectionMode, read_address};
use super::reply;
use super::slots::SLOTS;

/// An address, `host:port`.
pub(crate) type Address = Arc<str>;

/// Server of each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotMap {
    One(Address),
    /// Indexed by slot; `None` for a slot without a server.
    Slots(Vec<Option<Address>>),
}

/// Method of finding the servers of slots.
pub(crate) enum Finder {
    Single(Address),
    Sentinel {
        addresses: Vec<String>,
        master: String,
        access: RedisAccess,
    },
    Cluster {
        seeds: Vec<Address>,
    },
}

impl SlotMap {
    pub(crate) fn server_for(&self, slot: u16) -> Option<Address> {
        match self {
            SlotMap::One(address) => Some(Arc::clone(address)),
            SlotMap::Slots(slots) => slots.get(usize::from(slot))?.clone(),
        }
    }

    /// Records a redirect: another server has this slot.
    pub(crate) fn moved(&mut self, slot: u16, address: Address) {
        if let SlotMap::Slots(slots) = self
            && let Some(entry) = slots.get_mut(usize::from(slot))
        {
            *entry = Some(address);
        }
    }

    pub(crate) fn holds(&self, address: &str) -> bool {
        match self {
            SlotMap::One(one) => **one == *address,
            SlotMap::Slots(slots) => slots.iter().flatten().any(|one| **one == *address),
        }
    }
}

impl Finder {
    /// Finds the servers of all slots. `known_servers` were asked before.
    pub(crate) async fn find(
        &self,
        known_servers: &[Address],
        mode: &ConnectionMode,
    ) -> Result<SlotMap, Failure> {
        match self {
            Finder::Single(address) => Ok(SlotMap::One(Arc::clone(address))),
            Finder::Sentinel {
                addresses,
                master,
                access,
            } => find_master(addresses, master, access, mode).await,
            Finder::Cluster { seeds } => find_slots(known_servers.iter().chain(seeds), mode).await,
        }
    }
}

/// Asks the sentinels over new connections each time, so that a hanging one is not kept.
async fn find_master(
    addresses: &[String],
    master: &str,
    access: &RedisAccess,
    mode: &ConnectionMode,
) -> Result<SlotMap, Failure> {
    let sentinels: Vec<ConnectionAddr> = addresses
        .iter()
        .filter_map(|address| access.address(address).ok())
        .collect();
    let mut sentinels = sentinel_client(sentinels, master, access, &mode.access)?.build()?;
    let lookup = timeout(find_wait(mode.connect_wait), sentinels.async_get_client());
    let client = lookup
        .await
        .map_err(|_| Failure::Deadline {
            address: format!("sentinels asked for {master:?}"),
            after: find_wait(mode.connect_wait),
        })?
        .map_err(|error| {
            let reason = match access.failure("", error) {
                Failure::Tls { advice, source, .. } => format!("{source}: {advice}"),
                other => other.to_string(),
            };
            Failure::NoMaster(format!("the sentinels know no master {master:?}: {reason}"))
        })?;
    match client.get_connection_info().addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(SlotMap::One(join(host, *port)))
        }
        other => Err(Failure::NoMaster(format!("{other} is not host:port"))),
    }
}

/// Builds a client with separate credentials for the sentinels and for the master they name.
fn sentinel_client(
    sentinels: Vec<ConnectionAddr>,
    master: &str,
    access: &RedisAccess,
    servers: &RedisAccess,
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
    if let (Some(sentinel_certificates), Some(server_certificates)) =
        (access.certificates(), servers.certificates())
    {
        builder = builder
            .set_client_to_sentinel_certificates(sentinel_certificates)
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(server_certificates);
    }
    Ok(builder)
}

async fn find_slots(
    servers: impl Iterator<Item = &Address>,
    mode: &ConnectionMode,
) -> Result<SlotMap, Failure> {
    let mut last = Failure::NoMaster("no known server of the cluster".to_owned());
    for server in servers {
        let query = timeout(mode.connect_wait, ask_slots(server, mode));
        match query.await {
            Ok(Ok(map)) => return Ok(map),
            Ok(Err(failure)) => last = failure,
            Err(_) => {
                last = Failure::Deadline {
                    address: server.to_string(),
                    after: mode.connect_wait,
                }
            }
        }
    }
    match last {
        late if late.is_late() => Err(late),
        other => Err(Failure::NoMaster(other.to_string())),
    }
}

async fn ask_slots(server: &Address, mode: &ConnectionMode) -> Result<SlotMap, Failure> {
    let mut connection = node::open(server, mode).await?;
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let value: Value = command.query_async(&mut connection).await?;
    read_slots(value, server)
}

/// Parses CLUSTER SLOTS: each range is (first, last, (host, port, …) of its master, …).
fn read_slots(value: Value, server: &str) -> Result<SlotMap, Failure> {
    let mut ranges = Vec::new();
    for range in reply::list(value)? {
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
        ranges.push((first, last, complete_address(&host, port, server)));
    }
    let master_of = |slot| {
        let slot = i64::from(slot);
        let range = ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, address)| Arc::clone(address))
    };
    Ok(SlotMap::Slots((0..SLOTS).map(master_of).collect()))
}

/// Completes an address without a host: a server that does not know its own host means the host
/// that was asked.
fn complete_address(host: &str, port: u16, server: &str) -> Address {
    match read_address(server) {
        Some((server, _)) if host.is_empty() => join(&server, port),
        _ => join(host, port),
    }
}

/// Parses the address in a `MOVED` or `ASK` redirect.
pub(crate) fn redirect_address(address: &str, server: &str) -> Address {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    match port.parse() {
        Ok(port) => complete_address(host.trim_matches(['[', ']']), port, server),
        Err(_) => address.into(),
    }
}

fn join(host: &str, port: u16) -> Address {
    if host.contains(':') {
        format!("[{host}]:{port}").into()
    } else {
        format!("{host}:{port}").into()
    }
}

/// Twice the connection wait, because sentinels ask the master in turn.
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
        let value = Value::Array(vec![
            range(0, 8_000, host("10.0.0.1"), 7001),
            range(8_001, 16_383, Value::Nil, 7002),
        ]);
        let map = read_slots(value, "redis:7009").expect("slots");
        for slot in 0..SLOTS {
            let expected = if slot <= 8_000 {
                "10.0.0.1:7001"
            } else {
                "redis:7002"
            };
            assert_eq!(map.server_for(slot).as_deref(), Some(expected));
        }
    }

    #[test]
    fn slots_that_nobody_serves_have_no_address() {
        let mut map = read_slots(Value::Array(Vec::new()), "redis:7009").expect("slots");
        assert_eq!(map.server_for(5), None);
        map.moved(5, redirect_address(":7001", "redis:7009"));
        assert_eq!(map.server_for(5).as_deref(), Some("redis:7001"));
        assert!(map.holds("redis:7001") && !map.holds("redis:7002"));
    }
}
