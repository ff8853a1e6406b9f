//! What every mailbox promises. Each check is one promise; a backend runs all of them at its foot, with
//! [`contract_tests!`] on a new store for each or with [`run_all!`] on one store for all.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, Mail, MailCursor, MailPage,
    MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer, RouteRequest, Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{BoatLife, Denied, SessionKey};
use protocol::{
    BoatId, ConversationId, DeviceId, Incarnation, MessageId, Platform, SendId, SessionId,
    Timestamp, UserId,
};

use super::MailboxStore;

/// What the store under test keeps on every platform but web …
pub(crate) const COUNT_MAX: u32 = 5;
pub(crate) const EXPIRE: Duration = Duration::from_secs(3_600);
/// … which keeps any number.
pub(crate) const UNLIMITED: Platform = Platform::Web;

type LoseBody = Box<dyn Fn(MessageId, Lost) -> BoxFuture<'static, ()> + Send + Sync>;

/// What of a body is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Body,
    BodyAndCount,
}

/// A store and a range of users and messages that no other check touches.
pub(crate) struct Scene {
    pub(crate) store: Arc<dyn MailboxStore>,
    /// Near the present, where the store has its own clock.
    pub(crate) now: Timestamp,
    /// Users, sessions and messages are numbered from here; a thousand are this check's.
    pub(crate) first: i64,
    pub(crate) lose_body: LoseBody,
}

impl Scene {
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
            forced: Vec::new(),
            mail: Some(mail),
            denied: Denied::default(),
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
        self.connect_with(entry, Denied::default(), self.now).await
    }

    async fn connect_with(
        &self,
        entry: &NewSession,
        denied: Denied,
        now: Timestamp,
    ) -> ConnectAnswer {
        let request = ConnectRequest {
            user: entry.key.user,
            entry: entry.clone(),
            denied,
            now,
        };
        self.store.connect(request).await.expect("connected")
    }

    async fn reassert(&self, entry: &NewSession) -> ReassertAnswer {
        let sessions = vec![(entry.key.user, entry.clone())];
        let mut answers = self
            .store
            .reassert(sessions, Denied::default(), self.now)
            .await;
        answers.remove(0).expect("answered")
    }

    /// Sessions that are live when these lives are denied.
    async fn live(&self, user: UserId, denied: Denied) -> Vec<SessionId> {
        let mut answers = self.store.sessions(&[user], denied).await;
        let live = answers.remove(0).expect("answered");
        live.into_iter().map(|entry| entry.session).collect()
    }

    async fn page(&self, target: Target, after: Option<MailCursor>, limit: usize) -> MailPage {
        self.store
            .page(target, after, limit, self.now)
            .await
            .expect("paged")
    }

    /// All that wait, in order.
    async fn waiting(&self, target: Target) -> Vec<MessageId> {
        let page = self.page(target, None, 100).await;
        page.mails.iter().map(|mail| mail.id).collect()
    }

    async fn acknowledge(&self, target: Target, ids: Vec<MessageId>) -> Vec<MessageId> {
        let acked = vec![(target, ids)];
        let mut waited = self
            .store
            .acknowledge(acked, self.now)
            .await
            .expect("acknowledged");
        waited.remove(0)
    }

    fn send_key(&self, user: i64, send: u8) -> DedupeKey {
        DedupeKey {
            from: self.user(user),
            send_id: SendId::from_bytes([send; 16]),
        }
    }

    /// A send of `from` to `to` as message `n`.
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

    async fn lose(&self, n: i64, lost: Lost) {
        (self.lose_body)(self.id(n), lost).await;
    }
}

fn life(boat: &str, incarnation: u64) -> BoatLife {
    BoatLife {
        boat: BoatId::new(boat).expect("short"),
        incarnation: Incarnation(incarnation),
    }
}

fn denied(lives: impl IntoIterator<Item = BoatLife>) -> Denied {
    Arc::new(lives.into_iter().collect())
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

// What waits.

/// A message for an absent platform waits for it, body and all.
pub(crate) async fn the_absent_are_stored_for(scene: &Scene) {
    let target = scene.ios(1);
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!(answer.live, []);
    assert_eq!(answer.stored, [Platform::Ios]);
    let page = scene.page(target, None, 10).await;
    assert_eq!(page.mails, [scene.mail(1, seconds(1))]);
    assert_eq!((page.bodiless, page.next), (Vec::new(), None));
}

/// Appending again changes nothing, and one acknowledgement is enough.
// proves S1-42, S1-44
pub(crate) async fn appending_is_idempotent(scene: &Scene) {
    let target = scene.ios(1);
    for _ in 0..3 {
        let answer = scene.put(target, 1, seconds(1)).await;
        assert_eq!((answer.stored, answer.dropped), (vec![Platform::Ios], 0));
    }
    assert_eq!(scene.store.waiting(target).await.expect("counted"), 1);
    assert_eq!(
        scene.acknowledge(target, scene.ids([1])).await,
        scene.ids([1])
    );
    assert_eq!(scene.waiting(target).await, []);
}

/// One body for all who wait for it, until the last has it.
// proves S1-38, S1-45, S1-48, S1-56
pub(crate) async fn a_body_stays_for_the_last(scene: &Scene) {
    let mut targets = Vec::new();
    for user in 1..=3 {
        for platform in [Platform::Ios, Platform::Desktop] {
            targets.push(scene.on(user, platform));
        }
    }
    for target in &targets {
        scene.put(*target, 1, seconds(1)).await;
    }
    while let Some(target) = targets.pop() {
        scene.acknowledge(target, scene.ids([1])).await;
        assert_eq!(scene.waiting(target).await, []);
        for other in &targets {
            assert_eq!(scene.waiting(*other).await, scene.ids([1]));
        }
    }
}

/// By accept time, and equal times by id, whatever the order of their coming.
// proves S1-40, S1-41
pub(crate) async fn mail_comes_by_time_then_by_id(scene: &Scene) {
    let target = scene.ios(1);
    for (n, age) in [(9, 5), (10, 5), (3, 1), (100, 5), (50, 9)] {
        scene.put(target, n, seconds(age)).await;
    }
    assert_eq!(scene.waiting(target).await, scene.ids([50, 9, 10, 100, 3]));
}

/// Beyond the maximum the oldest is dropped, and said to be.
// proves S1-52
pub(crate) async fn the_newest_are_kept(scene: &Scene) {
    let target = scene.ios(1);
    for n in 1..=8 {
        let answer = scene.put(target, n, seconds(100 - n as u64)).await;
        assert_eq!(answer.dropped, u32::from(n > i64::from(COUNT_MAX)));
    }
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    // Older than all that are kept: it is the one that goes.
    let answer = scene.put(target, 9, seconds(1_000)).await;
    assert_eq!(answer.dropped, 1);
    assert_eq!(scene.waiting(target).await, scene.ids(4..=8));
    scene.acknowledge(target, scene.ids(4..=8)).await;
}

/// No maximum keeps all.
// proves S1-53
pub(crate) async fn no_maximum_keeps_all(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=60 {
        let answer = scene.put(target, n, seconds(100 - n as u64)).await;
        assert_eq!(answer.dropped, 0);
    }
    assert_eq!(scene.waiting(target).await, scene.ids(1..=60));
}

/// What is older than the bound expires, the bound itself does not.
// proves S1-49, S1-50
pub(crate) async fn expiry_excludes_the_bound(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    let bound = seconds(600);
    for (n, age) in [
        (1, seconds(700)),
        (2, bound + Duration::from_millis(1)),
        (3, bound),
        (4, seconds(1)),
    ] {
        scene.put(target, n, age).await;
    }
    let policy = MailboxPolicy {
        expire: bound,
        count_max: None,
    };
    let trim = || scene.store.trim(target, policy, scene.now);
    assert_eq!(trim().await.expect("trimmed"), 2);
    assert_eq!(scene.waiting(target).await, scene.ids([3, 4]));
    assert_eq!(trim().await.expect("trimmed again"), 0);
}

/// A trim to a maximum keeps exactly the newest, and bodies that others need.
// proves S1-51, S1-52
pub(crate) async fn trimming_keeps_exactly_the_newest(scene: &Scene) {
    let (target, other) = (scene.on(1, UNLIMITED), scene.on(2, UNLIMITED));
    for n in 1..=20 {
        scene.put(target, n, seconds(100 - n as u64)).await;
    }
    scene.put(other, 1, seconds(99)).await;
    let policy = MailboxPolicy {
        expire: EXPIRE,
        count_max: Some(7),
    };
    let trimmed = scene.store.trim(target, policy, scene.now).await;
    assert_eq!(trimmed.expect("trimmed"), 13);
    assert_eq!(scene.waiting(target).await, scene.ids(14..=20));
    assert_eq!(scene.waiting(other).await, scene.ids([1]));
}

/// What expired is neither paged nor told of.
// proves S1-54
pub(crate) async fn what_expired_is_not_seen(scene: &Scene) {
    let target = scene.ios(1);
    scene.put(target, 1, EXPIRE - seconds(60)).await;
    let later = scene.now + seconds(120);
    let page = scene.store.page(target, None, 10, later).await;
    assert_eq!(page.expect("paged"), MailPage::default());
    let session = scene.session(1, target);
    let answer = scene.connect_with(&session, Denied::default(), later).await;
    assert!(!answer.mail_waits);
    assert_eq!(scene.waiting(target).await, scene.ids([1]));
}

/// Pages go on strictly after a cursor and remove nothing.
// proves S1-54, S1-55
pub(crate) async fn paging_removes_nothing(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=7 {
        scene.put(target, n, seconds(5)).await;
    }
    for _ in 0..2 {
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let page = scene.page(target, after, 3).await;
            assert!(page.mails.len() <= 3);
            seen.extend(page.mails.iter().map(|mail| mail.id));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, scene.ids(1..=7));
    }
    assert_eq!(scene.store.waiting(target).await.expect("counted"), 7);
}

/// Only what was acknowledged goes, on that platform, once.
// proves S1-56, S0-77
pub(crate) async fn acknowledging_removes_exactly_that(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    for n in 1..=4 {
        scene.put(phone, n, seconds(5)).await;
        scene.put(desk, n, seconds(5)).await;
    }
    let waited = scene.acknowledge(phone, scene.ids([3, 1, 99])).await;
    assert_eq!(waited, scene.ids([3, 1]));
    assert_eq!(scene.acknowledge(phone, scene.ids([3, 1])).await, []);
    assert_eq!(scene.waiting(phone).await, scene.ids([2, 4]));
    assert_eq!(scene.waiting(desk).await, scene.ids(1..=4));
}

/// A device that has it is not stored for, even if the carrier gave up on it; others are, and other ids
/// are: a mark is no range.
pub(crate) async fn the_recently_acknowledged_is_not_stored(scene: &Scene) {
    let phone = scene.ios(1);
    assert_eq!(scene.acknowledge(phone, scene.ids([5])).await, []);
    let mut request = scene.request(phone, scene.mail(5, seconds(1)));
    request.platforms.push(Platform::Desktop);
    let answer = scene.route(request).await;
    assert_eq!(answer.acknowledged, [Platform::Ios]);
    assert_eq!(answer.stored, [Platform::Desktop]);
    for n in [4, 6] {
        let answer = scene.put(phone, n, seconds(1)).await;
        assert_eq!(
            (answer.stored, answer.acknowledged),
            (vec![Platform::Ios], vec![])
        );
    }
    assert_eq!(scene.waiting(phone).await, scene.ids([4, 6]));
}

/// Each message is found where it is: it waits, was acknowledged lately, or is not there any more. Looking
/// changes nothing.
pub(crate) async fn each_is_found_where_it_is(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    for n in [1, 2] {
        scene.put(phone, n, seconds(5)).await;
    }
    scene.put(desk, 1, seconds(5)).await;
    scene.put(phone, 3, EXPIRE - seconds(60)).await;
    scene.lose(2, Lost::BodyAndCount).await;
    scene.acknowledge(phone, scene.ids([1])).await;
    let asked = [(phone, 1), (desk, 1), (phone, 2), (phone, 3), (desk, 3)];
    let asked = asked.map(|(target, n)| (target, scene.id(n)));
    let find = async |now| {
        let found = scene.store.find(&asked, now).await.into_iter();
        found
            .map(|found| found.expect("answered"))
            .collect::<Vec<_>>()
    };
    use Whereabouts::{Absent, Acknowledged, Waits};
    for _ in 0..2 {
        let found = find(scene.now).await;
        assert_eq!(found, [Acknowledged, Waits, Waits, Waits, Absent]);
    }
    let page = scene.page(phone, None, 100).await;
    let there: Vec<MessageId> = page.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((there, page.bodiless), (scene.ids([3]), scene.ids([2])));
    // What has expired is kept for nobody, and what was acknowledged long ago is not remembered.
    let found = find(scene.now + seconds(120)).await;
    assert_eq!(found, [Acknowledged, Waits, Waits, Absent, Absent]);
    let found = find(scene.now + protocol::mailbox::ACKED_KEEP).await;
    assert_eq!(found, [Absent, Waits, Waits, Absent, Absent]);
    scene.acknowledge(phone, scene.ids([2])).await;
}

/// Missing bodies are named and never end a drain; acknowledging them frees the mailbox. S1, pitfall D.
pub(crate) async fn missing_bodies_never_stop_a_page(scene: &Scene) {
    let target = scene.on(1, UNLIMITED);
    for n in 1..=6 {
        scene.put(target, n, seconds(100 - n as u64)).await;
    }
    for n in [1, 2] {
        scene.lose(n, Lost::BodyAndCount).await;
    }
    scene.lose(3, Lost::Body).await;
    let first = scene.page(target, None, 3).await;
    assert_eq!(first.mails, []);
    assert_eq!(first.bodiless, scene.ids(1..=3));
    let second = scene.page(target, first.next, 3).await;
    let seen: Vec<MessageId> = second.mails.iter().map(|mail| mail.id).collect();
    assert_eq!((seen, second.next), (scene.ids(4..=6), None));

    let waited = scene.acknowledge(target, scene.ids([1, 2, 3])).await;
    assert_eq!(waited, scene.ids([1, 2, 3]));
    assert_eq!(scene.waiting(target).await, scene.ids(4..=6));
}

/// An append that meets a lost body sets it again, for all platforms of the user that hold the message.
pub(crate) async fn an_append_repairs_a_lost_body(scene: &Scene) {
    let (one, other) = (scene.ios(1), scene.on(1, Platform::Desktop));
    scene.put(one, 1, seconds(1)).await;
    scene.lose(1, Lost::Body).await;
    scene.put(other, 1, seconds(1)).await;
    assert_eq!(scene.waiting(one).await, scene.ids([1]));
    scene.acknowledge(one, scene.ids([1])).await;
    assert_eq!(scene.waiting(other).await, scene.ids([1]));
}

// Who is there.

/// A live session is answered and nothing is stored; other platforms of the user are told of, too.
pub(crate) async fn the_present_are_not_stored_for(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    scene.connect(&scene.session(1, phone)).await;
    scene.connect(&scene.session(2, desk)).await;
    let answer = scene.put(phone, 1, seconds(1)).await;
    let mut live: Vec<Platform> = answer.live.iter().map(|entry| entry.platform).collect();
    live.sort();
    assert_eq!(live, [Platform::Ios, Platform::Desktop]);
    assert_eq!(answer.stored, []);
    assert_eq!(scene.waiting(phone).await, []);
}

/// A forced store happens beside a live session, which is answered so that it can be woken.
pub(crate) async fn a_forced_store_tells_whom_to_wake(scene: &Scene) {
    let phone = scene.ios(1);
    scene.connect(&scene.session(1, phone)).await;
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.forced = vec![Platform::Ios];
    let answer = scene.route(request).await;
    assert_eq!(answer.live.len(), 1);
    assert_eq!(answer.stored, [Platform::Ios]);
    assert_eq!(scene.waiting(phone).await, scene.ids([1]));
}

/// Without mail a route only looks.
pub(crate) async fn a_look_stores_nothing(scene: &Scene) {
    let phone = scene.ios(1);
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.mail = None;
    let answer = scene.route(request).await;
    assert_eq!((answer.live.len(), answer.stored), (0, Vec::new()));
    assert_eq!(scene.waiting(phone).await, []);
}

/// Requests of one call take effect in their order, each user's for itself.
pub(crate) async fn a_batch_keeps_its_order(scene: &Scene) {
    let (absent, present) = (scene.ios(1), scene.ios(2));
    scene.connect(&scene.session(1, present)).await;
    let mut requests = Vec::new();
    for n in 1..=100 {
        let target = if n % 3 == 0 { present } else { absent };
        requests.push(scene.request(target, scene.mail(n, seconds(5))));
    }
    let answers = scene.store.route_or_store(requests).await;
    for (n, answer) in (1..=100).zip(answers) {
        let answer = answer.expect("routed");
        assert_eq!(answer.live.len(), usize::from(n % 3 == 0));
        assert_eq!(answer.stored.len(), usize::from(n % 3 != 0));
    }
    assert_eq!(
        scene.waiting(absent).await,
        scene.ids([94, 95, 97, 98, 100])
    );
    assert_eq!(scene.waiting(present).await, []);
}

/// Stored before a login is told at the login; routed after it finds the session.
// proves S0-73, S0-74
pub(crate) async fn a_login_hears_of_all_before_it(scene: &Scene) {
    let phone = scene.ios(1);
    scene.put(phone, 1, seconds(1)).await;
    let answer = scene.connect(&scene.session(1, phone)).await;
    assert!(answer.mail_waits);
    let answer = scene.put(phone, 2, seconds(1)).await;
    assert_eq!((answer.live.len(), answer.stored), (1, Vec::new()));
    let desk = scene.session(2, scene.on(1, Platform::Desktop));
    assert!(
        !scene.connect(&desk).await.mail_waits,
        "nothing waits there"
    );
}

/// The same, with both at once, again and again: no message falls between.
// proves S0-72, S0-75
pub(crate) async fn no_message_falls_between(scene: &Scene) {
    const USERS: i64 = 64;
    for round in 0..15 {
        let users: Vec<i64> = (1..=USERS).map(|n| round * USERS + n).collect();
        let request = |n: &i64| scene.request(scene.ios(*n), scene.mail(*n, seconds(1)));
        let requests = users.iter().map(request).collect();
        let store = scene.store.clone();
        let routing = tokio::spawn(async move { store.route_or_store(requests).await });
        let mut waits = Vec::new();
        for n in &users {
            let login = scene.connect(&scene.session(*n, scene.ios(*n))).await;
            waits.push(login.mail_waits);
        }
        for (routed, waits) in routing.await.expect("no panic").into_iter().zip(waits) {
            let routed = routed.expect("routed");
            let stored = !routed.stored.is_empty();
            assert_ne!(stored, !routed.live.is_empty(), "one of both: {routed:?}");
            assert_eq!(waits, stored);
        }
    }
}

/// A login removes its platform's other session in the same step and names it.
pub(crate) async fn a_login_displaces_its_platform_only(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    let (first, second) = (scene.session(1, phone), scene.session(2, phone));
    let other = scene.session(3, desk);
    let login = scene.connect(&first).await;
    assert_eq!(login.displaced, []);
    assert_eq!(scene.connect(&other).await.displaced, []);
    let later = scene.connect(&second).await;
    assert_eq!(later.displaced, [first.key]);
    assert!(later.login > login.login);
    let live: BTreeSet<SessionId> = scene
        .live(phone.user, Denied::default())
        .await
        .into_iter()
        .collect();
    assert_eq!(
        live,
        BTreeSet::from([second.key.session, other.key.session])
    );
}

/// A device that signs in again replaces itself, which is no displacement: it may be that its sign-ins
/// overtook each other, and that the one which came last was given up.
pub(crate) async fn a_device_replaces_itself(scene: &Scene) {
    let phone = scene.ios(1);
    let first = scene.session(1, phone);
    let second = NewSession {
        device: first.device.clone(),
        ..scene.session(2, phone)
    };
    scene.connect(&second).await;
    let late = scene.connect(&first).await;
    assert_eq!(
        (late.displaced, late.replaced),
        (vec![], vec![second.key.clone()])
    );
    assert_eq!(scene.reassert(&second).await, ReassertAnswer::Replaced);
    let other = scene.connect(&scene.session(3, phone)).await;
    assert_eq!((other.displaced, other.replaced), (vec![first.key], vec![]));
    assert_eq!(scene.reassert(&second).await, ReassertAnswer::Displaced);
}

/// Bots displace nobody: each is a session of its own, and each is told of a message.
pub(crate) async fn bots_stand_side_by_side(scene: &Scene) {
    let target = scene.on(1, Platform::Bot);
    for n in 1..=3 {
        let answer = scene.connect(&scene.session(n, target)).await;
        assert_eq!(answer.displaced, []);
    }
    let answer = scene.put(target, 1, seconds(1)).await;
    assert_eq!((answer.live.len(), answer.stored), (3, Vec::new()));
    let first = scene.session(1, target);
    let gone = scene.store.disconnect(vec![first.key.clone()]).await;
    gone.expect("gone");
    let again = scene.reassert(&first).await;
    assert!(
        matches!(again, ReassertAnswer::Restored { .. }),
        "{again:?}"
    );
    assert_eq!(scene.live(target.user, Denied::default()).await.len(), 3);
}

/// Many logins at once leave one session, the one with the largest number; each other is displaced once.
pub(crate) async fn logins_at_once_leave_one(scene: &Scene) {
    let phone = scene.ios(1);
    let logins = (1..=40).map(|n| {
        let session = scene.session(n, phone);
        let store = scene.store.clone();
        let request = ConnectRequest {
            user: phone.user,
            entry: session.clone(),
            denied: Denied::default(),
            now: scene.now,
        };
        tokio::spawn(async move { (session.key.session, store.connect(request).await) })
    });
    let (mut logins_seen, mut displaced) = (BTreeSet::new(), BTreeSet::new());
    for login in join_all(logins).await {
        let (session, answer) = login.expect("no panic");
        let answer = answer.expect("connected");
        assert!(logins_seen.insert((answer.login, session)));
        for key in answer.displaced {
            assert!(displaced.insert(key.session), "displaced twice: {key:?}");
        }
    }
    let numbers: BTreeSet<u64> = logins_seen.iter().map(|(login, _)| *login).collect();
    assert_eq!(numbers.len(), 40, "each login has its own number");
    let winner = logins_seen.last().expect("forty").1;
    assert_eq!(scene.live(phone.user, Denied::default()).await, [winner]);
    assert_eq!(displaced.len(), 39);
    assert!(!displaced.contains(&winner));
}

/// A login that is repeated, because its answer was lost, changes nothing.
pub(crate) async fn a_login_may_be_repeated(scene: &Scene) {
    let session = scene.session(1, scene.ios(1));
    let first = scene.connect(&session).await;
    let again = scene.connect(&session).await;
    assert_eq!((again.login, again.displaced), (first.login, Vec::new()));
    let live = scene.live(session.key.user, Denied::default()).await;
    assert_eq!(live, [session.key.session]);
}

/// Login numbers grow, whatever the caller's clock says.
pub(crate) async fn login_numbers_only_grow(scene: &Scene) {
    let phone = scene.ios(1);
    let mut last = 0;
    for (n, age) in [(1, 0), (2, 60), (3, 3_600), (4, 0)] {
        let now = scene.ago(seconds(age));
        let session = scene.session(n, phone);
        let login = scene.connect_with(&session, Denied::default(), now).await;
        assert!(login.login > last);
        last = login.login;
        scene
            .store
            .disconnect(vec![session.key])
            .await
            .expect("gone");
    }
    assert!(last >= scene.now.millis() as u64, "at least the time");
}

/// A disconnect names the session exactly, and its boat; what is not there is no error.
// proves S1-36
pub(crate) async fn a_disconnect_removes_exactly_one(scene: &Scene) {
    let session = scene.session(1, scene.ios(1));
    scene.connect(&session).await;
    let mut of_another_boat = session.key.clone();
    of_another_boat.life = life("other", 2);
    let mut of_another_session = session.key.clone();
    of_another_session.session = scene.session(2, scene.ios(1)).key.session;
    let strangers = vec![of_another_boat, of_another_session];
    scene.store.disconnect(strangers).await.expect("no error");
    let user = session.key.user;
    assert_eq!(
        scene.live(user, Denied::default()).await,
        [session.key.session]
    );
    for _ in 0..2 {
        scene
            .store
            .disconnect(vec![session.key.clone()])
            .await
            .expect("no error");
    }
    assert_eq!(scene.live(user, Denied::default()).await, []);
}

/// A denied life is invisible at once, everywhere; another life of the same boat is not.
// proves S1-35
pub(crate) async fn the_denied_are_invisible_at_once(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    scene.connect(&session).await;
    let unknown = denied([life("boat", 2), life("other", 1)]);
    assert_eq!(
        scene.live(phone.user, unknown.clone()).await,
        [session.key.session],
        "unknown means alive"
    );
    let mut request = scene.request(phone, scene.mail(1, seconds(1)));
    request.denied = unknown;
    assert_eq!(scene.route(request.clone()).await.live.len(), 1);

    let dead = denied([life("boat", 1)]);
    assert_eq!(scene.live(phone.user, dead.clone()).await, []);
    request.denied = dead;
    let answer = scene.route(request).await;
    assert_eq!((answer.live.len(), answer.stored), (0, vec![Platform::Ios]));

    // Whatever it was denied for, it drains when it says again that it is there.
    let again = scene.reassert(&session).await;
    assert!(
        matches!(
            again,
            ReassertAnswer::Restored {
                mail_waits: true,
                ..
            }
        ),
        "{again:?}"
    );
}

/// Nobody is sent to kick a session whose boat has ended.
pub(crate) async fn the_denied_are_not_kicked(scene: &Scene) {
    let phone = scene.ios(1);
    let mut dead = scene.session(1, phone);
    dead.key.life = life("dead", 1);
    scene.connect(&dead).await;
    let gone = denied([life("dead", 1)]);
    let session = scene.session(2, phone);
    let answer = scene.connect_with(&session, gone, scene.now).await;
    assert_eq!(answer.displaced, []);
    let live = scene.live(phone.user, Denied::default()).await;
    assert_eq!(live, [session.key.session]);
    assert_eq!(scene.reassert(&dead).await, ReassertAnswer::Displaced);
}

/// What a boat says again is known, is registered again, or was displaced.
// proves S1-37
pub(crate) async fn a_boat_may_say_again_what_it_holds(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    let marker = scene.connect(&session).await.marker;
    assert_eq!(
        scene.reassert(&session).await,
        ReassertAnswer::Known { mail_waits: false }
    );

    scene
        .store
        .disconnect(vec![session.key.clone()])
        .await
        .expect("gone");
    scene.put(phone, 1, seconds(1)).await;
    let restored = ReassertAnswer::Restored {
        marker,
        mail_waits: true,
    };
    assert_eq!(scene.reassert(&session).await, restored);
    assert_eq!(
        scene.reassert(&session).await,
        ReassertAnswer::Known { mail_waits: true }
    );

    let later = scene.session(2, phone);
    scene.connect(&later).await;
    assert_eq!(scene.reassert(&session).await, ReassertAnswer::Displaced);
    let live = scene.live(phone.user, Denied::default()).await;
    assert_eq!(live, [later.key.session]);
}

/// A boat that registered anew asserts its sessions under a later life: they are its own, they go over to
/// it, and what was said under the earlier life changes nothing any more.
pub(crate) async fn a_later_life_takes_its_sessions_along(scene: &Scene) {
    let phone = scene.ios(1);
    let session = scene.session(1, phone);
    let under = |incarnation| {
        let mut session = session.clone();
        session.key.life = life("boat", incarnation);
        session
    };
    let held = async || {
        let mut live = scene
            .store
            .sessions(&[phone.user], Denied::default())
            .await
            .remove(0)
            .expect("answered");
        let entry = live.pop().expect("one");
        assert_eq!((live.len(), entry.session), (0, session.key.session));
        (entry.life.incarnation.0, entry.login)
    };
    let login = scene.connect(&under(1)).await.login;
    let again = scene.reassert(&under(2)).await;
    assert!(
        matches!(again, ReassertAnswer::Restored { .. }),
        "{again:?}"
    );
    assert_eq!(held().await, (2, login));

    // Late words of the earlier life.
    let left = scene.store.disconnect(vec![under(1).key]).await;
    left.expect("no error");
    let known = ReassertAnswer::Known { mail_waits: false };
    assert_eq!(scene.reassert(&under(1)).await, known);
    let repeated = scene.connect(&under(1)).await;
    assert_eq!((repeated.login, repeated.displaced), (login, Vec::new()));
    assert_eq!(held().await, (2, login));
    let dead = denied([life("boat", 1)]);
    assert_eq!(scene.live(phone.user, dead).await, [session.key.session]);

    // Another session of the platform is displaced under the life it has by then.
    let later = scene.session(2, phone);
    assert_eq!(scene.connect(&later).await.displaced, [under(2).key]);
    assert_eq!(scene.reassert(&under(3)).await, ReassertAnswer::Displaced);
    // Who left before it was asserted anew is gone, too.
    let mut left = later.key;
    left.life = life("boat", 9);
    scene.store.disconnect(vec![left]).await.expect("gone");
    assert_eq!(scene.live(phone.user, Denied::default()).await, []);
}

/// Names with separators in them are names. S1, pitfall A.
pub(crate) async fn names_may_hold_any_sign(scene: &Scene) {
    let phone = scene.ios(1);
    let names = [
        "boat-1-2",
        "ios-boat",
        "a:b|c/d",
        "{b0001}",
        "bö at\u{2003}7",
    ];
    for (n, name) in (1..).zip(names) {
        let mut session = scene.session(n, phone);
        session.key.life = life(name, u64::MAX);
        session.device = DeviceId::new("ios-1|{x}").expect("short");
        scene.connect(&session).await;
        let answer = scene.put(phone, n, seconds(1)).await;
        assert_eq!(answer.live.len(), 1);
        assert_eq!(answer.live[0].life, session.key.life);
        let alike = denied([life(name, 1), life("boat", u64::MAX)]);
        assert_eq!(scene.live(phone.user, alike).await, [session.key.session]);
        scene
            .store
            .disconnect(vec![session.key])
            .await
            .expect("gone");
        assert_eq!(scene.live(phone.user, Denied::default()).await, []);
    }
}

/// Appends and acknowledgements of one message at once, for many users: each body is there as long as
/// somebody waits for it.
pub(crate) async fn a_shared_body_survives_a_crowd(scene: &Scene) {
    let crowd = (1..=32).map(|n| {
        let (target, store) = (scene.ios(n), scene.store.clone());
        let request = scene.request(target, scene.mail(1, seconds(1)));
        let (id, now) = (scene.id(1), scene.now);
        tokio::spawn(async move {
            let mut answers = store.route_or_store(vec![request]).await;
            answers.remove(0).expect("stored");
            tokio::task::yield_now().await;
            let page = store.page(target, None, 10, now).await.expect("paged");
            assert_eq!(page.mails.len(), 1, "{page:?}");
            let acked = vec![(target, vec![id])];
            store.acknowledge(acked, now).await.expect("acknowledged");
        })
    });
    for member in join_all(crowd).await {
        member.expect("no panic");
    }
}

// Sends and marker.

/// A repeat of a send finds the first id, in the same call, too.
pub(crate) async fn a_repeated_send_finds_the_first(scene: &Scene) {
    let key = |user, send| scene.send_key(user, send);
    let (one, two) = (scene.first_send(1, 9, 1), scene.first_send(1, 9, 2));
    let other = scene.first_send(2, 9, 3);
    assert_eq!(
        scene
            .begin(vec![(key(1, 1), one), (key(1, 1), two), (key(2, 1), other)])
            .await,
        [
            DedupeAnswer::Fresh,
            DedupeAnswer::Pending(one),
            DedupeAnswer::Fresh
        ],
        "a send_id belongs to its sender"
    );
    let done = vec![(key(1, 1), one)];
    scene.store.dedupe_done(done).await.expect("done");
    assert_eq!(
        scene.begin(vec![(key(1, 1), two), (key(2, 1), one)]).await,
        [DedupeAnswer::Done(one), DedupeAnswer::Pending(other)]
    );
}

/// A send_id that comes again for somebody else finds where it was used first, and changes nothing.
pub(crate) async fn a_send_id_says_where_it_was_used(scene: &Scene) {
    let key = scene.send_key(1, 2);
    let (here, there) = (scene.first_send(1, 8, 1), scene.first_send(1, 9, 2));
    assert_eq!(
        scene.begin(vec![(key, here), (key, there)]).await,
        [DedupeAnswer::Fresh, DedupeAnswer::Pending(here)]
    );
    for (sent, known) in [
        (there, DedupeAnswer::Pending(here)),
        (here, DedupeAnswer::Done(here)),
        (there, DedupeAnswer::Done(here)),
    ] {
        scene
            .store
            .dedupe_done(vec![(key, sent)])
            .await
            .expect("done");
        assert_eq!(scene.begin(vec![(key, there)]).await, [known]);
    }
}

/// The marker that a user's logins are told stays while nothing is lost.
pub(crate) async fn the_marker_stays(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    let marker = scene.connect(&scene.session(1, phone)).await.marker;
    assert_ne!(marker, 0, "zero is what a client says that has none");
    scene.put(phone, 1, seconds(1)).await;
    for (n, target) in [(2, phone), (3, desk), (2, phone)] {
        let answer = scene.connect(&scene.session(n, target)).await;
        assert_eq!(answer.marker, marker);
    }
}

/// Hands the names of all checks to another macro.
macro_rules! checks {
    ($then:ident! $($with:tt)*) => {
        $crate::mailbox::contract::$then!($($with)*:
            the_absent_are_stored_for
            appending_is_idempotent
            a_body_stays_for_the_last
            mail_comes_by_time_then_by_id
            the_newest_are_kept
            no_maximum_keeps_all
            expiry_excludes_the_bound
            trimming_keeps_exactly_the_newest
            what_expired_is_not_seen
            paging_removes_nothing
            acknowledging_removes_exactly_that
            the_recently_acknowledged_is_not_stored
            each_is_found_where_it_is
            missing_bodies_never_stop_a_page
            an_append_repairs_a_lost_body
            the_present_are_not_stored_for
            a_forced_store_tells_whom_to_wake
            a_look_stores_nothing
            a_batch_keeps_its_order
            a_login_hears_of_all_before_it
            no_message_falls_between
            a_login_displaces_its_platform_only
            a_device_replaces_itself
            bots_stand_side_by_side
            logins_at_once_leave_one
            a_login_may_be_repeated
            login_numbers_only_grow
            a_disconnect_removes_exactly_one
            the_denied_are_invisible_at_once
            the_denied_are_not_kicked
            a_boat_may_say_again_what_it_holds
            a_later_life_takes_its_sessions_along
            names_may_hold_any_sign
            a_shared_body_survives_a_crowd
            a_repeated_send_finds_the_first
            a_send_id_says_where_it_was_used
            the_marker_stays
        );
    };
}
pub(crate) use checks;

/// One test a check, each on a store of its own. `open` makes a [`Scene`] and what must outlive it; `close`
/// looks at what is left.
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

/// All checks on one store, each with users and messages of its own.
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
