//! Last received message of each user, gathered so that a busy user costs one write in a while.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{MessageId, Timestamp, UserId};

/// The newest message that each user acknowledged; written at most once per `interval` for each
/// user (S0-84).
#[derive(Clone, Debug)]
pub struct LastReceived {
    interval: Duration,
    users_max: usize,
    users: BTreeMap<UserId, Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    id: MessageId,
    is_written: bool,
    /// Time before which it must not be written.
    due_at: Timestamp,
}

impl LastReceived {
    /// Register for at most `users_max` users. Beyond them, later users are not written, and
    /// written ones give way soon: they may then be written again before their time.
    pub fn new(interval: Duration, users_max: usize) -> LastReceived {
        LastReceived {
            interval,
            users_max,
            users: BTreeMap::new(),
        }
    }

    /// Notes that the user received `id`. False if there is no room to remember it.
    pub fn note(&mut self, user: UserId, id: MessageId, now: Timestamp) -> bool {
        let has_room = self.users.len() < self.users_max;
        match self.users.get_mut(&user) {
            Some(last) if last.id < id => {
                last.id = id;
                last.is_written = false;
            }
            Some(_) => {}
            None if has_room => {
                let last = Last {
                    id,
                    is_written: false,
                    due_at: now,
                };
                self.users.insert(user, last);
            }
            None => return false,
        }
        true
    }

    /// Takes the entries to write now. Drops users who received nothing for `interval`.
    pub fn take_due(&mut self, now: Timestamp) -> Vec<(UserId, MessageId)> {
        let (interval, mut due_entries) = (self.interval, Vec::new());
        self.users.retain(|user, last| {
            // A clock that went back must not delay anybody.
            if last.due_at > now && last.due_at <= now + interval {
                return true;
            }
            if last.is_written {
                return false;
            }
            due_entries.push((*user, last.id));
            last.is_written = true;
            last.due_at = now + interval;
            true
        });
        if self.users.len() >= self.users_max {
            self.users.retain(|_, last| !last.is_written);
        }
        due_entries
    }

    /// Takes all unwritten entries, due or not: nothing will be written later.
    pub fn take_all(&mut self) -> Vec<(UserId, MessageId)> {
        let users = std::mem::take(&mut self.users).into_iter();
        let unwritten = users.filter(|(_, last)| !last.is_written);
        unwritten.map(|(user, last)| (user, last.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn id(number: i64) -> MessageId {
        MessageId::new(number).expect("positive")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000 + seconds * 1000)
    }

    #[test]
    fn more_users_than_there_is_room_for_are_not_written() {
        let mut last = LastReceived::new(INTERVAL, 1);
        assert!(last.note(user(1), id(1), at(0)));
        assert!(!last.note(user(2), id(2), at(0)));
        assert!(last.note(user(1), id(3), at(0)));
        assert_eq!(last.take_due(at(0)), [(user(1), id(3))]);
        assert!(last.note(user(2), id(2), at(1)), "the first gave way");
        assert_eq!(last.take_all(), [(user(2), id(2))]);
    }

    #[test]
    fn a_clock_that_goes_back_holds_nobody_up() {
        let mut last = LastReceived::new(INTERVAL, 10);
        last.note(user(1), id(1), at(10_000));
        assert_eq!(last.take_due(at(10_000)).len(), 1);
        last.note(user(1), id(2), at(0));
        assert_eq!(last.take_due(at(0)), [(user(1), id(2))]);
    }

    proptest! {
        // proves S0-84 in part: each receipt counts, and a user costs one write in 30 s.
        #[test]
        fn a_user_is_written_once_in_a_while_and_ends_with_the_newest(
            notes in proptest::collection::vec((0i64..5, 1i64..4, 1i64..100), 0..200),
        ) {
            let mut last = LastReceived::new(INTERVAL, 10);
            let (mut now, mut newest, mut writes) = (0, BTreeMap::new(), BTreeMap::new());
            for (elapsed, user_number, id_number) in notes {
                now += elapsed;
                prop_assert!(last.note(user(user_number), id(id_number), at(now)));
                let expected = newest.entry(user(user_number)).or_insert_with(|| id(id_number));
                *expected = id(id_number).max(*expected);
                for (user_number, id_number) in last.take_due(at(now)) {
                    let user_writes: &mut Vec<(i64, MessageId)> = writes.entry(user_number).or_default();
                    let last_write = user_writes.last();
                    prop_assert!(last_write.is_none_or(|(written_at, _)| now - written_at >= 30));
                    user_writes.push((now, id_number));
                }
            }
            for (user_number, id_number) in last.take_all() {
                writes.entry(user_number).or_default().push((now, id_number));
            }
            for (user_number, id_number) in newest {
                let last_written = writes[&user_number].iter().map(|(_, id_number)| *id_number).max();
                prop_assert_eq!(last_written, Some(id_number));
            }
        }
    }
}
