//! Copies in Redis: one server, a master behind sentinels, or a cluster.
//!
//! | key | type | holds |
//! | --- | --- | --- |
//! | `msg/{b0417}/u:<uid>/c`, `msg/{g<gid>}/c` | hash | `of`: the replid of its master, `token`, and of a copy `copy`, `seq`, `rev` |
//!
//! Redis may lose what it acknowledged, and a copy that was forgotten may be there again after a failover. So each bears
//! the replid of the master that it was made under, and another master begins anew.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::cached::{Outdated, Owner};
use protocol::keys;
use redis::Value;

use super::{Cache, CacheConfig, Copy, Found, SEAM, Token};
use crate::clock::Entropy;
use crate::mailbox::RedisConfig;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::scripts::Name;
use crate::redis::{Connection, connect, reply, slots};
use crate::{Error, Result};

/// [`Cache`] on Redis.
pub struct RedisCache {
    config: CacheConfig,
    prefix: String,
    entropy: Arc<dyn Entropy>,
    connection: Connection,
}

impl RedisCache {
    /// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` when a master is not
    /// reached or runs something older than Redis 7.0.
    pub async fn connect(
        redis: &RedisConfig,
        config: CacheConfig,
        entropy: Arc<dyn Entropy>,
    ) -> Result<RedisCache> {
        redis.check()?;
        config.check()?;
        Ok(RedisCache {
            config,
            prefix: redis.key_prefix.clone(),
            entropy,
            connection: connect(SEAM, redis).await?,
        })
    }

    fn call(&self, owner: Owner, name: Name) -> Call {
        Call::script_in(slots::of_tag(&tag(owner)), name).key(key(&self.prefix, owner))
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

    async fn find(&self, owners: &[Owner]) -> Vec<Result<Found>> {
        if self.config.is_off() {
            return owners.iter().map(|_| Ok(Found::nothing())).collect();
        }
        let call = |owner: &Owner| {
            let call = self.call(*owner, Name::CacheFind);
            call.arg(self.expire()).arg(self.entropy.next())
        };
        let calls: Vec<Call> = owners.iter().map(call).collect();
        let told = self.connection.pool.run(&calls).await.into_iter();
        told.map(|told| told.and_then(found).map_err(at_here))
            .collect()
    }

    async fn keep(&self, copies: Vec<Copy>) -> Vec<Result<bool>> {
        if self.config.is_off() {
            return copies.iter().map(|_| Ok(false)).collect();
        }
        let call = |copy: Copy| {
            let call = self.call(copy.owner, Name::CacheKeep);
            call.arg(self.expire())
                .arg(copy.token.0)
                .arg(self.entropy.next())
                .bytes(copy.bytes)
                .arg(copy.reach.seq)
                .arg(copy.reach.rev)
        };
        let calls: Vec<Call> = copies.into_iter().map(call).collect();
        let told = self.connection.pool.run(&calls).await.into_iter();
        told.map(|told| Ok(told.and_then(reply::integer).map_err(at_here)? == 1))
            .collect()
    }

    async fn forget(&self, outdated: &[Outdated]) -> Vec<Result<()>> {
        if self.config.is_off() {
            return outdated.iter().map(|_| Ok(())).collect();
        }
        let call = |Outdated { owner, unless }: &Outdated| {
            let call = self.call(*owner, Name::CacheForget);
            match unless {
                Some(reach) => call.arg(reach.seq).arg(reach.rev),
                None => call,
            }
        };
        let calls: Vec<Call> = outdated.iter().map(call).collect();
        let told = self.connection.pool.run(&calls).await.into_iter();
        told.map(|told| told.and_then(reply::integer).map(drop).map_err(at_here))
            .collect()
    }
}

fn found(told: Value) -> Result<Found, Failure> {
    let [token, copy] = reply::items(told)?;
    Ok(Found {
        token: Token(reply::text(token)?),
        copy: match copy {
            Value::Nil => None,
            copy => Some(Bytes::from(reply::bytes(copy)?)),
        },
    })
}

fn at_here(failure: Failure) -> Error {
    failure.at(SEAM)
}

fn key(prefix: &str, owner: Owner) -> String {
    let tag = tag(owner);
    match owner {
        Owner::User(user) => format!("{prefix}/{{{tag}}}/u:{user}/c"),
        Owner::Group(_) => format!("{prefix}/{{{tag}}}/c"),
    }
}

/// That of what else is kept of a user, and of a group.
fn tag(owner: Owner) -> String {
    match owner {
        Owner::User(user) => format!("b{:04}", keys::bucket_of(user)),
        Owner::Group(group) => format!("g{group}"),
    }
}

#[cfg(test)]
mod tests;
