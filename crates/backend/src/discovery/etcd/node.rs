//! Node numbers of message ids: each is held under a lease, and its past is kept without one.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use etcd_client::{
    Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};
use protocol::Timestamp;
use protocol::id::snowflake::NODES;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::NodeLease;
use super::SEAM;
use super::keeper::{HeldLease, LeaseKeeper, LeaseMark, LeasePatience, keep_alive};
use super::keys::Keys;
use crate::clock::Entropy;
use crate::{Error, Result};

/// Maximum number of attempts to take a number while others are faster.
const MAX_LEASE_ATTEMPTS: usize = 16;

/// Number of candidates among the numbers unused for longest. The choice is random, so that
/// stations starting together seldom want the same one.
const MAX_CANDIDATES: usize = 32;

/// All numbers at one moment.
#[derive(Debug, Default)]
pub(super) struct NodeBoard {
    held_numbers: BTreeSet<u16>,
    pasts: BTreeMap<u16, Past>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Past {
    /// Time up to which ids may have been made.
    reserved_until: Timestamp,
    /// Revision of the key; zero if there is none.
    revision: i64,
}

impl NodeBoard {
    pub(super) async fn read(keeper: &LeaseKeeper, keys: &Keys) -> Result<NodeBoard> {
        let options = || Some(GetOptions::new().with_prefix());
        let requests = [
            TxnOp::get(keys.nodes(), options().map(GetOptions::with_keys_only)),
            TxnOp::get(keys.pasts(), options()),
        ];
        let answer = keeper.calls.txn(Txn::new().and_then(requests)).await?;
        let [nodes, pasts] = lists(answer.op_responses())?;
        let mut board = NodeBoard::default();
        for kv in &nodes {
            board.held_numbers.insert(number(kv, &keys.nodes())?);
        }
        for kv in &pasts {
            let past = Past {
                reserved_until: parse_time(kv)?,
                revision: kv.mod_revision(),
            };
            board.pasts.insert(number(kv, &keys.pasts())?, past);
        }
        Ok(board)
    }

    /// Picks a number that nobody holds: one never used, or else one of those unused for longest.
    fn choose(&self, entropy: &dyn Entropy) -> Option<(u16, Past)> {
        let free = (0..NODES).filter(|number| !self.held_numbers.contains(number));
        let mut free: Vec<_> = free
            .map(|number| (self.pasts.get(&number).copied().unwrap_or_default(), number))
            .collect();
        free.sort_by_key(|(past, number)| (past.reserved_until, *number));
        let unused_count = free.partition_point(|(past, _)| past.reserved_until == Timestamp::ZERO);
        let choice = if unused_count > 0 {
            unused_count
        } else {
            free.len().min(MAX_CANDIDATES)
        };
        let index = entropy.next().checked_rem(choice as u64)?;
        free.get(index as usize)
            .map(|(past, number)| (*number, *past))
    }
}

fn lists<const N: usize>(answers: Vec<TxnOpResponse>) -> Result<[Vec<KeyValue>; N]> {
    let lists: Vec<_> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            TxnOpResponse::Get(mut response) => Some(response.take_kvs()),
            _ => None,
        })
        .collect();
    lists
        .try_into()
        .map_err(|_| Error::corrupt(SEAM, "etcd's answer does not match the request"))
}

fn number(kv: &KeyValue, prefix: &str) -> Result<u16> {
    let key = String::from_utf8_lossy(kv.key());
    let number = key.strip_prefix(prefix).and_then(|text| text.parse().ok());
    number
        .filter(|number| *number < NODES)
        .ok_or_else(|| Error::corrupt(SEAM, format!("{key}: the name is not a node number")))
}

fn parse_time(kv: &KeyValue) -> Result<Timestamp> {
    let text = kv.value_str().ok();
    let millis = text.and_then(|text| text.parse().ok());
    millis.map(Timestamp::from_millis).ok_or_else(|| {
        let key = String::from_utf8_lossy(kv.key());
        Error::corrupt(
            SEAM,
            format!("{key}: the value is not a time in milliseconds"),
        )
    })
}

/// Formats a time so that it sorts as text, which lets etcd compare it.
fn format_time(time: Timestamp) -> String {
    format!("{:020}", time.millis().max(0))
}

/// Takes a number for as long as the lease is kept.
pub(super) async fn lease(
    keeper: &LeaseKeeper,
    keys: &Keys,
    held_lease: HeldLease,
    entropy: &dyn Entropy,
) -> Result<EtcdNode> {
    let holder = new_holder(&held_lease, entropy);
    for _ in 0..MAX_LEASE_ATTEMPTS {
        let board = NodeBoard::read(keeper, keys).await?;
        let Some((number, past)) = board.choose(entropy) else {
            let text = "all 1024 node numbers are in use; one becomes free when a station stops";
            return Err(Error::unavailable(SEAM, text));
        };
        if claim(keeper, keys, &held_lease, &holder, number, past).await? {
            return Ok(start_lease(
                keeper,
                keys,
                held_lease,
                holder,
                number,
                past.reserved_until,
            ));
        }
    }
    let text = "other stations took every free node number; try again";
    Err(Error::unavailable(SEAM, text))
}

/// Takes this number, unless it is held or has a past.
pub(super) async fn lease_again(
    keeper: &LeaseKeeper,
    keys: &Keys,
    held_lease: HeldLease,
    entropy: &dyn Entropy,
    number: u16,
) -> Result<Option<EtcdNode>> {
    let (holder, past) = (new_holder(&held_lease, entropy), Past::default());
    let is_ours = claim(keeper, keys, &held_lease, &holder, number, past).await?;
    Ok(is_ours.then(|| {
        start_lease(
            keeper,
            keys,
            held_lease,
            holder,
            number,
            past.reserved_until,
        )
    }))
}

fn new_holder(held_lease: &HeldLease, entropy: &dyn Entropy) -> String {
    format!("{:016x}-{:016x}", held_lease.lease.id, entropy.next())
}

fn start_lease(
    keeper: &LeaseKeeper,
    keys: &Keys,
    held_lease: HeldLease,
    holder: String,
    number: u16,
    not_before: Timestamp,
) -> EtcdNode {
    let mark = LeaseMark {
        key: keys.node(number),
        value: holder.clone(),
    };
    // Nobody watches `lost_token`: the next reservation, which etcd refuses, reveals the loss.
    let lost_token = CancellationToken::new();
    let (task, held_lease) = keep_alive(held_lease, mark, LeasePatience::Endless, lost_token);
    EtcdNode {
        number,
        not_before,
        holder,
        keeper: keeper.clone(),
        keys: keys.clone(),
        _task: task,
        _lease: held_lease,
    }
}

/// Takes the number if nobody holds it and its past is as read. Returns true if it is ours.
async fn claim(
    keeper: &LeaseKeeper,
    keys: &Keys,
    held_lease: &HeldLease,
    holder: &str,
    number: u16,
    past: Past,
) -> Result<bool> {
    let (node, record) = (keys.node(number), keys.past(number));
    let under_lease = PutOptions::new().with_lease(held_lease.lease.id);
    let mut puts = vec![TxnOp::put(node.clone(), holder, Some(under_lease))];
    if past.revision == 0 {
        // Reservations need a record to compare with.
        puts.push(TxnOp::put(
            record.clone(),
            format_time(Timestamp::ZERO),
            None,
        ));
    }
    let conditions = [
        Compare::create_revision(node.clone(), CompareOp::Equal, 0),
        Compare::mod_revision(record, CompareOp::Equal, past.revision),
    ];
    let txn = Txn::new()
        .when(conditions)
        .and_then(puts)
        .or_else([TxnOp::get(node, None)]);
    let answer = keeper.calls.txn(txn).await?;
    if answer.succeeded() {
        return Ok(true);
    }
    // A call repeated after it took effect: the number is ours all the same.
    let [entries] = lists(answer.op_responses())?;
    Ok(entries
        .first()
        .is_some_and(|kv| kv.value() == holder.as_bytes()))
}

/// A number held under a lease.
pub(super) struct EtcdNode {
    number: u16,
    not_before: Timestamp,
    /// Value of the number's key while it is ours.
    holder: String,
    keeper: LeaseKeeper,
    keys: Keys,
    _task: AbortOnDropHandle<()>,
    _lease: HeldLease,
}

#[async_trait]
impl NodeLease for EtcdNode {
    fn number(&self) -> u16 {
        self.number
    }

    fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Fenced and monotonic at the point of writing: a call given up long ago that reaches etcd
    /// only now neither takes a later one back nor writes into the past of the next holder.
    async fn reserve(&self, limit: Timestamp) -> Result<()> {
        let (node, record) = (self.keys.node(self.number), self.keys.past(self.number));
        let limit = format_time(limit);
        let conditions = [
            Compare::value(node.clone(), CompareOp::Equal, self.holder.as_str()),
            Compare::value(record.clone(), CompareOp::Less, limit.as_str()),
        ];
        let txn = Txn::new()
            .when(conditions)
            .and_then([TxnOp::put(record.clone(), limit.as_str(), None)])
            .or_else([TxnOp::get(node, None), TxnOp::get(record, None)]);
        let answer = self.keeper.calls.txn(txn).await?;
        if answer.succeeded() {
            return Ok(());
        }
        let [node, record] = lists(answer.op_responses())?;
        let is_ours = node
            .first()
            .is_some_and(|kv| kv.value() == self.holder.as_bytes());
        let is_recorded = record
            .first()
            .is_some_and(|kv| kv.value() >= limit.as_bytes());
        if is_ours && is_recorded {
            return Ok(());
        }
        let text = format!(
            "node number {} is no longer leased and may belong to another station; lease another",
            self.number
        );
        Err(Error::conflict(SEAM, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SeededEntropy;

    fn past(millis: i64) -> Past {
        Past {
            reserved_until: Timestamp::from_millis(millis),
            revision: 1,
        }
    }

    #[test]
    fn numbers_without_a_past_come_first_at_random() {
        let entropy = SeededEntropy::new(1);
        let board = NodeBoard {
            held_numbers: (0..10).collect(),
            pasts: (10..1000).map(|number| (number, past(5))).collect(),
        };
        let numbers: BTreeSet<_> = (0..200)
            .map(|_| board.choose(&entropy).unwrap().0)
            .collect();
        assert!(numbers.iter().all(|number| *number >= 1000));
        assert!(numbers.len() > 20, "stations that start together spread");
    }

    #[test]
    fn longest_unused_numbers_come_next() {
        let entropy = SeededEntropy::new(1);
        let pasts = (0..NODES).map(|number| (number, past(i64::from(number) + 1)));
        let mut board = NodeBoard {
            held_numbers: (0..100).collect(),
            pasts: pasts.collect(),
        };
        for _ in 0..200 {
            let (number, past) = board.choose(&entropy).unwrap();
            assert!((100..100 + MAX_CANDIDATES as u16).contains(&number));
            assert_eq!(past.reserved_until.millis(), i64::from(number) + 1);
        }
        board.held_numbers = (0..NODES).collect();
        assert_eq!(board.choose(&entropy), None);
    }

    #[test]
    fn times_are_written_so_that_they_sort() {
        let times = [0, 9, 10, 1_800_000_000_000, i64::MAX].map(Timestamp::from_millis);
        assert!(times.map(format_time).is_sorted());
    }
}
