//! The copies of groups are renewed as their heads move, so that who comes back finds the newest without a store.
//!
//! No record depends on it: a copy that was not renewed is forgotten before anybody is told. Only of whom a wish sends
//! away, or where it closes what was open, copies are forgotten before anything behind it in the log is written.

use std::collections::BTreeMap;

use backend::Error;
use backend::cache::{Copy, Found};
use protocol::cached::{Outdated, Owner};
use protocol::change::ChangeRow;
use protocol::conversation::Head;
use protocol::{ConversationId, GroupId, Seq};

use super::Writer;

/// What is there of some, from before anything is written.
pub(super) type Permits = Vec<(GroupId, Found)>;

/// The places of the messages that a batch changes, by change.
pub(super) type Changed = BTreeMap<ConversationId, BTreeMap<u64, Seq>>;

/// Those of these rows.
pub(super) fn changed(rows: &[ChangeRow]) -> Changed {
    let mut changed = Changed::new();
    for row in rows {
        let of = changed.entry(row.conversation).or_default();
        of.insert(row.changed.rev, row.changed.seq);
    }
    changed
}

impl Writer {
    pub(super) async fn ask_permits(
        &self,
        conversations: impl Iterator<Item = &ConversationId>,
    ) -> Permits {
        let groups = conversations.filter_map(|conversation| match conversation {
            ConversationId::Group(group) => Some(*group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        });
        let groups: Vec<GroupId> = groups.collect();
        if groups.is_empty() {
            return Permits::new();
        }
        let owners: Vec<Owner> = groups.iter().map(|group| Owner::Group(*group)).collect();
        let found = self.cache.find(&owners);
        let found = self.stores.each(owners.len(), found).await;
        let found = groups.into_iter().zip(found);
        let found = found.filter_map(|(group, found)| match found {
            Ok(found) => Some((group, found)),
            Err(error) => {
                not_renewed(&error);
                None
            }
        });
        found.collect()
    }

    /// As the heads are now, where there is a copy. One that somebody else was quicker with is forgotten: they may not
    /// have seen when the head was stamped last.
    pub(super) async fn renew(
        &self,
        permits: Permits,
        heads: &BTreeMap<ConversationId, (u32, Head)>,
        changed: &Changed,
    ) {
        let none = BTreeMap::new();
        let copies = permits.into_iter().filter_map(|(group, found)| {
            let conversation = ConversationId::Group(group);
            let (_, head) = *heads.get(&conversation)?;
            let changes = changed.get(&conversation).unwrap_or(&none);
            let copy = found.group()?.moved(head, changes)?;
            let copy = Copy::of_group(group, found.token, &copy).ok()?;
            Some((Owner::Group(group), copy))
        });
        let (owners, copies): (Vec<Owner>, Vec<Copy>) = copies.unzip();
        if copies.is_empty() {
            return;
        }
        let kept = self.cache.keep(copies);
        let kept = self.stores.each(owners.len(), kept).await;
        let mut refused = Vec::new();
        for (owner, kept) in owners.into_iter().zip(kept) {
            match kept {
                Ok(true) => {}
                Ok(false) => refused.push(owner),
                Err(error) => not_renewed(&error),
            }
        }
        if let Err(error) = self.forget_copies(refused).await {
            not_renewed(&error);
        }
    }

    pub(super) async fn forget_copies(&self, owners: Vec<Owner>) -> Result<(), Error> {
        if owners.is_empty() {
            return Ok(());
        }
        let outdated: Vec<Outdated> = owners.into_iter().map(Outdated::of).collect();
        let forgotten = self.cache.forget(&outdated);
        let forgotten = self.stores.each(outdated.len(), forgotten).await;
        forgotten.into_iter().collect()
    }
}

fn not_renewed(error: &Error) {
    tracing::warn!(%error, source = %error.source, "copies of groups are not renewed");
    metrics::counter!("carrier_cache_failures_total").increment(1);
}
