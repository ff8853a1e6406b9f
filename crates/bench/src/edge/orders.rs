//! Orders to a process of clients, and its answers: a JSON line each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Sign in users from `first` on, `at_a_time` concurrently, and keep them connected.
    Connect {
        first: u64,
        count: u64,
        at_a_time: usize,
        kind: Kind,
    },
    /// Have users sign in and leave at once, again and again.
    Cycle { first: u64, users: u64, times: u64 },
    /// Disconnect all.
    Cut,
    /// Disconnect all, and let them come back.
    Herd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Reads everything.
    Idle,
    /// Reads nothing after its welcome.
    Slow,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Number of clients admitted.
    pub(super) connected: u64,
    pub(super) failed: u64,
    /// The first failure in words.
    pub(super) why: Option<String>,
    pub(super) seconds: f64,
    /// Milliseconds from the order of a herd to each welcome.
    pub(super) back_ms: Vec<u32>,
    /// Tries of a herd that failed before one succeeded, by the kind of failure.
    pub(super) tries_failed: BTreeMap<String, u64>,
}

impl Answer {
    pub(super) fn fail(&mut self, reason: impl ToString) {
        self.failed += 1;
        self.why.get_or_insert_with(|| reason.to_string());
    }

    pub(super) fn count_tries(&mut self, failures: BTreeMap<String, u64>) {
        for (kind, count) in failures {
            *self.tries_failed.entry(kind).or_default() += count;
        }
    }

    /// Sums the answers of several processes.
    pub(super) fn sum(answers: impl IntoIterator<Item = Answer>) -> Answer {
        answers.into_iter().fold(Answer::default(), |sum, other| {
            let mut sum = Answer {
                connected: sum.connected + other.connected,
                failed: sum.failed + other.failed,
                why: sum.why.or(other.why),
                seconds: sum.seconds.max(other.seconds),
                ..sum
            };
            sum.back_ms.extend(other.back_ms);
            sum.count_tries(other.tries_failed);
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_several_processes_add_up() {
        let mut one = Answer {
            connected: 3,
            seconds: 2.0,
            back_ms: vec![5, 1],
            tries_failed: BTreeMap::from([("full".into(), 1)]),
            ..Answer::default()
        };
        one.fail("first");
        one.fail("second");
        let other = Answer {
            connected: 4,
            seconds: 1.0,
            back_ms: vec![3],
            tries_failed: BTreeMap::from([("connecting".into(), 2), ("full".into(), 9)]),
            ..Answer::default()
        };
        let sum = Answer::sum([one, other]);
        assert_eq!((sum.connected, sum.failed), (7, 2));
        let tries = [("connecting".into(), 2), ("full".into(), 10)];
        assert_eq!(sum.tries_failed, BTreeMap::from(tries));
        assert_eq!(sum.why.as_deref(), Some("first"));
        assert_eq!((sum.seconds, sum.back_ms), (2.0, vec![5, 1, 3]));
    }

    #[test]
    fn an_order_is_one_line() {
        let order = Order::Connect {
            first: 1,
            count: 2,
            at_a_time: 3,
            kind: Kind::Slow,
        };
        let line = serde_json::to_string(&order).expect("JSON");
        assert!(!line.contains('\n'));
        let read: Order = serde_json::from_str(&line).expect("an order");
        assert!(matches!(
            read,
            Order::Connect {
                kind: Kind::Slow,
                ..
            }
        ));
    }
}
