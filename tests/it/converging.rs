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
use tests::system::SOON;
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
    keeps: PathBuf,
    app: App,
    /// Messages the server accepted.
    accepted: BTreeSet<MessageId>,
    wrong: Vec<String>,
    chance: StdRng,
    said: usize,
    here: Option<Device>,
}

impl DeviceLife {
    fn new((user, platform, name): (i64, Platform, &str), keeps: PathBuf, seed: u64) -> DeviceLife {
        DeviceLife {
            user,
            platform,
            name: name.to_owned(),
            keeps,
            app: App::default(),
            accepted: BTreeSet::new(),
            wrong: Vec::new(),
            chance: StdRng::seed_from_u64(seed),
            said: 0,
            here: None,
        }
    }

    async fn come(&mut self, cluster: &Cluster) {
        let device = cluster.device(self.user).on(self.platform);
        let device = device.named(&self.name).keeping(self.keeps.clone());
        self.here = Some(device.connect().await);
    }

    /// Closes the device: messages it took are kept, and its unaccepted sends wait in the outbox.
    async fn go(&mut self) {
        if let Some(Device { client, mut events }) = self.here.take() {
            events.taken();
            client.close().await;
        }
    }

    /// Deletes the state: the device starts afresh.
    fn lose(&mut self) {
        std::fs::remove_file(&self.keeps).expect("it kept something");
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
            if self.chance.random_bool(0.15) {
                self.lose();
            }
            let away = Duration::from_millis(self.chance.random_range(0..150));
            tokio::time::sleep(away).await;
        }
    }

    /// Takes events for a moment.
    async fn listen(&mut self) {
        let moment = Instant::now() + Duration::from_millis(self.chance.random_range(0..60));
        let mut here = self.here.take().expect("it is here");
        while let Ok(event) = timeout_at(moment, here.events.next()).await {
            let event = event.expect("the client goes on");
            self.take(event);
        }
        self.here = Some(here);
    }

    fn take(&mut self, event: Event) {
        let of = match &event {
            Event::Message(shown) => Some(shown.placed.conversation),
            Event::Changed { conversation, .. } | Event::Gap { conversation, .. } => {
                Some(*conversation)
            }
            _ => None,
        };
        let wrong = match event {
            Event::Message(shown) => self.shown(shown),
            Event::Changed {
                conversation,
                changed,
                ..
            } => self.app.change(conversation, changed),
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
                    self.accepted.insert(id);
                }
                None
            }
            Event::Reset(reset) => Some(format!("{reset:?}")),
            Event::Receipt(_) | Event::State(_) => None,
        };
        self.wrong
            .extend(wrong.map(|wrong| format!("{wrong}, in {of:?}")));
    }

    fn shown(&mut self, shown: ShownMessage) -> Option<String> {
        let (of, seq) = (shown.placed.conversation, shown.placed.position.seq);
        if self.app.has(of, seq) {
            return Some(format!("shows {seq} again"));
        }
        self.app.show(shown)
    }

    async fn act(&mut self, group: GroupId) {
        let client = self.here.as_ref().expect("it is here").client.clone();
        let to = self.somebody(group);
        let told = match self.chance.random_range(0..16) {
            0..7 => {
                self.said += 1;
                let text = format!("{} of {}: {}", self.said, self.user, self.name);
                client.send(to, Content::text(text)).await.map(drop)
            }
            7..10 => self.change(&client).await,
            10 | 11 => self.read(&client).await,
            12 => match self.any_shown() {
                Some((to, said)) => client.hide(to, said.id).await.map(drop),
                None => Ok(()),
            },
            13 => client.clear(to).await.map(drop),
            14 => {
                let pinned = self.chance.random_bool(0.5);
                let muted_until = None;
                let arranged = ListArrangement {
                    pinned,
                    muted_until,
                };
                client.arrange(to, arranged).await.map(drop)
            }
            _ => {
                let command = match self.chance.random_range(0..4) {
                    0 => GroupCommand::Remove(user(3)),
                    1 | 2 => GroupCommand::Add(vec![user(3)]),
                    _ => GroupCommand::SetRole(user(2), Role::Admin),
                };
                client.group_command(group, command).await.map(drop)
            }
        };
        match told {
            // Nothing to clear, or a person known by name only.
            Ok(()) | Err(ClientError::Refused(_)) => {}
            Err(other) => self.wrong.push(format!("{other}")),
        }
    }

    fn somebody(&mut self, group: GroupId) -> Recipient {
        let others: Vec<_> = USERS.into_iter().filter(|it| *it != self.user).collect();
        match others.choose(&mut self.chance) {
            Some(other) if self.chance.random_bool(0.6) => Recipient::User(user(*other)),
            _ => Recipient::Group(group),
        }
    }

    /// Picks one of the newest few messages of any conversation.
    fn any_shown(&mut self) -> Option<(Recipient, ChatMessage)> {
        let shown: Vec<_> = self.app.conversations().collect();
        let of = *shown.choose(&mut self.chance)?;
        let said = self.app.said(of);
        let newest = &said[said.len().saturating_sub(4)..];
        let said = newest.choose(&mut self.chance)?.clone();
        Some((of.other_than(user(self.user))?, said))
    }

    async fn change(&mut self, client: &Client) -> Result<(), ClientError> {
        let Some((to, said)) = self.any_shown() else {
            return Ok(());
        };
        let is_own = said.from == user(self.user);
        let rules = self.user == 1 && matches!(to, Recipient::Group(_));
        let kind = match self.chance.random_range(0..4) {
            0 if is_own || rules => ChangeKind::Recall,
            1 if is_own => ChangeKind::Edit,
            2 => ChangeKind::Pin {
                on: self.chance.random_bool(0.7),
            },
            _ => ChangeKind::React {
                reaction: "+1".parse().expect("short"),
                on: self.chance.random_bool(0.7),
            },
        };
        let content = match kind {
            ChangeKind::Edit => Content::text(format!("{} edited it", self.name)),
            _ => Content::text(""),
        };
        let asked = client.change(to, said.id, kind, content);
        asked.await.map(|_: SendTicket| ())
    }

    async fn read(&mut self, client: &Client) -> Result<(), ClientError> {
        let shown: Vec<_> = self.app.conversations().collect();
        let Some(of) = shown.choose(&mut self.chance) else {
            return Ok(());
        };
        let said = self.app.said(*of);
        let last = said.last().expect("it shows something");
        client.read(*of, last.seq, last.id).await
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
        let here = self.here.as_ref().expect("it is here");
        let rows = here.client.conversations().borrow().clone();
        for (conversation, talk) in &model.talks {
            screen.check(*conversation, talk)?;
            let is_in = talk.group.as_ref().is_some_and(|group| group.is_in(me));
            if is_in || conversation.peer_of(me).is_some() {
                let key = [(me, *conversation)];
                let registers = cluster.backends.conversations.registers(&key);
                let read = registers.await.expect("the store answers")[0].read_seq;
                screen.check_row(*conversation, talk, rows.get(conversation), read)?;
                let mut pins = pins(&here.client, *conversation).await?;
                // A device that came after a clear has not heard of the conversation, nor of what is
                // hidden there. Any other hides it.
                let row = rows.get(conversation);
                if !row.is_some_and(Summary::is_on_list) {
                    let hidden = talk.hidden(me);
                    let of_it = pins.iter_mut().filter(|said| hidden.contains(&said.seq));
                    of_it.for_each(ChatMessage::hide);
                }
                let expected = talk.pins_of(*conversation, me);
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

async fn pins(client: &Client, of: ConversationId) -> Result<Vec<ChatMessage>, String> {
    let (mut pins, mut before) = (Vec::new(), None);
    loop {
        let page = client.pins(of, before).await;
        let mut page = page.map_err(|error| error.to_string())?;
        for placed in &page.messages {
            let marks = page.marks.remove(&placed.position.seq);
            pins.push(ChatMessage::of(placed, marks));
        }
        before = page.next;
        if before.is_none() {
            return Ok(pins);
        }
    }
}

async fn check(cluster: &Cluster, all: &[DeviceLife]) -> Result<(), String> {
    let model = Model::of(&cluster.accepted().await);
    for living in all {
        living.check(cluster, &model).await?;
    }
    Ok(())
}

async fn group_of(cluster: &Cluster) -> GroupId {
    let owner = cluster.device(1).named("first").ready().await;
    let group = owner.group_of(CLOSED, &[2, 3]).await;
    owner.close().await;
    group
}

async fn everybody_shows_what_the_log_comes_to(seed: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut cluster = Cluster::seeded(seed).await;
    let group = group_of(&cluster).await;
    let mut all: Vec<DeviceLife> = DEVICES
        .into_iter()
        .enumerate()
        .map(|(index, device)| {
            let keeps = folder.path().join(device.2);
            DeviceLife::new(device, keeps, seed * 100 + index as u64)
        })
        .collect();
    for round in 0..ROUNDS {
        join_all(all.iter_mut().map(|living| living.live(&cluster, group))).await;
        match round {
            0 => cluster.restart().await,
            _ => {
                let forgotten = cluster.backends.timeline.forget(group).await;
                forgotten.expect("it is forgotten");
            }
        }
    }
    for number in USERS {
        let name = format!("new-{number}");
        let keeps = folder.path().join(&name);
        let new = (number, Platform::Mini, name.as_str());
        all.push(DeviceLife::new(new, keeps, seed));
    }
    join_all(all.iter_mut().map(|living| living.come(&cluster))).await;
    let begun = Instant::now();
    loop {
        for _ in 0..5 {
            join_all(all.iter_mut().map(DeviceLife::listen)).await;
        }
        match check(&cluster, &all).await {
            Ok(()) => break,
            Err(what) if begun.elapsed() > SOON => panic!("seed {seed}: {what}"),
            Err(_) => {}
        }
    }
    let model = Model::of(&cluster.accepted().await);
    let changes = model.talks.values().map(|talk| talk.changes.len());
    let (done, changed) = (model.fates.len(), changes.sum::<usize>());
    assert!(done > 100 && changed > 5, "seed {seed}: {done}, {changed}");
    let log: BTreeSet<MessageId> = model.fates.into_keys().collect();
    for living in &mut all {
        assert_eq!(
            living.wrong,
            Vec::<String>::new(),
            "seed {seed}: {}",
            living.name
        );
        let lost: Vec<_> = living.accepted.difference(&log).collect();
        assert!(
            lost.is_empty(),
            "seed {seed}: {lost:?} were accepted and are lost"
        );
        living.go().await;
    }
    cluster.stop().await;
}

/// Seeds to run; `PACKETBOAT_SEEDS=100..140` gives more of them.
fn seeds() -> Range<u64> {
    let Ok(given) = std::env::var("PACKETBOAT_SEEDS") else {
        return 0..4;
    };
    let (first, end) = given.split_once("..").expect("a range");
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
