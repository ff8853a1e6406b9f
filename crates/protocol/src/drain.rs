//! Drain of a boat: the pace at which its clients leave, by the room that other boats have for
//! them.
//!
//! Boats publish a [`BoatLoad`] every [`PUBLISH_INTERVAL`]. A draining boat reads the loads of the
//! others, and sends its clients away no faster than those can take them. It waits while nobody has
//! room, and near the deadline sends the rest away all the same: a client with a closing frame is
//! better off than one whose connection breaks.

mod load;
#[cfg(test)]
mod simulation;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

pub use load::{BoatLoad, BoatState, Load, PUBLISH_INTERVAL, Room};

use crate::Timestamp;

/// Interval between readings of the others' loads, and between publications of a draining boat.
pub const ROOM_INTERVAL: Duration = Duration::from_secs(2);
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

/// State of a drain at one time.
#[derive(Clone, Copy, Debug)]
pub struct DrainFacts {
    /// Clients still to send away, one or more.
    pub clients: usize,
    /// Room of other boats; `None` if discovery does not answer.
    pub room: Option<Room>,
    /// Time until all must be sent away; `None` without a deadline.
    pub time_left: Option<Duration>,
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
    /// time until a departure shows in their loads (`spread`, [`PUBLISH_INTERVAL`], [`ROOM_INTERVAL`]);
    /// connections that others accept. Boats that drain at the same time share all but the first,
    /// and no more clients are under way than there are seats. Once `pace` only just meets the
    /// deadline, the rest goes at the rate that meets it, room or not.
    ///
    /// Room sets no bound while no other boat stays. If discovery does not answer, room sets none
    /// either, given a deadline: a boat that must leave does, and one that is only being emptied
    /// waits.
    pub fn step(&mut self, bounds: &DrainBounds, facts: &DrainFacts, now: Timestamp) -> DrainStep {
        let pace = SECOND / bounds.pace.get();
        let required_time = pace.saturating_mul(saturated(facts.clients));
        let slack = facts
            .time_left
            .map(|time_left| time_left.saturating_sub(required_time));
        let max_pause = ROOM_INTERVAL.min(slack.unwrap_or(ROOM_INTERVAL));
        let room_limit = match facts.room {
            None => facts.time_left.map(|_| (pace, usize::MAX)),
            Some(room) => self.by_room(bounds, room, now),
        };
        let (interval, max_clients) = match (facts.time_left, room_limit) {
            (Some(time_left), _) if time_left <= required_time => {
                (divided(time_left, facts.clients), usize::MAX)
            }
            (_, Some((interval, seats))) => (interval.max(pace), seats),
            (_, None) => return DrainStep::Wait { pause: max_pause },
        };
        let batch_size = BATCH_TIME.as_nanos() / interval.as_nanos().max(1);
        let clients = usize::try_from(batch_size).unwrap_or(usize::MAX);
        let clients = (clients.clamp(1, bounds.batch.max(1)))
            .min(facts.clients)
            .min(max_clients);
        self.departures.push_back((now, clients));
        let pause = interval.saturating_mul(saturated(clients));
        // The count of taken seats makes up for a pause that is cut short.
        let pause = if max_clients == usize::MAX {
            pause
        } else {
            pause.min(max_pause)
        };
        DrainStep::Go { clients, pause }
    }

    /// Clients sent away that the loads of others may not show yet.
    pub fn leaving(&mut self, now: Timestamp) -> usize {
        let delay = self.visibility_delay();
        while (self.departures.front()).is_some_and(|(at, _)| now.since(*at) > delay) {
            self.departures.pop_front();
        }
        self.departures.iter().map(|(_, clients)| clients).sum()
    }

    /// Longest time until a departure shows in the loads of others.
    fn visibility_delay(&self) -> Duration {
        self.spread + PUBLISH_INTERVAL + ROOM_INTERVAL
    }

    /// Time per client, and number of clients that may go; `None` without room.
    fn by_room(
        &mut self,
        bounds: &DrainBounds,
        room: Room,
        now: Timestamp,
    ) -> Option<(Duration, usize)> {
        let boat_count = room.draining_boats + 1;
        let shared_interval = divided(SECOND, bounds.pace_cluster.get() as usize / boat_count);
        if room.boats == 0 {
            return Some((shared_interval, usize::MAX));
        }
        let usable_seats = room.free - room.free / NEWCOMERS_SHARE;
        // All boats compete for the last seat: a boat that finds it taken comes second.
        let seats = usable_seats
            .saturating_sub(room.leaving_clients)
            .div_ceil(boat_count);
        let open_seats = seats.saturating_sub(self.leaving(now));
        let accepts = room.accepts_per_second / boat_count;
        let interval = divided(self.visibility_delay(), seats).max(divided(SECOND, accepts));
        let interval = interval.max(shared_interval);
        (open_seats > 0).then_some((interval, open_seats))
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
            draining_boats: 0,
            leaving_clients: 0,
        })
    }

    fn facts(clients: usize, room: Option<Room>, time_left: Option<Duration>) -> DrainFacts {
        DrainFacts {
            clients,
            room,
            time_left,
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
        let client_count = 100_000;
        let no_boats = Some(Room::default());
        assert_eq!(
            step(facts(client_count, no_boats, None)),
            go(100, 50),
            "2,000 a second"
        );
        let many_drain = Room {
            draining_boats: 19,
            ..room(1_000_000).unwrap()
        };
        // The twentieth part of 10,000 a second.
        assert_eq!(
            step(facts(client_count, Some(many_drain), None)),
            go(25, 50)
        );
        assert_eq!(
            step(facts(client_count, room(1_000_000), None)),
            go(100, 50)
        );
        // Four of five seats, in the 22 s until departures show.
        assert_eq!(step(facts(client_count, room(2_750), None)), go(5, 50));
        assert_eq!(step(facts(client_count, room(27), None)), go(1, 1000));
        assert_eq!(
            step(facts(client_count, room(1), None)),
            go(1, 2000),
            "and looks again"
        );
        let slow = Room {
            accepts_per_second: 40,
            ..room(1_000_000).unwrap()
        };
        assert_eq!(step(facts(client_count, Some(slow), None)), go(2, 50));
        let two_draining = Room {
            draining_boats: 1,
            ..room(2_750).unwrap()
        };
        assert_eq!(
            step(facts(client_count, Some(two_draining), None)),
            go(2, 40)
        );
        let with_leaving = Room {
            leaving_clients: 1_100,
            ..two_draining
        };
        assert_eq!(
            step(facts(client_count, Some(with_leaving), None)),
            go(1, 40)
        );
        let unbounded = DrainBounds {
            pace: NonZeroU32::MAX,
            pace_cluster: NonZeroU32::MAX,
            ..BOUNDS
        };
        let batch =
            Drain::new(SPREAD).step(&unbounded, &facts(client_count, no_boats, None), START);
        let DrainStep::Go { clients, .. } = batch else {
            panic!("{batch:?}")
        };
        assert_eq!(clients, 256, "no more than a batch");
    }

    #[test]
    fn without_room_clients_wait_until_the_pace_meets_the_deadline() {
        let wait = |millis| DrainStep::Wait {
            pause: Duration::from_millis(millis),
        };
        let time_left = |millis| Some(Duration::from_millis(millis));
        for time_left in [None, time_left(60_000)] {
            assert_eq!(step(facts(10_000, room(0), time_left)), wait(2000));
        }
        // 10,000 clients take 5 s.
        assert_eq!(step(facts(10_000, room(0), time_left(5001))), wait(1));
        assert_eq!(step(facts(10_000, room(0), time_left(5000))), go(100, 50));
        // Nor is a room that is too small a reason to miss the deadline.
        assert_eq!(step(facts(10_000, room(27), time_left(6000))), go(1, 1000));
        assert_eq!(step(facts(10_000, room(27), time_left(5000))), go(100, 50));
        // Later, faster than the pace: nobody is dropped without a word.
        assert_eq!(step(facts(10_000, room(0), time_left(2500))), go(200, 50));
        assert_eq!(step(facts(10, room(0), time_left(0))), go(10, 0));
    }

    #[test]
    fn a_quarter_of_the_deadline_but_at_most_5_s_is_to_settle() {
        let send_millis = |seconds| time_to_send(Duration::from_secs(seconds)).as_millis();
        assert_eq!(
            [send_millis(2), send_millis(20), send_millis(240)],
            [1500, 15_000, 235_000]
        );
    }

    #[test]
    fn draining_or_unknown_boats_are_not_waited_for() {
        let me = life("a");
        let loads = [
            load("a", BoatState::Draining, 10, 100),
            load("b", BoatState::Draining, 10, 100),
        ];
        let room = Room::beside(&me, &loads);
        assert_eq!((room.boats, room.free, room.draining_boats), (0, 0, 1));
        assert_eq!(step(facts(1000, Some(room), None)), go(100, 50));
        assert_eq!(step(facts(1000, Some(Room::default()), None)), go(100, 50));
        // Discovery is away: a boat that must leave does, one that is being emptied waits.
        let second = Duration::from_secs(1);
        assert_eq!(step(facts(1000, None, Some(second * 60))), go(100, 50));
        let wait = DrainStep::Wait {
            pause: ROOM_INTERVAL,
        };
        assert_eq!(step(facts(1000, None, None)), wait);
        let full_room = Room::beside(&me, &[load("b", BoatState::Open, 100, 100)]);
        assert_eq!(step(facts(1000, Some(full_room), None)), wait);
    }

    #[test]
    fn room_is_that_of_other_boats_that_are_open() {
        let mut earlier_life = load("a", BoatState::Open, 0, 100);
        earlier_life.life.incarnation = Incarnation(0);
        let mut leaving_boat = load("e", BoatState::Draining, 90, 100);
        leaving_boat.load.leaving = 7;
        let loads = [
            earlier_life,
            load("b", BoatState::Open, 30, 100),
            load("c", BoatState::Open, 101, 100),
            load("d", BoatState::Tight, 0, 100),
            leaving_boat,
            load("f", BoatState::Unknown, 0, 100),
        ];
        let room = Room::beside(&life("a"), &loads);
        let expected = Room {
            boats: 4,
            free: 70,
            accepts_per_second: 5000,
            draining_boats: 1,
            leaving_clients: 7,
        };
        assert_eq!(room, expected);
    }

    #[test]
    fn a_boat_that_was_emptied_takes_no_share() {
        let empty_boats: Vec<Load> = (0..9)
            .map(|number| load(&format!("p{number}"), BoatState::Draining, 0, 100))
            .collect();
        let open = load("b", BoatState::Open, 99, 100);
        let loads = [empty_boats, vec![open]].concat();
        let room = Room::beside(&life("a"), &loads);
        assert_eq!((room.draining_boats, room.free), (0, 1));
        assert_eq!(step(facts(1000, Some(room), None)), go(1, 2000));
        // Two that share the last seat both try: neither waits for the other for ever.
        let two_draining = Room {
            draining_boats: 1,
            ..room
        };
        assert_eq!(step(facts(1000, Some(two_draining), None)), go(1, 2000));
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
            let room = Room { draining_boats: draining, ..room(seats).unwrap() };
            let (mut now, mut remaining, mut sent_count) = (START, clients, 0);
            let visible_at = START + SPREAD + PUBLISH_INTERVAL + ROOM_INTERVAL;
            while remaining > 0 && now <= visible_at {
                match drain.step(&BOUNDS, &facts(remaining, Some(room), None), now) {
                    DrainStep::Go { clients, pause } => {
                        remaining -= clients;
                        sent_count += clients;
                        now = now + pause.max(Duration::from_millis(1));
                    }
                    DrainStep::Wait { pause } => now = now + pause,
                }
            }
            prop_assert!(sent_count <= (seats - seats / 5).div_ceil(draining + 1));
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
            let (mut now, mut remaining) = (START, clients);
            let end = START + Duration::from_secs(seconds);
            while remaining > 0 && now <= end {
                let facts = facts(remaining, free.and_then(room), Some(end.since(now)));
                match drain.step(&BOUNDS, &facts, now) {
                    DrainStep::Go { clients, pause } => {
                        remaining -= clients;
                        now = now + pause.max(Duration::from_millis(1));
                    }
                    DrainStep::Wait { pause } => now = now + pause.max(Duration::from_millis(1)),
                }
            }
            prop_assert_eq!(remaining, 0);
            prop_assert!(now <= end);
        }
    }
}
