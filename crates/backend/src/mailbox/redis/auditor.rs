//! Audit of waiting mail: every entry has a body, each body is counted right, nothing is left over.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::keys::Keys;
use crate::mailbox::IntegrityCheck;
use crate::redis::failure::Failure;
use crate::redis::finder::Address;
use crate::redis::pool::Pool;
use crate::redis::reply;

const STEP: usize = 1_000;

/// Keys and entries of one message within a bucket.
#[derive(Default)]
struct MessageKeys {
    entries: u64,
    has_body: bool,
    count: Option<i64>,
}

/// Reads all mail; the result holds only while nobody changes mail. An expired body is no fault:
/// its entries have expired too.
pub(super) async fn audit(pool: &Pool, keys: &Keys) -> Result<IntegrityCheck, Failure> {
    let mut audit = IntegrityCheck::default();
    let mut message_keys: BTreeMap<(String, String), MessageKeys> = BTreeMap::new();
    for (master, name) in all_keys(pool, keys).await? {
        let Some((tag, rest)) = name.split_once("}/") else {
            continue;
        };
        let key = |id: &str| (tag.to_owned(), id.to_owned());
        if rest.ends_with("/oms") {
            audit.mailboxes += 1;
            let mut read = redis::cmd("ZRANGE");
            read.arg(&name).arg(0).arg(-1);
            for id in reply::list(ask(pool, &master, read).await?)? {
                audit.entries += 1;
                message_keys
                    .entry(key(&reply::text(id)?))
                    .or_default()
                    .entries += 1;
            }
        } else if let Some(id) = rest
            .strip_prefix("om:")
            .and_then(|id| id.strip_suffix("/m"))
        {
            audit.bodies += 1;
            message_keys.entry(key(id)).or_default().has_body = true;
        } else if let Some(id) = rest
            .strip_prefix("om:")
            .and_then(|id| id.strip_suffix("/n"))
        {
            let mut read = redis::cmd("GET");
            read.arg(&name);
            match ask(pool, &master, read).await? {
                // The count has just expired.
                Value::Nil => {}
                count => {
                    message_keys.entry(key(id)).or_default().count = Some(reply::number(count)?)
                }
            }
        }
    }
    for ((tag, id), message_keys) in message_keys {
        let MessageKeys {
            entries,
            has_body,
            count,
        } = message_keys;
        if entries > 0 && !has_body {
            audit
                .wrong
                .push(format!("{tag}}}: message {id} waits without a body"));
        }
        let total = count.unwrap_or(0);
        if total != i64::try_from(entries).unwrap_or(i64::MAX) {
            audit.wrong.push(format!(
                "{tag}}}: message {id} is counted {total} times, {entries} hold it"
            ));
        }
        if entries == 0 {
            audit
                .wrong
                .push(format!("{tag}}}: nobody holds message {id}, its keys stay"));
        }
    }
    Ok(audit)
}

/// Names of all keys, each with the master that has it.
pub(super) async fn all_keys(
    pool: &Pool,
    keys: &Keys,
) -> Result<BTreeSet<(Address, String)>, Failure> {
    let mut names = BTreeSet::new();
    for master in pool.masters() {
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(keys.all())
                .arg("COUNT")
                .arg(STEP);
            let [next, step] = reply::items(ask(pool, &master, scan).await?)?;
            for name in reply::list(step)? {
                names.insert((master.clone(), reply::text(name)?));
            }
            cursor = reply::number(next)?;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(names)
}

/// Asks one server, without retries.
pub(super) async fn ask(pool: &Pool, master: &Address, command: Cmd) -> Result<Value, Failure> {
    let deadline = Instant::now() + pool.mode.deadline;
    let node = pool.node(master);
    let live = node.live(&pool.mode, deadline).await?;
    let mut pipeline = Pipeline::new();
    pipeline.add_command(command);
    let mut answers = node.send(&live, pipeline, deadline, &pool.mode).await?;
    match answers.pop() {
        Some(answer) => Ok(answer.extract_error()?),
        None => Err(Failure::Reply("no answer".to_owned())),
    }
}
