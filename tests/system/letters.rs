//! Dead letters: the operator who has them redriven, and their judge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use operator::dead_letters::{DeadLetters, Filter, Kind, Letter, Selection};
use protocol::bounds::Bounds;
use protocol::conversation::Head;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::message_row::Owner;
use protocol::record::Work;
use protocol::{ConversationId, Message, MessageId};
use tokio::time::{Instant, sleep_until};

use crate::judge::Stores;
use crate::scenes::SceneFaults;
use crate::world::World;

/// Pause between two redrives after the last one that the plan names.
const REDRIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Letters of one redrive, and of one page.
const LETTERS_MAX: usize = 1_000;

fn messages() -> Filter {
    Filter {
        kind: Some(Kind::Message),
        ..Filter::default()
    }
}

impl World {
    /// Has all open letters redriven whenever the plan says so, and then again and again.
    pub(crate) async fn redrive_letters(self: Arc<Self>, zero: Instant) {
        let redrives = self.plan.scene.redrives.clone();
        let Some(last) = redrives.last().copied() else {
            return;
        };
        let further_redrives = (1_u32..).map(|number| last + REDRIVE_INTERVAL * number);
        for at in redrives.into_iter().chain(further_redrives) {
            sleep_until(zero + at).await;
            self.redrive().await;
        }
    }

    async fn redrive(&self) {
        let selection = Selection::Filter {
            filter: Filter {
                redriven: Some(false),
                ..messages()
            },
            limit: LETTERS_MAX,
        };
        let backends = self.machine().backends.clone();
        let desk = DeadLetters::new(backends, self.settings.station.bounds());
        let task = Box::pin(desk.begin_redrive("operator", &selection)).await;
        match task {
            Ok(None) => {}
            Ok(Some(task)) => {
                let (id, count) = (task.id(), task.start.letters);
                self.trace.add(
                    "operator",
                    format_args!("asks to redrive {count} letters: {id}"),
                );
            }
            Err(refusal) => self
                .trace
                .add("operator", format_args!("is refused a redrive: {refusal}")),
        }
    }
}

/// Dead letters of messages, and what they mean for judges.
#[derive(Default)]
pub(crate) struct Letters {
    all: Vec<Letter>,
    /// For each message of which a record died: offset of the first record that counts, if any.
    first_offsets: BTreeMap<MessageId, Option<u64>>,
    heads: BTreeMap<ConversationId, Head>,
}

impl Letters {
    pub(crate) async fn read(
        backends: &Backends,
        bounds: Bounds,
        stores: &Stores,
    ) -> backend::Result<Letters> {
        let desk = DeadLetters::new(backends.clone(), bounds);
        let (filter, mut cursor) = (messages(), None);
        let mut letters = Letters::default();
        loop {
            let page = desk.list(&filter, cursor, LETTERS_MAX).await?;
            letters.all.extend(page.letters);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let open_ids = letters.open_ids();
        for id in letters.late_ids() {
            let offset = first_offset(backends, stores, id, open_ids.contains(&id)).await?;
            letters.first_offsets.insert(id, offset);
        }
        let conversations: Vec<ConversationId> = stores.conversations.keys().copied().collect();
        let heads = backends.heads.load(&conversations).await?;
        let heads = conversations.into_iter().zip(heads);
        letters.heads = heads.filter_map(|(id, head)| Some((id, head?))).collect();
        Ok(letters)
    }

    /// Letters of records that had a place in their conversation, or died without one.
    fn whole(&self) -> impl Iterator<Item = &Letter> {
        let letters = self.all.iter();
        letters.filter(|letter| letter.origin_topic == Topic::Message.name())
    }

    /// Messages of which a record died.
    pub(crate) fn late_ids(&self) -> BTreeSet<MessageId> {
        self.whole().filter_map(|letter| letter.message).collect()
    }

    /// Messages with a letter that nobody has redriven.
    pub(crate) fn open_ids(&self) -> BTreeSet<MessageId> {
        let open_letters = self.all.iter().filter(|letter| !letter.redriven);
        open_letters.filter_map(|letter| letter.message).collect()
    }

    /// Whether the model counts a record. Where one of its message died, those before the one that
    /// took effect do not count.
    pub(crate) fn counts(&self, offset: u64, work: &Work) -> bool {
        let id = work.message();
        let first_offset = id.and_then(|id| self.first_offsets.get(&id).copied());
        match first_offset {
            Some(first_offset) => first_offset.is_some_and(|first_offset| first_offset <= offset),
            None => true,
        }
    }

    /// Checks that an operator has dealt with each letter, or that without one only what the scene
    /// refuses died; that only poison died of a panic; that heads know of the deaths of messages; and
    /// that a change that is said to have died has a letter.
    pub(crate) fn judge(&self, scene: &SceneFaults, stores: &Stores) -> Result<(), String> {
        if scene.has_operator()
            && let Some(letter) = self.all.iter().find(|letter| !letter.redriven)
        {
            let (id, error) = (&letter.id, &letter.error);
            return Err(format!("letter {id} is left: {error}"));
        }
        let messages = stores.log.iter().filter_map(message);
        let messages: BTreeMap<MessageId, &Message> =
            messages.map(|message| (message.id, message)).collect();
        for letter in self.whole() {
            let message = letter.message.and_then(|id| messages.get(&id).copied());
            let Some(message) = message else {
                return Err(format!("letter {} is of no message", letter.id));
            };
            let mut poison = scene.poison.iter();
            let is_poison = poison.any(|poison| poison.send == message.send_id);
            if letter.reason == DeadReason::HandlerPanic && !is_poison {
                let id = message.id;
                return Err(format!("{id} died of the panic of another record"));
            }
            if !scene.has_operator() && !is_poison && !scene.refuses_send(message.send_id) {
                let id = message.id;
                return Err(format!(
                    "{id} died, and nobody refused it: {}",
                    letter.error
                ));
            }
            let head = message.conversation().and_then(|id| self.heads.get(&id));
            let is_known = head.is_some_and(|head| head.version.offset >= letter.origin_offset);
            if message.content.change.is_none() && !is_known {
                let id = message.id;
                return Err(format!("{id} died, and its head says {head:?}"));
            }
        }
        let mut parts = self.all.iter();
        let part = parts.find(|letter| letter.origin_topic != Topic::Message.name());
        if let Some(part) = part.filter(|_| !scene.has_operator()) {
            let (id, error) = (&part.id, &part.error);
            return Err(format!("letter {id} is of a delivery: {error}"));
        }
        let late_ids = self.late_ids();
        for (conversation, stored) in &stores.conversations {
            let mut died = stored.died.iter();
            if let Some((rev, id)) = died.find(|(_, id)| !late_ids.contains(*id)) {
                return Err(format!(
                    "{id} died as change {rev} of {conversation}, without a letter"
                ));
            }
        }
        Ok(())
    }
}

fn message(work: &Work) -> Option<&Message> {
    match work {
        Work::Message(task) => Some(&task.message),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

/// Offset of the first record that counts of a message of which one died. The row says which it is:
/// the first one, read again, or one that redrives a letter. A change without a row changed
/// nothing, by its last record, unless that one is a letter.
async fn first_offset(
    backends: &Backends,
    stores: &Stores,
    id: MessageId,
    is_open: bool,
) -> backend::Result<Option<u64>> {
    let records = stores.records();
    let records = records.filter_map(|(offset, work)| Some((offset, message(work)?)));
    let Some((last_offset, message)) = records.filter(|(_, message)| message.id == id).last()
    else {
        return Ok(None);
    };
    let Some(conversation) = message.conversation() else {
        return Ok(None);
    };
    let (from, send_id) = (message.from, message.send_id);
    if message.content.change.is_none() {
        let row = stores.rows.get(&(Owner::of(conversation, from), id));
        return Ok(row.map(|row| row.version.offset));
    }
    let stored = stores.conversations.get(&conversation);
    let last_rev = stored.map_or(0, |stored| stored.rev);
    let row = backends
        .changes
        .find_send(conversation, from, send_id, last_rev)
        .await?;
    Ok(match row.filter(|(_, change)| change.asked.id == id) {
        Some((version, _)) => Some(version.offset),
        None => (!is_open).then_some(last_offset),
    })
}
