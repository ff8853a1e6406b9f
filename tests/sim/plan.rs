//! What a seed makes of a world: who takes part, and what goes wrong when.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::GroupId;
use protocol::group::Settings;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::deeds::{Deed, Deeds, Wished};

/// Another source of chance, for the worlds of [`Plan::outsiders`].
const OUTSIDERS: u64 = 0x006f_7574_7369_6465;

/// A bug that is planted on purpose: the simulator must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// The carrier commits a record when it is polled.
    CommitBeforeSettle,
    /// Presence is looked at in one step, and storing is done in another.
    CheckThenStore,
    /// The acknowledgement is expected only some time after the frame was written.
    AckAfterWrite,
    /// What waits is read before the session is registered.
    DrainBeforeOnline,
    /// After a restart the writer goes on from an old head.
    ReuseOfSeq,
    /// The ledger does not hear of what devices fetched.
    FetchUntold,
    /// The ledger hears of what was stored that sync would find it.
    StoredToldAsSynced,
    /// A change is told before it is saved.
    ToldBeforeSaved,
    /// Two changes of one batch get one place.
    RevReused,
    /// A record takes its own half-done change for somebody else's.
    OwnWorkSeen,
    /// A change does not show in lists: who was away does not ask for it.
    ChangeUnlisted,
    /// Pages show messages as they were sent.
    PagesAsSent,
    /// A clear takes what its device had not seen.
    ClearWithoutBound,
    /// What was recalled still counts as unread.
    RecallCounted,
    /// That somebody hid a message does not show in lists.
    HiddenUnlisted,
    /// A group's message is told to who ever was in it.
    ToldToLeavers,
    /// The writer does not ask who is in.
    AnybodySays,
    /// Who comes late may read what was before.
    LateReadAll,
    /// A copy is kept of what was read before a change.
    OldCopyKept,
    /// Copies are forgotten some time after everybody was looked for.
    ForgottenLate,
    /// A list from copies is said to be of now.
    CopiesOfNow,
    /// What was refused, and placed under the same id later, is taken for another writer's when it is read again.
    PlacedLaterOvertaken,
}

impl Sabotage {
    pub(crate) const ALL: [Sabotage; 22] = [
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
    ];
}

/// A thing that goes wrong at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    CrashBoat(usize),
    CrashStation(usize),
    CrashCarrier,
    CrashDevice(usize),
    /// It never comes back.
    LoseDevice(usize),
    /// The device has no network for so long.
    Away(usize, Duration),
    /// The connection ends; what is on its way is lost.
    Cut(usize),
    /// The device reads and acknowledges nothing for so long.
    Mute(usize, Duration),
    FlushMailbox,
    /// The whole machine.
    CrashAll,
}

/// The shape of one world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One journal under everything, and whole-machine crashes; otherwise processes crash alone.
    pub(crate) embedded: bool,
    /// For each device its user and whether it shares its platform with another device of the user.
    pub(crate) devices: Vec<DevicePlan>,
    pub(crate) boats: usize,
    pub(crate) stations: usize,
    pub(crate) partitions: u32,
    /// When whom sends to whom.
    pub(crate) sends: Vec<(Duration, usize, usize)>,
    /// What is done beside sending.
    pub(crate) deeds: Deeds,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// Calls were lost or slow, before all healed.
    pub(crate) lossy: bool,
    /// How often a call between services fails though it may have been done (0 to 1).
    pub(crate) call_loss: f64,
    /// How often an answer takes longer than the caller waits.
    pub(crate) call_slow: f64,
    /// The longest a frame or a call takes normally.
    pub(crate) latency_max: Duration,
    /// Boats say again what they hold. Off where no call, no store and no word of a displacement is ever lost: there
    /// everything must hold without it, and a lost wake-up is not made good by a sweep.
    pub(crate) sweeps: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePlan {
    pub(crate) user: usize,
    pub(crate) platform: usize,
}

/// Faults happen in this first part of a world; then it heals.
pub(crate) const TROUBLE: Duration = Duration::from_secs(40);

impl Plan {
    pub(crate) fn of(seed: u64) -> (Plan, StdRng) {
        let mut rng = StdRng::seed_from_u64(seed);
        let quiet = rng.random_bool(0.1);
        // Processes and devices fail, calls and stores do not.
        let sure = quiet || rng.random_bool(0.3);
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
            embedded,
            devices,
            boats: if embedded { 1 } else { rng.random_range(1..=2) },
            stations: if embedded { 1 } else { rng.random_range(1..=2) },
            partitions: rng.random_range(1..=3),
            sends: Vec::new(),
            deeds: Deeds::default(),
            faults: Vec::new(),
            lossy: !sure,
            call_loss: if sure {
                0.0
            } else {
                rng.random_range(0.0..0.1)
            },
            call_slow: if sure {
                0.0
            } else {
                rng.random_range(0.0..0.02)
            },
            latency_max: Duration::from_millis(rng.random_range(2..60)),
            sweeps: !sure,
        };
        for _ in 0..rng.random_range(4..24) {
            let from = rng.random_range(0..plan.devices.len());
            let to = rng.random_range(0..users);
            if plan.devices[from].user != to {
                plan.sends.push((moment(&mut rng), from, to));
            }
        }
        let faults = if quiet { 0 } else { rng.random_range(1..10) };
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
        plan.deeds = Deeds::of(seed, plan.devices.len(), users);
        if seed % 16 == 1 {
            plan = plan.outsiders(&mut StdRng::seed_from_u64(!seed ^ OUTSIDERS));
        }
        // A station that dies may not have told those who were displaced.
        let dies = |(_, fault): &(_, Fault)| matches!(fault, Fault::CrashStation(_));
        plan.sweeps |= plan.has_rivals() && plan.faults.iter().any(dies);
        (plan, rng)
    }

    /// The world of a seed as it was when there were only messages.
    pub(crate) fn plain(seed: u64) -> (Plan, StdRng) {
        let (plan, rng) = Plan::of(seed);
        let deeds = Deeds::default();
        (Plan { deeds, ..plan }, rng)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.deeds.done.is_empty()
    }

    /// Somebody who was sent away a moment ago says something: the door does not know yet, and the writer refuses it. What
    /// the station knew of it dies, the sender is brought back in, and the same send comes again, under the same id.
    /// Then the carrier reads both anew.
    fn outsiders(self, rng: &mut StdRng) -> Plan {
        const DEVICES: usize = 3;
        let (owner, sender, silent) = (0, 1, 2);
        let latency_max = Duration::from_millis(60);
        let devices = (0..DEVICES).map(|user| DevicePlan { user, platform: 0 });
        let group = GroupId::new(1_100).expect("positive");
        let settings = Settings {
            open_history: true,
            open_door: false,
        };
        let millis = Duration::from_millis;
        let create = Wished::Create(settings, (1 << DEVICES) - 1);
        let mut done = vec![(millis(1_000), owner, Deed::Wish(group, create))];
        let mut faults = Vec::new();
        for round in 0..4 {
            let sent_away = millis(5_000 + round * 8_500);
            let says = sent_away + millis(rng.random_range(300..1_500));
            // Behind the record, before its key is done.
            let fails = says + latency_max.mul_f64(rng.random_range(0.8..2.6));
            done.extend([
                (sent_away - millis(700), sender, Deed::Say(group)),
                (sent_away, owner, Deed::Wish(group, Wished::Remove(sender))),
                (says, sender, Deed::Say(group)),
                (
                    fails + millis(100),
                    owner,
                    Deed::Wish(group, Wished::Add(sender)),
                ),
            ]);
            let again = fails + millis(rng.random_range(600..1_600));
            let (station, carrier) = match self.embedded {
                true => (Fault::CrashAll, Fault::CrashAll),
                false => (Fault::CrashStation(0), Fault::CrashCarrier),
            };
            faults.extend([
                // What was said before waits for an acknowledgement, and holds the offsets behind it.
                (sent_away - millis(800), Fault::Mute(silent, millis(6_000))),
                (fails, Fault::Cut(sender)),
                (fails, station),
                (again, carrier),
            ]);
        }
        Plan {
            devices: devices.collect(),
            latency_max,
            stations: 1,
            sends: Vec::new(),
            deeds: Deeds {
                done,
                late: vec![Duration::ZERO; DEVICES],
            },
            faults,
            lossy: false,
            call_loss: 0.0,
            call_slow: 0.0,
            sweeps: false,
            ..self
        }
    }

    /// Nothing goes wrong in this world.
    pub(crate) fn is_quiet(&self) -> bool {
        self.faults.is_empty() && self.call_loss == 0.0 && self.call_slow == 0.0
    }

    /// Two devices sign in on one platform of a user: one takes the place of the other, whatever is on its way to that.
    pub(crate) fn has_rivals(&self) -> bool {
        let places = self.devices.iter();
        let places: BTreeSet<_> = places.map(|d| (d.user, d.platform)).collect();
        places.len() < self.devices.len()
    }

    fn fault(&self, rng: &mut StdRng) -> Fault {
        let device = rng.random_range(0..self.devices.len());
        let lasting = Duration::from_millis(rng.random_range(500..15_000));
        let whole = if self.embedded { 4 } else { 0 };
        match rng.random_range(0..12 + whole) {
            0 | 1 => Fault::Away(device, lasting),
            2 | 3 => Fault::Cut(device),
            4 => Fault::CrashDevice(device),
            5 => Fault::Mute(device, lasting),
            6 if !self.embedded && self.sweeps => Fault::FlushMailbox,
            7 | 8 if !self.embedded => Fault::CrashBoat(rng.random_range(0..self.boats)),
            9 if !self.embedded => Fault::CrashStation(rng.random_range(0..self.stations)),
            10 | 11 if !self.embedded => Fault::CrashCarrier,
            _ if self.embedded => Fault::CrashAll,
            _ => Fault::CrashCarrier,
        }
    }
}

pub(crate) fn moment(rng: &mut StdRng) -> Duration {
    Duration::from_millis(rng.random_range(0..TROUBLE.as_millis() as u64))
}
