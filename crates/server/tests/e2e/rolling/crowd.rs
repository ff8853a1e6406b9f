//! Some thousand clients of the library in a process of their own, behind a balancer: half of them
//! send to the other half.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::core::{ConnectionState, Origin};
use client::{Client, ClientConfig, Event, Events};
use parking_lot::Mutex;
use protocol::message::Content;
use protocol::{DeviceId, MessageId, Platform, Recipient, UserId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::Semaphore;
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::balancer::balance;
use crate::raw::signed;

/// Variable that holds the plan of a crowd.
pub(super) const CROWD: &str = "PACKETBOAT_CROWD";
/// Concurrent sign-ins.
const MAX_CONCURRENT_SIGN_INS: usize = 64;
/// Time for answers and deliveries in flight at the end.
const SETTLES: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// URL and admin port of each boat.
    pub(super) boats: Vec<[String; 2]>,
    pub(super) first_user: i64,
    /// Number of clients, even.
    pub(super) clients: u32,
    /// Messages per second.
    pub(super) rate: f64,
}

/// Findings of a crowd.
#[derive(Default)]
struct Book {
    ready: AtomicUsize,
    back_ms: Mutex<Vec<u64>>,
    accepted_ids: Mutex<Vec<MessageId>>,
    /// Number of sends without an answer.
    open: AtomicUsize,
    /// Messages shown, each with the number of times.
    shown_counts: Mutex<BTreeMap<MessageId, u32>>,
    /// Ends of connections, by reason.
    reasons: Mutex<BTreeMap<String, u32>>,
}

impl Book {
    fn missing(&self) -> usize {
        let shown_counts = self.shown_counts.lock();
        let accepted_ids = self.accepted_ids.lock();
        accepted_ids
            .iter()
            .filter(|id| !shown_counts.contains_key(*id))
            .count()
    }

    fn is_settled(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && self.missing() == 0
    }

    fn findings(&self) -> Value {
        let shown_counts = self.shown_counts.lock();
        json!({
            "accepted": self.accepted_ids.lock().len(),
            "open": self.open.load(Ordering::Relaxed),
            "shown": shown_counts.len(),
            "twice": shown_counts.values().filter(|times| **times > 1).count(),
            "reasons": *self.reasons.lock(),
            "back_ms": *self.back_ms.lock(),
        })
    }
}

async fn sign_in(url: &str, user: UserId) -> (Client, Events) {
    let device = DeviceId::new(&format!("crowd-{user}")).expect("short");
    let config = ClientConfig::new(url, signed(user.get()), Platform::Ios, device);
    Client::connect(config).await.expect("it begins")
}

/// Follows a client's connection: it is back once it has signed in again.
async fn watch(client: Client, book: Arc<Book>) {
    let mut states = client.state();
    let mut lost_at: Option<Instant> = None;
    let mut is_ready = false;
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            ConnectionState::Syncing | ConnectionState::Ready => {
                if let Some(lost_at) = lost_at.take() {
                    let took = u64::try_from(lost_at.elapsed().as_millis()).unwrap_or(u64::MAX);
                    book.back_ms.lock().push(took);
                }
                if !std::mem::replace(&mut is_ready, true) {
                    book.ready.fetch_add(1, Ordering::Relaxed);
                }
            }
            ConnectionState::Reconnecting { why, .. } => {
                if std::mem::replace(&mut is_ready, false) {
                    book.ready.fetch_sub(1, Ordering::Relaxed);
                    lost_at = Some(Instant::now());
                    let reason = why.code.name().to_owned();
                    *book.reasons.lock().entry(reason).or_default() += 1;
                }
            }
            ConnectionState::Closed(why) => {
                eprintln!("a client ended: {why}");
                return;
            }
            ConnectionState::Idle | ConnectionState::Connecting => {}
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

async fn show(mut events: Events, book: Arc<Book>) {
    while let Some(event) = events.next().await {
        if let Event::Message(message) = event
            && message.origin == Origin::Other
        {
            *book
                .shown_counts
                .lock()
                .entry(message.placed.message.id)
                .or_default() += 1;
        }
    }
}

async fn send(client: Client, to: UserId, book: Arc<Book>) {
    book.open.fetch_add(1, Ordering::Relaxed);
    let result = client.send(Recipient::User(to), Content::text("on the way"));
    let mut ticket = result.await.expect("there is room");
    let id = ticket.accepted().await.expect("accepted");
    book.accepted_ids.lock().push(id);
    book.open.fetch_sub(1, Ordering::Relaxed);
}

/// Sends from each client in turn until `stop`.
async fn chat(clients: Vec<(Client, UserId)>, rate: f64, book: Arc<Book>, stop: CancellationToken) {
    let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
    for place in (0..clients.len()).cycle() {
        if stop.run_until_cancelled(ticks.tick()).await.is_none() {
            return;
        }
        let (client, to) = &clients[place];
        tokio::spawn(send(client.clone(), *to, book.clone()));
    }
}

/// One crowd: prints its findings as a line at each command, and at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a process of a_rolling_restart_costs_nobody_a_sign_in"]
async fn gathers() {
    let Ok(plan) = std::env::var(CROWD) else {
        return;
    };
    let plan: Plan = serde_json::from_str(&plan).expect("a plan");
    let url = balance(&plan.boats).await;
    let book = Arc::new(Book::default());
    let places = Arc::new(Semaphore::new(MAX_CONCURRENT_SIGN_INS));
    let mut senders = Vec::new();
    for user in (plan.first_user..).take(plan.clients as usize) {
        let place = places.clone().acquire_owned().await.expect("open");
        let user = UserId::new(user).expect("a user");
        let (client, events) = sign_in(&url, user).await;
        tokio::spawn(show(events, book.clone()));
        tokio::spawn(watch(client.clone(), book.clone()));
        if user.get() % 2 == 0 {
            senders.push((client.clone(), UserId::new(user.get() - 1).expect("a user")));
        }
        tokio::spawn(async move {
            client.ready().await.expect("signed in");
            drop(place);
            // The handle keeps the client alive as long as the process.
            std::future::pending::<()>().await;
        });
    }
    let stop = CancellationToken::new();
    let chat_task = tokio::spawn(chat(senders, plan.rate, book.clone(), stop.clone()));
    let mut words = BufReader::new(stdin()).lines();
    while let Ok(Some(word)) = words.next_line().await {
        if word == "count" {
            println!("{}", json!({"ready": book.ready.load(Ordering::Relaxed)}));
            continue;
        }
        stop.cancel();
        let wait_settled = async {
            while !book.is_settled() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let _ = timeout(SETTLES, wait_settled).await;
        let mut findings = book.findings();
        findings["missing"] = book.missing().into();
        println!("{findings}");
        break;
    }
    drop(chat_task);
}
