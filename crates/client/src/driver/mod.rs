//! The client on tokio: one task that drives a [`Core`](crate::core::Core) over a socket and a
//! store.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # use client::{Client, ClientConfig, Event};
//! # use protocol::{DeviceId, Platform, Recipient, UserId, message::Content};
//! let config = ClientConfig::new("ws://127.0.0.1:9000", "token", Platform::Desktop, DeviceId::new("d1")?);
//! let (client, mut events) = Client::connect(config).await?;
//! // Send: durable once accepted.
//! let mut ticket = client.send(Recipient::User(UserId::new(2)?), Content::text("hello")).await?;
//! let id = ticket.accepted().await?;
//! // Listen: each message once, in order; asking for the next one says that this one is done.
//! while let Some(event) = events.next().await {
//!     if let Event::Message(shown) = event { drop(shown.placed) }
//! }
//! client.close().await;
//! # drop(id); Ok(()) }
//! ```

mod address;
mod clock;
mod connection;
mod dial;
mod edge_book;
mod engine;
mod events;
mod handlers;
mod route;
mod store_worker;
#[cfg(test)]
mod tests;
mod ticket;
mod tls;
mod token;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::change::{ChangeKind, ChangeOf, ListArrangement};
use protocol::frame::{
    CountSince, HistoryPage, MemberPage, MissedPage, PinPage, Summary, SyncAnswer, SyncQuery,
};
use protocol::group::{self, GroupCommand};
use protocol::loaded_ranges::OlderRange;
use protocol::message::Content;
use protocol::{
    Code, ConversationId, DeviceId, GroupId, MessageId, Platform, Recipient, Refusal, SendId, Seq,
    Timestamp, UserId,
};
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

pub use crate::core::Event;
pub use address::{Address, AddressError};
pub use dial::{ByteStream, Dial, TcpDial};
pub use events::Events;
pub use handlers::Handlers;
pub use route::{EdgeConfig, EdgeSource};
pub use ticket::SendTicket;
pub use token::TokenSource;

use crate::core::{CatchUp, ConnectionState, Limits, SendError, Settings};
use crate::store::{self, Durability, Store, StoreError};
use route::Route;

/// Configuration of a client: address, identity, storage and limits.
#[derive(Clone)]
pub struct ClientConfig {
    /// `wss://host[:port]/ws` or `tls://host:port`; without TLS `ws://host:port` or
    /// `tcp://host:port`. May be empty with `edges`.
    pub url: String,
    /// Source of addresses, as stations name them. `url` is then used if no edge is known, and
    /// takes turns with edges once all have failed.
    pub edges: Option<EdgeConfig>,
    /// Opens the byte streams below connections: by TCP, or e.g. through a proxy.
    pub dial: Arc<dyn Dial>,
    /// Trust and cryptography for addresses that ask for TLS. ALPN is replaced: `http/1.1` for
    /// `wss`, `packetboat.v1` for `tls`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// May be empty with a `token_source`.
    pub token: String,
    /// Asked for a new token after four fifths of the life of the current one, and once that has
    /// ended: the session goes on with it. Without a source, the session ends with its token.
    pub token_source: Option<Arc<dyn TokenSource>>,
    pub platform: Platform,
    pub device: DeviceId,
    /// Location of cursors and outbox.
    pub state: store::StorePath,
    /// Durability of their commits.
    pub durability: Durability,
    /// False: the client shows messages, but neither records nor acknowledges that it has them.
    pub acks: bool,
    /// Missed messages to show.
    pub catch_up: CatchUp,
    /// Handlers for the application's own message types.
    pub handlers: Handlers,
    pub limits: Limits,
    /// Time limit for opening a connection.
    pub connect_timeout: Duration,
    /// Largest frame accepted from the server, in bytes; a larger one ends the connection.
    pub frame_bytes_max: usize,
    /// Time of day at the start; from then on the runtime's timer counts. `None`: the machine's.
    pub starts_at: Option<Timestamp>,
    /// Seed of everything that the client draws: the jitter of its pauses, the ids of its sends and
    /// groups. `None`: the operating system's chance, which every program wants; a test may want to
    /// be repeated. No two clients of a cluster may have the same.
    pub seed: Option<u64>,
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("url", &self.url)
            .field("edges", &self.edges.is_some())
            .field("tls", &self.tls.is_some())
            .field("token", &protocol::Hidden::of(&self.token))
            .field("token_source", &self.token_source.is_some())
            .field("platform", &self.platform)
            .field("device", &self.device)
            .field("state", &self.state)
            .field("durability", &self.durability)
            .field("acks", &self.acks)
            .field("catch_up", &self.catch_up)
            .field("handlers", &self.handlers)
            .finish_non_exhaustive()
    }
}

impl ClientConfig {
    /// Configuration that keeps nothing beyond the process and catches up with everything.
    pub fn new(
        url: impl Into<String>,
        token: impl Into<String>,
        platform: Platform,
        device: DeviceId,
    ) -> ClientConfig {
        ClientConfig {
            url: url.into(),
            edges: None,
            dial: Arc::new(TcpDial),
            tls: None,
            token: token.into(),
            token_source: None,
            platform,
            device,
            state: store::StorePath::Memory,
            durability: Durability::default(),
            acks: true,
            catch_up: CatchUp::Everything,
            handlers: Handlers::default(),
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(30),
            frame_bytes_max: 16 << 20,
            starts_at: None,
            seed: None,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            token: self.token.clone(),
            renews_token: self.token_source.is_some(),
            platform: self.platform,
            device: self.device.clone(),
            acks: self.acks,
            catch_up: self.catch_up,
            limits: self.limits.clone(),
        }
    }
}

/// Reason for a client not to start.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("{0} needs TLS, but no root certificates are set: set `ClientConfig::tls`")]
    Trust(Address),
    #[error("{0} needs TLS, but no certificate can cover this host name")]
    Host(Address),
    #[error("{0} is without TLS, but a list of edges needs TLS: use wss:// or tls://")]
    Plain(Address),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the thread that opens the state was ended")]
    Aborted,
}

/// Reason for a command to have no effect.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The client has ended; its last state says why.
    #[error("the client is closed: {0}")]
    Closed(Refusal),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Refused(Refusal),
}

/// A running client. Clones are handles of the same one. Ends by [`close`](Self::close), by a
/// terminal refusal, or when all handles and its [`Events`] are dropped.
#[derive(Clone, Debug)]
pub struct Client {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<ConnectionState>,
    list: watch::Receiver<ConversationList>,
    /// For the ids of new groups.
    chance: Arc<Mutex<StdRng>>,
}

/// Conversations of the user, as far as this device knows them, including those taken from the list
/// and groups the user left: see [`Summary::is_on_list`].
pub type ConversationList = BTreeMap<ConversationId, Summary>;

/// Commands that wait for the client's task; beyond, callers wait.
const COMMANDS_MAX: usize = 256;

#[derive(Debug)]
enum Command {
    Send {
        to: Recipient,
        content: Content,
        reply: oneshot::Sender<Result<SendTicket, SendError>>,
    },
    Retry(SendId, oneshot::Sender<bool>),
    GiveUp(SendId, oneshot::Sender<bool>),
    Read(ConversationId, Seq, MessageId),
    LoadOlder {
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
        reply: oneshot::Sender<Result<HistoryPage, Refusal>>,
    },
    Ask {
        query: SyncQuery,
        reply: oneshot::Sender<Result<SyncAnswer, Refusal>>,
    },
    Edges(ConversationId, oneshot::Sender<Vec<Seq>>),
    Older(ConversationId, Seq, oneshot::Sender<OlderRange>),
    Close(oneshot::Sender<()>),
}

impl Client {
    /// Opens the device's state and starts to connect. Does not wait for the connection: sends go
    /// into the outbox meanwhile; [`ready`](Self::ready) waits.
    ///
    /// # Errors
    /// An invalid address, one without what its TLS needs, or state that cannot be opened (in use
    /// by another process, …).
    pub async fn connect(config: ClientConfig) -> Result<(Client, Events), ConnectError> {
        let route = Route::new(&config).await?;
        let (state, platform, device) =
            (config.state.clone(), config.platform, config.device.clone());
        let durability = config.durability;
        // Apart from what the engine draws.
        let chance = Arc::new(Mutex::new(chance(config.seed.map(|seed| !seed))));
        let is_in_memory = matches!(state, store::StorePath::Memory);
        let opened = store_worker::run(is_in_memory, move || {
            let store = Store::open(&state, platform, &device, durability)?;
            let saved = store.load()?;
            Ok::<_, StoreError>((store, saved))
        });
        let (store, saved) = opened.await.map_err(|_| ConnectError::Aborted)??;
        let (commands, command_queue) = mpsc::channel(COMMANDS_MAX);
        let (feed, events) = events::channel(config.limits.untaken_max, config.handlers.clone());
        let (state_sender, state) = watch::channel(ConnectionState::Idle);
        let (list_sender, list) = watch::channel(ConversationList::new());
        let engine =
            engine::Engine::new(config, route, store, saved, feed, state_sender, list_sender);
        tokio::spawn(engine.run(command_queue));
        let client = Client {
            commands,
            state,
            list,
            chance,
        };
        Ok((client, events))
    }

    /// Puts a message into the outbox. The ticket shows its progress.
    pub async fn send(&self, to: Recipient, content: Content) -> Result<SendTicket, ClientError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Send { to, content, reply };
        Ok(self.ask(command, answer).await??)
    }

    /// Requests a change of a message. `content` is the new content of an edit, and unused by other
    /// kinds. The change is done once its ticket is *placed*.
    pub async fn change(
        &self,
        to: Recipient,
        subject: MessageId,
        kind: ChangeKind,
        content: Content,
    ) -> Result<SendTicket, ClientError> {
        let content = Content {
            change: Some(Box::new(ChangeOf {
                subject: Some(subject),
                kind,
            })),
            ..content
        };
        self.send(to, content).await
    }

    /// Takes a conversation from the user's list, on all devices. If a message comes that this
    /// device has not seen, the ticket fails and the conversation stays. Its messages are kept.
    pub async fn clear(&self, with: Recipient) -> Result<SendTicket, ClientError> {
        self.about_list(with, ChangeKind::Clear).await
    }

    /// Takes every conversation from the list of `me`, each as [`clear`](Client::clear) does: those
    /// with messages this device has not seen stay.
    pub async fn clear_all(&self, me: UserId) -> Vec<Result<SendTicket, ClientError>> {
        let listed: Vec<Recipient> = {
            let list = self.list.borrow();
            let listed = list.iter().filter(|(_, row)| row.newest.is_some());
            let listed = listed.filter(|(_, row)| row.seq > row.cleared_seq);
            listed
                .filter_map(|(conversation, _)| conversation.other_than(me))
                .collect()
        };
        let mut tickets = Vec::with_capacity(listed.len());
        for with in listed {
            tickets.push(self.clear(with).await);
        }
        tickets
    }

    /// Pins or mutes a conversation in the user's list, on all devices.
    pub async fn arrange(
        &self,
        with: Recipient,
        arranged: ListArrangement,
    ) -> Result<SendTicket, ClientError> {
        self.about_list(with, ChangeKind::Arrange(arranged)).await
    }

    /// Hides a message from the user for good, on all devices, also later ones; nobody else
    /// notices.
    pub async fn hide(
        &self,
        with: Recipient,
        message: MessageId,
    ) -> Result<SendTicket, ClientError> {
        let nothing = Content::text("");
        self.change(with, message, ChangeKind::Hide, nothing).await
    }

    /// Sends a group command. It is done once the ticket is *placed*; a failed ticket says why not.
    pub async fn group_command(
        &self,
        group: GroupId,
        command: GroupCommand,
    ) -> Result<SendTicket, ClientError> {
        let content = Content {
            change: Some(Box::new(ChangeOf {
                subject: None,
                kind: ChangeKind::GroupCommand(command),
            })),
            ..Content::text("")
        };
        self.send(Recipient::Group(group), content).await
    }

    /// Creates a group with these members and this user as its owner. It exists once the ticket is
    /// *placed*; messages sent to it before may be refused.
    pub async fn create_group(
        &self,
        settings: group::GroupSettings,
        members: Vec<UserId>,
    ) -> Result<(GroupId, SendTicket), ClientError> {
        let group = new_group(&mut self.chance.lock());
        let command = GroupCommand::Create { settings, members };
        Ok((group, self.group_command(group, command).await?))
    }

    /// Members of a group behind `after`, in order of user; as many as the server gives in one
    /// page.
    pub async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
    ) -> Result<MemberPage, ClientError> {
        let query = SyncQuery::Members {
            group,
            after,
            limit: 0,
        };
        self.ask_server(query, |answer| match answer {
            SyncAnswer::Members(page) => Some(page),
            _ => None,
        })
        .await
    }

    /// Members of a group who have read up to `seq`.
    pub async fn readers(&self, group: GroupId, seq: Seq) -> Result<Vec<UserId>, ClientError> {
        self.ask_server(SyncQuery::Readers { group, seq }, |answer| match answer {
            SyncAnswer::Readers(readers) => Some(readers),
            _ => None,
        })
        .await
    }

    /// Private messages of all conversations behind `after`, in order of id; `None`: from slightly
    /// before the last one that the server knows this user received. As many as the server gives in
    /// one page; hidden ones have no content.
    pub async fn missed(&self, after: Option<MessageId>) -> Result<MissedPage, ClientError> {
        self.ask_server(
            SyncQuery::Missed { after, limit: 0 },
            |answer| match answer {
                SyncAnswer::Missed(page) => Some(page),
                _ => None,
            },
        )
        .await
    }

    /// Pins a message in its conversation, for everybody, or takes the pin off. In a group its owner
    /// and administrators may: from others the ticket fails.
    pub async fn pin(
        &self,
        with: Recipient,
        message: MessageId,
        on: bool,
    ) -> Result<SendTicket, ClientError> {
        let nothing = Content::text("");
        self.change(with, message, ChangeKind::Pin { on }, nothing)
            .await
    }

    /// Pinned messages of a conversation before `before`, newest first; as many as the server gives
    /// in one page. To stay up to date, apply the changes behind the page's `rev`.
    pub async fn pins(
        &self,
        conversation: ConversationId,
        before: Option<Seq>,
    ) -> Result<PinPage, ClientError> {
        let query = SyncQuery::Pins {
            conversation,
            before,
            limit: 0,
        };
        self.ask_server(query, |answer| match answer {
            SyncAnswer::Pins(page) => Some(page),
            _ => None,
        })
        .await
    }

    /// Unread counts of the server, for every conversation that has any, page after page.
    pub async fn unread(&self) -> Result<Vec<(ConversationId, u64)>, ClientError> {
        let (mut counts, mut after) = (Vec::new(), None);
        loop {
            let page = self.ask_server(SyncQuery::Unread { after }, |answer| match answer {
                SyncAnswer::Unread(page) => Some(page),
                _ => None,
            });
            let page = page.await?;
            counts.extend(page.counts);
            after = page.next;
            if after.is_none() {
                return Ok(counts);
            }
        }
    }

    /// Number of messages in a group accepted after a time, as far as the server counts.
    pub async fn count_since(
        &self,
        group: GroupId,
        since: Timestamp,
    ) -> Result<CountSince, ClientError> {
        self.ask_server(
            SyncQuery::CountSince { group, since },
            |answer| match answer {
                SyncAnswer::CountSince(counted) => Some(counted),
                _ => None,
            },
        )
        .await
    }

    /// Sends a query, and takes the answer that belongs to it.
    async fn ask_server<T>(
        &self,
        query: SyncQuery,
        take: impl FnOnce(SyncAnswer) -> Option<T>,
    ) -> Result<T, ClientError> {
        let (reply, answer) = oneshot::channel();
        let answer = self.ask(Command::Ask { query, reply }, answer).await?;
        let taken = answer.and_then(|answer| take(answer).ok_or_else(another_answer));
        taken.map_err(ClientError::Refused)
    }

    async fn about_list(
        &self,
        with: Recipient,
        kind: ChangeKind,
    ) -> Result<SendTicket, ClientError> {
        let is_it = |conversation: &ConversationId| match (with, *conversation) {
            (Recipient::User(user), conversation) => conversation.side_of(user).is_some(),
            (Recipient::Group(group), conversation) => conversation == ConversationId::Group(group),
        };
        let newest = {
            let list = self.list.borrow();
            let row = list.iter().find(|(conversation, _)| is_it(conversation));
            row.and_then(|(_, row)| row.newest.as_ref().map(|newest| newest.message.id))
        };
        match newest {
            Some(newest) => self.change(with, newest, kind, Content::text("")).await,
            None => {
                let text = "this device has no message of that conversation";
                Err(ClientError::Refused(Refusal::new(Code::NotFound, text)))
            }
        }
    }

    /// The conversation list, now and as it changes.
    pub fn conversations(&self) -> watch::Receiver<ConversationList> {
        self.list.clone()
    }

    /// Retries a failed send under the same `send_id`. False: it has not failed.
    pub async fn retry(&self, send_id: SendId) -> Result<bool, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Retry(send_id, reply), answer).await
    }

    /// Takes a send that was not accepted out of the outbox, so that later ones go on. False: it is
    /// not there.
    pub async fn give_up(&self, send_id: SendId) -> Result<bool, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::GiveUp(send_id, reply), answer).await
    }

    /// Tells the sender that the user has read this message and all before it.
    pub async fn read(
        &self,
        conversation: ConversationId,
        seq: Seq,
        id: MessageId,
    ) -> Result<(), ClientError> {
        let command = Command::Read(conversation, seq, id);
        self.commands.send(command).await.map_err(|_| self.closed())
    }

    /// Messages before `before` (`None`: the newest), newest first; for showing on demand.
    pub async fn load_older(
        &self,
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
    ) -> Result<HistoryPage, ClientError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::LoadOlder {
            conversation,
            before,
            limit,
            reply,
        };
        self.ask(command, answer)
            .await?
            .map_err(ClientError::Refused)
    }

    /// Positions below which this device has messages to load, in ascending order: gaps that the
    /// user has not loaded yet. They outlast the process.
    pub async fn edges(&self, conversation: ConversationId) -> Result<Vec<Seq>, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.ask(Command::Edges(conversation, reply), answer).await
    }

    /// Source of the messages before this position: this device, none at the beginning, or
    /// [`load_older`](Self::load_older), for which an application shows a button.
    pub async fn older(
        &self,
        conversation: ConversationId,
        seq: Seq,
    ) -> Result<OlderRange, ClientError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Older(conversation, seq, reply);
        self.ask(command, answer).await
    }

    /// The connection state, now and as it changes.
    pub fn state(&self) -> watch::Receiver<ConnectionState> {
        self.state.clone()
    }

    /// Waits until the client is signed in and has caught up.
    ///
    /// # Errors
    /// The terminal refusal, if it comes first.
    pub async fn ready(&self) -> Result<(), Refusal> {
        let mut state = self.state();
        let reached = state
            .wait_for(|state| matches!(state, ConnectionState::Ready | ConnectionState::Closed(_)))
            .await;
        match reached.as_deref() {
            Ok(ConnectionState::Closed(why)) => Err(why.clone()),
            Ok(_) => Ok(()),
            Err(_) => Err(closed_by_us()),
        }
    }

    /// Ends the client: stores and acknowledges the events taken, and writes the frames left;
    /// within a few seconds if the server does not answer. Sends that are not accepted stay in the
    /// outbox.
    pub async fn close(&self) {
        let (reply, done) = oneshot::channel();
        if self.commands.send(Command::Close(reply)).await.is_ok() {
            // An error means the same: the client has ended.
            let _ = done.await;
        }
    }

    async fn ask<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<T>,
    ) -> Result<T, ClientError> {
        self.commands
            .send(command)
            .await
            .map_err(|_| self.closed())?;
        answer.await.map_err(|_| self.closed())
    }

    fn closed(&self) -> ClientError {
        ClientError::Closed(why_closed(&self.state))
    }
}

fn why_closed(state: &watch::Receiver<ConnectionState>) -> Refusal {
    match &*state.borrow() {
        ConnectionState::Closed(why) => why.clone(),
        _ => closed_by_us(),
    }
}

fn closed_by_us() -> Refusal {
    Refusal::new(Code::Unavailable, "closed by this program")
}

fn another_answer() -> Refusal {
    Refusal::new(Code::Unavailable, "an answer to another question")
}

/// Draws an id at random from more than there will ever be groups; if it is taken all the same, the
/// group is refused.
/// Chance of this seed, or of the operating system.
fn chance(seed: Option<u64>) -> StdRng {
    seed.map_or_else(StdRng::from_os_rng, StdRng::seed_from_u64)
}

fn new_group(chance: &mut StdRng) -> GroupId {
    loop {
        if let Ok(group) = GroupId::new(chance.random_range(1..=i64::MAX)) {
            return group;
        }
    }
}
