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
const MAX_CONCURRENT_PUSHES: usize = 64;
/// Time of a lazy effect, for all its groups together; a renewal has it twice, to keep entries and to forget them. A
/// cache that hangs slows a write down, and stalls none.
const LAZY_TIMEOUT: Duration = Duration::from_millis(200);

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
        deadline: Instant,
    ) -> Result<(), WriteFailure> {
        let mut results = EffectResults::default();
        for Stage(effects) in stages {
            // Heads and groups are remembered only once they are written.
            effects
                .iter()
                .for_each(|effect| self.forget_targets(effect));
            let outcomes = match <[Effect; 1]>::try_from(effects) {
                // Most stages: nothing is boxed.
                Ok([effect]) => vec![self.effect(effect, &results, deadline).await],
                Err(effects) => {
                    let effects = effects.into_iter();
                    join_all(effects.map(|effect| self.effect(effect, &results, deadline))).await
                }
            };
            let mut failure = None;
            for outcome in outcomes {
                match outcome {
                    Ok(Yield::Nothing) => {}
                    Ok(Yield::Permits(permits)) => results.permits = permits,
                    Ok(Yield::Heads(heads)) => {
                        for head_move in heads {
                            results.heads.insert(head_move.conversation, head_move.head);
                            self.heads.remember(head_move);
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
                for head_move in heads {
                    self.heads.forget_one(head_move.conversation);
                }
            }
            _ => {}
        }
    }

    /// Applies one effect. Where a write took too long for its stamp, stamps and writes it again.
    async fn effect(
        &self,
        mut effect: Effect,
        results: &EffectResults,
        deadline: Instant,
    ) -> Result<Yield, WriteFailure> {
        if !effect.stamp(self.clock.now()) {
            return self.call(effect, results).await;
        }
        let mut stamp_retry = StampRetry::new(self.clock.clone(), self.list_margin, deadline);
        let mut outcome = Yield::Nothing;
        while let Some(stamp) = stamp_retry.next()? {
            effect.stamp(stamp);
            outcome = self.call(effect.clone(), results).await?;
        }
        Ok(outcome)
    }

    async fn call(&self, effect: Effect, results: &EffectResults) -> Result<Yield, WriteFailure> {
        let backends = &self.backends;
        let store_deadline = if effect.kind().is_lazy() {
            self.store_deadline.with_timeout(LAZY_TIMEOUT)
        } else {
            self.store_deadline
        };
        match effect {
            Effect::Group(change) => {
                let members = change.update.members.iter();
                let members = members.map(|(user, member)| (*user, *member)).collect();
                let save = (backends.groups).save(change.group, change.update.info, members);
                store_deadline.within(save).await.map_err(save_failure)?;
                return Ok(Yield::Group(change));
            }
            Effect::Touch { lists, at } => {
                let touch = backends.conversations.touch(lists, at);
                store_deadline.within(touch).await?;
            }
            Effect::Invalidate(invalidations) => {
                let invalidation = self.invalidate(&invalidations, store_deadline).await;
                invalidation.map_err(Halt::Store)?;
            }
            Effect::Permits(groups) => {
                let permits = self.permits(groups, store_deadline).await;
                return Ok(Yield::Permits(permits));
            }
            Effect::Messages(rows) => {
                let save = backends.messages.save(rows);
                store_deadline.within(save).await.map_err(save_failure)?;
            }
            Effect::Changes(rows) => {
                let save = backends.changes.save(rows);
                store_deadline.within(save).await.map_err(save_failure)?;
            }
            Effect::Recalled(messages) => {
                let delete = backends.messages.delete(&messages);
                store_deadline.within(delete).await?;
            }
            Effect::Heads(heads) => {
                self.heads.write(&heads).await?;
                return Ok(Yield::Heads(heads));
            }
            Effect::Renew(groups) => self.renew(groups, results, store_deadline).await,
            Effect::Timeline(entries) => self.push(entries, store_deadline).await,
            Effect::ListRows(rows) => {
                let save = backends.conversations.save(rows);
                store_deadline.within(save).await?;
            }
            Effect::ListOps { ops, at } => self.list_ops(&ops, at).await?,
        }
        Ok(Yield::Nothing)
    }

    /// Operations of one kind.
    async fn list_ops(&self, ops: &[ListOp], at: Timestamp) -> Result<(), Error> {
        let (mut clears, mut arrangements, mut hides) = (Vec::new(), Vec::new(), Vec::new());
        for op in ops {
            let (owner, conversation) = (op.owner, op.conversation);
            match op.kind {
                ListOpKind::Clear(up_to) => clears.push((owner, conversation, up_to)),
                ListOpKind::Arrange(arrangement) => {
                    arrangements.push((owner, conversation, op.version, arrangement))
                }
                ListOpKind::Hide(seq) => hides.push((owner, conversation, op.version, seq)),
            }
        }
        let conversations = &self.backends.conversations;
        if !clears.is_empty() {
            let clears = conversations.set_cleared(clears, at);
            self.store_deadline.within(clears).await?;
        }
        if !arrangements.is_empty() {
            let arrangements = conversations.arrange(arrangements, at);
            self.store_deadline.within(arrangements).await?;
        }
        if !hides.is_empty() {
            let hides = conversations.hide(hides, at);
            self.store_deadline.within(hides).await?;
        }
        Ok(())
    }

    async fn permits(&self, groups: Vec<GroupId>, store_deadline: StoreDeadline) -> Permits {
        let keys: Vec<CacheKey> = groups.iter().map(|group| CacheKey::Group(*group)).collect();
        let lookup = self.backends.cache.find(&keys);
        let lookup = store_deadline.each(keys.len(), lookup).await;
        let (mut permits, mut failures) = (Permits::new(), Vec::new());
        for (group, lookup) in groups.into_iter().zip(lookup) {
            match lookup {
                Ok(lookup) => permits.push((group, lookup)),
                Err(error) => failures.push(error),
            }
        }
        report_cache_failures(&failures);
        permits
    }

    /// Renews the cache entries of groups, where there are some, so that a returning member finds
    /// the newest head without a store. An entry that another process has replaced meanwhile is
    /// invalidated: that process may not have seen the last stamp of the head. No record depends on
    /// it: whoever routes a delivery invalidates stale entries first.
    async fn renew(
        &self,
        groups: Vec<(GroupId, ChangedPlaces)>,
        results: &EffectResults,
        store_deadline: StoreDeadline,
    ) {
        let changes: BTreeMap<GroupId, ChangedPlaces> = groups.into_iter().collect();
        let renewals = results.permits.iter().filter_map(|(group, lookup)| {
            let head = *results.heads.get(&ConversationId::Group(*group))?;
            let entry = lookup.group()?.moved(head, changes.get(group)?)?;
            let entry = CacheRecord::from_group(*group, lookup.token.clone(), &entry).ok()?;
            Some((CacheKey::Group(*group), entry))
        });
        let (keys, entries): (Vec<CacheKey>, Vec<CacheRecord>) = renewals.unzip();
        if entries.is_empty() {
            return;
        }
        let answer = self.backends.cache.keep(entries);
        let answer = store_deadline.each(keys.len(), answer).await;
        let (mut stale, mut failures) = (Vec::new(), Vec::new());
        for (key, answer) in keys.into_iter().zip(answer) {
            match answer {
                Ok(true) => {}
                Ok(false) => stale.push(Invalidation::of(key)),
                // Somebody else may have filled it meanwhile.
                Err(error) => {
                    failures.push(error);
                    stale.push(Invalidation::of(key));
                }
            }
        }
        let store_deadline = self.store_deadline.with_timeout(LAZY_TIMEOUT);
        failures.extend(self.invalidate(&stale, store_deadline).await.err());
        report_cache_failures(&failures);
    }

    async fn invalidate(
        &self,
        invalidations: &[Invalidation],
        store_deadline: StoreDeadline,
    ) -> Result<(), Error> {
        if invalidations.is_empty() {
            return Ok(());
        }
        let answers = self.backends.cache.forget(invalidations);
        let answers = store_deadline.each(invalidations.len(), answers).await;
        answers.into_iter().collect()
    }

    /// Pushes the newest messages of groups to where pages are read first. It is a cache: what is not there is read from
    /// history, and no group waits for another's.
    async fn push(
        &self,
        entries: Vec<(GroupId, Vec<TimelineEntry>)>,
        store_deadline: StoreDeadline,
    ) {
        let timeline = &self.backends.timeline;
        let pushes = stream::iter(entries).map(async |(group, entries)| {
            store_deadline.within(timeline.push(group, entries)).await
        });
        let failures = pushes
            .buffer_unordered(MAX_CONCURRENT_PUSHES)
            .filter_map(async |it| it.err());
        let failures: Vec<Error> = failures.collect().await;
        if let Some(error) = failures.first() {
            let groups = failures.len();
            tracing::warn!(%error, source = %error.source, groups, "cannot write to the timeline cache");
            metrics::counter!("carrier_timeline_failures_total").increment(groups as u64);
        }
    }
}

/// A conflict is the fault of a record.
fn save_failure(error: Error) -> WriteFailure {
    match error.kind {
        Kind::Conflict => WriteFailure::Refused(error),
        Kind::Unavailable | Kind::Corrupt => error.into(),
    }
}

fn report_cache_failures(failures: &[Error]) {
    if let Some(error) = failures.first() {
        let groups = failures.len();
        tracing::warn!(%error, source = %error.source, groups, "cannot renew group cache entries");
        metrics::counter!("carrier_cache_failures_total").increment(groups as u64);
    }
}
