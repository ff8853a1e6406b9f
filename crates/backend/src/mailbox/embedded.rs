//! The mailbox in one process.
//!
//! **State.** Sessions, login numbers, recent acknowledgements and send_ids live in memory: they
//! end with the process, and so do the boats inside it. Waiting mail lives in the [`Engine`] and
//! survives kill and restart. A power cut may take the newest of it; the log's commits come later
//! in the same journal, so the carrier consumes the affected records again.
//!
//! **The marker** shares the fate of the mail: it is made once, lies in the same table, and
//! survives restarts, because a restart loses no mail. It changes if the table is lost, and then
//! devices sync.
//!
//! **Send_ids** are bounded in number and age and end with the process. An unknown one is answered
//! [`Fresh`](DedupeAnswer::Fresh); for a client's *resend* that means "unsure", so station marks
//! the send and the writer looks for it in history.
//!
//! **Steps.** A route to a user with a live session only reads memory under its shard's lock. A
//! change of mail takes the lock for mail, then the locks of the users' shards in order, performs
//! all the work of a call (up to 64 requests) as one batch, and releases the locks; no lock is held
//! across an await. [`connect`](MailboxStore::connect) registers under the shard's lock and then
//! looks for mail: a route that found no session held that lock until its mail was written, and
//! every later route finds the session.

mod change;
mod config;
mod integrity;
mod rows;
mod shard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, Dedupe, DedupeAnswer, DedupeKey, FirstSend, HeldSession, Mail,
    MailCursor, MailLocation, MailPage, MailboxPolicy, Policies, Presence, ReassertAnswer,
    ReassertResult, RouteAnswer, RouteRequest, SessionCapacity, TooManySessions,
};
use protocol::message::Target;
use protocol::presence::{DeniedBoats, SessionEntry, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId, keys};

use self::change::{MailboxBatch, TRIM_STEP};
pub(in crate::mailbox) use self::config::DEDUPE_KEEP;
pub use self::config::{MailboxConfig, PlatformConfig};
pub use self::integrity::IntegrityCheck;
use self::rows::MARKER_KEY;
use self::shard::Shard;
use super::{MailboxStore, ServerId};
use crate::clock::Entropy;
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "mailbox";
/// Number of user shards; prime, so that users numbered in steps spread too.
const SHARDS: usize = 251;
const DEDUPE_SHARDS: u32 = 16;
/// Send_ids remembered, at about 140 bytes each; the newest are kept. A resend of a forgotten one
/// is looked up in history.
const DEDUPE_MAX: usize = 1_000_000;
/// Maximum number of mail-changing requests per batch; bounds how long the locks are held.
const CHUNK: usize = 64;
/// Maximum number of entries in a page, whatever the caller asks for.
const PAGE_MAX: usize = 500;
/// Number of bodies read at once for a page.
const BODIES_STEP: usize = 50;

/// [`MailboxStore`] on the embedded engine. Clones of the engine may serve other seams.
#[derive(Debug)]
pub struct EmbeddedMailbox {
    engine: Engine,
    policies: Policies,
    page_bytes_max: usize,
    marker: u64,
    /// Held by every change of mail; always taken before shards.
    mail_lock: Mutex<()>,
    shards: Vec<Mutex<Shard>>,
    sends: Vec<Mutex<Dedupe>>,
}

impl EmbeddedMailbox {
    /// Opens the mailbox stored in the engine. `Conflict` if settings name an unknown platform.
    pub fn open(
        engine: Engine,
        config: &MailboxConfig,
        entropy: &dyn Entropy,
    ) -> Result<EmbeddedMailbox> {
        let sends_max = DEDUPE_MAX.div_ceil(DEDUPE_SHARDS as usize);
        let sends = || Mutex::new(Dedupe::new(DEDUPE_KEEP, sends_max));
        Ok(EmbeddedMailbox {
            policies: config.policies()?,
            page_bytes_max: config.page_bytes_max,
            marker: read_or_make_marker(&engine, entropy)?,
            engine,
            mail_lock: Mutex::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            sends: (0..DEDUPE_SHARDS).map(|_| sends()).collect(),
        })
    }

    /// Replaces the default session capacity of the platforms.
    #[must_use]
    pub fn with_sessions(mut self, capacity: SessionCapacity) -> EmbeddedMailbox {
        self.policies.sessions = capacity;
        self
    }

    /// Trims expired mail from the next `limit` mailboxes after `cursor`; returns the last one as
    /// the next cursor, or `None` at the end. For a slow background walk: without it, mail of
    /// users who neither connect nor get more would stay.
    pub fn sweep(
        &self,
        cursor: Option<Target>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<Target>> {
        let start = rows::boxes_after(cursor);
        let range = start.as_slice()..rows::BOXES_END;
        let boxes = self
            .engine
            .range(Table::Session, range, ScanOrder::Forward, limit)?;
        let mut last = None;
        for (key, _) in &boxes {
            let target = rows::read_box_key(key)?;
            self.trim_all(target, self.policies.of(target.platform), now)?;
            last = Some(target);
        }
        Ok(last.filter(|_| boxes.len() == limit))
    }

    fn received_by(&self, user: UserId) -> Result<Option<MessageId>> {
        let id = self.engine.get(Table::Session, &rows::received_key(user))?;
        id.map(|id| rows::read_received(&id)).transpose()
    }

    /// Checks that waiting mail is whole. Reads all of it.
    pub fn audit(&self) -> Result<IntegrityCheck> {
        let _mail_guard = self.mail_lock.lock();
        integrity::audit(&self.engine)
    }

    /// Routes requests that store nothing, up to the first one that must.
    fn route_live(&self, requests: &[RouteRequest]) -> Vec<RouteAnswer> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let mut shard = self.shard(request.user).lock();
            let Some(presence) = shard.find(request.user) else {
                break;
            };
            let placement = presence.place(request);
            if !placement.store_platforms.is_empty() {
                break;
            }
            answers.push(RouteAnswer {
                live: placement.live,
                stored_platforms: Vec::new(),
                acknowledged_platforms: placement.acknowledged_platforms,
                dropped_count: 0,
            });
        }
        answers
    }

    /// Routes and stores, all or nothing.
    fn route_and_store(&self, requests: &[RouteRequest]) -> Result<Vec<RouteAnswer>> {
        let _mail_guard = self.mail_lock.lock();
        let mut shards = self.lock_shards(requests.iter().map(|request| request.user));
        let mut change = MailboxBatch::new(&self.engine);
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let placement = match shards.of(request.user).find(request.user) {
                Some(presence) => presence.place(request),
                None => Presence::default().place(request),
            };
            let mut dropped_count = 0;
            for &platform in &placement.store_platforms {
                let Some(mail) = &request.mail else { break };
                let target = Target {
                    user: request.user,
                    platform,
                };
                let policy = self.policies.of(platform);
                dropped_count += change.append(target, mail, policy, request.now)?;
            }
            answers.push(RouteAnswer {
                live: placement.live,
                stored_platforms: placement.store_platforms,
                acknowledged_platforms: placement.acknowledged_platforms,
                dropped_count,
            });
        }
        change.write()?;
        Ok(answers)
    }

    fn acknowledge_chunk(
        &self,
        acks: &[(Target, Vec<MessageId>)],
        now: Timestamp,
    ) -> Result<Vec<Vec<MessageId>>> {
        let _mail_guard = self.mail_lock.lock();
        let mut shards = self.lock_shards(acks.iter().map(|(target, _)| target.user));
        let mut change = MailboxBatch::new(&self.engine);
        let mut waiting_ids = Vec::with_capacity(acks.len());
        for (target, ids) in acks {
            waiting_ids.push(change.acknowledge(*target, ids)?);
        }
        change.write()?;
        for (target, ids) in acks {
            shards.of(target.user).change(target.user, now, |presence| {
                presence.remember_acked(target.platform, ids, now);
            });
        }
        Ok(waiting_ids)
    }

    fn trim_all(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        let mut removed_count = 0;
        loop {
            let step = {
                let _mail_guard = self.mail_lock.lock();
                let mut change = MailboxBatch::new(&self.engine);
                let step = change.trim(target, policy, now)?;
                change.write()?;
                step
            };
            removed_count += step;
            if (step as usize) < TRIM_STEP {
                return Ok(removed_count);
            }
        }
    }

    fn reassert_one(
        &self,
        user: UserId,
        mut held_session: HeldSession,
        denied_boats: &DeniedBoats,
        now: Timestamp,
    ) -> Result<ReassertAnswer> {
        let target = Target {
            user,
            platform: held_session.session.platform,
        };
        let result = {
            let mut shard = self.shard(user).lock();
            held_session.session = shard.share_boat(held_session.session);
            shard.change(user, now, |presence| {
                let sessions = &mut presence.sessions;
                sessions.reassert(&held_session, &self.policies.sessions, denied_boats, now)
            })
        };
        Ok(match result {
            ReassertResult::Known => ReassertAnswer::Known {
                mail_waits: self.mail_waits(target, now)?,
            },
            ReassertResult::Displaced => ReassertAnswer::Displaced,
            ReassertResult::Replaced => ReassertAnswer::Replaced,
            ReassertResult::Restored => ReassertAnswer::Restored {
                marker: self.marker,
                mail_waits: self.mail_waits(target, now)?,
            },
        })
    }

    /// Whether a page would not be empty.
    fn mail_waits(&self, target: Target, now: Timestamp) -> Result<bool> {
        Ok(!self.entries_after(target, None, 1, now)?.is_empty())
    }

    fn find_one(&self, target: Target, id: MessageId, now: Timestamp) -> Result<MailLocation> {
        // An acknowledgement holds this lock until the entry is gone and the id is marked.
        let mut shard = self.shard(target.user).lock();
        let oldest_kept = self.policies.of(target.platform).oldest_kept(now);
        let entry = MailboxBatch::new(&self.engine).find(target, id)?;
        if entry.is_some_and(|entry| entry.accepted_at >= oldest_kept) {
            return Ok(MailLocation::Waits);
        }
        let presence = shard.find(target.user);
        let is_acked = presence.is_some_and(|p| p.has_acked(target.platform, id, now));
        Ok(if is_acked {
            MailLocation::Acknowledged
        } else {
            MailLocation::Absent
        })
    }

    /// Unexpired entries strictly after a cursor.
    fn entries_after(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<MailCursor>> {
        let Some(row) = change::read_box(&self.engine, target)? else {
            return Ok(Vec::new());
        };
        let oldest_kept = MailCursor {
            accepted_at: self.policies.of(target.platform).oldest_kept(now),
            id: MessageId::floor_of(Timestamp::ZERO),
        };
        let from = row
            .oldest
            .max(oldest_kept)
            .max(cursor.unwrap_or(oldest_kept));
        // Read one more, because the first may be the cursor itself.
        let mut entries = change::read_entries(&self.engine, target, from, limit + 1)?;
        entries.retain(|entry| Some(*entry) > cursor);
        entries.truncate(limit);
        Ok(entries)
    }

    fn read_page(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        let limit = limit.clamp(1, PAGE_MAX);
        let entries = self.entries_after(target, cursor, limit + 1, now)?;
        let mut page = MailPage::default();
        let (mut taken_count, mut bytes) = (0, 0);
        for step in entries[..entries.len().min(limit)].chunks(BODIES_STEP) {
            if bytes >= self.page_bytes_max {
                break;
            }
            let keys: Vec<Vec<u8>> = step.iter().map(|entry| rows::body_key(entry.id)).collect();
            let bodies = self.engine.multi_get(Table::MailBody, &keys)?;
            for (entry, body) in step.iter().zip(bodies) {
                let size = body.as_ref().map_or(0, Bytes::len);
                if bytes > 0 && bytes + size > self.page_bytes_max {
                    bytes = self.page_bytes_max;
                    break;
                }
                bytes += size;
                taken_count += 1;
                self.add_to_page(&mut page, target, *entry, body)?;
            }
        }
        if taken_count < entries.len() && taken_count > 0 {
            page.next = Some(entries[taken_count - 1]);
        }
        Ok(page)
    }

    fn add_to_page(
        &self,
        page: &mut MailPage,
        target: Target,
        entry: MailCursor,
        body: Option<Bytes>,
    ) -> Result<()> {
        match body {
            Some(body) => page.mails.push(Mail {
                id: entry.id,
                accepted_at: entry.accepted_at,
                body,
            }),
            None => {
                // Was it acknowledged after the entries were read, or really lost?
                let key = rows::entry_key(target, entry);
                if self.engine.get(Table::Mail, &key)?.is_some() {
                    page.bodiless.push(entry.id);
                }
            }
        }
        Ok(())
    }

    fn shard(&self, user: UserId) -> &Mutex<Shard> {
        &self.shards[shard_index(user)]
    }

    /// Locks the shards of these users, each once and in order, so that two calls never deadlock.
    fn lock_shards(&self, users: impl Iterator<Item = UserId>) -> LockedShards<'_> {
        let mut indices: Vec<usize> = users.map(shard_index).collect();
        indices.sort_unstable();
        indices.dedup();
        let lock = |index: usize| (index, self.shards[index].lock());
        LockedShards(indices.into_iter().map(lock).collect())
    }

    fn dedupe_shard(&self, key: &DedupeKey) -> &Mutex<Dedupe> {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(key.send_id.as_bytes());
        bytes[16..].copy_from_slice(&key.from.get().to_be_bytes());
        &self.sends[keys::partition_of(&bytes, DEDUPE_SHARDS) as usize]
    }
}

/// Locked shards, in order.
struct LockedShards<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl LockedShards<'_> {
    fn of(&mut self, user: UserId) -> &mut Shard {
        let target = shard_index(user);
        let position = self.0.binary_search_by_key(&target, |(index, _)| *index);
        let index = position.expect("the shards of all users of a call were locked");
        &mut self.0[index].1
    }
}

fn shard_index(user: UserId) -> usize {
    // Users are positive.
    user.get() as usize % SHARDS
}

fn read_or_make_marker(engine: &Engine, entropy: &dyn Entropy) -> Result<u64> {
    if let Some(marker) = engine.get(Table::Mail, MARKER_KEY)? {
        return rows::read_marker(&marker);
    }
    // Clients without a marker send zero.
    let marker = entropy.next().max(1);
    let mut batch = WriteBatch::new();
    batch.put(Table::Mail, MARKER_KEY, marker.to_be_bytes().to_vec());
    engine.write(batch)?;
    Ok(marker)
}

/// Asks all questions together and, if that fails, one by one: an unreadable row fails only its own
/// question.
fn each<Q, A>(questions: &[Q], ask: impl Fn(&[Q]) -> Result<Vec<A>>) -> Vec<Result<A>> {
    match ask(questions) {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(_) => (questions.iter())
            .map(|one| {
                let mut one = ask(std::slice::from_ref(one))?;
                one.pop().ok_or_else(|| Error::corrupt(SEAM, "no answer"))
            })
            .collect(),
    }
}

#[async_trait]
impl MailboxStore for EmbeddedMailbox {
    fn server(&self, _user: UserId) -> ServerId {
        ServerId::default()
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut rest = requests.as_slice();
        while !rest.is_empty() {
            let live = self.route_live(rest);
            rest = &rest[live.len()..];
            answers.extend(live.into_iter().map(Ok));
            let (chunk, tail) = rest.split_at(rest.len().min(CHUNK));
            rest = tail;
            answers.extend(each(chunk, |requests| self.route_and_store(requests)));
        }
        answers
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        let ConnectRequest {
            user,
            entry,
            denied_boats,
            now,
        } = request;
        let target = Target {
            user,
            platform: entry.platform,
        };
        let registration = {
            let mut shard = self.shard(user).lock();
            let entry = shard.share_boat(entry);
            shard.change(user, now, |presence| {
                let (sessions, capacity) = (&mut presence.sessions, &self.policies.sessions);
                sessions.connect(user, &entry, capacity, &denied_boats, now)
            })
        };
        let registration = match registration {
            Ok(registration) => registration,
            Err(too_many) => return Ok(Err(too_many)),
        };
        Ok(Ok(ConnectAnswer {
            login: registration.login,
            displaced_sessions: registration.displaced_sessions,
            replaced_sessions: registration.replaced_sessions,
            marker: self.marker,
            mail_waits: self.mail_waits(target, now)?,
        }))
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, HeldSession)>,
        denied_boats: DeniedBoats,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        let reassert = |(user, session)| self.reassert_one(user, session, &denied_boats, now);
        sessions.into_iter().map(reassert).collect()
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        let leave = |key: SessionKey| {
            let mut shard = self.shard(key.user).lock();
            if let Some(presence) = shard.find(key.user) {
                presence.sessions.disconnect(&key);
                shard.leave_if_empty(key.user);
            }
            Ok(())
        };
        sessions.into_iter().map(leave).collect()
    }

    async fn sessions(
        &self,
        users: &[UserId],
        denied_boats: DeniedBoats,
    ) -> Vec<Result<Vec<SessionEntry>>> {
        let live = |user: &UserId| {
            let mut shard = self.shard(*user).lock();
            let presence = shard.find(*user);
            Ok(presence.map_or_else(Vec::new, |p| {
                p.sessions.live(&denied_boats).cloned().collect()
            }))
        };
        users.iter().map(live).collect()
    }

    async fn page(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        self.read_page(target, cursor, limit, now)
    }

    async fn acknowledge(
        &self,
        acks: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>> {
        let chunks = acks.chunks(CHUNK);
        chunks
            .flat_map(|chunk| each(chunk, |acks| self.acknowledge_chunk(acks, now)))
            .collect()
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.policies.of(platform)
    }

    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        self.trim_all(target, policy, now)
    }

    async fn waiting(&self, target: Target) -> Result<u64> {
        let row = change::read_box(&self.engine, target)?;
        Ok(row.map_or(0, |row| row.count))
    }

    async fn find(
        &self,
        queries: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<MailLocation>> {
        let find = |&(target, id): &(Target, MessageId)| self.find_one(target, id, now);
        queries.iter().map(find).collect()
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        let begin =
            |(key, first_send)| Ok(self.dedupe_shard(&key).lock().begin(key, first_send, now));
        sends.into_iter().map(begin).collect()
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        for (key, first_send) in sends {
            self.dedupe_shard(&key).lock().done(key, first_send);
        }
        Ok(())
    }

    async fn set_received(&self, positions: Vec<(UserId, MessageId)>) -> Result<()> {
        let mut furthest = BTreeMap::new();
        for (user, id) in positions {
            let furthest_id = furthest.entry(user).or_insert(id);
            *furthest_id = id.max(*furthest_id);
        }
        let _mail_guard = self.mail_lock.lock();
        let mut batch = WriteBatch::new();
        for (user, id) in furthest {
            if self.received_by(user)? < Some(id) {
                let id = id.get().to_be_bytes().to_vec();
                batch.put(Table::Session, rows::received_key(user), id);
            }
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        self.received_by(user)
    }
}
