//! Devices of several users send, change, read and tidy up at random, all at once; they go away and
//! come back, and some lose their state. Everything beside the stores is lost, and the services
//! restart. In the end each device shows the model of the log, and so does one that was never
//! there.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use client::core::{SendStatus, ShownMessage};
use client::{Client, ClientError, Event, SendTicket};
use futures_util::future::join_all;
use protocol::change::{ChangeKind, ListArrangement};
use protocol::frame::Summary;
use protocol::group::{GroupCommand, Role};
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, Platform, Recipient};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tests::app::{App, ChatMessage};
use tests::model::Model;
use tests::person::{CLOSED, user};
use tests::screen::Screen;
use tests::system::TEST_TIMEOUT;
use tests::{Cluster, Device};
use tokio::time::{Instant, timeout_at};

/// User, platform and name of each device.
const DEVICES: [(i64, Platform, &str); 6] = [
    (1, Platform::Desktop, "desk"),
    (1, Platform::Ios, "phone"),
    (2, Platform::Web, "browser"),
    (2, Platform::Android, "handset"),
    (3, Platform::Desktop, "laptop"),
    (3, Platform::Pad, "pad"),
];
const USERS: [i64; 3] = [1, 2, 3];
/// Rounds in which every device comes, acts and goes.
const ROUNDS: usize = 3;
const STAYS: usize = 2;
const ACTIONS: usize = 12;

/// Device and its state, whether there or away.
struct DeviceLife {
    user: i64,
    platform: Platform,
    name: String,
    state_file: PathBuf,
    app: App,
    /// Messages the server accepted.
    accepted_ids: BTreeSet<MessageId>,
    findings: Vec<String>,
    rng: StdRng,
    message_count: usize,
    device: Option<Device>,
}

impl DeviceLife {
    fn new(
        (user, platform, name): (i64, Platform, &str),
        state_file: PathBuf,
        seed: u64,
    ) -> DeviceLife {
        DeviceLife {
            user,
            platform,
            name: name.to_owned(),
            state_file,
            app: App::default(),
            accepted_ids: BTreeSet::new(),
            findings: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            message_count: 0,
            device: None,
        }
    }

    async fn come(&mut self, cluster: &Cluster) {
        let device = cluster.device(self.user).on(self.platform);
        let device = device.named(&self.name).keeping(self.state_file.clone());
        self.device = Some(device.connect().await);
    }

    /// Closes the device: messages it took are kept, and its unaccepted sends wait in the outbox.
    async fn go(&mut self) {
        if let Some(Device { client, mut events }) = self.device.take() {
            events.taken();
            client.close().await;
        }
    }

    /// Deletes the state: the device starts afresh.
    fn lose(&mut self) {
        std::fs::remove_file(&self.state_file).expect("it kept something");
        self.app = App::default();
    }

    async fn live(&mut self, cluster: &Cluster, group: GroupId) {
        for _ in 0..STAYS {
            self.come(cluster).await;
            for _ in 0..ACTIONS {
                self.act(group).await;
                self.listen().await;
            }
            self.go().await;
            if self.rng.random_bool(0.15) {
                self.lose();
            }
            let pause = Duration::from_millis(self.rng.random_range(0..150));
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes events for a moment.
    async fn listen(&mut self) {
        let deadline = Instant::now() + Duration::from_millis(self.rng.random_range(0..60));
        let mut device = self.device.take().expect("it is here");
        while let Ok(event) = timeout_at(deadline, device.events.next()).await {
            let event = event.expect("the client goes on");
            self.take(event);
        }
        self.device = Some(device);
    }

    fn take(&mut self, event: Event) {
        let conversation_id = match &event {
            Event::Message(message) => Some(message.placed.conversation),
            Event::Changed { conversation, .. } | Event::Gap { conversation, .. } => {
                Some(*conversation)
            }
            _ => None,
        };
        let finding = match event {
            Event::Message(message) => self.show_message(message),
            Event::Changed {
                conversation,
                change,
                ..
            } => self.app.change(conversation, change),
            Event::Hidden {
                conversation, seqs, ..
            } => {
                self.app.hide(conversation, seqs);
                None
            }
            Event::Gap {
                conversation,
                from,
                to,
                ..
            } => self.app.skip(conversation, from, to),
            Event::Status { status, .. } => {
                if let SendStatus::Accepted { id } = status {
                    self.accepted_ids.insert(id);
                }
                None
            }
            Event::Reset(reset) => Some(format!("{reset:?}")),
            Event::Receipt(_) | Event::State(_) => None,
        };
        self.findings
            .extend(finding.map(|finding| format!("{finding}, in {conversation_id:?}")));
    }

    fn show_message(&mut self, message: ShownMessage) -> Option<String> {
        let (conversation, seq) = (message.placed.conversation, message.placed.position.seq);
        if self.app.has(conversation, seq) {
            return Some(format!("shows {seq} again"));
        }
        self.app.show(message)
    }

    async fn act(&mut self, group: GroupId) {
        let client = self.device.as_ref().expect("it is here").client.clone();
        let to = self.somebody(group);
        let result = match self.rng.random_range(0..16) {
            0..7 => {
                self.message_count += 1;
                let text = format!("{} of {}: {}", self.message_count, self.user, self.name);
                client.send(to, Content::text(text)).await.map(drop)
            }
            7..10 => self.change(&client).await,
            10 | 11 => self.read(&client).await,
            12 => match self.any_shown() {
                Some((to, message)) => client.hide(to, message.id).await.map(drop),
                None => Ok(()),
            },
            13 => client.clear(to).await.map(drop),
            14 => {
                let is_pinned = self.rng.random_bool(0.5);
                let muted_until = None;
                let arrangement = ListArrangement {
                    pinned: is_pinned,
                    muted_until,
                };
                client.arrange(to, arrangement).await.map(drop)
            }
            _ => {
                let command = match self.rng.random_range(0..4) {
                    0 => GroupCommand::Remove(vec![user(3)]),
                    1 | 2 => GroupCommand::Add(vec![user(3)]),
                    _ => GroupCommand::SetRole(user(2), Role::Admin),
                };
                client.group_command(group, command).await.map(drop)
            }
        };
        match result {
            // Nothing to clear, or a person known by name only.
            Ok(()) | Err(ClientError::Refused(_)) => {}
            Err(other) => self.findings.push(format!("{other}")),
        }
    }

    fn somebody(&mut self, group: GroupId) -> Recipient {
        let other_users: Vec<_> = USERS.into_iter().filter(|it| *it != self.user).collect();
        match other_users.choose(&mut self.rng) {
            Some(other) if self.rng.random_bool(0.6) => Recipient::User(user(*other)),
            _ => Recipient::Group(group),
        }
    }

    /// Picks one of the newest few messages of any conversation.
    fn any_shown(&mut self) -> Option<(Recipient, ChatMessage)> {
        let conversations: Vec<_> = self.app.conversations().collect();
        let conversation = *conversations.choose(&mut self.rng)?;
        let messages = self.app.said(conversation);
        let newest = &messages[messages.len().saturating_sub(4)..];
        let message = newest.choose(&mut self.rng)?.clone();
        Some((conversation.other_than(user(self.user))?, message))
    }

    async fn change(&mut self, client: &Client) -> Result<(), ClientError> {
        let Some((to, message)) = self.any_shown() else {
            return Ok(());
        };
        let is_own = message.from == user(self.user);
        let is_admin = self.user == 1 && matches!(to, Recipient::Group(_));
        let kind = match self.rng.random_range(0..4) {
            0 if is_own || is_admin => ChangeKind::Recall,
            1 if is_own => ChangeKind::Edit,
            2 => ChangeKind::Pin {
                on: self.rng.random_bool(0.7),
            },
            _ => ChangeKind::React {
                reaction: "+1".parse().expect("short"),
                on: self.rng.random_bool(0.7),
            },
        };
        let content = match kind {
            ChangeKind::Edit => Content::text(format!("{} edited it", self.name)),
            _ => Content::text(""),
        };
        let change = client.change(to, message.id, kind, content);
        change.await.map(|_: SendTicket| ())
    }

    async fn read(&mut self, client: &Client) -> Result<(), ClientError> {
        let conversations: Vec<_> = self.app.conversations().collect();
        let Some(conversation) = conversations.choose(&mut self.rng) else {
            return Ok(());
        };
        let messages = self.app.said(*conversation);
        let last = messages.last().expect("it shows something");
        client.read(*conversation, last.seq, last.id).await
    }

    /// Checks that it shows the model of the log.
    async fn check(&self, cluster: &Cluster, model: &Model) -> Result<(), String> {
        let me = user(self.user);
        let screen = Screen {
            name: &self.name,
            user: me,
            app: &self.app,
            is_listed: false,
        };
        let device = self.device.as_ref().expect("it is here");
        let rows = device.client.conversations().borrow().clone();
        for (conversation, talk) in &model.talks {
            screen.check(*conversation, talk)?;
            let is_in = talk.group.as_ref().is_some_and(|group| group.is_in(me));
            if is_in || conversation.peer_of(me).is_some() {
                let key = [(me, *conversation)];
                let registers = cluster.backends.conversations.registers(&key);
                let read = registers.await.expect("the store answers")[0].read_seq;
                screen.check_row(*conversation, talk, rows.get(conversation), read)?;
                let mut pins = pins(&device.client, *conversation).await?;
                // A device that came after a clear has not heard of the conversation, nor of what is
                // hidden there. Any other hides it.
                let row = rows.get(conversation);
                if !row.is_some_and(Summary::is_on_list) {
                    let hidden_seqs = talk.hidden(me);
                    let hidden_pins = pins
                        .iter_mut()
                        .filter(|message| hidden_seqs.contains(&message.seq));
                    hidden_pins.for_each(ChatMessage::hide);
                }
                let expected = talk.user_pins(*conversation, me);
                if Some(&pins) != expected.as_ref() {
                    return Err(format!(
                        "{} is told of pins {pins:?} of {conversation}, the log says {expected:?}",
                        self.name
                    ));
                }
            }
        }
        Ok(())
    }
}

async fn pins(client: &Client, conversation: ConversationId) -> Result<Vec<ChatMessage>, String> {
    let (mut pins, mut cursor) = (Vec::new(), None);
    loop {
        let page = client.pins(conversation, cursor).await;
        let mut page = page.map_err(|error| error.to_string())?;
        for placed in &page.messages {
            let marks = page.marks.remove(&placed.position.seq);
            pins.push(ChatMessage::of(placed, marks));
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(pins);
        }
    }
}

async fn check(cluster: &Cluster, devices: &[DeviceLife]) -> Result<(), String> {
    let model = Model::of(&cluster.accepted().await);
    for device in devices {
        device.check(cluster, &model).await?;
    }
    Ok(())
}

async fn create_group(cluster: &Cluster) -> GroupId {
    let owner = cluster.device(1).named("first").ready().await;
    let group = owner.create_group(CLOSED, &[2, 3]).await;
    owner.close().await;
    group
}

async fn everybody_shows_what_the_log_comes_to(seed: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut cluster = Cluster::seeded(seed).await;
    let group = create_group(&cluster).await;
    let mut devices: Vec<DeviceLife> = DEVICES
        .into_iter()
        .enumerate()
        .map(|(index, spec)| {
            let state_file = folder.path().join(spec.2);
            DeviceLife::new(spec, state_file, seed * 100 + index as u64)
        })
        .collect();
    for round in 0..ROUNDS {
        join_all(
            devices
                .iter_mut()
                .map(|device| device.live(&cluster, group)),
        )
        .await;
        match round {
            0 => cluster.restart().await,
            _ => {
                let result = cluster.backends.timeline.forget(group).await;
                result.expect("it is forgotten");
            }
        }
    }
    for number in USERS {
        let name = format!("new-{number}");
        let state_file = folder.path().join(&name);
        let spec_of_new = (number, Platform::Mini, name.as_str());
        devices.push(DeviceLife::new(spec_of_new, state_file, seed));
    }
    join_all(devices.iter_mut().map(|device| device.come(&cluster))).await;
    let started_at = Instant::now();
    loop {
        for _ in 0..5 {
            join_all(devices.iter_mut().map(DeviceLife::listen)).await;
        }
        match check(&cluster, &devices).await {
            Ok(()) => break,
            Err(finding) if started_at.elapsed() > TEST_TIMEOUT => panic!("seed {seed}: {finding}"),
            Err(_) => {}
        }
    }
    let model = Model::of(&cluster.accepted().await);
    let changes = model.talks.values().map(|talk| talk.changes.len());
    let (record_count, change_count) = (model.fates.len(), changes.sum::<usize>());
    assert!(
        record_count > 100 && change_count > 5,
        "seed {seed}: {record_count}, {change_count}"
    );
    let log: BTreeSet<MessageId> = model.fates.into_keys().collect();
    for device in &mut devices {
        assert_eq!(
            device.findings,
            Vec::<String>::new(),
            "seed {seed}: {}",
            device.name
        );
        let lost_ids: Vec<_> = device.accepted_ids.difference(&log).collect();
        assert!(
            lost_ids.is_empty(),
            "seed {seed}: {lost_ids:?} were accepted and are lost"
        );
        device.go().await;
    }
    cluster.stop().await;
}

/// Seeds to run; `PACKETBOAT_SEEDS=100..140` gives more of them.
fn seeds() -> Range<u64> {
    let Ok(range_text) = std::env::var("PACKETBOAT_SEEDS") else {
        return 0..4;
    };
    let (first, end) = range_text.split_once("..").expect("a range");
    let number = |text: &str| text.parse().expect("a number");
    number(first)..number(end)
}

// proves S2-01, S0-02, S4-34, S4-35 on the whole system, in memory and on the real parts.
// proves S3-41: what is unread is right when everything beside the stores is lost.
#[tokio::test]
async fn every_device_comes_to_what_the_log_says() {
    for seed in seeds() {
        Box::pin(everybody_shows_what_the_log_comes_to(seed)).await;
    }
}
