//! Users of a steady chat: senders that press *try again*, receivers that stay, and receivers that
//! come and go.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use backend::clock::{Clock, SystemClock};
use bytes::{BufMut, Bytes, BytesMut};
use client::core::{CatchUp, ConnectionState, Origin, ShownMessage};
use client::{Client, ClientConfig, Event, Events, SendTicket, store};
use protocol::message::Content;
use protocol::{DeviceId, Platform, Recipient, UserId};
use server::cli;
use server::errln;
use server::settings::Settings;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::Steady;
use super::book::Book;
use super::users::Pair;
use crate::SIGN_INS;

/// Open sends of one sender; at this bound the sender waits.
const OPEN_MAX: usize = 4096;
/// Time a person looks at "failed" before trying again.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const SIGN_IN: Duration = Duration::from_secs(60);

pub(super) struct People {
    plan: Steady,
    /// TLS settings by address of the plan.
    tls: Vec<Option<Arc<rustls::ClientConfig>>>,
    users: Vec<Pair>,
    settings: Settings,
    state: PathBuf,
    /// Permits of receivers that have signed in for the first time.
    present: Semaphore,
    sign_in_permits: Semaphore,
}

impl People {
    pub(super) fn new(
        plan: &Steady,
        users: Vec<Pair>,
        settings: Settings,
        state: &Path,
    ) -> Result<People> {
        let tls: Result<_> = plan.url.iter().map(|url| plan.trust.of(url)).collect();
        Ok(People {
            plan: plan.clone(),
            tls: tls?,
            users,
            settings,
            state: state.to_owned(),
            present: Semaphore::new(0),
            sign_in_permits: Semaphore::new(SIGN_INS),
        })
    }

    pub(super) async fn wait_for_receivers(&self) -> Result<()> {
        let all = self.present.acquire_many(self.pairs());
        let all = timeout(SIGN_IN, all).await;
        all.context("the receivers did not sign in in time")??
            .forget();
        Ok(())
    }

    fn pairs(&self) -> u32 {
        u32::try_from(self.users.len()).unwrap_or(u32::MAX)
    }

    async fn sign_in(&self, user: UserId, platform: Platform) -> Result<(Client, Events)> {
        let device = DeviceId::new(&format!("bench-{user}"))?;
        let token = cli::sign_own(&self.settings, user, Some(platform), Some(&device))?;
        let urls = &self.plan.url;
        let index = user.get() as usize / 2 % urls.len();
        let mut config = ClientConfig::new(&urls[index], token, platform, device);
        config.tls.clone_from(&self.tls[index]);
        config.state = store::StorePath::Path(self.state.join(format!("{user}.sqlite")));
        config.catch_up = CatchUp::Everything;
        Ok(Client::connect(config).await?)
    }

    /// Shows messages until `stop`; some receivers leave now and then, and come back.
    pub(super) async fn receive(
        self: Arc<Self>,
        pair: u32,
        book: Arc<Book>,
        stop: CancellationToken,
    ) -> Result<()> {
        let user = self.users[pair as usize].receiver;
        let wanders = pair % 100 < self.plan.away;
        let stay = self.plan.away_for;
        let mut first = true;
        while !stop.is_cancelled() {
            let permit = self.sign_in_permits.acquire().await?;
            let (client, mut events) = self.sign_in(user, Platform::Ios).await?;
            if first {
                client.ready().await.map_err(anyhow::Error::msg)?;
                self.present.add_permits(1);
                first = false;
            }
            drop(permit);
            let leave = wanders.then(|| Instant::now() + stay);
            let display = show(&mut events, &book, leave, wanders);
            stop.run_until_cancelled(display).await.transpose()?;
            events.taken();
            client.close().await;
            drop(events);
            stop.run_until_cancelled(sleep(stay)).await;
        }
        Ok(())
    }

    /// Sends at the pair's share of the rate until `enough`, drops `done_sender`, then waits for
    /// the answers until `stop`.
    pub(super) async fn send(
        self: Arc<Self>,
        pair: u32,
        book: Arc<Book>,
        done_sender: mpsc::Sender<()>,
        enough: CancellationToken,
        stop: CancellationToken,
    ) -> Result<()> {
        let Pair {
            sender: from,
            receiver: to,
        } = self.users[pair as usize];
        let (client, mut events) = self.sign_in(from, Platform::Desktop).await?;
        // The send tickets report everything else.
        let resets = book.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Event::Reset(_) = event {
                    resets.reset();
                }
            }
        });
        let (follow, tickets) = mpsc::channel(OPEN_MAX);
        let follower = follow_tickets(client.clone(), tickets, book.clone(), stop);
        let follower = tokio::spawn(follower);
        let interval = Duration::from_secs_f64(f64::from(self.pairs()) / self.plan.rate);
        let phase = interval.mul_f64(f64::from(pair) / f64::from(self.pairs()));
        let mut due_at = Instant::now() + phase;
        loop {
            // A message with a number is always sent: the loop ends between two messages only.
            let room = async {
                sleep_until(due_at).await;
                follow.reserve().await
            };
            let Some(room) = enough.run_until_cancelled(room).await else {
                break;
            };
            let Ok(room) = room else {
                bail!("the sender's client ended");
            };
            due_at += interval;
            let number = book.send();
            let content = Content {
                data: body(number, self.plan.bytes),
                ..Content::text("")
            };
            let ticket = client.send(Recipient::User(to), content).await?;
            room.send((number, ticket));
        }
        drop(done_sender);
        drop(follow);
        follower.await??;
        client.close().await;
        Ok(())
    }
}

/// Waits for each answer, in order, until `stop`; failed sends are retried, as a person would.
async fn follow_tickets(
    client: Client,
    mut tickets: mpsc::Receiver<(u64, SendTicket)>,
    book: Arc<Book>,
    stop: CancellationToken,
) -> Result<()> {
    while let Some((number, mut ticket)) = tickets.recv().await {
        let answer = accepted(&client, number, &mut ticket, &book);
        let Some(id) = stop.run_until_cancelled(answer).await else {
            let (status, state) = (ticket.status(), client.state().borrow().clone());
            errln!("message {number} is open at the end: {status:?}, its client {state:?}");
            break;
        };
        book.accepted(number, id?);
    }
    Ok(())
}

async fn accepted(
    client: &Client,
    number: u64,
    ticket: &mut SendTicket,
    book: &Book,
) -> Result<String> {
    loop {
        match ticket.accepted().await {
            Ok(id) => return Ok(id.to_string()),
            Err(refusal) if matches!(*client.state().borrow(), ConnectionState::Closed(_)) => {
                bail!("a sender was disconnected: {refusal}")
            }
            Err(refusal) => {
                errln!("message {number} is sent again: {refusal}");
                book.count_retry();
                sleep(TRY_AGAIN).await;
                client.retry(ticket.send_id()).await?;
            }
        }
    }
}

/// Shows messages until it is time to leave.
async fn show(
    events: &mut Events,
    book: &Book,
    leave: Option<Instant>,
    wanders: bool,
) -> Result<()> {
    loop {
        let event = tokio::select! {
            biased;
            // Events may come without a pause.
            () = sleep_until_leave(leave) => return Ok(()),
            event = events.next() => event,
        };
        match event {
            Some(Event::Message(message)) if message.origin == Origin::Other => {
                let (number, sent_at) = read(&message)?;
                let latency = SystemClock.now().millis() - sent_at;
                let latency = u64::try_from(latency).ok().filter(|_| !wanders);
                book.count_shown(number, latency);
            }
            Some(Event::State(ConnectionState::Closed(reason))) => {
                bail!("a receiver was disconnected: {reason}")
            }
            Some(Event::Reset(_)) => book.reset(),
            Some(Event::Gap {
                conversation,
                from,
                to,
                ..
            }) => {
                bail!("{conversation}: {from} to {to} were skipped")
            }
            Some(_) => {}
            None => bail!("a receiver's client ended"),
        }
    }
}

async fn sleep_until_leave(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Body of a message: number and time of sending, padded to the size.
fn body(number: u64, bytes: usize) -> Bytes {
    let mut body = BytesMut::with_capacity(bytes.max(16));
    body.put_u64(number);
    body.put_i64(SystemClock.now().millis());
    body.resize(bytes.max(16), b'.');
    body.freeze()
}

fn read(message: &ShownMessage) -> Result<(u64, i64)> {
    let data = &message.placed.message.content.data;
    let number = data.first_chunk::<8>().copied().map(u64::from_be_bytes);
    let sent_at = (data.get(8..16)).and_then(|bytes| bytes.try_into().ok());
    match (number, sent_at.map(i64::from_be_bytes)) {
        (Some(number), Some(sent_at)) => Ok((number, sent_at)),
        _ => bail!("a message that this bench did not send: choose another --first-user"),
    }
}
