//! Names of keys. All keys of a user bear the tag of the user's bucket, so that one script may
//! touch them all, on whichever server the bucket is.

use protocol::mailbox::DedupeKey;
use protocol::message::Target;
use protocol::{MessageId, UserId, keys};

/// Builds key names with a common prefix.
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
        self.target_key(target, "oms")
    }

    /// Hash: message → time of acknowledgement, for recent ones.
    pub(super) fn mark(&self, target: Target) -> String {
        self.target_key(target, "mark")
    }

    fn target_key(&self, Target { user, platform }: Target, suffix: &str) -> String {
        let bucket = keys::bucket_of(user);
        self.tagged(
            bucket,
            format_args!("u:{user}/p:{}/{suffix}", platform.number()),
        )
    }

    /// String: body of a message, shared by all mailboxes of a bucket.
    pub(super) fn body(&self, bucket: u16, id: MessageId) -> String {
        self.tagged(bucket, format_args!("om:{}/m", member(id)))
    }

    /// String: number of zsets that hold the message.
    pub(super) fn count(&self, bucket: u16, id: MessageId) -> String {
        self.tagged(bucket, format_args!("om:{}/n", member(id)))
    }

    /// String: state, id and conversation of the first send under a name.
    pub(super) fn send(&self, key: &DedupeKey) -> String {
        let DedupeKey { from, send_id } = key;
        self.tagged(keys::bucket_of(*from), format_args!("d:{from}:{send_id}"))
    }

    /// String: epoch of a bucket's data.
    pub(super) fn epoch(&self, bucket: u16) -> String {
        self.tagged(bucket, format_args!("epoch"))
    }

    /// Pattern that matches all keys.
    pub(super) fn all(&self) -> String {
        format!("{}/{{b*", self.prefix)
    }
}

/// A message id as scripts see it: 20 digits, so that bytes sort as numbers do, and never a Lua
/// number, which is exact only up to 2^53.
pub(super) fn member(id: MessageId) -> String {
    format!("{:020}", id.get())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use protocol::mailbox::{FirstSend, Mail, NewSession, RouteRequest};
    use protocol::presence::{BoatLife, DeniedBoats, SessionKey};
    use protocol::{
        BoatId, ConversationId, DeviceId, Incarnation, Platform, SendId, SessionId, Timestamp,
    };

    use super::super::connect::{self, Lives, Login};
    use super::super::{mail, route, send, session};
    use super::*;
    use crate::mailbox::MailboxConfig;
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
                prop_assert_eq!(slots::for_key(&name), slots::for_bucket(bucket), "{}", name);
            }
        }
    }

    /// Names that validation accepts, including some that look like a tag.
    fn names() -> impl Strategy<Value = String> {
        "[ -~]{1,32}".prop_filter("a name", |name| {
            DeviceId::new(name).is_ok() && BoatId::new(name).is_ok()
        })
    }

    proptest! {
        // Threat 20: no text of a stranger is in a key, and the tag is ours, in every call of the mailbox.
        #[test]
        fn calls_name_keys_of_one_slot_with_numbers_alone(
            prefix in slots::PREFIXES,
            user in 1..i64::MAX,
            numbers in (1..i64::MAX, 1..i64::MAX, any::<u64>(), any::<[u8; 16]>()),
            (device, boat) in (names(), names()),
            platform in proptest::sample::select(Platform::ALL.to_vec()),
        ) {
            let (id, session, incarnation, send_id) = numbers;
            let keys = Keys::new(&prefix);
            let user = UserId::new(user).expect("positive");
            let id = MessageId::new(id).expect("positive");
            let life = BoatLife {
                boat: BoatId::new(&boat).expect("a name"),
                incarnation: Incarnation(incarnation),
            };
            let key = SessionKey {
                user,
                session: SessionId::new(session).expect("positive"),
                life: life.clone(),
            };
            let new = NewSession {
                key: key.clone(),
                platform,
                device: DeviceId::new(&device).expect("a name"),
            };
            let (now, marker) = (Timestamp::from_millis(1_800_000_000_000), incarnation);
            let login = Login { user, new: &new, now, marker };
            let policies = MailboxConfig::default().policies().expect("fair settings");
            let denied_lives = [life.clone()];
            let lives = Lives { denied: vec![life.clone()], living: vec![life] };
            let request = RouteRequest {
                user,
                platforms: Platform::ALL.to_vec(),
                forced_platforms: Vec::new(),
                mail: Some(Mail { id, accepted_at: now, body: device.clone().into() }),
                denied_boats: DeniedBoats::default(),
                now,
            };
            let send = DedupeKey { from: user, send_id: SendId::from_bytes(send_id) };
            let peer = UserId::new(1).expect("positive");
            let first = FirstSend { id, conversation: ConversationId::System(peer) };
            let keep = Duration::from_secs(1);
            let target = Target { user, platform };
            let policy = policies.of(platform);
            let mut calls = vec![
                login.connect(&keys, &policies, &lives),
                login.reassert(&keys, &policies, &lives, Some(incarnation)),
                connect::disconnect(&keys, &key),
                session::ask(&keys, user),
                route::call(&keys, &policies, &request, &denied_lives),
                mail::page(&keys, target, None, 9, 0, 9),
                mail::set_received(&keys, user, id),
                mail::received(&keys, user),
                mail::trim(&keys, target, policy, now),
                mail::waiting(&keys, target),
                mail::find(&keys, target, id, 0, now),
                send::begin(&keys, &send, first, keep),
                send::done(&keys, &send, first, keep),
            ];
            calls.extend(mail::acknowledge(&keys, target, &[id], now));
            let tag = format!("b{:04}", protocol::keys::bucket_of(user));
            for call in calls {
                prop_assert!(!call.keys().is_empty());
                for key in call.keys() {
                    prop_assert_eq!(slots::parse_tag(&prefix, key), &tag);
                    prop_assert_eq!(slots::for_key(key), call.slot, "{}", key);
                }
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
