//! Contract tests of every mailbox, one guarantee per check. A backend runs all of them, with
//! [`contract_tests!`] on a new store each or with [`run_all!`] on one store for all.

mod presence;
mod sends;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, HeldSession, Mail,
    MailCursor, MailLocation, MailPage, MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer,
    RouteRequest, SessionCapacity,
};
use protocol::message::Target;
use protocol::presence::{BoatLife, DeniedBoats, SessionKey};
use protocol::{
    BoatId, ConversationId, DeviceId, Incarnation, MessageId, Platform, SendId, SessionId,
    Timestamp, UserId,
};

pub(crate) use self::presence::*;
pub(crate) use self::sends::*;
pub(crate) use self::waiting::*;
use super::MailboxStore;

/// Policy of the store under test on every platform but web …
pub(crate) const COUNT_MAX: u32 = 5;
pub(crate) const EXPIRE: Duration = Duration::from_secs(3_600);
/// … where the number of messages is unlimited.
pub(crate) const UNLIMITED: Platform = Platform::Web;

/// Platforms with more than one session in the store under test.
pub(crate) const ROOMY: [(Platform, u32); 2] = [(Platform::Desktop, 2), (Platform::Pad, 3)];

pub(crate) fn capacity() -> SessionCapacity {
    (ROOMY.into_iter()).fold(
        SessionCapacity::default(),
        |capacity, (platform, sessions)| capacity.with(platform, sessions).expect("in bounds"),
    )
}

type LoseBody = Box<dyn Fn(MessageId, BodyLoss) -> BoxFuture<'static, ()> + Send + Sync>;

/// Rows of a body to lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLoss {
    Body,
    BodyAndCount,
}

/// A store and a range of users and messages that no other check touches.
pub(crate) struct Scene {
    pub(crate) store: Arc<dyn MailboxStore>,
    /// Close to the present, for stores with a clock of their own.
    pub(crate) now: Timestamp,
    /// Base of the numbers for users, sessions and messages; this check owns a thousand.
    pub(crate) first: i64,
    pub(crate) lose_body: LoseBody,
}

impl Scene {
    /// Signs off all sessions; none may fail, not even one that is no longer registered.
    async fn sign_off(&self, sessions: Vec<SessionKey>) {
        let count = sessions.len();
        let answers = self.store.disconnect(sessions).await;
        assert_eq!(
            answers.iter().filter(|answer| answer.is_ok()).count(),
            count
        );
    }

    fn user(&self, n: i64) -> UserId {
        UserId::new(self.first + n).expect("positive")
    }

    fn ios(&self, n: i64) -> Target {
        self.on(n, Platform::Ios)
    }

    fn on(&self, n: i64, platform: Platform) -> Target {
        Target {
            user: self.user(n),
            platform,
        }
    }

    fn id(&self, n: i64) -> MessageId {
        MessageId::new(self.first + n).expect("positive")
    }

    fn ids(&self, numbers: impl IntoIterator<Item = i64>) -> Vec<MessageId> {
        numbers.into_iter().map(|n| self.id(n)).collect()
    }

    fn ago(&self, age: Duration) -> Timestamp {
        self.now - age
    }

    /// Message `n`, accepted `age` ago.
    fn mail(&self, n: i64, age: Duration) -> Mail {
        Mail {
            id: self.id(n),
            accepted_at: self.ago(age),
            body: Bytes::from(format!("body {n}")),
        }
    }

    fn request(&self, target: Target, mail: Mail) -> RouteRequest {
        RouteRequest {
            user: target.user,
            platforms: vec![target.platform],
            forced_platforms: Vec::new(),
            mail: Some(mail),
            denied_boats: DeniedBoats::default(),
            now: self.now,
        }
    }

    async fn route(&self, request: RouteRequest) -> RouteAnswer {
        let mut answers = self.store.route_or_store(vec![request]).await;
        assert_eq!(answers.len(), 1, "one answer a request");
        answers.remove(0).expect("stored")
    }

    /// Stores message `n` (accepted `age` ago) for an absent target.
    async fn put(&self, target: Target, n: i64, age: Duration) -> RouteAnswer {
        self.route(self.request(target, self.mail(n, age))).await
    }

    fn session(&self, n: i64, target: Target) -> NewSession {
        NewSession {
            key: SessionKey {
                user: target.user,
                session: SessionId::new(self.first + n).expect("positive"),
                life: life("boat", 1),
            },
            platform: target.platform,
            device: DeviceId::new(&format!("phone-{n}")).expect("short"),
        }
    }

    async fn connect(&self, entry: &NewSession) -> ConnectAnswer {
        self.connect_with(entry, DeniedBoats::default(), self.now)
            .await
    }

    async fn connect_with(
        &self,
        entry: &NewSession,
        denied_boats: DeniedBoats,
        now: Timestamp,
    ) -> ConnectAnswer {
        let request = ConnectRequest {
            user: entry.key.user,
            entry: entry.clone(),
            denied_boats,
            now,
        };
        let answer = self.store.connect(request).await.expect("connected");
        answer.expect("room for one more")
    }

    async fn reassert(&self, entry: &NewSession) -> ReassertAnswer {
        self.reassert_held(entry.clone().into()).await
    }

    /// Reasserts a session whose boat knows the number of its login.
    async fn reassert_as(&self, entry: &NewSession, login: u64) -> ReassertAnswer {
        let (session, login) = (entry.clone(), Some(login));
        self.reassert_held(HeldSession { session, login }).await
    }

    async fn reassert_held(&self, held_session: HeldSession) -> ReassertAnswer {
        let sessions = vec![(held_session.session.key.user, held_session)];
        let mut answers = self
            .store
            .reassert(sessions, DeniedBoats::default(), self.now)
            .await;
        answers.remove(0).expect("answered")
    }

    /// Live sessions of `user` while the lives in `denied_boats` are denied.
    async fn live(&self, user: UserId, denied_boats: DeniedBoats) -> Vec<SessionId> {
        let mut answers = self.store.sessions(&[user], denied_boats).await;
        let live = answers.remove(0).expect("answered");
        live.into_iter().map(|entry| entry.session).collect()
    }

    async fn page(&self, target: Target, cursor: Option<MailCursor>, limit: usize) -> MailPage {
        self.store
            .page(target, cursor, limit, self.now)
            .await
            .expect("paged")
    }

    /// All waiting messages, in order.
    async fn waiting(&self, target: Target) -> Vec<MessageId> {
        let page = self.page(target, None, 100).await;
        page.mails.iter().map(|mail| mail.id).collect()
    }

    async fn acknowledge(&self, target: Target, ids: Vec<MessageId>) -> Vec<MessageId> {
        let acks = vec![(target, ids)];
        let mut answers = self.store.acknowledge(acks, self.now).await;
        answers.remove(0).expect("acknowledged")
    }

    fn send_key(&self, user: i64, send: u8) -> DedupeKey {
        DedupeKey {
            from: self.user(user),
            send_id: SendId::from_bytes([send; 16]),
        }
    }

    /// A send from `from` to `to` as message `n`.
    fn first_send(&self, from: i64, to: i64, n: i64) -> FirstSend {
        let conversation = ConversationId::private(self.user(from), self.user(to));
        FirstSend {
            id: self.id(n),
            conversation: conversation.expect("two users"),
        }
    }

    async fn begin(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Vec<DedupeAnswer> {
        let answers = self.store.dedupe_begin(sends, self.now).await;
        let answers = answers.into_iter().map(|answer| answer.expect("answered"));
        answers.collect()
    }

    async fn lose(&self, n: i64, loss: BodyLoss) {
        (self.lose_body)(self.id(n), loss).await;
    }
}

fn life(boat: &str, incarnation: u64) -> BoatLife {
    BoatLife {
        boat: BoatId::new(boat).expect("short"),
        incarnation: Incarnation(incarnation),
    }
}

fn denied(lives: impl IntoIterator<Item = BoatLife>) -> DeniedBoats {
    Arc::new(lives.into_iter().collect())
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Passes the names of all checks to another macro.
macro_rules! checks {
    ($then:ident! $($with:tt)*) => {
        $crate::mailbox::contract::$then!($($with)*:
            platforms_without_sessions_store_mail
            appending_is_idempotent
            a_body_stays_for_the_last
            mail_comes_by_time_then_by_id
            the_newest_are_kept
            no_maximum_keeps_all
            expiry_excludes_the_bound
            trimming_keeps_exactly_the_newest
            expired_mail_is_not_seen
            a_new_message_prolongs_a_mailbox_and_a_repeat_does_not
            paging_removes_nothing
            acknowledging_removes_exactly_that
            the_recently_acknowledged_is_not_stored
            each_is_found_where_it_is
            missing_bodies_never_stop_a_page
            an_append_repairs_a_lost_body
            platforms_with_sessions_store_nothing
            a_forced_store_returns_the_live_session
            a_look_stores_nothing
            a_batch_keeps_its_order
            a_login_announces_waiting_mail
            no_message_falls_between
            a_login_displaces_its_platform_only
            a_device_replaces_itself
            bots_stand_side_by_side
            a_platform_holds_sessions_up_to_its_capacity
            sessions_of_the_denied_leave_room
            a_login_beyond_the_capacity_displaces_the_oldest
            a_session_comes_back_where_there_is_room
            sessions_come_back_in_the_order_of_their_logins
            ended_boat_displaces_no_session
            a_future_login_number_counts_as_unknown
            denied_sessions_take_no_capacity
            all_sessions_of_a_platform_get_the_message
            concurrent_logins_fill_the_capacity
            concurrent_logins_leave_one_session
            a_login_may_be_repeated
            login_numbers_only_grow
            a_disconnect_removes_exactly_one
            the_denied_are_invisible_at_once
            the_denied_are_not_kicked
            a_boat_may_reassert_its_sessions
            a_later_life_takes_its_sessions_along
            names_may_hold_any_sign
            a_shared_body_survives_a_crowd
            a_repeated_send_finds_the_first
            a_send_id_returns_its_first_conversation
            the_marker_stays
            received_position_never_goes_back
        );
    };
}
pub(crate) use checks;

/// Runs each check as a test on a store of its own. `open` makes a [`Scene`] and the state that
/// must outlive it; `close` inspects what is left.
macro_rules! contract_tests {
    ($open:path, $close:path) => {
        $crate::mailbox::contract::checks!(contract_tests! $open, $close);
    };
    ($open:path, $close:path: $($check:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let (scene, rest) = $open();
                $crate::mailbox::contract::$check(&scene).await;
                drop(scene);
                $close(rest).await;
            }
        )*
    };
}
pub(crate) use contract_tests;

/// Runs all checks on one store, each with its own users and messages.
macro_rules! run_all {
    ($scene:ident) => {
        $crate::mailbox::contract::checks!(run_all! $scene);
    };
    ($scene:ident: $($check:ident)*) => {
        $(
            $crate::mailbox::contract::$check(&$scene).await;
            $scene.first += 1_000;
        )*
    };
}
pub(crate) use run_all;
