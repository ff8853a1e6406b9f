//! A person with a device: the real client, with short words for tests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backend::clock::Clock;
use client::core::{CatchUp, ConnectionState, Limits, Origin, SendStatus, ShownMessage};
use client::{Client, ClientConfig, Dial, Event, Events, SendTicket};
use protocol::change::{ChangeKind, OrderedChange};
use protocol::frame::Summary;
use protocol::group::GroupSettings;
use protocol::message::Content;
use protocol::{
    Code, ConversationId, DeviceId, GroupId, MessageId, Platform, Recipient, Refusal, Seq, UserId,
};
use tokio::time::timeout;

use crate::system::TEST_TIMEOUT;

/// Group whose later members read only from there on, and that is joined only by invitation.
pub const CLOSED: GroupSettings = GroupSettings::CLOSED;

pub fn user(number: i64) -> UserId {
    UserId::new(number).expect("a user")
}

pub fn conversation(one: i64, other: i64) -> ConversationId {
    ConversationId::private(user(one), user(other)).expect("two users")
}

/// Device before it connects.
pub struct DeviceBuilder {
    websocket: String,
    tcp: String,
    config: ClientConfig,
    /// `None`: the machine's.
    clock: Option<Arc<dyn Clock>>,
}

impl DeviceBuilder {
    pub(crate) fn new(websocket: String, tcp: String, token: String) -> DeviceBuilder {
        let device = DeviceId::new("one").expect("a name");
        let mut config = ClientConfig::new(&websocket, token, Platform::Desktop, device);
        config.limits = Limits {
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_millis(200),
            refused_wait: Duration::from_millis(50),
            ..Limits::default()
        };
        DeviceBuilder {
            websocket,
            tcp,
            config,
            clock: None,
        }
    }

    /// Puts the device into a world: its connections, its clock and its chance.
    pub(crate) fn in_world(
        mut self,
        dial: Arc<dyn Dial>,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> DeviceBuilder {
        self.config.dial = dial;
        self.config.seed = Some(seed);
        self.clock = Some(clock);
        self
    }

    pub fn on(mut self, platform: Platform) -> DeviceBuilder {
        self.config.platform = platform;
        self
    }

    pub fn named(mut self, device: &str) -> DeviceBuilder {
        self.config.device = DeviceId::new(device).expect("a name");
        self
    }

    pub fn over_tcp(mut self) -> DeviceBuilder {
        self.config.url.clone_from(&self.tcp);
        self
    }

    pub fn over_websocket(mut self) -> DeviceBuilder {
        self.config.url.clone_from(&self.websocket);
        self
    }

    /// Makes the device show messages, but never acknowledge them.
    pub fn deaf(mut self) -> DeviceBuilder {
        self.config.acks = false;
        self
    }

    /// Makes any absence count as long, and shows only the `newest` messages.
    pub fn after_long(mut self, newest: u32) -> DeviceBuilder {
        self.config.catch_up = CatchUp::Recent(newest);
        self.config.limits.absence_max = Duration::ZERO;
        self
    }

    pub fn keeping(mut self, file: PathBuf) -> DeviceBuilder {
        self.config.state = client::store::StorePath::Path(file);
        self.config.durability = client::store::Durability::Process;
        self
    }

    /// Connects and waits until it has caught up.
    pub async fn ready(self) -> Device {
        let device = self.connect().await;
        timeout(TEST_TIMEOUT, device.client.ready())
            .await
            .expect("ready in time")
            .expect("signed in");
        device
    }

    pub async fn connect(mut self) -> Device {
        self.config.starts_at = self.clock.map(|clock| clock.now());
        let (client, events) = Client::connect(self.config).await.expect("a client");
        Device { client, events }
    }
}

/// Device at work.
pub struct Device {
    pub client: Client,
    pub events: Events,
}

impl Device {
    /// Sends, and waits until the send is accepted.
    pub async fn say(&self, to: i64, text: &str) -> MessageId {
        let mut ticket = self.write(to, text).await;
        accepted(&mut ticket).await
    }

    /// Sends to a group, and waits until the send is accepted.
    pub async fn say_in(&self, group: GroupId, text: &str) -> MessageId {
        let mut ticket = self.send(Recipient::Group(group), text).await;
        accepted(&mut ticket).await
    }

    /// Creates a group, and waits until it exists.
    pub async fn create_group(&self, settings: GroupSettings, members: &[i64]) -> GroupId {
        let members = members.iter().map(|number| user(*number)).collect();
        let result = self.client.create_group(settings, members).await;
        let (group, mut ticket) = result.expect("it is in the outbox");
        done(&mut ticket).await.expect("there is a group");
        group
    }

    /// Sends without waiting.
    pub async fn write(&self, to: i64, text: &str) -> SendTicket {
        self.send(Recipient::User(user(to)), text).await
    }

    /// As [`Device::write`], also to a group.
    pub async fn send(&self, to: Recipient, text: &str) -> SendTicket {
        let ticket = self.client.send(to, Content::text(text)).await;
        ticket.expect("it is in the outbox")
    }

    /// Changes a message, and waits until it is changed.
    pub async fn change(&self, to: Recipient, subject: MessageId, kind: ChangeKind, text: &str) {
        let change = self.client.change(to, subject, kind, Content::text(text));
        let mut ticket = change.await.expect("it is in the outbox");
        accepted(&mut ticket).await;
        reaches(&mut ticket, |s| matches!(s, SendStatus::Placed { .. })).await;
    }

    /// Waits until a row of its list satisfies `matches`.
    pub async fn lists(
        &self,
        condition: &str,
        conversation: ConversationId,
        matches: impl Fn(&Summary) -> bool,
    ) {
        let mut list = self.client.conversations();
        let matching_row = list.wait_for(|list| list.get(&conversation).is_some_and(&matches));
        if timeout(TEST_TIMEOUT, matching_row).await.is_err() {
            let row = self
                .client
                .conversations()
                .borrow()
                .get(&conversation)
                .cloned();
            panic!("never {condition}: {row:?}");
        }
    }

    /// Next message that this device did not send itself.
    pub async fn hear(&mut self) -> ShownMessage {
        self.next("a message", |event| match event {
            Event::Message(message) if message.origin != Origin::OwnHere => Some(message),
            Event::Gap { .. } | Event::Reset(_) => panic!("something is missing"),
            _ => None,
        })
        .await
    }

    /// Next change that this device hears of.
    pub async fn next_change(&mut self) -> OrderedChange {
        self.next("a change", |event| match event {
            Event::Changed {
                change: changed, ..
            } => Some(changed),
            _ => None,
        })
        .await
    }

    /// Next hidden messages that this device hears of.
    pub async fn next_hidden(&mut self) -> Vec<Seq> {
        self.next("hidden messages", |event| match event {
            Event::Hidden { seqs, .. } => Some(seqs),
            _ => None,
        })
        .await
    }

    /// Next event that `pick` accepts.
    async fn next<T>(&mut self, event_kind: &str, pick: impl Fn(Event) -> Option<T>) -> T {
        let search = async {
            loop {
                let event = self.events.next().await;
                if let Some(value) = pick(event.expect("the client goes on")) {
                    return value;
                }
            }
        };
        let Ok(value) = timeout(TEST_TIMEOUT, search).await else {
            panic!("no {event_kind} in time");
        };
        self.events.taken();
        value
    }

    /// Texts of the next messages.
    pub async fn hear_texts(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        for _ in 0..count {
            texts.push(text(&self.hear().await));
        }
        texts
    }

    /// Newest messages, as many as are shown after a long absence, and the gap before them.
    pub async fn newest_and_gap(&mut self, newest: usize) -> (Vec<Seq>, (Seq, Seq)) {
        let (mut shown_seqs, mut gap) = (Vec::new(), None);
        loop {
            if let (Some(gap), true) = (gap, shown_seqs.len() >= newest) {
                return (shown_seqs, gap);
            }
            match timeout(TEST_TIMEOUT, self.events.next())
                .await
                .expect("in time")
            {
                Some(Event::Message(message)) => shown_seqs.push(message.placed.position.seq),
                Some(Event::Gap { from, to, .. }) => gap = Some((from, to)),
                Some(_) => {}
                None => panic!("the client has ended"),
            }
            self.events.taken();
        }
    }

    /// Loads a gap, page by page, backward until `from`. Returns it in ascending order.
    pub async fn load_gap(&self, conversation: ConversationId, (from, to): (Seq, Seq)) -> Vec<Seq> {
        let (mut loaded_seqs, mut upper_bound) = (Vec::new(), to.next());
        while upper_bound > from {
            let limit = u32::try_from(upper_bound.0 - from.0).unwrap_or(u32::MAX);
            let page = self
                .client
                .load_older(conversation, Some(upper_bound), limit)
                .await;
            let messages = page.expect("a page").messages;
            loaded_seqs.extend(messages.iter().map(|placed| placed.position.seq));
            upper_bound = *loaded_seqs.last().expect("there is more");
        }
        loaded_seqs.reverse();
        loaded_seqs
    }

    /// Checks that for a while nothing comes that this device did not send itself.
    pub async fn hears_nothing(&mut self) {
        let next_message = async {
            loop {
                match self.events.next().await {
                    Some(Event::Message(message)) if message.origin != Origin::OwnHere => {
                        return message;
                    }
                    Some(_) => {}
                    None => std::future::pending().await,
                }
            }
        };
        if let Ok(message) = timeout(Duration::from_millis(150), next_message).await {
            panic!("{:?} came", text(&message));
        }
    }

    /// Waits for the end, and returns its code.
    pub async fn wait_closed(&self) -> Code {
        let mut state = self.client.state();
        let closed_state = timeout(
            TEST_TIMEOUT,
            state.wait_for(|s| matches!(s, ConnectionState::Closed(_))),
        )
        .await;
        match closed_state.expect("an end in time").as_deref() {
            Ok(ConnectionState::Closed(refusal)) => refusal.code,
            other => panic!("{other:?} is no end"),
        }
    }

    pub async fn close(mut self) {
        self.events.taken();
        self.client.close().await;
    }
}

pub fn text(message: &ShownMessage) -> String {
    String::from_utf8_lossy(&message.placed.message.content.data).into_owned()
}

pub async fn accepted(ticket: &mut SendTicket) -> MessageId {
    let id = timeout(TEST_TIMEOUT, ticket.accepted()).await;
    id.expect("an answer in time").expect("it is accepted")
}

/// Waits for the writer's verdict: placed, or refused.
pub async fn done(ticket: &mut SendTicket) -> Result<(), Refusal> {
    let position = timeout(TEST_TIMEOUT, ticket.placed()).await;
    position.expect("in time").map(|_| ())
}

/// Waits until the status satisfies `matches`.
pub async fn reaches(ticket: &mut SendTicket, matches: impl Fn(&SendStatus) -> bool) {
    let status_change = async {
        while !matches(&ticket.status()) {
            ticket.changed().await.expect("it goes on");
        }
    };
    if timeout(TEST_TIMEOUT, status_change).await.is_err() {
        panic!("it stays {:?}", ticket.status());
    }
}
