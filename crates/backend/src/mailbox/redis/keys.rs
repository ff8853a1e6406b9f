//! Names of keys. All keys of a user bear the tag of the user's bucket, so that one script may touch them
//! all wherever the bucket lies.

use protocol::mailbox::DedupeKey;
use protocol::message::Target;
use protocol::{MessageId, UserId, keys};

/// Makes names that begin with a prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys {
            prefix: prefix.to_owned(),
        }
    }

    fn tagged(&self, bucket: u16, rest: std::fmt::Arguments<'_>) -> String {
        format!("{}/{{b{bucket:04}}}/{rest}", self.prefix)
    }

    /// Hash: session → platform, life, login, marker, device; and the last login number.
    pub(super) fn sessions(&self, user: UserId) -> String {
        self.tagged(keys::bucket_of(user), format_args!("u:{user}/ss"))
    }

    /// String: the newest message that the user acknowledged.
    pub(super) fn received(&self, user: UserId) -> String {
        self.tagged(keys::bucket_of(user), format_args!("u:{user}/rcv"))
    }

    /// Zset: message by accept time.
    pub(super) fn waiting(&self, target: Target) -> String {
        self.of_target(target, "oms")
    }

    /// Hash: message → when it was acknowledged, for those that were lately.
    pub(super) fn mark(&self, target: Target) -> String {
        self.of_target(target, "mark")
    }

    fn of_target(&self, Target { user, platform }: Target, what: &str) -> String {
        let bucket = keys::bucket_of(user);
        self.tagged(
            bucket,
            format_args!("u:{user}/p:{}/{what}", platform.number()),
        )
    }

    /// String: what waits for all users of a bucket.
    pub(super) fn body(&self, bucket: u16, id: MessageId) -> String {
        self.tagged(bucket, format_args!("om:{}/m", member(id)))
    }

    /// How many zsets hold the message.
    pub(super) fn count(&self, bucket: u16, id: MessageId) -> String {
        self.tagged(bucket, format_args!("om:{}/n", member(id)))
    }

    /// String: state, id and conversation of the first send under a name.
    pub(super) fn send(&self, key: &DedupeKey) -> String {
        let DedupeKey { from, send_id } = key;
        self.tagged(keys::bucket_of(*from), format_args!("d:{from}:{send_id}"))
    }

    /// String: marks a bucket's data.
    pub(super) fn epoch(&self, bucket: u16) -> String {
        self.tagged(bucket, format_args!("epoch"))
    }

    /// A pattern for all of them.
    pub(super) fn all(&self) -> String {
        format!("{}/{{b*", self.prefix)
    }
}

/// A message as scripts hold it: 20 digits, so that bytes sort as numbers do, and never a Lua number,
/// which is exact up to 2^53 only.
pub(super) fn member(id: MessageId) -> String {
    format!("{:020}", id.get())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{Platform, SendId};

    use super::*;
    use crate::redis::slots;

    proptest! {
        // proves S1-03
        #[test]
        fn all_keys_of_a_user_lie_in_one_slot(user in 1..i64::MAX, id in 1..i64::MAX) {
            let keys = Keys::new("msg");
            let user = UserId::new(user).expect("positive");
            let id = MessageId::new(id).expect("positive");
            let bucket = protocol::keys::bucket_of(user);
            let send = DedupeKey { from: user, send_id: SendId::from_bytes([7; 16]) };
            let mut names = vec![
                keys.sessions(user),
                keys.received(user),
                keys.body(bucket, id),
                keys.count(bucket, id),
                keys.send(&send),
                keys.epoch(bucket),
            ];
            for platform in Platform::ALL {
                let target = Target { user, platform };
                names.extend([keys.waiting(target), keys.mark(target)]);
            }
            for name in names {
                prop_assert_eq!(slots::of_key(&name), slots::of_bucket(bucket), "{}", name);
            }
        }
    }

    #[test]
    fn names_are_those_of_the_design() {
        // proves S1-31, S1-40
        let keys = Keys::new("msg");
        let user = UserId::new(1).expect("positive");
        let bucket = protocol::keys::bucket_of(user);
        let tag = format!("msg/{{b{bucket:04}}}");
        let target = Target {
            user,
            platform: Platform::Ios,
        };
        let id = MessageId::new(7).expect("positive");
        assert_eq!(keys.sessions(user), format!("{tag}/u:1/ss"));
        assert_eq!(keys.waiting(target), format!("{tag}/u:1/p:1/oms"));
        assert_eq!(keys.mark(target), format!("{tag}/u:1/p:1/mark"));
        assert_eq!(
            keys.body(bucket, id),
            format!("{tag}/om:00000000000000000007/m")
        );
        assert_eq!(keys.epoch(bucket), format!("{tag}/epoch"));
    }

    #[test]
    fn members_sort_as_numbers() {
        // proves S1-41
        let member = |n| member(MessageId::new(n).expect("positive"));
        assert!(member(9) < member(10));
        assert!(member((1 << 53) + 1) > member(1 << 53));
        assert_eq!(member(i64::MAX).len(), 20);
    }
}
