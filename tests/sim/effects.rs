//! Everything outside the processes, as a fold over effects: a crash of the whole machine keeps a
//! prefix of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use operator::dead_letters::rules::OperationEntry;
use protocol::change::{ChangeRow, ListArrangement, Overlay};
use protocol::conversation::{ConversationRow, Head};
use protocol::group::{GroupInfo, Member};
use protocol::history::{RowStatus, Version};
use protocol::keys::Topic;
use protocol::ledger::LedgerEntry;
use protocol::mailbox::{
    Bodies, ConnectAnswer, ConnectRequest, Dedupe, DedupeAnswer, DedupeKey, FirstSend, Mailbox,
    MailboxChange, MailboxPolicy, NewSession, Policies, ReassertAnswer, RouteAnswer, RouteRequest,
};
use protocol::message::Target;
use protocol::message_row::{MessageRow, Owner};
use protocol::presence::SessionKey;
use protocol::receipt::ReceiptKind;
use protocol::record::Task;
use protocol::unread::Tally;
use protocol::writer::{ListOp, ListOpKind};
use protocol::{ConversationId, GroupId, MessageId, Platform, Seq, Timestamp, UserId};

use crate::groups::StoredGroup;
use crate::letters::Letter;

/// Topic and partition.
pub(crate) type Place = (Topic, u32);

/// One change of the world outside, atomic.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Append {
        place: Place,
        task: Arc<Task>,
    },
    Commit {
        place: Place,
        next: u64,
    },
    Rows(Vec<MessageRow>),
    Head {
        conversation: ConversationId,
        head: Head,
    },
    ConversationRows(Vec<ConversationRow>),
    Status {
        owner: UserId,
        id: MessageId,
        kind: ReceiptKind,
        at: Timestamp,
    },
    Read {
        owner: UserId,
        conversation: ConversationId,
        seq: Seq,
        at: Timestamp,
    },
    Cleared {
        owner: UserId,
        conversation: ConversationId,
        up_to: Tally,
        at: Timestamp,
    },
    Arranged {
        owner: UserId,
        conversation: ConversationId,
        version: Version,
        arrangement: ListArrangement,
        at: Timestamp,
    },
    Hidden {
        owner: UserId,
        conversation: ConversationId,
        mark: u64,
        seq: Seq,
    },
    /// Moves the register of hidden messages up to `mark`.
    HiddenTo {
        owner: UserId,
        conversation: ConversationId,
        mark: u64,
        at: Timestamp,
    },
    Member {
        group: GroupId,
        user: UserId,
        member: Member,
    },
    Info {
        group: GroupId,
        info: GroupInfo,
    },
    /// The membership of `user` changed, so their lists show the row again.
    Touched {
        user: UserId,
        conversation: ConversationId,
        at: Timestamp,
    },
    /// Merges each change into the overlay of its message.
    Altered(Vec<ChangeRow>),
    /// Rows of changes, in order.
    Changes(Vec<ChangeRow>),
    Ledger(Vec<LedgerEntry>),
    DeviceSeen {
        user: UserId,
        platform: Platform,
    },
    Route(RouteRequest),
    Connect(ConnectRequest),
    Reassert {
        user: UserId,
        session: NewSession,
        now: Timestamp,
    },
    Disconnect(SessionKey),
    Acknowledge {
        target: Target,
        ids: Vec<MessageId>,
        now: Timestamp,
    },
    DedupeBegin {
        key: DedupeKey,
        candidate: FirstSend,
        now: Timestamp,
    },
    DedupeDone {
        key: DedupeKey,
        first_send: FirstSend,
    },
    Reserve {
        station: usize,
        reserved_until: Timestamp,
    },
    /// A record dies, or a part of a delivery.
    Bury {
        name: String,
        letter: Letter,
    },
    /// An entry of the log of operations.
    Operate(OperationEntry),
    /// An operator sets offsets back.
    SetBack {
        place: Place,
        next: u64,
    },
    /// The process dies with its memory.
    LoseMemory,
    /// The mailbox store loses everything it holds.
    Flush {
        marker: u64,
    },
}

impl Effect {
    /// Mark of the message that the operation hides.
    pub(crate) fn hidden_mark(op: &ListOp) -> Option<Effect> {
        match op.kind {
            ListOpKind::Hide(seq) => Some(Effect::Hidden {
                owner: op.owner,
                conversation: op.conversation,
                mark: op.version.mark(),
                seq,
            }),
            ListOpKind::Clear(_) | ListOpKind::Arrange(_) => None,
        }
    }

    /// Register that the operation moves.
    pub(crate) fn register(op: &ListOp, at: Timestamp) -> Effect {
        let (owner, conversation, version) = (op.owner, op.conversation, op.version);
        match op.kind {
            ListOpKind::Clear(up_to) => Effect::Cleared {
                owner,
                conversation,
                up_to,
                at,
            },
            ListOpKind::Hide(_) => Effect::HiddenTo {
                owner,
                conversation,
                mark: version.mark(),
                at,
            },
            ListOpKind::Arrange(arranged) => Effect::Arranged {
                owner,
                conversation,
                version,
                arrangement: arranged,
                at,
            },
        }
    }
}

/// Answer of the stores to an effect.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Nothing,
    Routed(RouteAnswer),
    Connected(ConnectAnswer),
    Reasserted(ReassertAnswer),
    /// Acknowledged ids that were in the mailbox.
    Acknowledged(Vec<MessageId>),
    Dedupe(DedupeAnswer),
}

/// A record of the log.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) offset: u64,
    pub(crate) task: Arc<Task>,
}

/// List registers of a user in one conversation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) read_seq: Seq,
    pub(crate) cleared_to: Tally,
    pub(crate) touched_at: Timestamp,
    pub(crate) arrangement: Option<(Version, ListArrangement)>,
    pub(crate) hidden_mark: u64,
}

impl Registers {
    fn read(&mut self, seq: Seq, at: Timestamp) {
        if seq > self.read_seq {
            self.touched_at = self.touched_at.max(at);
        }
        self.read_seq = self.read_seq.max(seq);
    }

    fn clear(&mut self, up_to: Tally, at: Timestamp) {
        if up_to >= self.cleared_to {
            self.touched_at = self.touched_at.max(at);
        }
        self.cleared_to = self.cleared_to.max(up_to);
    }

    fn hide(&mut self, mark: u64, at: Timestamp) {
        if mark >= self.hidden_mark {
            self.touched_at = self.touched_at.max(at);
        }
        self.hidden_mark = self.hidden_mark.max(mark);
    }

    fn arrange(&mut self, new: (Version, ListArrangement), at: Timestamp) {
        if self.arrangement.is_none_or(|(version, _)| version <= new.0) {
            self.arrangement = Some(new);
            self.touched_at = self.touched_at.max(at);
        }
    }
}

/// All stores.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub(crate) log: BTreeMap<Place, Vec<Record>>,
    pub(crate) committed_offsets: BTreeMap<Place, u64>,
    pub(crate) rows: BTreeMap<(Owner, MessageId), MessageRow>,
    pub(crate) groups: BTreeMap<GroupId, StoredGroup>,
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    pub(crate) conversations: BTreeMap<(UserId, ConversationId), ConversationRow>,
    pub(crate) statuses: BTreeMap<(UserId, MessageId), RowStatus>,
    pub(crate) registers: BTreeMap<(UserId, ConversationId), Registers>,
    pub(crate) changes: BTreeMap<(ConversationId, u64), ChangeRow>,
    pub(crate) overlays: BTreeMap<(ConversationId, Seq), Overlay>,
    pub(crate) hidden_messages: BTreeMap<(UserId, ConversationId), BTreeMap<u64, Seq>>,
    /// Author of each recalled message.
    pub(crate) recall_authors: BTreeMap<(ConversationId, Seq), UserId>,
    pub(crate) ledger: BTreeMap<MessageId, Vec<LedgerEntry>>,
    pub(crate) platforms: BTreeMap<UserId, Vec<Platform>>,
    pub(crate) mailboxes: BTreeMap<UserId, Mailbox>,
    pub(crate) bodies: Bodies,
    /// All mail ever stored, with its target.
    pub(crate) stored_mail: BTreeSet<(MessageId, Target)>,
    pub(crate) dedupe: Dedupe,
    pub(crate) marker: u64,
    /// End of the time in which each station may have made ids.
    pub(crate) reserved_until: BTreeMap<usize, Timestamp>,
    /// Dead letters by name.
    pub(crate) letters: BTreeMap<String, Letter>,
    /// The log of operations on them.
    pub(crate) operations: Vec<OperationEntry>,
    policies: Policies,
}

impl Default for Stores {
    fn default() -> Self {
        Stores {
            log: BTreeMap::new(),
            committed_offsets: BTreeMap::new(),
            rows: BTreeMap::new(),
            groups: BTreeMap::new(),
            heads: BTreeMap::new(),
            conversations: BTreeMap::new(),
            statuses: BTreeMap::new(),
            registers: BTreeMap::new(),
            changes: BTreeMap::new(),
            overlays: BTreeMap::new(),
            hidden_messages: BTreeMap::new(),
            recall_authors: BTreeMap::new(),
            ledger: BTreeMap::new(),
            platforms: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            bodies: Bodies::default(),
            stored_mail: BTreeSet::new(),
            dedupe: new_dedupe(),
            marker: 1,
            reserved_until: BTreeMap::new(),
            letters: BTreeMap::new(),
            operations: Vec::new(),
            policies: Policies::uniform(MailboxPolicy {
                expire: Duration::from_secs(7 * 86_400),
                count_max: None,
            }),
        }
    }
}

fn new_dedupe() -> Dedupe {
    Dedupe::new(Duration::from_secs(86_400), 10_000)
}

impl Stores {
    pub(crate) fn policies(&self) -> &Policies {
        &self.policies
    }

    pub(crate) fn apply(&mut self, effect: &Effect) -> Answer {
        match effect {
            Effect::Append { place, task } => {
                let log = self.log.entry(*place).or_default();
                log.push(Record {
                    offset: log.len() as u64,
                    task: task.clone(),
                });
            }
            Effect::Commit { place, next } => {
                let committed_offset = self.committed_offsets.entry(*place).or_default();
                *committed_offset = (*committed_offset).max(*next);
            }
            Effect::Rows(rows) => {
                for row in rows {
                    let is_newer = |old: &MessageRow| old.version <= row.version;
                    let key = (row.owner, row.id());
                    if self.rows.get(&key).is_none_or(is_newer) {
                        self.rows.insert(key, row.clone());
                    }
                }
            }
            Effect::Head { conversation, head } => {
                let old = self.heads.entry(*conversation).or_default();
                if old.version <= head.version {
                    *old = *head;
                }
            }
            Effect::ConversationRows(rows) => {
                for row in rows {
                    let key = (row.owner, row.conversation);
                    let old = self.conversations.get(&key);
                    if old.is_none_or(|old| old.source <= row.source) {
                        self.conversations.insert(key, *row);
                    }
                }
            }
            Effect::Status {
                owner,
                id,
                kind,
                at,
            } => {
                let status = self.statuses.entry((*owner, *id)).or_default();
                status.delivered_at.get_or_insert(*at);
                if *kind == ReceiptKind::Read {
                    status.read_at.get_or_insert(*at);
                }
            }
            Effect::Read {
                owner,
                conversation,
                seq,
                at,
            } => self.registers(*owner, *conversation).read(*seq, *at),
            Effect::Cleared {
                owner,
                conversation,
                up_to,
                at,
            } => self.registers(*owner, *conversation).clear(*up_to, *at),
            Effect::Arranged {
                owner,
                conversation,
                version,
                arrangement: arranged,
                at,
            } => {
                let registers = self.registers(*owner, *conversation);
                registers.arrange((*version, *arranged), *at);
            }
            Effect::Hidden {
                owner,
                conversation,
                mark,
                seq,
            } => {
                let marks = self
                    .hidden_messages
                    .entry((*owner, *conversation))
                    .or_default();
                marks.insert(*mark, *seq);
            }
            Effect::HiddenTo {
                owner,
                conversation,
                mark,
                at,
            } => self.registers(*owner, *conversation).hide(*mark, *at),
            Effect::Member {
                group,
                user,
                member,
            } => {
                let group = self.groups.entry(*group).or_default();
                group.save_member(*user, *member);
            }
            Effect::Info { group, info } => {
                self.groups.entry(*group).or_default().save_info(*info);
            }
            Effect::Touched {
                user,
                conversation,
                at,
            } => {
                let registers = self.registers(*user, *conversation);
                registers.touched_at = registers.touched_at.max(*at);
            }
            Effect::Altered(rows) => rows.iter().for_each(|row| self.alter(row)),
            Effect::Changes(rows) => {
                for row in rows {
                    let key = (row.conversation, row.changed.rev);
                    let is_newer = |old: &ChangeRow| old.version <= row.version;
                    if self.changes.get(&key).is_none_or(is_newer) {
                        self.changes.insert(key, row.clone());
                    }
                }
            }
            Effect::Ledger(entries) => {
                for entry in entries {
                    self.ledger
                        .entry(entry.message)
                        .or_default()
                        .push(entry.clone());
                }
            }
            Effect::DeviceSeen { user, platform } => {
                let platforms = self.platforms.entry(*user).or_default();
                if !platforms.contains(platform) {
                    platforms.push(*platform);
                    platforms.sort();
                }
            }
            Effect::Route(request) => return self.route(request),
            Effect::Connect(request) => {
                let marker = self.marker;
                let policies = self.policies.clone();
                let mailbox = self.mailbox(request.user);
                let answer = mailbox.connect(request, &policies, marker);
                return Answer::Connected(answer.expect("people's devices displace each other"));
            }
            Effect::Reassert { user, session, now } => {
                let (marker, policies) = (self.marker, self.policies.clone());
                let denied_boats = Default::default();
                let mailbox = self.mailbox(*user);
                return Answer::Reasserted(mailbox.reassert(
                    &session.clone().into(),
                    &denied_boats,
                    &policies,
                    marker,
                    *now,
                ));
            }
            Effect::Disconnect(key) => {
                self.mailbox(key.user).disconnect(key);
            }
            Effect::Acknowledge { target, ids, now } => {
                return self.acknowledge(*target, ids, *now);
            }
            Effect::DedupeBegin {
                key,
                candidate: offered,
                now,
            } => {
                return Answer::Dedupe(self.dedupe.begin(*key, *offered, *now));
            }
            Effect::DedupeDone {
                key,
                first_send: sent,
            } => self.dedupe.done(*key, *sent),
            Effect::Reserve {
                station,
                reserved_until,
            } => {
                let reservation = self.reserved_until.entry(*station).or_default();
                *reservation = (*reservation).max(*reserved_until);
            }
            // A record that dies again, after a crash, is the same letter.
            Effect::Bury { name, letter } => {
                self.letters
                    .entry(name.clone())
                    .or_insert_with(|| letter.clone());
            }
            Effect::Operate(entry) => self.operations.push(entry.clone()),
            Effect::SetBack { place, next } => {
                let committed_offset = self.committed_offsets.entry(*place).or_default();
                *committed_offset = (*committed_offset).min(*next);
            }
            Effect::LoseMemory => self.lose_memory(),
            Effect::Flush { marker } => {
                self.mailboxes.clear();
                self.bodies = Bodies::default();
                self.dedupe = new_dedupe();
                self.marker = *marker;
            }
        }
        Answer::Nothing
    }

    fn registers(&mut self, owner: UserId, conversation: ConversationId) -> &mut Registers {
        self.registers.entry((owner, conversation)).or_default()
    }

    /// Read position of each user in each conversation.
    pub(crate) fn read(&self) -> BTreeMap<(UserId, ConversationId), Seq> {
        let registers = self.registers.iter();
        registers
            .map(|(key, registers)| (*key, registers.read_seq))
            .collect()
    }

    fn alter(&mut self, row: &ChangeRow) {
        if !row.changed.asked.change.has_effect() {
            return;
        }
        let key = (row.conversation, row.changed.seq);
        let overlay = self.overlays.entry(key).or_default();
        overlay.apply(row.version, &row.changed);
        if overlay.recalled.is_some() {
            self.recall_authors.insert(key, row.author);
        }
    }

    /// Drops sessions and dedupe keys, as the death of an embedded process does.
    fn lose_memory(&mut self) {
        self.mailboxes.values_mut().for_each(Mailbox::lose_presence);
        self.dedupe = new_dedupe();
    }

    pub(crate) fn mailbox(&mut self, user: UserId) -> &mut Mailbox {
        self.mailboxes
            .entry(user)
            .or_insert_with(|| Mailbox::new(user))
    }

    fn route(&mut self, request: &RouteRequest) -> Answer {
        let policies = self.policies.clone();
        let (answer, changes) = self.mailbox(request.user).route(request, &policies);
        self.bodies.apply(&changes, request.mail.as_ref());
        if let Some(mail) = &request.mail {
            let (id, user) = (mail.id, request.user);
            let targets = answer
                .stored_platforms
                .iter()
                .map(|&platform| Target { user, platform });
            self.stored_mail.extend(targets.map(|target| (id, target)));
        }
        Answer::Routed(answer)
    }

    fn acknowledge(&mut self, target: Target, ids: &[MessageId], now: Timestamp) -> Answer {
        let changes = self
            .mailbox(target.user)
            .acknowledge(target.platform, ids, now);
        self.bodies.apply(&changes, None);
        Answer::Acknowledged(
            changes
                .iter()
                .filter_map(|change| match change {
                    MailboxChange::Removed { at, .. } => Some(at.id),
                    MailboxChange::Added { .. } => None,
                })
                .collect(),
        )
    }
}

/// The stores, and the journal of effects that led to them.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    stores: Stores,
    /// Empty unless a crash may take effects back.
    journal: Vec<Effect>,
    durable: usize,
    /// Length of the journal just after each record of the log.
    marks: BTreeMap<Place, Vec<usize>>,
    /// True: one journal for everything, of which a crash keeps a prefix. False: every effect is
    /// durable at once.
    is_embedded: bool,
}

impl Disk {
    pub(crate) fn new(is_embedded: bool) -> Disk {
        Disk {
            is_embedded,
            ..Disk::default()
        }
    }

    pub(crate) fn apply(&mut self, effect: Effect) -> Answer {
        let answer = self.stores.apply(&effect);
        if self.is_embedded {
            if let Effect::Append { place, .. } = &effect {
                let mark = self.journal.len() + 1;
                self.marks.entry(*place).or_default().push(mark);
            }
            self.journal.push(effect);
        }
        answer
    }

    /// Length of the journal, for [`flush`](Self::flush).
    pub(crate) fn mark(&self) -> usize {
        self.journal.len()
    }

    /// Makes everything up to `mark` durable.
    pub(crate) fn flush(&mut self, mark: usize) {
        self.durable = self.durable.max(mark);
    }

    /// Record of the log, once it is durable.
    pub(crate) fn record(&self, place: Place, offset: u64) -> Option<&Record> {
        let mark = self
            .marks
            .get(&place)
            .and_then(|marks| marks.get(offset as usize));
        let survives = mark.is_none_or(|mark| *mark <= self.durable);
        self.stores
            .log
            .get(&place)?
            .get(offset as usize)
            .filter(|_| survives)
    }

    /// Crashes the whole machine. The share `luck` (0 to 1) of the effects that were not flushed
    /// survives, as a prefix.
    pub(crate) fn crash(&mut self, luck: f64) {
        let loose = self.journal.len() - self.durable;
        self.journal
            .truncate(self.durable + (loose as f64 * luck) as usize);
        // Journaled, so that a replay after the next crash drops the same memory.
        self.journal.push(Effect::LoseMemory);
        self.durable = self.journal.len();
        self.stores = Stores::default();
        for effect in &self.journal {
            self.stores.apply(effect);
        }
        for (place, marks) in &mut self.marks {
            marks.truncate(self.stores.log.get(place).map_or(0, Vec::len));
        }
    }
}

impl std::ops::Deref for Disk {
    type Target = Stores;

    fn deref(&self) -> &Stores {
        &self.stores
    }
}
