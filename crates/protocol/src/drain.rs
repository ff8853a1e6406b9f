//! Drain of a boat: the pace at which its clients leave, by the room that other boats have for
//! them.
//!
//! Boats publish a [`BoatLoad`] every [`PUBLISH_EVERY`]. A draining boat reads the loads of the
//! others, and sends its clients away no faster than those can take them. It waits while nobody has
//! room, and near the deadline sends the rest away all the same: a client with a closing frame is
//! better off than one whose connection breaks.

mod load;
#[cfg(test)]
mod simulation;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

pub use load::{BoatLoad, BoatState, Load, PUBLISH_EVERY, Room};

use crate::Timestamp;

/// Interval between readings of the others' loads, and between publications of a draining boat.
pub const ROOM_EVERY: Duration = Duration::from_secs(2);
/// Time for which a reading counts if later ones fail; then room is unknown. Never longer than
/// departures are remembered.
pub const ROOM_AGE_MAX: Duration = Duration::from_secs(12);
/// Share of a deadline in which the last clients settle: sends get their answers, sessions sign
/// off.
const SETTLE_SHARE: u32 = 4;
/// Longest such time.
const SETTLE_MAX: Duration = Duration::from_secs(5);
/// Share of free seats for newcomers meanwhile, and for departures of others that are read late.
const NEWCOMERS_SHARE: usize = 5;
/// Clients due within this time go together.
const BATCH_TIME: Duration = Duration::from_millis(50);
const SECOND: Duration = Duration::from_secs(1);

/// Bounds of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainBounds {
    /// Clients per second, however much room there is.
    pub pace: NonZeroU32,
    /// Clients per second of all boats that drain at the same time.
    pub pace_cluster: NonZeroU32,
    /// Clients of one batch.
    pub batch: usize,
}

/// A moment of a drain.
#[derive(Clone, Copy, Debug)]
pub struct DrainFacts {
    /// Clients still to send away, one or more.
    pub clients: usize,
    /// Room of other boats; `None` if discovery does not answer.
    pub room: Option<Room>,
    /// Time until all must be sent away; `None` without a deadline.
    pub left: Option<Duration>,
}

/// The next thing to do with the clients; after the pause, the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// Send this many clients away.
    Go { clients: usize, pause: Duration },
    /// No other boat has room.
    Wait { pause: Duration },
}

/// The drain of one boat. Times are monotonic.
#[derive(Clone, Debug)]
pub struct Drain {
    /// Time within which a client that was sent away arrives elsewhere.
    spread: Duration,
    /// Batches that the loads of others may not show yet.
    departures: VecDeque<(Timestamp, usize)>,
}

impl Drain {
    pub fn new(spread: Duration) -> Drain {
        Drain {
            spread,
            departures: VecDeque::new(),
        }
    }

    /// Returns the next batch, which counts as sent.
    ///
    /// The rate is the smallest of these: `pace`; `pace_cluster`; free seats of others over the
    /// time until a departure shows in their loads (`spread`, [`PUBLISH_EVERY`], [`ROOM_EVERY`]);
    /// connections that others accept. Boats that drain at the same time share all but the first,
    /// and no more clients are under way than there are seats. Once `pace` only just meets the
    /// deadline, the rest goes at the rate that meets it, room or not.
    ///
    /// Room sets no bound while no other boat stays. If discovery does not answer, room sets none
    /// either, given a deadline: a boat that must leave does, and one that is only being emptied
    /// waits.
    pub fn step(&mut self, bounds: &DrainBounds, facts: &DrainFacts, now: Timestamp) -> DrainStep {
        let pace = SECOND / bounds.pace.get();
        let needed = pace.saturating_mul(saturated(facts.clients));
        let spare = facts.left.map(|left| left.saturating_sub(needed));
        let longest = ROOM_EVERY.min(spare.unwrap_or(ROOM_EVERY));
        let by_room = match facts.room {
            None => facts.left.map(|_| (pace, usize::MAX)),
            Some(room) => self.by_room(bounds, room, now),
        };
        let (each, most) = match (facts.left, by_room) {
            (Some(left), _) if left <= needed => (divided(left, facts.clients), usize::MAX),
            (_, Some((each, seats))) => (each.max(pace), seats),
            (_, None) => return DrainStep::Wait { pause: longest },
        };
        let together = BATCH_TIME.as_nanos() / each.as_nanos().max(1);
        let clients = usize::try_from(together).unwrap_or(usize::MAX);
        let clients = (clients.clamp(1, bounds.batch.max(1)))
            .min(facts.clients)
            .min(most);
        self.departures.push_back((now, clients));
        let pause = each.saturating_mul(saturated(clients));
        // The count of taken seats makes up for a pause that is cut short.
        let pause = if most == usize::MAX {
            pause
        } else {
            pause.min(longest)
        };
        DrainStep::Go { clients, pause }
    }

    /// Clients sent away that the loads of others may not show yet.
    pub fn leaving(&mut self, now: Timestamp) -> usize {
        let shows = self.shows();
        while (self.departures.front()).is_some_and(|(at, _)| now.since(*at) > shows) {
            self.departures.pop_front();
        }
        self.departures.iter().map(|(_, clients)| clients).sum()
    }

    /// Longest time until a departure shows in the loads of others.
    fn shows(&self) -> Duration {
        self.spread + PUBLISH_EVERY + ROOM_EVERY
    }

    /// Time per client, and number of clients that may go; `None` without room.
    fn by_room(
        &mut self,
        bounds: &DrainBounds,
        room: Room,
        now: Timestamp,
    ) -> Option<(Duration, usize)> {
        let sharing = room.draining + 1;
        let shared = divided(SECOND, bounds.pace_cluster.get() as usize / sharing);
        if room.boats == 0 {
            return Some((shared, usize::MAX));
        }
        let free = room.free - room.free / NEWCOMERS_SHARE;
        // All boats compete for the last seat: a boat that finds it taken comes second.
        let seats = free.saturating_sub(room.leaving).div_ceil(sharing);
        let open = seats.saturating_sub(self.leaving(now));
        let accepts = room.accepts_per_second / sharing;
        let each = divided(self.shows(), seats).max(divided(SECOND, accepts));
        let each = each.max(shared);
        (open > 0).then_some((each, open))
    }
}

/// Part of a deadline in which all clients must be sent away.
pub fn time_to_send(deadline: Duration) -> Duration {
    deadline - (deadline / SETTLE_SHARE).min(SETTLE_MAX)
}

fn divided(time: Duration, by: usize) -> Duration {
    time / saturated(by.max(1))
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::presence::BoatLife;
    use crate::{BoatId, Incarnation};

    const BOUNDS: DrainBounds = DrainBounds {
        pace: NonZeroU32::new(2000).unwrap(),
        pace_cluster: NonZeroU32::new(10_000).unwrap(),
        batch: 256,
    };
    const SPREAD: Duration = Duration::from_secs(10);
    const START: Timestamp = Timestamp::from_millis(1_000_000);

    fn life(name: &str) -> BoatLife {
        BoatLife {
            boat: BoatId::new(name).expect("a name"),
            incarnation: Incarnation(1),
        }
    }

    fn load(name: &str, state: BoatState, connections: usize, seats: usize) -> Load {
        Load {
            life: life(name),
            load: BoatLoad {
                state,
                connections,
                seats,
                accepts_per_second: 5000,
                ..BoatLoad::default()
            },
        }
    }

    fn room(free: usize) -> Option<Room> {
        Some(Room {
            boats: 2,
            free,
            accepts_per_second: 10_000,
            draining: 0,
            leaving: 0,
        })
    }

    fn facts(clients: usize, room: Option<Room>, left: Option<Duration>) -> DrainFacts {
        DrainFacts {
            clients,
            room,
            left,
        }
    }

    fn step(facts: DrainFacts) -> DrainStep {
        Drain::new(SPREAD).step(&BOUNDS, &facts, START)
    }

    fn go(clients: usize, millis: u64) -> DrainStep {
        DrainStep::Go {
            clients,
            pause: Duration::from_millis(millis),
        }
    }

    #[test]
    fn clients_go_as_fast_as_the_smallest_of_pace_seats_and_accepts() {
        let many = 100_000;
        let alone = Some(Room::default());
        assert_eq!(
            step(facts(many, alone, None)),
            go(100, 50),
            "2,000 a second"
        );
        let many_drain = Room {
            draining: 19,
            ..room(1_000_000).unwrap()
        };
        // The twentieth part of 10,000 a second.
        assert_eq!(step(facts(many, Some(many_drain), None)), go(25, 50));
        assert_eq!(step(facts(many, room(1_000_000), None)), go(100, 50));
        // Four of five seats, in the 22 s until departures show.
        assert_eq!(step(facts(many, room(2_750), None)), go(5, 50));
        assert_eq!(step(facts(many, room(27), None)), go(1, 1000));
        assert_eq!(
            step(facts(many, room(1), None)),
            go(1, 2000),
            "and looks again"
        );
        let slow = Room {
            accepts_per_second: 40,
            ..room(1_000_000).unwrap()
        };
        assert_eq!(step(facts(many, Some(slow), None)), go(2, 50));
        let shared = Room {
            draining: 1,
            ..room(2_750).unwrap()
        };
        assert_eq!(step(facts(many, Some(shared), None)), go(2, 40));
        let taken = Room {
            leaving: 1_100,
            ..shared
        };
        assert_eq!(step(facts(many, Some(taken), None)), go(1, 40));
        let faster = DrainBounds {
            pace: NonZeroU32::MAX,
            pace_cluster: NonZeroU32::MAX,
            ..BOUNDS
        };
        let batch = Drain::new(SPREAD).step(&faster, &facts(many, alone, None), START);
        let DrainStep::Go { clients, .. } = batch else {
            panic!("{batch:?}")
        };
        assert_eq!(clients, 256, "no more than a batch");
    }

    #[test]
    fn without_room_they_wait_until_the_pace_just_meets_the_deadline() {
        let wait = |millis| DrainStep::Wait {
            pause: Duration::from_millis(millis),
        };
        let left = |millis| Some(Duration::from_millis(millis));
        for left in [None, left(60_000)] {
            assert_eq!(step(facts(10_000, room(0), left)), wait(2000));
        }
        // 10,000 clients take 5 s.
        assert_eq!(step(facts(10_000, room(0), left(5001))), wait(1));
        assert_eq!(step(facts(10_000, room(0), left(5000))), go(100, 50));
        // Nor is a room that is too small a reason to miss the deadline.
        assert_eq!(step(facts(10_000, room(27), left(6000))), go(1, 1000));
        assert_eq!(step(facts(10_000, room(27), left(5000))), go(100, 50));
        // Later, faster than the pace: nobody is dropped without a word.
        assert_eq!(step(facts(10_000, room(0), left(2500))), go(200, 50));
        assert_eq!(step(facts(10, room(0), left(0))), go(10, 0));
    }

    #[test]
    fn a_quarter_of_the_deadline_is_for_the_last_to_settle_and_five_seconds_at_most() {
        let of = |seconds| time_to_send(Duration::from_secs(seconds)).as_millis();
        assert_eq!([of(2), of(20), of(240)], [1500, 15_000, 235_000]);
    }

    #[test]
    fn nobody_waits_for_boats_that_leave_too_or_are_not_known() {
        let me = life("a");
        let loads = [
            load("a", BoatState::Draining, 10, 100),
            load("b", BoatState::Draining, 10, 100),
        ];
        let alone = Room::beside(&me, &loads);
        assert_eq!((alone.boats, alone.free, alone.draining), (0, 0, 1));
        assert_eq!(step(facts(1000, Some(alone), None)), go(100, 50));
        assert_eq!(step(facts(1000, Some(Room::default()), None)), go(100, 50));
        // Discovery is away: a boat that must leave does, one that is being emptied waits.
        let second = Duration::from_secs(1);
        assert_eq!(step(facts(1000, None, Some(second * 60))), go(100, 50));
        let wait = DrainStep::Wait { pause: ROOM_EVERY };
        assert_eq!(step(facts(1000, None, None)), wait);
        let full = Room::beside(&me, &[load("b", BoatState::Open, 100, 100)]);
        assert_eq!(step(facts(1000, Some(full), None)), wait);
    }

    #[test]
    fn room_is_that_of_other_boats_that_are_open() {
        let mut before = load("a", BoatState::Open, 0, 100);
        before.life.incarnation = Incarnation(0);
        let mut leaves = load("e", BoatState::Draining, 90, 100);
        leaves.load.leaving = 7;
        let loads = [
            before,
            load("b", BoatState::Open, 30, 100),
            load("c", BoatState::Open, 101, 100),
            load("d", BoatState::Tight, 0, 100),
            leaves,
            load("f", BoatState::Unknown, 0, 100),
        ];
        let room = Room::beside(&life("a"), &loads);
        let expected = Room {
            boats: 4,
            free: 70,
            accepts_per_second: 5000,
            draining: 1,
            leaving: 7,
        };
        assert_eq!(room, expected);
    }

    #[test]
    fn a_boat_that_was_emptied_takes_no_share() {
        let parked: Vec<Load> = (0..9)
            .map(|number| load(&format!("p{number}"), BoatState::Draining, 0, 100))
            .collect();
        let open = load("b", BoatState::Open, 99, 100);
        let loads = [parked, vec![open]].concat();
        let room = Room::beside(&life("a"), &loads);
        assert_eq!((room.draining, room.free), (0, 1));
        assert_eq!(step(facts(1000, Some(room), None)), go(1, 2000));
        // Two that share the last seat both try: neither waits for the other for ever.
        let two = Room {
            draining: 1,
            ..room
        };
        assert_eq!(step(facts(1000, Some(two), None)), go(1, 2000));
    }

    #[test]
    fn a_later_versions_load_is_read_as_far_as_it_is_known() {
        let text =
            r#"{"state":"napping","connections":1,"seats":2,"accepts_per_second":3,"mood":4}"#;
        let load: BoatLoad = serde_json::from_str(text).expect("readable");
        assert_eq!((load.state, load.free()), (BoatState::Unknown, 0));
    }

    proptest! {
        /// No more clients are sent away, before departures show, than there were seats.
        #[test]
        fn no_more_are_under_way_than_there_are_seats(
            seats in 1_usize..3000,
            clients in 1_usize..5000,
            draining in 0_usize..4,
        ) {
            let mut drain = Drain::new(SPREAD);
            let room = Room { draining, ..room(seats).unwrap() };
            let (mut now, mut left, mut sent) = (START, clients, 0);
            let shows = START + SPREAD + PUBLISH_EVERY + ROOM_EVERY;
            while left > 0 && now <= shows {
                match drain.step(&BOUNDS, &facts(left, Some(room), None), now) {
                    DrainStep::Go { clients, pause } => {
                        left -= clients;
                        sent += clients;
                        now = now + pause.max(Duration::from_millis(1));
                    }
                    DrainStep::Wait { pause } => now = now + pause,
                }
            }
            prop_assert!(sent <= (seats - seats / 5).div_ceil(draining + 1));
        }

        /// A deadline is met, whatever room the others have: all are sent away before its last
        /// share.
        #[test]
        fn all_are_sent_away_before_the_deadline(
            free in prop::option::of(0_usize..3000),
            clients in 1_usize..20_000,
            seconds in 4_u64..120,
        ) {
            let mut drain = Drain::new(SPREAD);
            let (mut now, mut left) = (START, clients);
            let end = START + Duration::from_secs(seconds);
            while left > 0 && now <= end {
                let facts = facts(left, free.and_then(room), Some(end.since(now)));
                match drain.step(&BOUNDS, &facts, now) {
                    DrainStep::Go { clients, pause } => {
                        left -= clients;
                        now = now + pause.max(Duration::from_millis(1));
                    }
                    DrainStep::Wait { pause } => now = now + pause.max(Duration::from_millis(1)),
                }
            }
            prop_assert_eq!(left, 0);
            prop_assert!(now <= end);
        }
    }
}
