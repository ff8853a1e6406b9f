//! Reads the facts that a decision lacks.

use backend::{Backends, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::change::{ChangeSearch, OrderedChange};
use protocol::conversation::StoredPosition;
use protocol::frame::HistoryRange;
use protocol::group::{GroupSettings, Member};
use protocol::history::Version;
use protocol::message_row::{MessageRow, Owner};
use protocol::writer::{ChangeKey, Facts, HideKey, Missing, SendKey};
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};
use tokio::time::Instant;

use super::{WriteFailure, Writer};
use crate::deadline::StoreDeadline;

/// Questions of one kind that are asked at once, where each is a call of its own.
const TOGETHER: usize = 64;

impl Writer {
    /// Asks a call a kind, side by side, but groups before heads, and heads before the rest. False: there was no time
    /// to read the groups whole.
    pub(super) async fn load(
        &mut self,
        missing: Missing,
        facts: &mut Facts,
        until: Instant,
    ) -> std::result::Result<bool, WriteFailure> {
        let Some(mut groups) = self.groups.load(&missing.groups, until).await? else {
            return Ok(false);
        };
        let named = missing.groups.keys();
        let groups = named.map(|group| (*group, groups.remove(group)));
        facts.groups.extend(groups);
        facts.heads.extend(self.heads.load(&missing.heads).await?);
        let stored = self.heads.reload(&missing.stored_heads).await?;
        facts.stored_heads.extend(stored);
        let stored = self.groups.reload(&missing.stored_groups, until).await?;
        let Some(mut stored) = stored else {
            return Ok(false);
        };
        let named = missing.stored_groups.keys();
        let stored = named.map(|group| (*group, stored.remove(group)));
        facts.stored_groups.extend(stored);
        let reader = Reader {
            backends: &self.backends,
            stores: self.stores,
        };
        let now = self.clock.now();
        let platforms = self.platforms.load(&missing.platforms, now);
        let (platforms, read) = tokio::join!(platforms, reader.read(&missing, facts));
        read?;
        facts.platforms.extend(platforms?);
        Ok(true)
    }
}

/// Calls to the stores, each under a deadline.
struct Reader<'a> {
    backends: &'a Backends,
    stores: StoreDeadline,
}

impl Reader<'_> {
    /// Reads the facts that no memory of the writer holds.
    async fn read(&self, missing: &Missing, facts: &mut Facts) -> Result<()> {
        let changes = missing.first_changes.iter();
        let changes = changes
            .map(|(key, last)| self.first_change(*key, *last))
            .collect();
        let own = missing.own_changes.iter();
        let own = own
            .map(|(key, search)| self.own_change(*key, *search))
            .collect();
        let followers = missing.followers.iter();
        let followers = followers.map(|key| self.follower(*key)).collect();
        let of_messages = async {
            tokio::try_join!(
                self.rows(missing),
                self.first_sends(missing),
                self.overlays(missing),
                each(followers),
            )
        };
        let of_changes = async { tokio::try_join!(each(changes), each(own)) };
        let of_users = async {
            tokio::try_join!(
                self.cleared(missing),
                self.hidden(missing),
                self.members(missing),
            )
        };
        let (of_messages, of_changes, of_users) =
            tokio::try_join!(of_messages, of_changes, of_users)?;
        let (rows, first_sends, overlays, followers) = of_messages;
        let (first_changes, own_changes) = of_changes;
        let (cleared, hidden, members) = of_users;
        facts.rows.extend(rows);
        facts.first_sends.extend(first_sends);
        facts.overlays.extend(overlays);
        let changes = missing.first_changes.keys().copied();
        facts.first_changes.extend(changes.zip(first_changes));
        let own = missing.own_changes.keys().copied();
        facts.own_changes.extend(own.zip(own_changes));
        let places = missing.followers.iter().copied();
        facts.followers.extend(places.zip(followers));
        facts.cleared.extend(cleared);
        facts.hidden.extend(hidden);
        facts.members.extend(members);
        Ok(())
    }

    async fn rows(
        &self,
        missing: &Missing,
    ) -> Result<Vec<((Owner, MessageId), Option<MessageRow>)>> {
        if missing.rows.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing.rows.iter().copied().collect();
        let rows = self.backends.messages.rows(&keys);
        let rows = self.stores.within(rows).await?;
        Ok(keys.into_iter().zip(rows).collect())
    }

    async fn first_sends(
        &self,
        missing: &Missing,
    ) -> Result<Vec<(SendKey, Option<(MessageId, StoredPosition)>)>> {
        if missing.first_sends.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing.first_sends.iter().copied().collect();
        let rows = self.backends.messages.find_sends(&keys);
        let rows = self.stores.within(rows).await?.into_iter();
        let first = rows.map(|row| row.map(|row| (row.id(), row.position())));
        Ok(keys.into_iter().zip(first).collect())
    }

    async fn overlays(
        &self,
        missing: &Missing,
    ) -> Result<Vec<((ConversationId, Seq), protocol::change::Overlay)>> {
        if missing.overlays.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<_> = missing.overlays.iter().copied().collect();
        let overlays = self.backends.changes.altered_each(&places);
        let overlays = self.stores.within(overlays).await?;
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
        self.stores.within(first).await
    }

    async fn own_change(
        &self,
        (conversation, record): (ConversationId, Version),
        search: ChangeSearch,
    ) -> Result<Option<OrderedChange>> {
        let own = (self.backends.changes).of_record(conversation, record, search);
        self.stores.within(own).await
    }

    async fn follower(
        &self,
        (owner, conversation, after): (Owner, ConversationId, Seq),
    ) -> Result<Option<Version>> {
        let range = HistoryRange::Forward { after };
        let rows = (self.backends.messages).page(owner, conversation, range, 1);
        let rows = self.stores.within(rows).await?;
        Ok(rows.first().map(|row| row.version))
    }

    async fn cleared(
        &self,
        missing: &Missing,
    ) -> Result<Vec<((UserId, ConversationId), protocol::unread::Tally)>> {
        if missing.cleared.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing.cleared.iter().copied().collect();
        let registers = self.backends.conversations.registers(&keys);
        let registers = self.stores.within(registers).await?;
        let cleared = registers.into_iter().map(|registers| registers.cleared);
        Ok(keys.into_iter().zip(cleared).collect())
    }

    async fn hidden(&self, missing: &Missing) -> Result<Vec<(HideKey, Option<u64>)>> {
        if missing.hidden.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing.hidden.iter().copied().collect();
        let marks = self.backends.conversations.first_hidden(&keys);
        let marks = self.stores.within(marks).await?;
        Ok(keys.into_iter().zip(marks).collect())
    }

    async fn members(
        &self,
        missing: &Missing,
    ) -> Result<Vec<((GroupId, UserId), Option<(GroupSettings, Member)>)>> {
        if missing.members.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = missing.members.iter().copied().collect();
        let members = self.backends.groups.members_of(&keys);
        let members = self.stores.within(members).await?;
        Ok(keys.into_iter().zip(members).collect())
    }
}

/// Asks a few questions at a time. Answers are in the order of the questions.
async fn each<T>(asked: Vec<impl Future<Output = Result<T>>>) -> Result<Vec<T>> {
    stream::iter(asked).buffered(TOGETHER).try_collect().await
}
