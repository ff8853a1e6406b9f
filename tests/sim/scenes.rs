//! Scenes: kinds of worlds with faults that ordinary worlds do not have. One seed in [`SCENES`] has
//! worlds of a scene; the worlds of other seeds do not depend on it.

use std::time::Duration;

use protocol::group::GroupSettings;
use protocol::{ConversationId, GroupId};
use rand::Rng;
use rand::rngs::StdRng;
use tests::actions::{GroupAction, On, To, UserAction, UserActions, action_send_id, user};

use crate::clocks::Host;
use crate::device::send_id;
use crate::plan::{DevicePlan, Fault, Letters, Plan, Poison, StoreKey, StoreRefusal};

/// Seeds among which each scene has one.
pub(crate) const SCENES: u64 = 64;

/// Settings of a group whose new members read only messages after they joined.
const CLOSED: GroupSettings = GroupSettings::CLOSED;

/// Users of a scene, with a device each.
const USERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Records and parts of deliveries die, and an operator redrives them.
    Letters,
    /// The handling of some records panics.
    Panics,
    /// Changes die, and an operator redrives them.
    DeadChanges,
    /// The clock of a host steps by an hour, and back.
    Clocks,
    /// An older carrier still writes after a rebalance.
    TwoCarriers,
}

impl Scene {
    /// Scene of a seed. Those that were in the corpus before have none.
    pub(crate) fn of(seed: u64) -> Option<Scene> {
        match seed % SCENES {
            20 => Some(Scene::Letters),
            36 => Some(Scene::Panics),
            56 => Some(Scene::DeadChanges),
            44 => Some(Scene::Clocks),
            16 => Some(Scene::TwoCarriers),
            _ => None,
        }
    }
}

impl Plan {
    pub(crate) fn with_scene(self, scene: Scene, rng: &mut StdRng) -> Plan {
        match scene {
            Scene::Letters => self.with_letters(rng),
            Scene::Panics => self.with_panics(rng),
            Scene::DeadChanges => self.with_dead_changes(rng),
            Scene::Clocks => self.with_clocks(rng),
            Scene::TwoCarriers => self.with_two_carriers(rng),
        }
    }

    /// A world without lost calls, in which users write to each other and arrange their lists.
    fn scene(self, sends: Vec<(Duration, usize, usize)>) -> Plan {
        let devices = (0..USERS).map(|user| DevicePlan { user, platform: 0 });
        let second = Duration::from_secs(1);
        let actions = vec![
            (22 * second, 0, UserAction::Pin(0, true)),
            (31 * second, 1, UserAction::Pin(128, true)),
            (33 * second, 2, UserAction::Read(0, 255)),
            (35 * second, 0, UserAction::Pin(0, false)),
        ];
        Plan {
            devices: devices.collect(),
            sends,
            actions: UserActions {
                steps: actions,
                delays: vec![Duration::ZERO; USERS],
            },
            faults: Vec::new(),
            is_lossy: false,
            call_loss: 0.0,
            call_slow: 0.0,
            sweeps: false,
            ..self
        }
    }

    /// Whether two carriers write at once in these worlds.
    pub(crate) fn has_two_carriers(&self) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|(_, fault)| matches!(fault, Fault::Rebalance))
    }

    /// Crash of the carrier, with everything else if all is one process.
    fn carrier_crash(&self) -> Fault {
        if self.is_embedded {
            Fault::CrashAll
        } else {
            Fault::CrashCarrier
        }
    }

    /// Worlds with dead letters of all kinds: whole records, without a position because history
    /// refuses their rows, or with one because a list row cannot be read; and parts of deliveries,
    /// which the mailbox of a user refuses twice. An operator redrives them, too early at first.
    /// Offsets are set back, so that origins are read again before and after their letters were
    /// redriven: a record that was refused once may be placed then.
    ///
    /// Judges expect that in the end each message is placed once, by one of its records and in the
    /// order of these, that everybody has it, and that no letter is left. Only messages that never
    /// died are in their senders' order.
    ///
    /// Some rows are refused for a while only: a record that died may come again when it could be
    /// placed, and stays dead.
    fn with_letters(self, rng: &mut StdRng) -> Plan {
        const SENDS: usize = 18;
        let millis = Duration::from_millis;
        let sends = sends(rng, SENDS, 6_000..30_000);
        let mut refusals = Vec::new();
        for number in 0..3 {
            refusals.push(StoreRefusal {
                key: StoreKey::Rows(send_id(rng.random_range(0..SENDS))),
                starts_at: Duration::ZERO,
                ends_at: match number {
                    0 => millis(40_000),
                    _ => within(rng, 8_000..34_000),
                },
            });
        }
        let (at, from, to) = sends[rng.random_range(0..SENDS)];
        let conversation = ConversationId::private(user(from), user(to)).expect("two users");
        let owner = [from, to][rng.random_range(0..2)];
        refusals.push(StoreRefusal {
            key: StoreKey::ListRow(user(owner), conversation),
            starts_at: at - millis(1_000),
            ends_at: at + within(rng, 3_000..8_000),
        });
        let (at, _, to) = sends[rng.random_range(0..SENDS)];
        refusals.push(StoreRefusal {
            key: StoreKey::Mail(user(to)),
            starts_at: at - millis(500),
            ends_at: at + within(rng, 3_000..6_000),
        });
        let redrives = [
            within(rng, 20_000..28_000),
            within(rng, 48_000..50_000),
            millis(60_000),
            millis(120_000),
        ];
        let crash = self.carrier_crash();
        let mut faults = vec![
            (within(rng, 8_000..34_000), crash),
            (within(rng, 8_000..34_000), crash),
            (within(rng, 8_000..26_000), Fault::Mute(2, millis(4_000))),
            (redrives[0] + within(rng, 0..150), Fault::CrashOperator),
            (redrives[1] + within(rng, 0..150), Fault::CrashOperator),
        ];
        for set_back in [12_000..34_000, 44_000..58_000, 66_000..80_000] {
            let (at, share) = (within(rng, set_back), rng.random_range(0.0..0.7));
            if rng.random() {
                faults.push((at, Fault::SetBack(share)));
            }
        }
        Plan {
            faults,
            letters: Letters {
                refusals,
                redrives: redrives.to_vec(),
                ..Letters::default()
            },
            retry_max: 1,
            ..self.scene(sends)
        }
    }

    /// Worlds in which the handling of three records panics: once, or until a better carrier runs.
    /// Poison comes in bursts of one conversation, to share parts with its neighbours. The letters
    /// are redriven, too early at first where they panic again.
    ///
    /// Judges expect that only these records die, and that in the end each message is placed once,
    /// everybody has it, and no letter is left; the others as if these had not been there.
    ///
    /// The carrier crashes while it writes the neighbours of these records, and reads them again.
    /// A record that panicked once stays dead.
    fn with_panics(self, rng: &mut StdRng) -> Plan {
        const BURSTS: usize = 5;
        const BURST_SIZE: usize = 5;
        let (mut bursts, mut burst_starts) = (Vec::new(), Vec::new());
        for burst in 0..BURSTS as u64 {
            let at = 6_000 + burst * 4_500;
            let at = at + rng.random_range(0..1_500);
            burst_starts.push(at);
            let burst = (0..BURST_SIZE).map(|_| {
                let from = rng.random_range(0..2);
                (within(rng, at..at + 60), from, 1 - from)
            });
            bursts.extend(burst);
        }
        let ends_at = rng.random_bool(0.5).then(|| Duration::from_millis(38_000));
        let mut poison = Vec::new();
        for _ in 0..3 {
            let send = send_id(rng.random_range(0..bursts.len()));
            poison.push(Poison { send, ends_at });
        }
        let crash = self.carrier_crash();
        let mut faults = vec![(within(rng, 8_000..32_000), crash)];
        for begin in burst_starts {
            faults.push((within(rng, begin + 100..begin + 1_200), crash));
        }
        let share = rng.random_range(0.0..0.7);
        faults.push((within(rng, 52_000..58_000), Fault::SetBack(share)));
        let redrives = vec![
            within(rng, 29_000..33_000),
            Duration::from_millis(46_000),
            Duration::from_millis(62_000),
            Duration::from_millis(120_000),
        ];
        Plan {
            faults,
            letters: Letters {
                poison,
                redrives,
                ..Letters::default()
            },
            moments: true,
            ..self.scene(bursts)
        }
    }
}

impl Plan {
    /// Worlds in which the handling of changes panics, once or until a better carrier runs, or a store
    /// refuses their rows for a while. Changes come in bursts on the newest messages of one
    /// conversation, to share parts with each other and to depend on each other: a reaction that is on
    /// changes nothing.
    ///
    /// The carrier crashes while it writes them, and between a death and its letter. Offsets are set
    /// back, so that what died is read again before and after it was redriven.
    ///
    /// Judges expect that changes are dense and those of the log, with each redriven one where its
    /// letter put it, and that each that died has a letter.
    fn with_dead_changes(self, rng: &mut StdRng) -> Plan {
        const BURSTS: usize = 5;
        const BURST_SIZE: usize = 6;
        let millis = Duration::from_millis;
        let first = (0..4).map(|number| (millis(2_000 + number * 400), 0, 1));
        let mut sends: Vec<_> = first.collect();
        let (mut changes, mut burst_starts) = (Vec::new(), Vec::new());
        for burst in 0..BURSTS as u64 {
            let at = 6_000 + burst * 4_500 + rng.random_range(0..1_500);
            burst_starts.push(at);
            sends.push((within(rng, at..at + 60), 0, 1));
            for _ in 0..BURST_SIZE {
                let on = On::Newest(0, rng.random_range(0..2));
                let to = match rng.random_range(0..8) {
                    0 | 1 => To::Pin(rng.random()),
                    2 => To::Edit,
                    3 if burst == 2 => To::Recall,
                    _ => To::React(rng.random_range(0..2), rng.random_bool(0.6)),
                };
                let by = match to {
                    To::Edit | To::Recall => 0,
                    To::React(..) | To::Pin(_) => rng.random_range(0..2),
                };
                changes.push((within(rng, at..at + 60), by, UserAction::Change(on, to)));
            }
        }
        let ends_at = rng.random_bool(0.5).then(|| millis(38_000));
        let plan = self.scene(sends);
        let actions = plan.actions.steps.len();
        let mut random_change = || action_send_id(actions + rng.random_range(0..changes.len()));
        let poison = [
            random_change(),
            random_change(),
            random_change(),
            random_change(),
        ]
        .map(|send| Poison { send, ends_at });
        let refused_sends = [random_change(), random_change()];
        let refusals = refused_sends.map(|send| StoreRefusal {
            key: StoreKey::Change(send),
            starts_at: Duration::ZERO,
            ends_at: within(rng, 8_000..34_000),
        });
        let crash = plan.carrier_crash();
        let mut faults = vec![(within(rng, 8_000..32_000), crash)];
        for begin in burst_starts {
            faults.push((within(rng, begin + 100..begin + 1_200), crash));
        }
        for set_back in [30_000..45_000, 52_000..58_000] {
            let share = rng.random_range(0.0..0.7);
            faults.push((within(rng, set_back), Fault::SetBack(share)));
        }
        let redrives = vec![
            within(rng, 29_000..33_000),
            millis(46_000),
            millis(62_000),
            millis(120_000),
        ];
        Plan {
            faults,
            letters: Letters {
                refusals: refusals.to_vec(),
                poison: poison.to_vec(),
                redrives,
            },
            moments: true,
            actions: UserActions {
                steps: [plan.actions.steps, changes].concat(),
                ..plan.actions
            },
            ..plan
        }
    }
}

impl Plan {
    /// Worlds in which the clock of the carrier or of a station is an hour ahead or behind for a
    /// while, and steps back. A push is open without an answer when the carrier's clock steps back.
    /// A station whose clock stepped back makes ids ahead of it, and is restarted, as an operator does.
    ///
    /// Judges expect that each message is placed once and everybody has it. Lists converge once the
    /// clocks are right: a device whose list is ahead starts anew. They do not where the carrier's
    /// clock was behind: its rows are older than the margin of every list difference. There no
    /// device is away, and lists are not judged.
    fn with_clocks(self, rng: &mut StdRng) -> Plan {
        const HOUR: i64 = 3_600_000;
        let millis = Duration::from_millis;
        let is_ahead = rng.random_bool(0.6);
        let (host, offset) = match (rng.random(), is_ahead) {
            (true, true) => (Host::Carrier, HOUR),
            (true, false) => (Host::Carrier, -HOUR),
            (false, true) => (Host::Station(0), HOUR),
            (false, false) => (Host::Station(0), -HOUR),
        };
        let begins_at = within(rng, 9_000..13_000);
        let ends_at = begins_at + within(rng, 7_000..11_000);
        let steps_back = if is_ahead { ends_at } else { begins_at };
        let mut sends = sends(rng, 18, 6_000..30_000);
        let mut faults = vec![
            (begins_at, Fault::StepClock(host, offset)),
            (ends_at, Fault::StepClock(host, 0)),
        ];
        match host {
            Host::Carrier => {
                sends.push((steps_back - millis(600), 0, 1));
                let silence = Fault::Silence(0, millis(1_200));
                faults.push((steps_back - millis(900), silence));
            }
            Host::Station(_) => {
                let restart = steps_back + within(rng, 1_500..3_000);
                faults.push((restart, Fault::CrashStation(0)));
                // Each device asks for a list of the right time.
                let cut = |device| (millis(35_000), Fault::Cut(device));
                faults.extend((0..USERS).map(cut));
            }
        }
        if offset > 0 || host != Host::Carrier {
            for _ in 0..3 {
                let device = rng.random_range(0..USERS);
                faults.push((within(rng, 8_000..30_000), Fault::Cut(device)));
                let duration = within(rng, 1_000..4_000);
                let absence = Fault::Away(device, duration);
                faults.push((within(rng, 8_000..28_000), absence));
            }
        }
        Plan {
            is_embedded: false,
            boats: 1,
            faults,
            latency_max: self.latency_max.min(millis(20)),
            ..self.scene(sends)
        }
    }
}

impl Plan {
    /// Worlds in which a carrier loses its partitions while it reads facts or writes, goes on with
    /// its batch, and is slower than its successor, which has the same records. Both read facts at
    /// moments of their own, so the other one writes in between: also what one reads of a group may
    /// be older than the head that it reads then.
    ///
    /// Judges expect what they expect of any world: writes with older facts never win. A carrier
    /// may find the other one ahead, and decides again.
    fn with_two_carriers(self, rng: &mut StdRng) -> Plan {
        const ROUNDS: u64 = 4;
        let millis = Duration::from_millis;
        let (mut messages, mut faults) = (Vec::new(), Vec::new());
        let group = GroupId::new(1_200).expect("positive");
        let create = UserAction::Group(group, GroupAction::Create(CLOSED, 0b111));
        let mut actions = vec![(millis(2_000), 0, create)];
        for round in 0..ROUNDS {
            let at = 6_000 + round * 7_500 + rng.random_range(0..1_000);
            messages.extend(sends(rng, 5, at..at + 100));
            faults.push((millis(at) + within(rng, 300..2_500), Fault::Rebalance));
            // A carrier that remembers no heads.
            faults.push((millis(at - 1_000), Fault::CrashCarrier));
            // Records for the successor, while the older one writes.
            messages.extend(sends(rng, 3, at + 800..at + 3_000));
            let command = match round {
                0 => Some(GroupAction::Remove(2)),
                1 => Some(GroupAction::Add(2)),
                _ => None,
            };
            let command = command.map(|command| UserAction::Group(group, command));
            actions.extend(command.map(|command| (within(rng, at..at + 100), 0, command)));
            for _ in 0..4 {
                let message = UserAction::Say(group);
                actions.push((
                    within(rng, at + 200..at + 3_000),
                    rng.random_range(0..2),
                    message,
                ));
            }
        }
        let plan = self.scene(messages);
        Plan {
            is_embedded: false,
            faults,
            moments: true,
            latency_max: plan.latency_max.min(millis(20)),
            actions: UserActions {
                steps: [plan.actions.steps, actions].concat(),
                ..plan.actions
            },
            ..plan
        }
    }
}

/// Random time in a range of milliseconds.
fn within(rng: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

/// So many sends between users of a scene.
fn sends(
    rng: &mut StdRng,
    count: usize,
    range: std::ops::Range<u64>,
) -> Vec<(Duration, usize, usize)> {
    let sends = (0..count).map(|_| {
        let from = rng.random_range(0..USERS);
        let to = (from + rng.random_range(1..USERS)) % USERS;
        (within(rng, range.clone()), from, to)
    });
    sends.collect()
}
