//! Applies a plan: stages in order, the effects of a stage side by side.

use std::collections::BTreeMap;
use std::time::Duration;

use backend::cache::{CacheLookup, CacheRecord};
use backend::timeline::TimelineEntry;
use backend::{Error, Kind};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use protocol::cache::{CacheKey, Invalidation};
use protocol::conversation::Head;
use protocol::writer::{ChangedPlaces, Effect, GroupChange, HeadMove, ListOp, ListOpKind, Stage};
use protocol::{ConversationId, GroupId, Timestamp};
use tokio::time::Instant;

use super::stamp_retry::StampRetry;
use super::{Halt, WriteFailure, Writer};
use crate::deadline::StoreDeadline;

/// Groups whose timelines are pushed at once.
const TOGETHER: usize = 64;
/// Time of a lazy effect, for all its groups together; a renewal has it twice, to keep entries and to forget them. A
/// cache that hangs slows a write down, and stalls none.
const LAZY_TIME: Duration = Duration::from_millis(200);

/// Cache entries of groups, with their fill tokens, from before anything is written.
type Permits = Vec<(GroupId, CacheLookup)>;

/// Results of earlier effects of a plan, for later ones.
#[derive(Default)]
struct EffectResults {
    permits: Permits,
    /// Heads as stamped.
    heads: BTreeMap<ConversationId, Head>,
}

/// Yield of one effect.
enum Yield {
    Nothing,
    Permits(Permits),
    Heads(Vec<HeadMove>),
    Group(Box<GroupChange>),
}

impl Writer {
    /// Applies all stages. Lazy effects that fail are counted, and stall nothing.
    pub(super) async fn apply(
        &mut self,
        stages: Vec<Stage>,
        until: Instant,
    ) -> Result<(), WriteFailure> {
        let mut results = EffectResults::default();
        for Stage(effects) in stages {
            // Heads and groups are remembered only once they are written.
            effects
                .iter()
                .for_each(|effect| self.forget_targets(effect));
            let done = match <[Effect; 1]>::try_from(effects) {
                // Most stages: nothing is boxed.
                Ok([effect]) => vec![self.effect(effect, &results, until).await],
                Err(effects) => {
                    let effects = effects.into_iter();
                    join_all(effects.map(|effect| self.effect(effect, &results, until))).await
                }
            };
            let mut failure = None;
            for done in done {
                match done {
                    Ok(Yield::Nothing) => {}
                    Ok(Yield::Permits(permits)) => results.permits = permits,
                    Ok(Yield::Heads(heads)) => {
                        for moved in heads {
                            results.heads.insert(moved.conversation, moved.head);
                            self.heads.remember(moved);
                        }
                    }
                    Ok(Yield::Group(change)) => self.groups.remember(*change),
                    Err(error) => _ = failure.get_or_insert(error),
                }
            }
            failure.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    fn forget_targets(&mut self, effect: &Effect) {
        match effect {
            Effect::Group(change) => self.groups.forget_one(change.group),
            Effect::Heads(heads) => {
                for moved in heads {
                    self.heads.forget_one(moved.conversation);
                }
            }
            _ => {}
        }
    }

    /// Applies one effect, stamped anew until a write is soon enough.
    async fn effect(
        &self,
        mut effect: Effect,
        results: &EffectResults,
        until: Instant,
    ) -> Result<Yield, WriteFailure> {
        if !effect.stamp(self.clock.now()) {
            return self.call(effect, results).await;
        }
        let mut stamping = StampRetry::new(self.clock.clone(), self.list_margin, until);
        let mut done = Yield::Nothing;
        while let Some(stamp) = stamping.next()? {
            effect.stamp(stamp);
            done = self.call(effect.clone(), results).await?;
        }
        Ok(done)
    }

    async fn call(&self, effect: Effect, results: &EffectResults) -> Result<Yield, WriteFailure> {
        let backends = &self.backends;
        let stores = match effect.kind().is_lazy() {
            true => self.stores.together(LAZY_TIME),
            false => self.stores,
        };
        match effect {
            Effect::Group(change) => {
                let members = change.update.members.iter();
                let members = members.map(|(user, member)| (*user, *member)).collect();
                let settings = change.update.settings;
                let saved = backends.groups.save(change.group, settings, members);
                stores.within(saved).await.map_err(refused)?;
                return Ok(Yield::Group(change));
            }
            Effect::Touch { lists, at } => {
                let touched = backends.conversations.touch(lists, at);
                stores.within(touched).await?;
            }
            Effect::Invalidate(invalidations) => {
                let invalidated = self.invalidate(&invalidations, stores).await;
                invalidated.map_err(Halt::Store)?;
            }
            Effect::Permits(groups) => {
                let permits = self.permits(groups, stores).await;
                return Ok(Yield::Permits(permits));
            }
            Effect::Messages(rows) => {
                let saved = backends.messages.save(rows);
                stores.within(saved).await.map_err(refused)?;
            }
            Effect::Changes(rows) => {
                let saved = backends.changes.save(rows);
                stores.within(saved).await.map_err(refused)?;
            }
            Effect::Recalled(messages) => {
                let deleted = backends.messages.delete(&messages);
                stores.within(deleted).await?;
            }
            Effect::Heads(heads) => {
                self.heads.write(&heads).await?;
                return Ok(Yield::Heads(heads));
            }
            Effect::Renew(groups) => self.renew(groups, results, stores).await,
            Effect::Timeline(entries) => self.push(entries, stores).await,
            Effect::ListRows(rows) => {
                let saved = backends.conversations.save(rows);
                stores.within(saved).await?;
            }
            Effect::ListOps { ops, at } => self.list_ops(&ops, at).await?,
        }
        Ok(Yield::Nothing)
    }

    /// Operations of one kind.
    async fn list_ops(&self, ops: &[ListOp], at: Timestamp) -> Result<(), Error> {
        let (mut cleared, mut arranged, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for op in ops {
            let (owner, conversation) = (op.owner, op.conversation);
            match op.kind {
                ListOpKind::Clear(up_to) => cleared.push((owner, conversation, up_to)),
                ListOpKind::Arrange(how) => arranged.push((owner, conversation, op.version, how)),
                ListOpKind::Hide(seq) => hidden.push((owner, conversation, op.version, seq)),
            }
        }
        let conversations = &self.backends.conversations;
        if !cleared.is_empty() {
            let cleared = conversations.set_cleared(cleared, at);
            self.stores.within(cleared).await?;
        }
        if !arranged.is_empty() {
            let arranged = conversations.arrange(arranged, at);
            self.stores.within(arranged).await?;
        }
        if !hidden.is_empty() {
            let hidden = conversations.hide(hidden, at);
            self.stores.within(hidden).await?;
        }
        Ok(())
    }

    async fn permits(&self, groups: Vec<GroupId>, stores: StoreDeadline) -> Permits {
        let keys: Vec<CacheKey> = groups.iter().map(|group| CacheKey::Group(*group)).collect();
        let found = self.backends.cache.find(&keys);
        let found = stores.each(keys.len(), found).await;
        let (mut permits, mut failures) = (Permits::new(), Vec::new());
        for (group, found) in groups.into_iter().zip(found) {
            match found {
                Ok(found) => permits.push((group, found)),
                Err(error) => failures.push(error),
            }
        }
        not_renewed(&failures);
        permits
    }

    /// Renews the cache entries of groups, where there are some, so that a returning member finds the newest head
    /// without a store. An entry that somebody else was quicker with is invalidated: they may not have seen the last
    /// stamp of the head. No record depends on it: whoever routes a delivery invalidates stale entries first.
    async fn renew(
        &self,
        groups: Vec<(GroupId, ChangedPlaces)>,
        results: &EffectResults,
        stores: StoreDeadline,
    ) {
        let changes: BTreeMap<GroupId, ChangedPlaces> = groups.into_iter().collect();
        let renewed = results.permits.iter().filter_map(|(group, found)| {
            let head = *results.heads.get(&ConversationId::Group(*group))?;
            let entry = found.group()?.moved(head, changes.get(group)?)?;
            let entry = CacheRecord::of_group(*group, found.token.clone(), &entry).ok()?;
            Some((CacheKey::Group(*group), entry))
        });
        let (keys, entries): (Vec<CacheKey>, Vec<CacheRecord>) = renewed.unzip();
        if entries.is_empty() {
            return;
        }
        let kept = self.backends.cache.keep(entries);
        let kept = stores.each(keys.len(), kept).await;
        let (mut stale, mut failures) = (Vec::new(), Vec::new());
        for (key, kept) in keys.into_iter().zip(kept) {
            match kept {
                Ok(true) => {}
                Ok(false) => stale.push(Invalidation::of(key)),
                // Somebody else may have filled it meanwhile.
                Err(error) => {
                    failures.push(error);
                    stale.push(Invalidation::of(key));
                }
            }
        }
        let stores = self.stores.together(LAZY_TIME);
        failures.extend(self.invalidate(&stale, stores).await.err());
        not_renewed(&failures);
    }

    async fn invalidate(
        &self,
        invalidations: &[Invalidation],
        stores: StoreDeadline,
    ) -> Result<(), Error> {
        if invalidations.is_empty() {
            return Ok(());
        }
        let forgotten = self.backends.cache.forget(invalidations);
        let forgotten = stores.each(invalidations.len(), forgotten).await;
        forgotten.into_iter().collect()
    }

    /// Pushes the newest messages of groups to where pages are read first. It is a cache: what is not there is read from
    /// history, and no group waits for another's.
    async fn push(&self, entries: Vec<(GroupId, Vec<TimelineEntry>)>, stores: StoreDeadline) {
        let timeline = &self.backends.timeline;
        let pushes = stream::iter(entries)
            .map(async |(group, entries)| stores.within(timeline.push(group, entries)).await);
        let failures = pushes
            .buffer_unordered(TOGETHER)
            .filter_map(async |it| it.err());
        let failures: Vec<Error> = failures.collect().await;
        if let Some(error) = failures.first() {
            let groups = failures.len();
            tracing::warn!(%error, source = %error.source, groups, "not in the timeline");
            metrics::counter!("carrier_timeline_failures_total").increment(groups as u64);
        }
    }
}

/// A conflict is the fault of a record.
fn refused(error: Error) -> WriteFailure {
    match error.kind {
        Kind::Conflict => WriteFailure::Refused(error),
        Kind::Unavailable | Kind::Corrupt => error.into(),
    }
}

fn not_renewed(failures: &[Error]) {
    if let Some(error) = failures.first() {
        let groups = failures.len();
        tracing::warn!(%error, source = %error.source, groups, "cache entries of groups are not renewed");
        metrics::counter!("carrier_cache_failures_total").increment(groups as u64);
    }
}
