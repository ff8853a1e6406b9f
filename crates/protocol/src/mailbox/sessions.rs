//! One user's registered sessions.

use std::time::Duration;

use super::{NewSession, Overflow, SessionCapacity};
use crate::presence::{BoatLife, Denied, SessionEntry, SessionKey};
use crate::{Code, DeviceId, Platform, Refusal, Timestamp, UserId};

/// The pause of a sign-in that found too many sessions: silence ends one of a client that is gone about as late.
const SESSIONS_PAUSE: Duration = Duration::from_secs(60);

/// The sessions of one user: of each platform as many as it may have, those that logged in last. A device has one,
/// but of bots, which stand side by side.
///
/// A session belongs to a boat, whatever life the boat is in: one that lost its lease goes on holding its
/// sessions and asserts them under a later life. The latest life that was heard of stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    held: Vec<Held>,
    last_login: u64,
}

/// An entry, and whose it is: only the next login of its platform asks for that.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    entry: SessionEntry,
    device: DeviceId,
}

/// What a login did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    pub login: u64,
    /// Other devices' sessions, registered no longer. Sessions of denied lives are not named: nobody is
    /// there to be kicked, and a life that was denied in error learns it when it re-asserts.
    pub displaced: Vec<SessionKey>,
    /// Sessions of the same device, likewise.
    pub replaced: Vec<SessionKey>,
}

/// As many sessions as the platform may have are registered, of other devices and on boats that live; and it displaces
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySessions;

/// What saying again did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasserted {
    Known,
    Restored,
    Displaced,
    Replaced,
}

impl Sessions {
    /// No session yet, and logins that count on from `last_login`.
    pub fn after_login(last_login: u64) -> Sessions {
        Sessions {
            held: Vec::new(),
            last_login,
        }
    }

    /// Registers a session in the place of its device's earlier one; and where other devices have as many as the platform
    /// may have, of the oldest, by login. Bots displace nobody: full, one takes the place of its device's
    /// earliest. The login number is larger than all before it, whatever the clock does; a session that is registered
    /// already, under this life of its boat or another, keeps its own.
    ///
    /// # Errors
    ///
    /// The platform is full of other devices' sessions, and displaces none; nothing changed but that ended lives are
    /// forgotten.
    pub fn connect(
        &mut self,
        user: UserId,
        new: &NewSession,
        capacity: &SessionCapacity,
        denied: &Denied,
        now: Timestamp,
    ) -> Result<Registered, TooManySessions> {
        if let Some(entry) = self.find(&new.key) {
            hold(entry, &new.key.life);
            return Ok(Registered {
                login: entry.login,
                displaced: Vec::new(),
                replaced: Vec::new(),
            });
        }
        self.forget_denied(denied);
        let room = capacity.of(new.platform);
        let (mut displaced, mut replaced) = (Vec::new(), Vec::new());
        match SessionCapacity::overflow(new.platform) {
            Overflow::Displace => {
                let own = |held: &mut Held| held.is_of(new);
                let own = self.held.extract_if(.., own);
                replaced.extend(own.map(|held| held.entry.into_key(user)));
                let mut excess = (self.count(new.platform) + 1).saturating_sub(room);
                // The order of the list is that of the logins.
                let oldest = self.held.extract_if(.., |held| {
                    let is_oldest = excess > 0 && held.is_on(new.platform);
                    excess -= usize::from(is_oldest);
                    is_oldest
                });
                displaced.extend(oldest.map(|held| held.entry.into_key(user)));
            }
            Overflow::Refuse if self.count(new.platform) >= room => {
                let earlier = self.earliest_of(new).ok_or(TooManySessions)?;
                replaced.push(self.held.remove(earlier).entry.into_key(user));
            }
            Overflow::Refuse => {}
        }
        Ok(Registered {
            login: self.register(new, now),
            displaced,
            replaced,
        })
    }

    /// A boat says that it holds this session. Missing, it is registered again, unless sessions that
    /// living boats hold took its place in the meantime: one of its device, or as many as the platform may have. Under an
    /// earlier life of the boat, it is registered anew: whoever took that life for over may have kept things from
    /// it. Nothing is displaced, even where the platform had room for more once.
    pub fn reassert(
        &mut self,
        new: &NewSession,
        capacity: &SessionCapacity,
        denied: &Denied,
        now: Timestamp,
    ) -> Reasserted {
        if let Some(entry) = self.find(&new.key) {
            return match hold(entry, &new.key.life) {
                true => Reasserted::Restored,
                false => Reasserted::Known,
            };
        }
        self.forget_denied(denied);
        if SessionCapacity::overflow(new.platform) == Overflow::Displace {
            if self.held.iter().any(|held| held.is_of(new)) {
                return Reasserted::Replaced;
            }
            if self.count(new.platform) >= capacity.of(new.platform) {
                return Reasserted::Displaced;
            }
        }
        self.register(new, now);
        Reasserted::Restored
    }

    /// Removes exactly this session: not a later one of its platform, and not where a later life of its
    /// boat has asserted it since.
    pub fn disconnect(&mut self, key: &SessionKey) -> bool {
        let before = self.held.len();
        let later = |entry: &SessionEntry| entry.life.incarnation > key.life.incarnation;
        self.held
            .retain(|held| !is(&held.entry, key) || later(&held.entry));
        self.held.len() < before
    }

    /// Removes the sessions of lives that ended: invisible at once, and gone where they are met.
    pub fn forget_denied(&mut self, denied: &Denied) {
        if !denied.is_empty() {
            self.held.retain(|held| !denied.contains(&held.entry.life));
        }
    }

    /// Those whose boat is not known to have ended.
    pub fn live(&self, denied: &Denied) -> impl Iterator<Item = &SessionEntry> {
        self.held
            .iter()
            .map(|held| &held.entry)
            .filter(|entry| denied.is_empty() || !denied.contains(&entry.life))
    }

    /// Whether a session holds this platform.
    pub fn on(&self, platform: Platform) -> bool {
        self.held.iter().any(|held| held.is_on(platform))
    }

    /// The last login number given.
    pub fn last_login(&self) -> u64 {
        self.last_login
    }

    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn find(&mut self, key: &SessionKey) -> Option<&mut SessionEntry> {
        let mut entries = self.held.iter_mut().map(|held| &mut held.entry);
        entries.find(|entry| is(entry, key))
    }

    fn count(&self, platform: Platform) -> usize {
        let held = self.held.iter().filter(|held| held.is_on(platform));
        held.count()
    }

    /// The place of the same device's earliest session: perhaps one whose connection is dead.
    fn earliest_of(&self, new: &NewSession) -> Option<usize> {
        let held = self.held.iter().enumerate();
        let own = held.filter(|(_, held)| held.is_of(new));
        let earliest = own.min_by_key(|(_, held)| held.entry.login);
        earliest.map(|(place, _)| place)
    }

    fn register(&mut self, new: &NewSession, now: Timestamp) -> u64 {
        let now = u64::try_from(now.millis()).unwrap_or(0);
        self.last_login = now.max(self.last_login.saturating_add(1));
        // Most users have one session: the vector's usual first step of four would cost 150 bytes each.
        self.held.reserve_exact(1);
        self.held.push(Held {
            entry: SessionEntry {
                session: new.key.session,
                platform: new.platform,
                life: new.key.life.clone(),
                login: self.last_login,
            },
            device: new.device.clone(),
        });
        self.last_login
    }
}

impl From<TooManySessions> for Refusal {
    fn from(_: TooManySessions) -> Refusal {
        let text = "as many sessions as this platform may have are signed in; end one, or wait until one has ended";
        Refusal::new(Code::TooManySessions, text).retry_after(SESSIONS_PAUSE)
    }
}

impl Held {
    fn is_on(&self, platform: Platform) -> bool {
        self.entry.platform == platform
    }

    /// A session of the same device, on the same platform.
    fn is_of(&self, new: &NewSession) -> bool {
        self.is_on(new.platform) && self.device == new.device
    }
}

/// What the older connection of a device hears, whoever tells it. It may be the one in use.
pub fn signed_in_again() -> Refusal {
    Refusal::new(
        Code::Replaced,
        "another connection of this device signed in; connect again if it is not in use",
    )
}

/// The same session of the same boat, under whatever life of it.
fn is(entry: &SessionEntry, key: &SessionKey) -> bool {
    entry.session == key.session && entry.life.boat == key.life.boat
}

/// The boat holds it under this life; true: which is later than the one known. What an earlier one says
/// late changes nothing.
fn hold(entry: &mut SessionEntry, life: &BoatLife) -> bool {
    let later = life.incarnation > entry.life.incarnation;
    if later {
        entry.life = life.clone();
    }
    later
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

    fn login(sessions: &mut Sessions, n: i64, now: i64) -> Registered {
        let now = Timestamp::from_millis(now);
        let registered = sessions.connect(user(), &session(n), &usual(), &Denied::default(), now);
        registered.expect("one at a time")
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
        assert_eq!(login(&mut sessions, 1, 1).displaced, []);
        assert_eq!(login(&mut sessions, 2, 1).displaced, [session(1).key]);
        let again = sessions.reassert(&session(1), &usual(), &Denied::default(), Timestamp::ZERO);
        assert_eq!(again, Reasserted::Displaced);
        assert!(!sessions.disconnect(&session(1).key));
        assert!(sessions.disconnect(&session(2).key));
        let again = sessions.reassert(&session(1), &usual(), &Denied::default(), Timestamp::ZERO);
        assert_eq!(again, Reasserted::Restored);
    }

    // A device cannot be signed in elsewhere than where it is: its own sign-ins may overtake each other.
    #[test]
    fn a_device_does_not_displace_itself() {
        let mut sessions = Sessions::default();
        let of_one_device = |n| NewSession {
            device: session(1).device,
            ..session(n)
        };
        login(&mut sessions, 1, 1);
        let later = sessions.connect(
            user(),
            &of_one_device(2),
            &usual(),
            &Denied::default(),
            Timestamp::ZERO,
        );
        let later = later.expect("one at a time");
        assert_eq!(
            (later.displaced, later.replaced),
            (Vec::new(), vec![session(1).key])
        );
        let again = sessions.reassert(&session(1), &usual(), &Denied::default(), Timestamp::ZERO);
        assert_eq!(again, Reasserted::Replaced);
        let other = login(&mut sessions, 3, 1);
        assert_eq!(
            (other.displaced, other.replaced),
            (vec![session(2).key], Vec::new())
        );
        let again = sessions.reassert(
            &of_one_device(2),
            &usual(),
            &Denied::default(),
            Timestamp::ZERO,
        );
        assert_eq!(again, Reasserted::Displaced);
    }

    // A boat that lost its lease asserts its sessions under a later life; what it said under the earlier
    // one may still be on its way.
    #[test]
    fn a_later_life_of_the_boat_holds_the_same_session() {
        let under = |incarnation| {
            let mut new = session(1);
            new.key.life.incarnation = Incarnation(incarnation);
            new
        };
        let mut sessions = Sessions::default();
        let again = |sessions: &mut Sessions, incarnation| {
            sessions.reassert(
                &under(incarnation),
                &usual(),
                &Denied::default(),
                Timestamp::ZERO,
            )
        };
        let first = login(&mut sessions, 1, 1).login;
        assert_eq!(again(&mut sessions, 2), Reasserted::Restored);
        assert_eq!(again(&mut sessions, 2), Reasserted::Known);
        assert_eq!(again(&mut sessions, 1), Reasserted::Known, "came late");
        assert!(!sessions.disconnect(&under(1).key), "came late");
        let repeated = sessions.connect(
            user(),
            &under(3),
            &usual(),
            &Denied::default(),
            Timestamp::from_millis(9),
        );
        let repeated = repeated.expect("there already");
        assert_eq!((repeated.login, repeated.displaced), (first, Vec::new()));
        let held: Vec<_> = sessions.live(&Denied::default()).collect();
        assert_eq!(held[0].life, under(3).key.life);
        // It may end before it was asserted anew.
        assert!(sessions.disconnect(&under(4).key));
        assert!(sessions.is_empty());
    }

    #[test]
    fn the_seventeenth_bot_waits_until_one_has_ended() {
        let bot = |n| NewSession {
            platform: Platform::Bot,
            ..session(n)
        };
        let denied = |n: i64| -> Denied {
            let lives = [session(n).key.life].into_iter();
            lives.collect::<std::collections::BTreeSet<_>>().into()
        };
        let mut sessions = Sessions::default();
        let mut connect = |n, denied: &Denied| {
            sessions
                .connect(user(), &bot(n), &usual(), denied, Timestamp::ZERO)
                .map(|at| at.login)
        };
        for n in 1..=16 {
            connect(n, &Denied::default()).expect("room");
        }
        assert_eq!(connect(17, &Denied::default()), Err(TooManySessions));
        assert_eq!(connect(16, &Denied::default()), Ok(16), "there already");
        assert_eq!(connect(17, &denied(3)), Ok(17), "one ended with its boat");
        assert_eq!(connect(18, &denied(3)), Err(TooManySessions));
        assert_eq!(
            login(&mut sessions, 19, 0).displaced,
            [],
            "people have places of their own"
        );
        let again = NewSession {
            device: bot(7).device,
            ..bot(21)
        };
        let earliest = sessions.connect(
            user(),
            &again,
            &usual(),
            &Denied::default(),
            Timestamp::ZERO,
        );
        assert_eq!(earliest.expect("its own place").replaced, [bot(7).key]);
        assert!(sessions.disconnect(&bot(5).key));
        let next = sessions.connect(
            user(),
            &bot(20),
            &usual(),
            &Denied::default(),
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
            let none = Denied::default();
            let mut sessions = Sessions::default();
            let mut connect = |new: &NewSession, capacity: &SessionCapacity| {
                let now = Timestamp::from_millis(1);
                let registered = sessions.connect(user(), new, capacity, &none, now);
                let registered = registered.expect("people are never refused");
                (registered.displaced, registered.replaced)
            };
            let room = i64::from(room);
            for n in 1..=room {
                let ended = connect(&session(n), &capacity);
                assert_eq!(ended, (vec![], vec![]), "{n} of {room}");
            }
            // Its own first, whatever the room.
            let again = NewSession {
                device: session(1).device,
                ..session(10)
            };
            assert_eq!(
                connect(&again, &capacity),
                (vec![], vec![session(1).key]),
                "room for {room}"
            );
            // Oldest by login, which the replaced one is no longer.
            let oldest = if room == 1 { again } else { session(2) };
            let ended = connect(&session(11), &capacity);
            assert_eq!(ended, (vec![oldest.key], vec![]), "room for {room}");
            // Less room than before: all that are too many, oldest first.
            let ended = connect(&session(12), &usual());
            assert_eq!(ended.0.len() as i64, room);
            assert_eq!(ended.0.last(), Some(&session(11).key));
            assert_eq!(sessions.live(&none).count(), 1);
        }
    }

    #[test]
    fn a_session_comes_back_where_there_is_room() {
        let two = usual().with(Platform::Ios, 2).expect("in bounds");
        let none = Denied::default();
        let mut sessions = Sessions::default();
        let mut again = |n, capacity: &SessionCapacity| {
            sessions.reassert(&session(n), capacity, &none, Timestamp::ZERO)
        };
        assert_eq!(again(1, &two), Reasserted::Restored);
        assert_eq!(again(2, &two), Reasserted::Restored);
        assert_eq!(again(3, &two), Reasserted::Displaced);
        // Less room displaces at the next login, and not here.
        assert_eq!(
            [again(1, &usual()), again(2, &usual())],
            [Reasserted::Known; 2]
        );
        assert_eq!(again(3, &usual()), Reasserted::Displaced);
        let own = NewSession {
            device: session(1).device,
            ..session(4)
        };
        let roomy = usual().with(Platform::Ios, 3).expect("in bounds");
        let replaced = sessions.reassert(&own, &roomy, &none, Timestamp::ZERO);
        assert_eq!(replaced, Reasserted::Replaced, "room or not");
    }

    // The room of a life that ended is there: nobody who lives is displaced for it.
    #[test]
    fn sessions_of_ended_lives_displace_nobody() {
        let two = usual().with(Platform::Ios, 2).expect("in bounds");
        let mut sessions = Sessions::default();
        let mut connect = |n, denied: &Denied| {
            let registered = sessions.connect(user(), &session(n), &two, denied, Timestamp::ZERO);
            registered.expect("people are never refused").displaced
        };
        let ended: Denied = [session(2).key.life]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into();
        assert_eq!(connect(1, &Denied::default()), []);
        assert_eq!(connect(2, &Denied::default()), []);
        assert_eq!(connect(3, &ended), []);
        assert_eq!(connect(4, &ended), [session(1).key]);
    }

    #[test]
    fn unknown_means_alive() {
        let mut sessions = Sessions::default();
        login(&mut sessions, 1, 1);
        let other: Denied = [session(2).key.life]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into();
        assert_eq!(sessions.live(&other).count(), 1);
        sessions.forget_denied(&other);
        assert_eq!(sessions.live(&Denied::default()).count(), 1);
    }
}
