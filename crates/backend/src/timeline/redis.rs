//! Timelines in Redis: one server, a master behind sentinels, or a cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `msg/{g<gid>}/tl` | zset | score = position, member = message id, 20 digits |
//! | `msg/{g<gid>}/b:<id>` | string | body |
//!
//! The score is the position and not the time: messages of one millisecond have an order, clocks of
//! stations have no say in it, and a reader sees by the positions of a page whether it is dense.
//!
//! All keys of a group lie in one slot, and each has a time to live: a group without pushes
//! expires.

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{GroupId, MessageId, Seq};
use redis::Value;

use super::{PAGE_BYTES_MAX, SEAM, Timeline, TimelineConfig, TimelineEntry, newest};
use crate::mailbox::RedisConfig;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::scripts::ScriptName;
use crate::redis::{RedisConnection, connect, reply, slots};
use crate::{Error, Result};

/// Messages per call, and bytes per call unless a single message has more.
const BATCH_ENTRIES: usize = 64;
const BATCH_BYTES: usize = 512 << 10;

/// Messages per page, whatever the caller asks for.
const PAGE_MAX: usize = 1_000;

/// [`Timeline`] on Redis. It has connections of its own: its pages are large, and the mailbox's
/// answers small.
pub struct RedisTimeline {
    config: TimelineConfig,
    prefix: String,
    connection: RedisConnection,
}

impl RedisTimeline {
    /// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` if a master
    /// is not reached or runs a version older than Redis 7.0.
    pub async fn connect(redis: &RedisConfig, config: TimelineConfig) -> Result<RedisTimeline> {
        redis.check()?;
        config.check()?;
        Ok(RedisTimeline {
            config,
            prefix: redis.key_prefix.clone(),
            connection: connect(SEAM, redis).await?,
        })
    }

    fn call(&self, group: GroupId, name: ScriptName) -> Call {
        Call::script_in(group_slot(group), name).key(self.timeline(group))
    }

    fn timeline(&self, group: GroupId) -> String {
        timeline_key(&self.prefix, group)
    }

    fn body(&self, group: GroupId, id: MessageId) -> String {
        body_key(&self.prefix, group, id)
    }

    fn put(&self, group: GroupId, entries: &[TimelineEntry]) -> Call {
        let bodies = entries.iter().map(|entry| self.body(group, entry.id));
        let call = bodies.fold(self.call(group, ScriptName::TimelinePush), Call::key);
        let call = call
            .arg(self.config.keep)
            .arg(self.config.expire.as_millis());
        entries.iter().fold(call, |call, entry| {
            let call = call.arg(member(entry.id)).arg(entry.seq);
            call.bytes(entry.body.clone())
        })
    }

    async fn ask(&self, call: Call) -> Result<Value> {
        let answer = self.connection.pool.ask(call).await;
        answer.map_err(at_here)
    }
}

#[async_trait]
impl Timeline for RedisTimeline {
    async fn push(&self, group: GroupId, entries: Vec<TimelineEntry>) -> Result<()> {
        let entries = newest(entries, self.config.keep)?;
        let calls = batches(&entries).map(|entries| self.put(group, entries));
        let calls: Vec<Call> = calls.collect();
        for result in self.connection.pool.run(&calls).await {
            result.and_then(reply::integer).map_err(at_here)?;
        }
        Ok(())
    }

    async fn latest(
        &self,
        group: GroupId,
        offset: usize,
        count: usize,
    ) -> Result<Vec<TimelineEntry>> {
        let call = self.call(group, ScriptName::TimelineLatest);
        let call = call
            .arg(offset.min(self.config.keep))
            .arg(count.min(PAGE_MAX))
            .arg(PAGE_BYTES_MAX);
        read(self.ask(call).await?).map_err(at_here)
    }

    async fn count(&self, group: GroupId, most: usize) -> Result<usize> {
        let call = self.call(group, ScriptName::TimelineCount);
        let reply = self.ask(call.arg(most.min(self.config.keep))).await?;
        let count = reply::integer(reply).map_err(at_here)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    async fn forget(&self, group: GroupId) -> Result<()> {
        loop {
            let reply = self
                .ask(self.call(group, ScriptName::TimelineForget))
                .await?;
            if reply::integer(reply).map_err(at_here)? == 0 {
                return Ok(());
            }
        }
    }
}

/// Splits entries into slices of one call each.
fn batches(entries: &[TimelineEntry]) -> impl Iterator<Item = &[TimelineEntry]> {
    let mut rest = entries;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |entry: &&TimelineEntry| {
            bytes += entry.body.len();
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take(BATCH_ENTRIES).take_while(fits).count();
        let (batch, tail) = rest.split_at(count.max(1).min(rest.len()));
        rest = tail;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Reads triples of message, position and body.
fn read(reply: Value) -> Result<Vec<TimelineEntry>, Failure> {
    let mut reply = reply::list(reply)?.into_iter();
    let mut entries = Vec::new();
    while let (Some(id), Some(seq)) = (reply.next(), reply.next()) {
        let id = MessageId::new(reply::number(id)?);
        entries.push(TimelineEntry {
            seq: Seq(reply::number(seq)?),
            id: id.map_err(|error| Failure::Reply(error.to_string()))?,
            body: Bytes::from(reply::bytes(reply.next().unwrap_or(Value::Nil))?),
        });
    }
    Ok(entries)
}

fn at_here(failure: Failure) -> Error {
    failure.at(SEAM)
}

fn timeline_key(prefix: &str, group: GroupId) -> String {
    format!("{prefix}/{{{}}}/tl", tag(group))
}

fn body_key(prefix: &str, group: GroupId, id: MessageId) -> String {
    format!("{prefix}/{{{}}}/b:{}", tag(group), member(id))
}

fn tag(group: GroupId) -> String {
    format!("g{group}")
}

fn group_slot(group: GroupId) -> u16 {
    slots::for_tag(&tag(group))
}

/// Member of the sorted set: 20 digits, so that bytes sort as numbers do at equal scores, and never
/// a Lua number, which is exact only up to 2^53.
fn member(id: MessageId) -> String {
    format!("{:020}", id.get())
}

#[cfg(test)]
mod tests;
