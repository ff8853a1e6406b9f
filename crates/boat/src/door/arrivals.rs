//! Places of clients that arrive: so many in all, and a share of them for each network. When they
//! are taken, the client that has been silent for the longest gives way to the next one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use metrics::{Counter, counter};
use parking_lot::Mutex;
use protocol::{Code, Refusal, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::connection_limit::ConnectionPermit;
use super::listener::client_stream::Socket;
use crate::connection::Connection;

/// Part of the places that silent clients of one network may hold.
const SHARE: usize = 16;
/// Silence after which a client gives way where all places are taken. A client nearby needs
/// milliseconds for its hello; were nobody waited for, a wave of clients would only end each other.
const SILENCE_MIN: Duration = Duration::from_secs(2);
/// Time for a client that gives way to leave its place.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Places of a boat. Clients that have sent their hello hold theirs until they are admitted.
#[derive(Debug)]
pub(crate) struct Arrivals {
    room: Arc<Semaphore>,
    /// Silent clients of one network beyond which the oldest of them gives way.
    share: usize,
    silent: Mutex<SilentArrivals>,
    waits: Counter,
    evictions: Counter,
}

/// Address as places are shared out: a site has a /48 of IPv6, and as many addresses as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Network {
        match address.to_canonical() {
            IpAddr::V4(address) => Network::V4(address.to_bits()),
            IpAddr::V6(address) => Network::V6((address.to_bits() >> 80) as u64),
        }
    }
}

/// Arrivals without a hello, by age.
#[derive(Debug, Default)]
struct SilentArrivals {
    next: u64,
    by_age: BTreeMap<u64, SilentArrival>,
    by_network: HashMap<Network, BTreeSet<u64>>,
}

#[derive(Debug)]
struct SilentArrival {
    arrived_at: Instant,
    network: Option<Network>,
    end: Arc<ArrivalEnd>,
}

/// Tells an arriving client's task or connection that it gives way.
#[derive(Debug, Default)]
struct ArrivalEnd {
    token: CancellationToken,
    connection: OnceLock<Weak<Connection>>,
}

impl ArrivalEnd {
    fn end(&self) {
        self.token.cancel();
        if let Some(connection) = self.connection.get().and_then(Weak::upgrade) {
            Connection::wake(&connection);
        }
    }
}

impl SilentArrivals {
    fn add(&mut self, network: Option<Network>, arrived_at: Instant, end: Arc<ArrivalEnd>) -> u64 {
        let id = self.next;
        self.next += 1;
        if let Some(network) = network {
            self.by_network.entry(network).or_default().insert(id);
        }
        let arrival = SilentArrival {
            arrived_at,
            network,
            end,
        };
        self.by_age.insert(id, arrival);
        id
    }

    fn remove(&mut self, id: u64) -> Option<SilentArrival> {
        let arrival = self.by_age.remove(&id)?;
        if let Some(network) = arrival.network
            && let Some(ids) = self.by_network.get_mut(&network)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_network.remove(&network);
            }
        }
        Some(arrival)
    }

    /// Takes out the oldest of this network if it has its share already.
    fn take_beyond(&mut self, network: Network, share: usize) -> Option<SilentArrival> {
        let ids = self.by_network.get(&network)?;
        let oldest = *ids.first().filter(|_| ids.len() >= share)?;
        self.remove(oldest)
    }

    fn oldest_since(&self) -> Option<Instant> {
        self.by_age
            .values()
            .next()
            .map(|arrival| arrival.arrived_at)
    }

    /// Takes out the oldest one if it has been silent long enough.
    fn take_oldest(&mut self, now: Instant) -> Option<SilentArrival> {
        let (id, arrival) = self.by_age.iter().next()?;
        let is_due = arrival.arrived_at + SILENCE_MIN <= now;
        let id = *id;
        is_due.then(|| self.remove(id)).flatten()
    }

    /// Counts an arrival for the network that a balancer named.
    fn set_network(&mut self, id: u64, network: Network) {
        if let Some(mut arrival) = self.remove(id) {
            arrival.network = Some(network);
            self.by_age.insert(id, arrival);
            self.by_network.entry(network).or_default().insert(id);
        }
    }
}

impl Arrivals {
    pub(crate) fn new(max: usize) -> Arc<Arrivals> {
        let limit = |name: &'static str| counter!("limits_total", "limit" => name);
        Arc::new(Arrivals {
            room: Arc::new(Semaphore::new(max)),
            share: (max / SHARE).max(1),
            silent: Mutex::default(),
            waits: limit("arriving"),
            evictions: limit("arriving_silent"),
        })
    }

    /// Takes a place for a client of this address; `None` for a balancer, which has no share. Waits
    /// while all places are taken by clients that have said something, or may yet.
    pub(crate) async fn take(self: &Arc<Self>, address: Option<IpAddr>) -> ArrivalPlace {
        let network = address.map(Network::from);
        if let Some(network) = network {
            self.keep_to_share(network);
        }
        let permit = self.permit().await;
        let end = Arc::<ArrivalEnd>::default();
        let mut silent = self.silent.lock();
        let id = silent.add(network, Instant::now(), Arc::clone(&end));
        ArrivalPlace {
            arrivals: Arc::clone(self),
            id,
            end,
            _permit: permit,
        }
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        let room = || Arc::clone(&self.room);
        if let Ok(permit) = room().try_acquire_owned() {
            return permit;
        }
        self.waits.increment(1);
        loop {
            let oldest_since = self.silent.lock().oldest_since();
            let silence_ends = async {
                match oldest_since {
                    Some(since) => sleep_until(since + SILENCE_MIN).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                permit = room().acquire_owned() => return permit.expect("it is never closed"),
                () = silence_ends => {}
            }
            let oldest = self.silent.lock().take_oldest(Instant::now());
            if let Some(oldest) = oldest {
                self.evictions.increment(1);
                oldest.end.end();
                if let Ok(permit) = timeout(LEAVE_TIMEOUT, room().acquire_owned()).await {
                    return permit.expect("it is never closed");
                }
            }
        }
    }

    fn keep_to_share(&self, network: Network) {
        let oldest = self.silent.lock().take_beyond(network, self.share);
        if let Some(oldest) = oldest {
            self.evictions.increment(1);
            oldest.end.end();
        }
    }
}

/// Place of one arriving client, until dropped.
#[derive(Debug)]
pub(crate) struct ArrivalPlace {
    arrivals: Arc<Arrivals>,
    id: u64,
    end: Arc<ArrivalEnd>,
    _permit: OwnedSemaphorePermit,
}

impl ArrivalPlace {
    /// Counts the client for its own network, which a balancer has named.
    pub(crate) fn name(&self, address: IpAddr) {
        let network = Network::from(address);
        self.arrivals.keep_to_share(network);
        self.arrivals.silent.lock().set_network(self.id, network);
    }

    /// Has the connection turn to its place when the client has to give way.
    pub(crate) fn attach(&self, connection: &Arc<Connection>) {
        let _ = self.end.connection.set(Arc::downgrade(connection));
    }

    /// The client has said who it is: it keeps its place.
    pub(crate) fn keep_place(&self) {
        self.arrivals.silent.lock().remove(self.id);
    }

    /// Cancelled when the client has to give way.
    pub(crate) fn end_token(&self) -> CancellationToken {
        self.end.token.clone()
    }

    /// Refusal of a client that has to give way.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.end.token.is_cancelled().then(|| {
            let text =
                "too many clients are connecting, and yours has been silent the longest; connect again";
            Refusal::new(Code::HandshakeTimeout, text)
        })
    }
}

impl Drop for ArrivalPlace {
    fn drop(&mut self) {
        self.arrivals.silent.lock().remove(self.id);
    }
}

/// A client's socket and its place among the connections.
pub(crate) type ClientSocket = Socket<ConnectionPermit>;

/// Place among the arriving clients; a boat that leaves waits for them.
pub(super) type ArrivalRoom = (ArrivalPlace, TaskTrackerToken);

/// A client that arrives, until it is admitted.
#[derive(Clone, Debug)]
pub(crate) struct IncomingClient {
    pub(crate) address: SocketAddr,
    /// Refusal of a client beyond a limit: it is sent, then the connection closes.
    pub(super) refusal: Option<Refusal>,
    /// Deadline of the hello.
    pub(crate) hello_deadline: Timestamp,
    pub(super) room: Arc<ArrivalRoom>,
}

impl IncomingClient {
    /// Place among the arriving clients.
    pub(crate) fn place(&self) -> &ArrivalPlace {
        &self.room.0
    }
}

#[cfg(test)]
mod tests {
    use backend::clock::{Entropy, SeededEntropy};
    use protocol::pause::between;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_beyond_its_share_ends_its_own_oldest_client() {
        let arrivals = Arrivals::new(32);
        let other = arrivals.take(address("192.0.2.1")).await;
        let mut places = Vec::new();
        for host in 1..=4 {
            // One site, with a network of its own for each.
            let host = format!("2001:db8:7:{host}::1");
            places.push(arrivals.take(address(&host)).await);
        }
        let evictions: Vec<bool> = places.iter().map(|it| it.refusal().is_some()).collect();
        assert_eq!(evictions, [true, true, false, false]);
        assert!(other.refusal().is_none());
        let balancer = [
            arrivals.take(None).await,
            arrivals.take(None).await,
            arrivals.take(None).await,
        ];
        assert!(balancer.iter().all(|place| place.refusal().is_none()));
        balancer[0].name(address("2001:db8:7:9::1").expect("one"));
        assert!(places[2].refusal().is_some(), "named by the balancer");
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_that_is_silent_for_the_longest_gives_way() {
        let arrivals = Arrivals::new(2);
        let first = arrivals.take(address("192.0.2.1")).await;
        first.keep_place();
        let second = arrivals.take(address("192.0.2.2")).await;
        let start = Instant::now();
        let departure = async {
            second.end_token().cancelled().await;
            drop(second);
        };
        let (third, ()) = tokio::join!(arrivals.take(address("192.0.2.3")), departure);
        assert_eq!(start.elapsed(), SILENCE_MIN);
        assert!(first.refusal().is_none() && third.refusal().is_none());
    }

    // Nobody who is spoken with gives way: then the next ones wait.
    #[tokio::test(start_paused = true)]
    async fn clients_wait_where_all_places_have_spoken() {
        let arrivals = Arrivals::new(1);
        let first = arrivals.take(address("192.0.2.1")).await;
        first.keep_place();
        let next = timeout(Duration::from_secs(60), arrivals.take(address("192.0.2.2"))).await;
        assert!(next.is_err());
        drop(first);
        arrivals.take(address("192.0.2.2")).await;
    }

    /// Longest wait of newcomers, about every tenth client, behind silent strangers of fifteen
    /// networks: all come to one listener, which takes places in turn.
    async fn longest_wait(arrivals: &Arc<Arrivals>, seed: u64) -> Duration {
        const INTERVAL_MAX: Duration = Duration::from_millis(20);
        const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);
        let random = SeededEntropy::new(seed);
        let (mut arrives_at, mut longest) = (Instant::now(), Duration::ZERO);
        for _ in 0..3_000 {
            arrives_at += between(Duration::ZERO, INTERVAL_MAX, random.next());
            sleep_until(arrives_at).await;
            if random.next().is_multiple_of(10) {
                let newcomer = arrivals.take(address("192.0.2.9")).await;
                longest = longest.max(arrives_at.elapsed());
                newcomer.keep_place();
                continue;
            }
            let network = random.next() % (SHARE as u64 - 1);
            let host = random.next() & 0xffff;
            let stranger = address(&format!("2001:db8:{network:x}:{host:x}::1"));
            let place = arrivals.take(stranger).await;
            tokio::spawn(async move {
                let end = place.end_token();
                let _ = timeout(ARRIVAL_TIMEOUT, end.cancelled()).await;
            });
        }
        longest
    }

    // Networks that fill their shares leave places for others: a newcomer never waits. Without shares, it does.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_finds_room_beside_networks_of_silent_clients() {
        for seed in 0..20 {
            let arrivals = Arrivals::new(SHARE * 4);
            assert_eq!(
                longest_wait(&arrivals, seed).await,
                Duration::ZERO,
                "{seed}"
            );
        }
        let mut arrivals = Arrivals::new(SHARE * 4);
        Arc::get_mut(&mut arrivals).expect("the only one").share = usize::MAX;
        assert!(longest_wait(&arrivals, 0).await > SILENCE_MIN / 2);
    }
}
