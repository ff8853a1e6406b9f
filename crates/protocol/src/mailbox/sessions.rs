//! One user's registered sessions.

use std::time::Duration;

use super::{HeldSession, NewSession, Overflow, SessionCapacity};
use crate::presence::{BoatLife, DeniedBoats, SessionEntry, SessionKey};
use crate::{Code, DeviceId, Platform, Refusal, Timestamp, UserId};

/// Retry pause after a sign-in that found too many sessions. A vanished client's session ends for
/// its silence after about as long.
const SESSIONS_PAUSE: Duration = Duration::from_secs(60);

/// Sessions of one user: on each platform the latest logins, up to its capacity. A device has one
/// session, except for bots, whose sessions coexist.
///
/// A session belongs to a boat across the boat's lives: a boat that lost its lease keeps its
/// sessions and asserts them under a later life. The latest life seen is the one recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    sessions: Vec<StoredSession>,
    last_login: u64,
}

/// An entry and its device. Only later sign-ins and re-assertions on its platform compare the
/// device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredSession {
    entry: SessionEntry,
    device: DeviceId,
}

/// Result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterResult {
    pub login: u64,
    /// Other devices' sessions that this login unregistered. Sessions of denied lives are left out:
    /// nobody is there to be kicked, and a life denied in error learns of it when it re-asserts.
    pub displaced_sessions: Vec<SessionKey>,
    /// Sessions of the same device, likewise.
    pub replaced_sessions: Vec<SessionKey>,
}

/// The platform is full of other devices' sessions on live boats, and displaces none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySessions;

/// Result of a re-assertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReassertResult {
    Known,
    Restored,
    Displaced,
    Replaced,
}

impl Sessions {
    /// No sessions, with login numbers that continue from `last_login`.
    pub fn after_login(last_login: u64) -> Sessions {
        Sessions {
            sessions: Vec::new(),
            last_login,
        }
    }

    /// Registers a session in place of its device's earlier one and, if other devices fill the
    /// platform, in place of the oldest by login. Bots displace no other device: on a full
    /// platform, a bot replaces its own device's earliest session. The login number exceeds all
    /// before it, whatever the clock does; a session already registered, under this life of its
    /// boat or another, keeps its number.
    ///
    /// # Errors
    ///
    /// The platform is full of other devices' sessions, and displaces none. Nothing has changed,
    /// except that ended lives are forgotten.
    pub fn connect(
        &mut self,
        user: UserId,
        new: &NewSession,
        capacity: &SessionCapacity,
        denied_boats: &DeniedBoats,
        now: Timestamp,
    ) -> Result<RegisterResult, TooManySessions> {
        if let Some(entry) = self.find(&new.key) {
            update_life(entry, &new.key.life);
            return Ok(RegisterResult {
                login: entry.login,
                displaced_sessions: Vec::new(),
                replaced_sessions: Vec::new(),
            });
        }
        self.forget_denied(denied_boats);
        let room = capacity.of(new.platform);
        let (mut displaced_sessions, mut replaced_sessions) = (Vec::new(), Vec::new());
        match SessionCapacity::overflow(new.platform) {
            Overflow::Displace => {
                let (own, oldest) = self.make_room(new, room);
                replaced_sessions
                    .extend(own.into_iter().map(|session| session.entry.into_key(user)));
                displaced_sessions.extend(
                    oldest
                        .into_iter()
                        .map(|session| session.entry.into_key(user)),
                );
            }
            Overflow::Refuse if self.count(new.platform) >= room => {
                let earliest_index = self.earliest_session_index(new).ok_or(TooManySessions)?;
                replaced_sessions.push(self.sessions.remove(earliest_index).entry.into_key(user));
            }
            Overflow::Refuse => {}
        }
        let login = self.next_login(now);
        self.register(new, login);
        Ok(RegisterResult {
            login,
            displaced_sessions,
            replaced_sessions,
        })
    }

    /// Handles a boat's assertion that it holds this session. A missing session is registered
    /// again under the number of its login, unless later ones on live boats have taken its place:
    /// one of the same device, or as many as the platform's capacity. Earlier ones, which came
    /// back before it though they had lost their place, leave as at a login; their boats learn it
    /// when they assert them again. A session whose number is unknown displaces nothing. A session
    /// registered under an earlier life of the boat moves to the new life and counts as restored:
    /// peers that took the earlier life for over may have withheld messages from it.
    pub fn reassert(
        &mut self,
        held_session: &HeldSession,
        capacity: &SessionCapacity,
        denied_boats: &DeniedBoats,
        now: Timestamp,
    ) -> ReassertResult {
        let (new, login) = (&held_session.session, held_session.login(now));
        if let Some(entry) = self.find(&new.key) {
            return if update_life(entry, &new.key.life) {
                ReassertResult::Restored
            } else {
                ReassertResult::Known
            };
        }
        self.forget_denied(denied_boats);
        if SessionCapacity::overflow(new.platform) == Overflow::Displace {
            let room = capacity.of(new.platform);
            let later_sessions = self
                .sessions
                .iter()
                .filter(|session| session.is_later(login));
            let rivals = later_sessions.filter(|session| session.is_on(new.platform));
            let (own, other_devices): (Vec<_>, Vec<_>) =
                rivals.partition(|session| session.is_same_device(new));
            if !own.is_empty() {
                return ReassertResult::Replaced;
            }
            if other_devices.len() >= room {
                return ReassertResult::Displaced;
            }
            self.make_room(new, room);
        }
        let login = login.unwrap_or_else(|| self.next_login(now));
        self.register(new, login);
        ReassertResult::Restored
    }

    /// Removes exactly this session: not a later one on its platform, and not if a later life of
    /// its boat has asserted it since.
    pub fn disconnect(&mut self, key: &SessionKey) -> bool {
        let old_count = self.sessions.len();
        let is_later = |entry: &SessionEntry| entry.life.incarnation > key.life.incarnation;
        self.sessions
            .retain(|session| !is_same_session(&session.entry, key) || is_later(&session.entry));
        self.sessions.len() < old_count
    }

    /// Removes sessions of ended lives. They are invisible at once, and removed when met.
    pub fn forget_denied(&mut self, denied_boats: &DeniedBoats) {
        if !denied_boats.is_empty() {
            self.sessions
                .retain(|session| !denied_boats.contains(&session.entry.life));
        }
    }

    /// Sessions whose boat is not known to have ended.
    pub fn live(&self, denied_boats: &DeniedBoats) -> impl Iterator<Item = &SessionEntry> {
        self.sessions
            .iter()
            .map(|session| &session.entry)
            .filter(|entry| denied_boats.is_empty() || !denied_boats.contains(&entry.life))
    }

    /// Whether the platform has a session.
    pub fn on(&self, platform: Platform) -> bool {
        self.sessions.iter().any(|session| session.is_on(platform))
    }

    /// The last login number assigned.
    pub fn last_login(&self) -> u64 {
        self.last_login
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn find(&mut self, key: &SessionKey) -> Option<&mut SessionEntry> {
        let mut entries = self.sessions.iter_mut().map(|session| &mut session.entry);
        entries.find(|entry| is_same_session(entry, key))
    }

    fn count(&self, platform: Platform) -> usize {
        let sessions = self
            .sessions
            .iter()
            .filter(|session| session.is_on(platform));
        sessions.count()
    }

    /// Index of the same device's earliest session, whose connection may be dead.
    fn earliest_session_index(&self, new: &NewSession) -> Option<usize> {
        let sessions = self.sessions.iter().enumerate();
        let own = sessions.filter(|(_, session)| session.is_same_device(new));
        let earliest = own.min_by_key(|(_, session)| session.entry.login);
        earliest.map(|(index, _)| index)
    }

    /// Takes out the sessions of the device, and the oldest others for which there is no room
    /// beside it.
    fn make_room(
        &mut self,
        new: &NewSession,
        room: usize,
    ) -> (Vec<StoredSession>, Vec<StoredSession>) {
        let own = self
            .sessions
            .extract_if(.., |session| session.is_same_device(new))
            .collect();
        let mut excess = (self.count(new.platform) + 1).saturating_sub(room);
        // The list is in login order.
        let oldest = self.sessions.extract_if(.., |session| {
            let is_oldest = excess > 0 && session.is_on(new.platform);
            excess -= usize::from(is_oldest);
            is_oldest
        });
        (own, oldest.collect())
    }

    fn next_login(&self, now: Timestamp) -> u64 {
        let now = u64::try_from(now.millis()).unwrap_or(0);
        now.max(self.last_login.saturating_add(1))
    }

    fn register(&mut self, new: &NewSession, login: u64) {
        self.last_login = self.last_login.max(login);
        // Most users have one session: the vector's usual first step of four would cost 150 bytes
        // each.
        self.sessions.reserve_exact(1);
        let index = self
            .sessions
            .partition_point(|other| other.entry.login <= login);
        let session = StoredSession {
            entry: SessionEntry {
                session: new.key.session,
                platform: new.platform,
                life: new.key.life.clone(),
                login,
            },
            device: new.device.clone(),
        };
        self.sessions.insert(index, session);
    }
}

impl From<TooManySessions> for Refusal {
    fn from(_: TooManySessions) -> Refusal {
        let text =
            "this platform has reached its limit of sessions; end one, or wait until one ends";
        Refusal::new(Code::TooManySessions, text).retry_after(SESSIONS_PAUSE)
    }
}

impl StoredSession {
    fn is_on(&self, platform: Platform) -> bool {
        self.entry.platform == platform
    }

    /// True unless this login is known to be the later one.
    fn is_later(&self, login: Option<u64>) -> bool {
        login.is_none_or(|login| self.entry.login >= login)
    }

    /// True for a session of the same device on the same platform.
    fn is_same_device(&self, new: &NewSession) -> bool {
        self.is_on(new.platform) && self.device == new.device
    }
}

/// Refusal that any service sends to a device's older connection. That connection may be the one
/// in use.
pub fn replaced_session_refusal() -> Refusal {
    Refusal::new(
        Code::Replaced,
        "another connection of this device signed in; connect again if it is not in use",
    )
}

/// True for the same session of the same boat, under any of its lives.
fn is_same_session(entry: &SessionEntry, key: &SessionKey) -> bool {
    entry.session == key.session && entry.life.boat == key.life.boat
}

/// Records the boat's life that holds the session. Returns true if it is later than the recorded
/// one; a late message from an earlier life changes nothing.
fn update_life(entry: &mut SessionEntry, life: &BoatLife) -> bool {
    let is_later = life.incarnation > entry.life.incarnation;
    if is_later {
        entry.life = life.clone();
    }
    is_later
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::BoatLife;
    use crate::{BoatId, Incarnation, SessionId};

    fn user() -> UserId {
        UserId::new(1).expect("positive")
    }

    fn usual() -> SessionCapacity {
        SessionCapacity::default()
    }

    fn session(n: i64) -> NewSession {
        NewSession {
            key: SessionKey {
                user: user(),
                session: SessionId::new(n).expect("positive"),
                life: BoatLife {
                    boat: BoatId::new("boat").expect("short"),
                    incarnation: Incarnation(n as u64),
                },
            },
            platform: Platform::Ios,
            device: DeviceId::new(&format!("phone-{n}")).expect("short"),
        }
    }

    fn login(sessions: &mut Sessions, n: i64, now: i64) -> RegisterResult {
        let now = Timestamp::from_millis(now);
        let result = sessions.connect(user(), &session(n), &usual(), &DeniedBoats::default(), now);
        result.expect("one at a time")
    }

    #[test]
    fn a_login_is_the_time_or_one_more_than_the_last() {
        let mut sessions = Sessions::after_login(500);
        assert_eq!(login(&mut sessions, 1, 100).login, 501);
        assert_eq!(login(&mut sessions, 2, 900).login, 900);
        assert_eq!(login(&mut sessions, 3, 900).login, 901);
        assert_eq!(login(&mut sessions, 3, 999).login, 901, "repeated");
        assert_eq!(login(&mut sessions, 4, -5).login, 902);
    }

    #[test]
    fn the_last_login_holds_the_platform() {
        let mut sessions = Sessions::default();
        assert_eq!(login(&mut sessions, 1, 1).displaced_sessions, []);
        assert_eq!(
            login(&mut sessions, 2, 1).displaced_sessions,
            [session(1).key]
        );
        let reassertion = sessions.reassert(
            &session(1).into(),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert_eq!(reassertion, ReassertResult::Displaced);
        assert!(!sessions.disconnect(&session(1).key));
        assert!(sessions.disconnect(&session(2).key));
        let reassertion = sessions.reassert(
            &session(1).into(),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert_eq!(reassertion, ReassertResult::Restored);
    }

    // A device cannot displace itself: its own sign-ins may overtake each other.
    #[test]
    fn a_device_does_not_displace_itself() {
        let mut sessions = Sessions::default();
        let of_one_device = |n| NewSession {
            device: session(1).device,
            ..session(n)
        };
        login(&mut sessions, 1, 1);
        let result = sessions.connect(
            user(),
            &of_one_device(2),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        let result = result.expect("one at a time");
        assert_eq!(
            (result.displaced_sessions, result.replaced_sessions),
            (Vec::new(), vec![session(1).key])
        );
        let reassertion = sessions.reassert(
            &session(1).into(),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert_eq!(reassertion, ReassertResult::Replaced);
        let other = login(&mut sessions, 3, 1);
        assert_eq!(
            (other.displaced_sessions, other.replaced_sessions),
            (vec![session(2).key], Vec::new())
        );
        let reassertion = sessions.reassert(
            &of_one_device(2).into(),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert_eq!(reassertion, ReassertResult::Displaced);
    }

    // A boat that lost its lease asserts its sessions under a later life; messages from its earlier
    // life may still be on their way.
    #[test]
    fn a_later_life_of_the_boat_holds_the_same_session() {
        let with_incarnation = |incarnation| {
            let mut new = session(1);
            new.key.life.incarnation = Incarnation(incarnation);
            new
        };
        let mut sessions = Sessions::default();
        let reassert = |sessions: &mut Sessions, incarnation| {
            sessions.reassert(
                &with_incarnation(incarnation).into(),
                &usual(),
                &DeniedBoats::default(),
                Timestamp::ZERO,
            )
        };
        let first = login(&mut sessions, 1, 1).login;
        assert_eq!(reassert(&mut sessions, 2), ReassertResult::Restored);
        assert_eq!(reassert(&mut sessions, 2), ReassertResult::Known);
        assert_eq!(
            reassert(&mut sessions, 1),
            ReassertResult::Known,
            "came late"
        );
        assert!(!sessions.disconnect(&with_incarnation(1).key), "came late");
        let repeat = sessions.connect(
            user(),
            &with_incarnation(3),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::from_millis(9),
        );
        let repeat = repeat.expect("there already");
        assert_eq!(
            (repeat.login, repeat.displaced_sessions),
            (first, Vec::new())
        );
        let live_sessions: Vec<_> = sessions.live(&DeniedBoats::default()).collect();
        assert_eq!(live_sessions[0].life, with_incarnation(3).key.life);
        // The later life may end the session before it re-asserts it.
        assert!(sessions.disconnect(&with_incarnation(4).key));
        assert!(sessions.is_empty());
    }

    #[test]
    fn the_seventeenth_bot_waits_until_one_has_ended() {
        let bot = |n| NewSession {
            platform: Platform::Bot,
            ..session(n)
        };
        let denied_life = |n: i64| -> DeniedBoats {
            let lives = [session(n).key.life].into_iter();
            lives.collect::<std::collections::BTreeSet<_>>().into()
        };
        let mut sessions = Sessions::default();
        let mut connect = |n, denied_boats: &DeniedBoats| {
            sessions
                .connect(user(), &bot(n), &usual(), denied_boats, Timestamp::ZERO)
                .map(|result| result.login)
        };
        for n in 1..=16 {
            connect(n, &DeniedBoats::default()).expect("room");
        }
        assert_eq!(connect(17, &DeniedBoats::default()), Err(TooManySessions));
        assert_eq!(
            connect(16, &DeniedBoats::default()),
            Ok(16),
            "there already"
        );
        assert_eq!(
            connect(17, &denied_life(3)),
            Ok(17),
            "one ended with its boat"
        );
        assert_eq!(connect(18, &denied_life(3)), Err(TooManySessions));
        assert_eq!(
            login(&mut sessions, 19, 0).displaced_sessions,
            [],
            "people have places of their own"
        );
        let replacement = NewSession {
            device: bot(7).device,
            ..bot(21)
        };
        let earliest = sessions.connect(
            user(),
            &replacement,
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert_eq!(
            earliest.expect("its own place").replaced_sessions,
            [bot(7).key]
        );
        assert!(sessions.disconnect(&bot(5).key));
        let next = sessions.connect(
            user(),
            &bot(20),
            &usual(),
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        assert!(next.is_ok());
        let refusal = Refusal::from(TooManySessions);
        assert!(refusal.code.retryable());
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_login_beyond_the_capacity_displaces_the_oldest() {
        for room in 1..=3_u32 {
            let capacity = usual().with(Platform::Ios, room).expect("in bounds");
            let none = DeniedBoats::default();
            let mut sessions = Sessions::default();
            let mut connect = |new: &NewSession, capacity: &SessionCapacity| {
                let now = Timestamp::from_millis(1);
                let result = sessions.connect(user(), new, capacity, &none, now);
                let result = result.expect("people are never refused");
                (result.displaced_sessions, result.replaced_sessions)
            };
            let room = i64::from(room);
            for n in 1..=room {
                let ended_sessions = connect(&session(n), &capacity);
                assert_eq!(ended_sessions, (vec![], vec![]), "{n} of {room}");
            }
            // The device's own session goes first, whatever the capacity.
            let replacement = NewSession {
                device: session(1).device,
                ..session(10)
            };
            assert_eq!(
                connect(&replacement, &capacity),
                (vec![], vec![session(1).key]),
                "room for {room}"
            );
            // The oldest by login; the replaced session no longer is.
            let oldest = if room == 1 { replacement } else { session(2) };
            let ended_sessions = connect(&session(11), &capacity);
            assert_eq!(
                ended_sessions,
                (vec![oldest.key], vec![]),
                "room for {room}"
            );
            // Lower capacity than before: all sessions in excess end, oldest first.
            let ended_sessions = connect(&session(12), &usual());
            assert_eq!(ended_sessions.0.len() as i64, room);
            assert_eq!(ended_sessions.0.last(), Some(&session(11).key));
            assert_eq!(sessions.live(&none).count(), 1);
        }
    }

    #[test]
    fn a_session_comes_back_where_there_is_room() {
        let two = usual().with(Platform::Ios, 2).expect("in bounds");
        let none = DeniedBoats::default();
        let mut sessions = Sessions::default();
        let mut reassert = |n, capacity: &SessionCapacity| {
            sessions.reassert(&session(n).into(), capacity, &none, Timestamp::ZERO)
        };
        assert_eq!(reassert(1, &two), ReassertResult::Restored);
        assert_eq!(reassert(2, &two), ReassertResult::Restored);
        assert_eq!(reassert(3, &two), ReassertResult::Displaced);
        // Lower capacity displaces at the next login, not here.
        assert_eq!(
            [reassert(1, &usual()), reassert(2, &usual())],
            [ReassertResult::Known; 2]
        );
        assert_eq!(reassert(3, &usual()), ReassertResult::Displaced);
        let own = NewSession {
            device: session(1).device,
            ..session(4)
        };
        let roomy = usual().with(Platform::Ios, 3).expect("in bounds");
        let result = sessions.reassert(&own.into(), &roomy, &none, Timestamp::ZERO);
        assert_eq!(result, ReassertResult::Replaced, "room or not");
    }

    /// A session whose boat knows the number of its login.
    fn held_session(n: i64, login: u64) -> HeldSession {
        HeldSession {
            session: session(n),
            login: Some(login),
        }
    }

    // What was displaced may come back first, if nobody has told it.
    #[test]
    fn an_empty_store_restores_sessions_in_login_order() {
        let reassert =
            |sessions: &mut Sessions, held_session: &HeldSession, capacity: &SessionCapacity| {
                let now = Timestamp::from_millis(1000);
                sessions.reassert(held_session, capacity, &DeniedBoats::default(), now)
            };
        let mut sessions = Sessions::default();
        let (earlier_session, later_session) = (held_session(1, 10), held_session(2, 20));
        assert_eq!(
            reassert(&mut sessions, &earlier_session, &usual()),
            ReassertResult::Restored
        );
        assert_eq!(
            reassert(&mut sessions, &later_session, &usual()),
            ReassertResult::Restored
        );
        assert_eq!(
            reassert(&mut sessions, &earlier_session, &usual()),
            ReassertResult::Displaced
        );
        assert_eq!(
            reassert(&mut sessions, &later_session, &usual()),
            ReassertResult::Known
        );
        let live: Vec<_> = sessions.live(&DeniedBoats::default()).collect();
        assert_eq!((live.len(), live[0].login), (1, 20));

        // Of one device.
        let mut sessions = Sessions::default();
        let mut replaced_session = held_session(1, 10);
        replaced_session.session.device = session(2).device;
        reassert(&mut sessions, &replaced_session, &usual());
        assert_eq!(
            reassert(&mut sessions, &later_session, &usual()),
            ReassertResult::Restored
        );
        assert_eq!(
            reassert(&mut sessions, &replaced_session, &usual()),
            ReassertResult::Replaced
        );

        // Whatever the order: the latest stay, and the oldest of them leaves next.
        let three = usual().with(Platform::Ios, 3).expect("in bounds");
        let mut sessions = Sessions::default();
        for n in [3, 5, 1, 4, 2] {
            reassert(&mut sessions, &held_session(n, n as u64 * 10), &three);
        }
        let none = DeniedBoats::default();
        let live: Vec<_> = sessions.live(&none).map(|session| session.login).collect();
        assert_eq!(live, [30, 40, 50]);
        let next = sessions.connect(
            user(),
            &session(6),
            &three,
            &DeniedBoats::default(),
            Timestamp::ZERO,
        );
        let next = next.expect("people are never refused");
        assert_eq!(
            (next.login, next.displaced_sessions),
            (51, vec![session(3).key])
        );
    }

    // A boat's word alone must not make its sessions the latest for ever.
    #[test]
    fn a_login_of_a_time_to_come_is_as_unknown() {
        let mut sessions = Sessions::default();
        let reassert = |sessions: &mut Sessions, held_session: &HeldSession| {
            let now = Timestamp::from_millis(1000);
            sessions.reassert(held_session, &usual(), &DeniedBoats::default(), now)
        };
        assert_eq!(
            reassert(&mut sessions, &held_session(1, u64::MAX)),
            ReassertResult::Restored
        );
        assert_eq!(sessions.last_login(), 1000);
        assert_eq!(
            reassert(&mut sessions, &held_session(2, u64::MAX)),
            ReassertResult::Displaced
        );
        assert_eq!(login(&mut sessions, 3, 900).login, 1001);
    }

    // Capacity held by an ended life is free: no live session is displaced for it.
    #[test]
    fn sessions_of_ended_lives_displace_nobody() {
        let two = usual().with(Platform::Ios, 2).expect("in bounds");
        let mut sessions = Sessions::default();
        let mut connect = |n, denied: &DeniedBoats| {
            let result = sessions.connect(user(), &session(n), &two, denied, Timestamp::ZERO);
            result.expect("people are never refused").displaced_sessions
        };
        let ended_boats: DeniedBoats = [session(2).key.life]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into();
        assert_eq!(connect(1, &DeniedBoats::default()), []);
        assert_eq!(connect(2, &DeniedBoats::default()), []);
        assert_eq!(connect(3, &ended_boats), []);
        assert_eq!(connect(4, &ended_boats), [session(1).key]);
    }

    #[test]
    fn unknown_means_alive() {
        let mut sessions = Sessions::default();
        login(&mut sessions, 1, 1);
        let other: DeniedBoats = [session(2).key.life]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into();
        assert_eq!(sessions.live(&other).count(), 1);
        sessions.forget_denied(&other);
        assert_eq!(sessions.live(&DeniedBoats::default()).count(), 1);
    }
}
