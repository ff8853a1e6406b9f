//! Reads the facts that a decision lacks.

use backend::{Backends, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::change::{ChangeSearch, OrderedChange};
use protocol::conversation::StoredPosition;
use protocol::frame::HistoryRange;
use protocol::group::{GroupInfo, Member};
use protocol::history::Version;
use protocol::message_row::{MessageRow, Owner};
use protocol::writer::{ChangeKey, Facts, HideKey, Missing, SendKey};
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};
use tokio::time::Instant;

use super::{WriteFailure, Writer};
use crate::deadline::StoreDeadline;

/// Questions of one kind that are asked at once, where each is a call of its own.
const MAX_CONCURRENT_LOOKUPS: usize = 64;

impl Writer {
    /// Asks a call a kind, side by side, but groups before heads, and heads before the rest. False: there was no time
    /// to read the groups whole.
    pub(super) async fn load(
        &mut self,
        missing_facts: Missing,
        facts: &mut Facts,
        deadline: Instant,
    ) -> std::result::Result<bool, WriteFailure> {
        let Some(mut groups) = self.groups.load(&missing_facts.groups, deadline).await? else {
            return Ok(false);
        };
        let group_ids = missing_facts.groups.keys();
        let groups = group_ids.map(|group| (*group, groups.remove(group)));
        facts.groups.extend(groups);
        facts
            .heads
            .extend(self.heads.load(&missing_facts.heads).await?);
        let stored_heads = self.heads.reload(&missing_facts.stored_heads).await?;
        facts.stored_heads.extend(stored_heads);
        let stored_groups = self
            .groups
            .reload(&missing_facts.stored_groups, deadline)
            .await?;
        let Some(mut stored_groups) = stored_groups else {
            return Ok(false);
        };
        let group_ids = missing_facts.stored_groups.keys();
        let stored_groups = group_ids.map(|group| (*group, stored_groups.remove(group)));
        facts.stored_groups.extend(stored_groups);
        let reader = Reader {
            backends: &self.backends,
            store_deadline: self.store_deadline,
        };
        let now = self.clock.now();
        let platforms = self.platforms.load(&missing_facts.platforms, now);
        let (platforms, lookup) = tokio::join!(platforms, reader.read(&missing_facts, facts));
        lookup?;
        facts.platforms.extend(platforms?);
        Ok(true)
    }
}

/// Calls to the stores, each under a deadline.
struct Reader<'a> {
    backends: &'a Backends,
    store_deadline: StoreDeadline,
}

impl Reader<'_> {
    /// Reads the facts that no memory of the writer holds.
    async fn read(&self, missing_facts: &Missing, facts: &mut Facts) -> Result<()> {
        let changes = missing_facts.first_changes.iter();
        let changes = changes
            .map(|(key, last)| self.first_change(*key, *last))
            .collect();
        let own_lookups = missing_facts.own_changes.iter();
        let own_lookups = own_lookups
            .map(|(key, search)| self.own_change(*key, *search))
            .collect();
        let followers = missing_facts.followers.iter();
        let followers = followers.map(|key| self.follower(*key)).collect();
        let message_facts = async {
            tokio::try_join!(
                self.rows(missing_facts),
                self.first_sends(missing_facts),
                self.overlays(missing_facts),
                run_lookups(followers),
            )
        };
        let change_facts =
            async { tokio::try_join!(run_lookups(changes), run_lookups(own_lookups)) };
        let user_facts = async {
            tokio::try_join!(
                self.cleared(missing_facts),
                self.hidden(missing_facts),
                self.members(missing_facts),
            )
        };
        let (message_facts, change_facts, user_facts) =
            tokio::try_join!(message_facts, change_facts, user_facts)?;
        let (rows, first_sends, overlays, followers) = message_facts;
        let (first_changes, own_changes) = change_facts;
        let (cleared_tallies, hide_marks, members) = user_facts;
        facts.rows.extend(rows);
        facts.first_sends.extend(first_sends);
        facts.overlays.extend(overlays);
        let changes = missing_facts.first_changes.keys().copied();
        facts.first_changes.extend(changes.zip(first_changes));
        let own_keys = missing_facts.own_changes.keys().copied();
        facts.own_changes.extend(own_keys.zip(own_changes));
        let places = missing_facts.followers.iter().copied();
        facts.followers.extend(places.zip(followers));
        facts.clears.extend(cleared_tallies);
        facts.hide_marks.extend(hide_marks);
        facts.members.extend(members);
        Ok(())
    }

    async fn rows(
        &self,
        missing_facts: &Missing,
    ) -> Result<Vec<((Owner, MessageId), Option<MessageRow>)>> {
        if missing_facts.rows.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing_facts.rows.iter().copied().collect();
        let rows = self.backends.messages.rows(&keys);
        let rows = self.store_deadline.within(rows).await?;
        Ok(keys.into_iter().zip(rows).collect())
    }

    async fn first_sends(
        &self,
        missing_facts: &Missing,
    ) -> Result<Vec<(SendKey, Option<(MessageId, StoredPosition)>)>> {
        if missing_facts.first_sends.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing_facts.first_sends.iter().copied().collect();
        let rows = self.backends.messages.find_sends(&keys);
        let rows = self.store_deadline.within(rows).await?.into_iter();
        let first = rows.map(|row| row.map(|row| (row.id(), row.position())));
        Ok(keys.into_iter().zip(first).collect())
    }

    async fn overlays(
        &self,
        missing_facts: &Missing,
    ) -> Result<Vec<((ConversationId, Seq), protocol::change::Overlay)>> {
        if missing_facts.overlays.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<_> = missing_facts.overlays.iter().copied().collect();
        let overlays = self.backends.changes.altered_each(&places);
        let overlays = self.store_deadline.within(overlays).await?;
        Ok(places.into_iter().zip(overlays).collect())
    }

    async fn first_change(
        &self,
        key: ChangeKey,
        last: u64,
    ) -> Result<Option<(Version, OrderedChange)>> {
        let ChangeKey {
            conversation,
            by,
            send_id,
        } = key;
        let first = (self.backends.changes).find_send(conversation, by, send_id, last);
        self.store_deadline.within(first).await
    }

    async fn own_change(
        &self,
        (conversation, record): (ConversationId, Version),
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>> {
        let change = (self.backends.changes).of_record(conversation, record, search);
        self.store_deadline.within(change).await
    }

    async fn follower(
        &self,
        (owner, conversation, cursor): (Owner, ConversationId, Seq),
    ) -> Result<Option<Version>> {
        let range = HistoryRange::Forward { after: cursor };
        let rows = (self.backends.messages).page(owner, conversation, range, 1);
        let rows = self.store_deadline.within(rows).await?;
        Ok(rows.first().map(|row| row.version))
    }

    async fn cleared(
        &self,
        missing_facts: &Missing,
    ) -> Result<Vec<((UserId, ConversationId), protocol::unread::Tally)>> {
        if missing_facts.clears.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing_facts.clears.iter().copied().collect();
        let registers = self.backends.conversations.registers(&keys);
        let registers = self.store_deadline.within(registers).await?;
        let tallies = registers.into_iter().map(|registers| registers.cleared);
        Ok(keys.into_iter().zip(tallies).collect())
    }

    async fn hidden(&self, missing_facts: &Missing) -> Result<Vec<(HideKey, Option<u64>)>> {
        if missing_facts.hide_marks.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing_facts.hide_marks.iter().copied().collect();
        let marks = self.backends.conversations.first_hidden(&keys);
        let marks = self.store_deadline.within(marks).await?;
        Ok(keys.into_iter().zip(marks).collect())
    }

    async fn members(
        &self,
        missing_facts: &Missing,
    ) -> Result<Vec<((GroupId, UserId), Option<(GroupInfo, Member)>)>> {
        if missing_facts.members.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing_facts.members.iter().copied().collect();
        let members = self.backends.groups.members_of(&keys);
        let members = self.store_deadline.within(members).await?;
        Ok(keys.into_iter().zip(members).collect())
    }
}

/// Asks a few questions at a time. Answers are in the order of the questions.
async fn run_lookups<T>(lookups: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    stream::iter(lookups)
        .buffered(MAX_CONCURRENT_LOOKUPS)
        .try_collect()
        .await
}
