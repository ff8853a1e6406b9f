//! Cache in Redis: one server, a master behind sentinels, or a cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `msg/{b0417}/u:<uid>/c`, `msg/{g<gid>}/c` | hash | `of`: the replid of its master, `token`, and of a copy `copy`, `seq`, `rev` |
//!
//! Redis may lose acknowledged writes, and a failover may bring back a removed entry. Each entry
//! therefore carries the replid of the master it was made under, and a new master starts afresh.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::cache::{CacheKey, Invalidation};
use protocol::keys;
use redis::Value;

use super::{Cache, CacheConfig, CacheLookup, CacheRecord, FillToken, SEAM};
use crate::clock::Entropy;
use crate::mailbox::RedisConfig;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::scripts::ScriptName;
use crate::redis::{RedisConnection, connect, reply, slots};
use crate::{Error, Result};

/// [`Cache`] on Redis.
pub struct RedisCache {
    config: CacheConfig,
    prefix: String,
    entropy: Arc<dyn Entropy>,
    connection: RedisConnection,
}

impl RedisCache {
    /// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` if a master
    /// is not reached or runs a version older than Redis 7.0.
    pub async fn connect(
        redis: &RedisConfig,
        config: CacheConfig,
        entropy: Arc<dyn Entropy>,
    ) -> Result<RedisCache> {
        redis.check()?;
        Ok(RedisCache {
            config,
            prefix: redis.key_prefix.clone(),
            entropy,
            connection: connect(SEAM, redis).await?,
        })
    }

    fn call(&self, owner: CacheKey, name: ScriptName) -> Call {
        Call::script_in(slots::for_tag(&tag(owner)), name).key(key(&self.prefix, owner))
    }

    fn expire(&self) -> u128 {
        self.config.keep_for.as_millis()
    }
}

#[async_trait]
impl Cache for RedisCache {
    fn keep_for(&self) -> Duration {
        self.config.keep_for
    }

    async fn find(&self, owners: &[CacheKey]) -> Vec<Result<CacheLookup>> {
        if self.config.is_off() {
            return owners.iter().map(|_| Ok(CacheLookup::nothing())).collect();
        }
        let call = |owner: &CacheKey| {
            let call = self.call(*owner, ScriptName::CacheFind);
            call.arg(self.expire()).arg(self.entropy.next())
        };
        let calls: Vec<Call> = owners.iter().map(call).collect();
        let result = self.connection.pool.run(&calls).await.into_iter();
        result
            .map(|result| result.and_then(parse_lookup).map_err(at_here))
            .collect()
    }

    async fn keep(&self, records: Vec<CacheRecord>) -> Vec<Result<bool>> {
        if self.config.is_off() {
            return records.iter().map(|_| Ok(false)).collect();
        }
        let call = |record: CacheRecord| {
            let call = self.call(record.owner, ScriptName::CacheKeep);
            call.arg(self.expire())
                .arg(record.token.0)
                .arg(self.entropy.next())
                .bytes(record.bytes)
                .arg(record.reach.seq)
                .arg(record.reach.rev)
        };
        let calls: Vec<Call> = records.into_iter().map(call).collect();
        let result = self.connection.pool.run(&calls).await.into_iter();
        result
            .map(|result| Ok(result.and_then(reply::integer).map_err(at_here)? == 1))
            .collect()
    }

    async fn forget(&self, invalidations: &[Invalidation]) -> Vec<Result<()>> {
        if self.config.is_off() {
            return invalidations.iter().map(|_| Ok(())).collect();
        }
        let call = |Invalidation { owner, unless }: &Invalidation| {
            let call = self.call(*owner, ScriptName::CacheForget);
            match unless {
                Some(reach) => call.arg(reach.seq).arg(reach.rev),
                None => call,
            }
        };
        let calls: Vec<Call> = invalidations.iter().map(call).collect();
        let result = self.connection.pool.run(&calls).await.into_iter();
        result
            .map(|result| result.and_then(reply::integer).map(drop).map_err(at_here))
            .collect()
    }
}

fn parse_lookup(reply: Value) -> Result<CacheLookup, Failure> {
    let [token, entry] = reply::items(reply)?;
    Ok(CacheLookup {
        token: FillToken(reply::text(token)?),
        entry: match entry {
            Value::Nil => None,
            entry => Some(Bytes::from(reply::bytes(entry)?)),
        },
    })
}

fn at_here(failure: Failure) -> Error {
    failure.at(SEAM)
}

fn key(prefix: &str, owner: CacheKey) -> String {
    let tag = tag(owner);
    match owner {
        CacheKey::User(user) => format!("{prefix}/{{{tag}}}/u:{user}/c"),
        CacheKey::Group(_) => format!("{prefix}/{{{tag}}}/c"),
    }
}

/// Hash tag shared with all other keys of the user or group.
fn tag(owner: CacheKey) -> String {
    match owner {
        CacheKey::User(user) => format!("b{:04}", keys::bucket_of(user)),
        CacheKey::Group(group) => format!("g{group}"),
    }
}

#[cfg(test)]
mod tests;
