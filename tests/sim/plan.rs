//! Plan of a world, drawn from its seed: participants, sends, and faults with their times.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::delivery::DeliveryLimits;
use protocol::group::GroupSettings;
use protocol::{ConversationId, GroupId, SendId, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::actions::{FAULT_PERIOD, GroupAction, On, To, UserAction, UserActions, moment};

use crate::clocks::Host;
use crate::mutate::Mutation;
use crate::scenes::Scene;

/// Mixed into the seed of the worlds of [`Plan::outsiders`], and of others with plans of their own.
const SPECIAL_PLAN_SEED: u64 = 0x006f_7574_7369_6465;

/// Planted bug, which the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The carrier commits a record when it is polled.
    CommitBeforeSettle,
    /// Presence is looked up in one step, and mail is stored in another.
    CheckThenStore,
    /// The boat expects an acknowledgement only some time after it wrote the frame.
    AckAfterWrite,
    /// The station looks for waiting mail before it registers the session.
    DrainBeforeOnline,
    /// After a restart the writer goes on from an old head.
    ReuseOfSeq,
    /// The ledger lacks what devices fetched.
    FetchUntold,
    /// The ledger says of stored mail that sync will find it.
    StoredToldAsSynced,
    /// Sessions get a change before it is saved.
    ToldBeforeSaved,
    /// Two changes of one batch get the same rev.
    RevReused,
    /// A record takes its own half-done change for another record's.
    OwnWorkSeen,
    /// Lists do not show a change, so a device that was away does not ask for it.
    ChangeUnlisted,
    /// Pages show messages as they were sent.
    PagesAsSent,
    /// A clear covers messages that its device had not seen.
    ClearWithoutBound,
    /// Recalled messages still count as unread.
    RecallCounted,
    /// Lists do not show that a message was hidden.
    HiddenUnlisted,
    /// Messages of a group go to everyone who was ever a member.
    ToldToLeavers,
    /// The writer does not check membership.
    AnybodySays,
    /// Late members may read messages from before they joined.
    LateReadAll,
    /// The cache keeps an entry that was read before a change.
    OldCopyKept,
    /// Cache entries are invalidated some time after the recipients were routed.
    ForgottenLate,
    /// A list from cache entries claims to be current.
    CopiesOfNow,
    /// A refused message, placed later under the same id, is taken for another writer's when its
    /// first record is read again.
    PlacedLaterOvertaken,
    /// The offset of a record that died is settled before its letter is written.
    LetterBehindCommit,
    /// The record that redrives a letter does not name it: a message with a position is a repeat.
    LetterNameless,
    /// The records of a part die with the one whose handling panics.
    PanicEndsPart,
    /// A record whose handling panics is settled without a letter.
    PanicUnburied,
    /// The death of a record is not in the head of its conversation.
    DeathForgotten,
    /// A change that died has no row, and no place.
    DeadChangeForgotten,
    /// Deadlines of pushes are times of day.
    DeadlinesByWall,
    /// The head that an older carrier writes replaces a later one.
    OlderHeadWins,
    /// Rows are read before the heads, which another writer moves meanwhile.
    RowsBeforeHeads,
    /// The state of a message is written before the changes that made it so.
    OverlaysFirst,
    /// A command is judged by the group from before the head, which another writer moved meanwhile.
    GroupFromBefore,
    /// A plan without one of its effects, with one twice, or with two stages in the wrong order.
    Planned(Mutation),
}

impl Sabotage {
    pub(crate) const ALL: [Sabotage; 33] = [
        Sabotage::CommitBeforeSettle,
        Sabotage::CheckThenStore,
        Sabotage::AckAfterWrite,
        Sabotage::DrainBeforeOnline,
        Sabotage::ReuseOfSeq,
        Sabotage::FetchUntold,
        Sabotage::StoredToldAsSynced,
        Sabotage::ToldBeforeSaved,
        Sabotage::RevReused,
        Sabotage::OwnWorkSeen,
        Sabotage::ChangeUnlisted,
        Sabotage::PagesAsSent,
        Sabotage::ClearWithoutBound,
        Sabotage::RecallCounted,
        Sabotage::HiddenUnlisted,
        Sabotage::ToldToLeavers,
        Sabotage::AnybodySays,
        Sabotage::LateReadAll,
        Sabotage::OldCopyKept,
        Sabotage::ForgottenLate,
        Sabotage::CopiesOfNow,
        Sabotage::PlacedLaterOvertaken,
        Sabotage::LetterBehindCommit,
        Sabotage::LetterNameless,
        Sabotage::PanicEndsPart,
        Sabotage::PanicUnburied,
        Sabotage::DeathForgotten,
        Sabotage::DeadChangeForgotten,
        Sabotage::DeadlinesByWall,
        Sabotage::OlderHeadWins,
        Sabotage::RowsBeforeHeads,
        Sabotage::OverlaysFirst,
        Sabotage::GroupFromBefore,
    ];

    /// Scene whose worlds alone can find the bug; `None` for any world.
    pub(crate) fn scene(self) -> Option<Scene> {
        match self {
            Sabotage::LetterBehindCommit | Sabotage::LetterNameless => Some(Scene::Letters),
            Sabotage::PanicEndsPart | Sabotage::PanicUnburied | Sabotage::DeathForgotten => {
                Some(Scene::Panics)
            }
            Sabotage::DeadChangeForgotten => Some(Scene::DeadChanges),
            Sabotage::DeadlinesByWall => Some(Scene::Clocks),
            Sabotage::OlderHeadWins | Sabotage::RowsBeforeHeads | Sabotage::GroupFromBefore => {
                Some(Scene::TwoCarriers)
            }
            _ => None,
        }
    }
}

/// Fault at some moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    CrashBoat(usize),
    CrashStation(usize),
    CrashCarrier,
    CrashDevice(usize),
    /// The device never comes back.
    LoseDevice(usize),
    /// The device has no network for this time.
    Away(usize, Duration),
    /// The connection ends; frames in flight are lost.
    Cut(usize),
    /// The device reads and acknowledges nothing for this time.
    Mute(usize, Duration),
    FlushMailbox,
    /// Nothing invalidates cache entries for this time, so nothing is routed.
    CacheAway(Duration),
    /// The whole machine crashes.
    CrashAll,
    /// The process that works at the desk crashes; another one goes on.
    CrashOperator,
    /// The partitions go to another carrier, while the one so far still writes.
    Rebalance,
    /// Offsets of messages are set back to this share of what is committed.
    SetBack(f64),
    /// The clock of a host is this many milliseconds off the right time from now on.
    StepClock(Host, i64),
    /// Pushes to the boat are lost for this time.
    Silence(usize, Duration),
}

/// Dead letters of a world: their causes, and their operator.
#[derive(Clone, Debug, Default)]
pub(crate) struct Letters {
    pub(crate) refusals: Vec<StoreRefusal>,
    pub(crate) poison: Vec<Poison>,
    /// Times at which an operator has all open letters redriven. None: a letter is a finding.
    pub(crate) redrives: Vec<Duration>,
}

impl Letters {
    pub(crate) fn has_operator(&self) -> bool {
        !self.redrives.is_empty()
    }
}

/// A send whose record makes its carrier panic: until a better carrier runs, or once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    pub(crate) send: SendId,
    pub(crate) ends_at: Option<Duration>,
}

/// Something that a store refuses for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreRefusal {
    pub(crate) key: StoreKey,
    pub(crate) starts_at: Duration,
    pub(crate) ends_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKey {
    /// Rows of this send: its record dies without a position.
    Rows(SendId),
    /// Row of this change: its record dies, and its place says so.
    Change(SendId),
    /// List row of a user: records of the conversation die with their positions.
    ListRow(UserId, ConversationId),
    /// Mailbox of a user: a part of the delivery dies.
    Mail(UserId),
}

/// Shape of one world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One journal under everything, and whole-machine crashes; otherwise processes crash alone.
    pub(crate) is_embedded: bool,
    /// User and platform of each device; two devices of a user may share a platform.
    pub(crate) devices: Vec<DevicePlan>,
    pub(crate) boats: usize,
    pub(crate) stations: usize,
    pub(crate) partitions: u32,
    /// Time, sending device and recipient of each send.
    pub(crate) sends: Vec<(Duration, usize, usize)>,
    /// Actions of users besides sends.
    pub(crate) actions: UserActions,
    pub(crate) faults: Vec<(Duration, Fault)>,
    pub(crate) letters: Letters,
    /// Last retry of a delivery.
    pub(crate) retry_max: u32,
    /// Whether the writer reads its facts at separate times, not all at once.
    pub(crate) moments: bool,
    /// Whether calls are lost or slow, until all heals.
    pub(crate) is_lossy: bool,
    /// Probability that a call between services fails, though it may have taken effect.
    pub(crate) call_loss: f64,
    /// Probability that an answer takes longer than the caller waits.
    pub(crate) call_slow: f64,
    /// Longest time of a frame or a call, unless it is slow.
    pub(crate) latency_max: Duration,
    /// Whether boats sweep, and so register their sessions again. False where no store and no
    /// displacement notice is ever lost, and calls only with a station that dies: there everything
    /// must hold without sweeps, and no sweep makes up for a lost wake-up.
    pub(crate) sweeps: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePlan {
    pub(crate) user: usize,
    pub(crate) platform: usize,
}

impl Plan {
    pub(crate) fn of(seed: u64) -> (Plan, StdRng) {
        let mut rng = StdRng::seed_from_u64(seed);
        let is_quiet = rng.random_bool(0.1);
        // Processes and devices fail, calls and stores do not.
        let is_reliable = is_quiet || rng.random_bool(0.3);
        let embedded = rng.random_bool(0.4);
        let users = rng.random_range(2..=4);
        let mut devices = Vec::new();
        for user in 0..users {
            for _ in 0..rng.random_range(1..=2) {
                devices.push(DevicePlan {
                    user,
                    platform: rng.random_range(0..3),
                });
            }
        }
        let mut plan = Plan {
            is_embedded: embedded,
            devices,
            boats: if embedded { 1 } else { rng.random_range(1..=2) },
            stations: if embedded { 1 } else { rng.random_range(1..=2) },
            partitions: rng.random_range(1..=3),
            sends: Vec::new(),
            actions: UserActions::default(),
            faults: Vec::new(),
            letters: Letters::default(),
            retry_max: DeliveryLimits::default().retry_max,
            moments: false,
            is_lossy: !is_reliable,
            call_loss: if is_reliable {
                0.0
            } else {
                rng.random_range(0.0..0.1)
            },
            call_slow: if is_reliable {
                0.0
            } else {
                rng.random_range(0.0..0.02)
            },
            latency_max: Duration::from_millis(rng.random_range(2..60)),
            sweeps: !is_reliable,
        };
        for _ in 0..rng.random_range(4..24) {
            let from = rng.random_range(0..plan.devices.len());
            let to = rng.random_range(0..users);
            if plan.devices[from].user != to {
                plan.sends.push((moment(&mut rng), from, to));
            }
        }
        let faults = if is_quiet { 0 } else { rng.random_range(1..10) };
        for _ in 0..faults {
            let fault = plan.fault(&mut rng);
            plan.faults.push((moment(&mut rng), fault));
        }
        // Drawn from another source, so that the worlds of other seeds stay as they are.
        if seed % 8 == 6 {
            let mut rng = StdRng::seed_from_u64(!seed);
            let device = rng.random_range(0..plan.devices.len());
            plan.faults
                .push((moment(&mut rng), Fault::LoseDevice(device)));
        }
        plan.actions = UserActions::of(seed, plan.devices.len(), users);
        if seed % 16 == 1 {
            plan = plan.outsiders(&mut StdRng::seed_from_u64(!seed ^ SPECIAL_PLAN_SEED));
        }
        if seed % 32 == 11 {
            plan = plan.stale_entries(&mut StdRng::seed_from_u64(!seed ^ SPECIAL_PLAN_SEED));
        }
        if let Some(scene) = Scene::of(seed) {
            plan = plan.with_scene(scene, &mut StdRng::seed_from_u64(!seed ^ SPECIAL_PLAN_SEED));
        }
        // A station may die before it notifies displaced sessions.
        let is_station_crash = |(_, fault): &(_, Fault)| matches!(fault, Fault::CrashStation(_));
        plan.sweeps |= plan.has_rivals() && plan.faults.iter().any(is_station_crash);
        (plan, rng)
    }

    /// World of a seed with messages only.
    pub(crate) fn plain(seed: u64) -> (Plan, StdRng) {
        let (plan, rng) = Plan::of(seed);
        let actions = UserActions::default();
        (Plan { actions, ..plan }, rng)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.actions.steps.is_empty()
    }

    /// Worlds in which a removed member sends: the station does not know of the removal yet, and
    /// the writer refuses the message. The station dies before the dedupe key is done, the sender
    /// is added again, and the same send comes again, under the same id. The carrier then reads
    /// both records anew.
    fn outsiders(self, rng: &mut StdRng) -> Plan {
        const DEVICES: usize = 3;
        let (owner, sender, silent) = (0, 1, 2);
        let latency_max = Duration::from_millis(60);
        let devices = (0..DEVICES).map(|user| DevicePlan { user, platform: 0 });
        let group = GroupId::new(1_100).expect("positive");
        let settings = GroupSettings {
            open_history: true,
            ..GroupSettings::CLOSED
        };
        let millis = Duration::from_millis;
        let create = GroupAction::Create(settings, (1 << DEVICES) - 1);
        let mut actions = vec![(millis(1_000), owner, UserAction::Group(group, create))];
        let mut faults = Vec::new();
        for round in 0..4 {
            let removed_at = millis(5_000 + round * 8_500);
            let says_at = removed_at + millis(rng.random_range(300..1_500));
            // After the record is appended, before its dedupe key is done.
            let fails_at = says_at + latency_max.mul_f64(rng.random_range(0.8..2.6));
            actions.extend([
                (removed_at - millis(700), sender, UserAction::Say(group)),
                (
                    removed_at,
                    owner,
                    UserAction::Group(group, GroupAction::Remove(sender)),
                ),
                (says_at, sender, UserAction::Say(group)),
                (
                    fails_at + millis(100),
                    owner,
                    UserAction::Group(group, GroupAction::Add(sender)),
                ),
            ]);
            let restart_at = fails_at + millis(rng.random_range(600..1_600));
            let (station, carrier) = if self.is_embedded {
                (Fault::CrashAll, Fault::CrashAll)
            } else {
                (Fault::CrashStation(0), Fault::CrashCarrier)
            };
            faults.extend([
                // The earlier message waits for an acknowledgement, and holds back the offsets
                // behind it.
                (removed_at - millis(800), Fault::Mute(silent, millis(6_000))),
                (fails_at, Fault::Cut(sender)),
                (fails_at, station),
                (restart_at, carrier),
            ]);
        }
        Plan {
            devices: devices.collect(),
            latency_max,
            stations: 1,
            sends: Vec::new(),
            actions: UserActions {
                steps: actions,
                delays: vec![Duration::ZERO; DEVICES],
            },
            faults,
            is_lossy: false,
            call_loss: 0.0,
            call_slow: 0.0,
            sweeps: false,
            ..self
        }
    }

    /// Worlds in which a device asks for its list while an entry of it is stale: a message was
    /// edited, and the entry cannot be invalidated for a while. No session of the device lives when
    /// it can, so only the next list tells of the edit.
    fn stale_entries(self, rng: &mut StdRng) -> Plan {
        let (author, reader) = (0, 1);
        let devices = [author, reader].map(|user| DevicePlan { user, platform: 0 });
        let millis = Duration::from_millis;
        // The list that fills the entry; a margin later than the last message, or the next one would
        // not be answered by it.
        let filled_at = millis(16_000);
        let edited_at = filled_at + millis(rng.random_range(4_000..4_500));
        // A margin later than the edit.
        let asked_at = edited_at + millis(rng.random_range(9_500..10_500));
        let edit = UserAction::Change(On::Shown(0, rng.random()), To::Edit);
        Plan {
            is_embedded: false,
            devices: devices.to_vec(),
            boats: 1,
            stations: 1,
            sends: (0..3)
                .map(|n| (millis(6_000 + n * 300), author, reader))
                .collect(),
            actions: UserActions {
                steps: vec![(edited_at, author, edit)],
                delays: vec![Duration::ZERO; 2],
            },
            faults: vec![
                (filled_at, Fault::Cut(reader)),
                (edited_at - millis(50), Fault::CacheAway(FAULT_PERIOD)),
                (asked_at, Fault::Cut(reader)),
                // The list has come by then.
                (
                    asked_at + millis(4_000),
                    Fault::Away(reader, millis(15_000)),
                ),
            ],
            is_lossy: false,
            call_loss: 0.0,
            call_slow: 0.0,
            sweeps: false,
            ..self
        }
    }

    pub(crate) fn limits(&self) -> DeliveryLimits {
        DeliveryLimits {
            retry_max: self.retry_max,
            ..DeliveryLimits::default()
        }
    }

    fn steps(&self) -> impl Iterator<Item = (Host, i64)> {
        self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::StepClock(host, offset) => Some((*host, *offset)),
            _ => None,
        })
    }

    /// Whether clocks step: a device may know a list of a time that has not come yet.
    pub(crate) fn steps_clocks(&self) -> bool {
        self.steps().next().is_some()
    }

    /// Whether the carrier's clock is far behind for a time. Rows that it writes then are in no list
    /// difference: these are complete as long as clocks differ by less than half of the margin.
    pub(crate) fn lists_miss_rows(&self) -> bool {
        self.steps()
            .any(|step| step.0 == Host::Carrier && step.1 < 0)
    }

    /// True for a world without faults.
    pub(crate) fn is_quiet(&self) -> bool {
        self.faults.is_empty() && self.call_loss == 0.0 && self.call_slow == 0.0
    }

    /// Whether devices of a user share a platform: each sign-in displaces the other device,
    /// whatever is in flight to it.
    pub(crate) fn has_rivals(&self) -> bool {
        let places = self.devices.iter();
        let places: BTreeSet<_> = places.map(|d| (d.user, d.platform)).collect();
        places.len() < self.devices.len()
    }

    fn fault(&self, rng: &mut StdRng) -> Fault {
        let device = rng.random_range(0..self.devices.len());
        let duration = Duration::from_millis(rng.random_range(500..15_000));
        let machine_faults = if self.is_embedded { 4 } else { 0 };
        match rng.random_range(0..12 + machine_faults) {
            0 | 1 => Fault::Away(device, duration),
            2 | 3 => Fault::Cut(device),
            4 => Fault::CrashDevice(device),
            5 => Fault::Mute(device, duration),
            6 if !self.is_embedded && self.sweeps => Fault::FlushMailbox,
            7 | 8 if !self.is_embedded => Fault::CrashBoat(rng.random_range(0..self.boats)),
            9 if !self.is_embedded => Fault::CrashStation(rng.random_range(0..self.stations)),
            10 | 11 if !self.is_embedded => Fault::CrashCarrier,
            _ if self.is_embedded => Fault::CrashAll,
            _ => Fault::CrashCarrier,
        }
    }
}
