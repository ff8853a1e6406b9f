//! Scenes: kinds of worlds with faults that ordinary worlds do not have: dead letters and their
//! operator, panics, clocks that step, a carrier that writes on after it lost its partitions,
//! outdated cache entries, members that come back; and worlds where only devices come and go.

use std::ops::Range;
use std::time::Duration;

use protocol::group::GroupSettings;
use protocol::{GroupId, SendId, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::actions::{
    FAULT_PERIOD, GroupAction, On, To, UserAction, UserActions, action_send_id, user,
};

use crate::device::send_id;
use crate::plan::{DevicePlan, Fault, Plan, Service};

/// Mixed into seeds: the dice of scenes are not those of the worlds under them.
const SCENE_SEED: u64 = 0x0073_6365_6e65_7321;
/// Users of a scene, with a device each.
const USERS: usize = 3;
/// Share of scenes with letters that have an operator.
const OPERATOR_SHARE: f64 = 0.75;
/// Settings of a group whose new members read only messages after they joined.
const CLOSED: GroupSettings = GroupSettings::CLOSED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Records and parts of deliveries die.
    Letters,
    /// The handling of some records panics.
    Panics,
    /// Changes die.
    DeadChanges,
    /// The clock of a host steps by seconds to minutes, and back.
    Clocks,
    /// A carrier that lost its partitions still writes.
    TwoCarriers,
    /// Devices come and go, or nothing happens at all. No boat sweeps.
    Visits,
    /// Cache entries stay though they are outdated, while a device asks for its list.
    StaleEntries,
    /// A removed member sends, is added again, and sends the same again.
    Outsiders,
}

impl Scene {
    const ALL: [Scene; 8] = [
        Scene::Letters,
        Scene::Panics,
        Scene::DeadChanges,
        Scene::Clocks,
        Scene::TwoCarriers,
        Scene::Visits,
        Scene::StaleEntries,
        Scene::Outsiders,
    ];
}

/// Causes of dead letters in a world, and their operator.
#[derive(Clone, Debug, Default)]
pub(crate) struct SceneFaults {
    /// `None` for an ordinary world.
    pub(crate) scene: Option<Scene>,
    pub(crate) refusals: Vec<StoreRefusal>,
    pub(crate) poison: Vec<Poison>,
    /// Times at which an operator has all open letters redriven. None: there is no operator.
    pub(crate) redrives: Vec<Duration>,
}

impl SceneFaults {
    pub(crate) fn has_letters(&self) -> bool {
        let scene = self.scene;
        matches!(
            scene,
            Some(Scene::Letters | Scene::Panics | Scene::DeadChanges)
        )
    }

    /// Whether stores refuse something, or records panic.
    pub(crate) fn has_troubles(&self) -> bool {
        self.has_letters() || !self.refusals.is_empty()
    }

    pub(crate) fn has_operator(&self) -> bool {
        !self.redrives.is_empty()
    }

    /// Whether a store refuses rows of this send at some time.
    pub(crate) fn refuses_send(&self, send_id: SendId) -> bool {
        let mut refusals = self.refusals.iter();
        refusals.any(|refusal| match refusal.key {
            StoreKey::Rows(refused_id) | StoreKey::Change(refused_id) => refused_id == send_id,
            _ => false,
        })
    }
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
    /// List rows of a user cannot be read: records die with their positions.
    ListRows(UserId),
    /// Mailbox of a user: a part of the delivery dies.
    Mail(UserId),
    /// Offsets of messages.
    Commits,
    /// Last step of dedupe keys: they stay as they are before the log has the record.
    DedupeEnds,
    /// Removal of outdated cache entries.
    Forgets,
    /// Nothing: the removal of outdated cache entries only takes a while.
    SlowForgets,
}

/// A send whose record makes its carrier panic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    pub(crate) send: SendId,
    pub(crate) end: PoisonEnd,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PoisonEnd {
    /// A better carrier runs from this time on.
    At(Duration),
    /// It does not come again once this time has passed since its first panic.
    After(Duration),
}

impl Plan {
    /// World with a scene. Dice of its own, so that worlds without one stay as they are.
    pub(crate) fn with_scene(seed: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed ^ SCENE_SEED);
        let scenes = Scene::ALL.len() as u64;
        let scene = Scene::ALL[(seed % scenes) as usize];
        let mut plan = Plan::of(seed).set_up(scene);
        match scene {
            Scene::Letters => plan.add_letters(&mut rng),
            Scene::Panics => plan.add_panics(&mut rng),
            Scene::DeadChanges => plan.add_dead_changes(&mut rng),
            Scene::Clocks => plan.add_clocks(&mut rng),
            Scene::TwoCarriers => plan.add_two_carriers(&mut rng),
            Scene::Visits => plan.add_visits(&mut rng),
            Scene::StaleEntries => plan.add_stale_entries(&mut rng),
            Scene::Outsiders => plan.add_outsiders(&mut rng),
        }
        plan
    }

    /// A world in which no call fails, and users arrange their lists; hosts die as they did.
    fn set_up(self, scene: Scene) -> Plan {
        let devices = (0..USERS).map(|user| DevicePlan { user, platform: 0 });
        let second = Duration::from_secs(1);
        let steps = vec![
            (22 * second, 0, UserAction::Pin(0, true)),
            (31 * second, 1, UserAction::Pin(128, true)),
            (33 * second, 2, UserAction::Read(0, 255)),
            (35 * second, 0, UserAction::Pin(0, false)),
        ];
        Plan {
            devices: devices.collect(),
            sends: Vec::new(),
            actions: UserActions {
                steps,
                delays: vec![Duration::ZERO; USERS],
            },
            faults: Vec::new(),
            failure_share: 0.0,
            lost_share: 0.0,
            hang_share: 0.0,
            scene: SceneFaults {
                scene: Some(scene),
                ..SceneFaults::default()
            },
            ..self
        }
    }

    /// Hosts of this service, by number.
    fn hosts_of(&self, service: Service) -> Vec<usize> {
        let hosts = self.hosts.iter().enumerate();
        let hosts = hosts.filter(|(_, host)| **host == service);
        hosts.map(|(number, _)| number).collect()
    }

    fn any_host(&self, service: Service, rng: &mut StdRng) -> usize {
        let hosts = self.hosts_of(service);
        hosts[rng.random_range(0..hosts.len())]
    }

    fn crash_carrier(&mut self, rng: &mut StdRng, range: Range<u64>) {
        let carrier = self.any_host(Service::Carrier, rng);
        self.faults
            .push((within(rng, range), Fault::Crash(carrier)));
    }

    fn refuse(&mut self, key: StoreKey, starts_at: Duration, ends_at: Duration) {
        self.scene.refusals.push(StoreRefusal {
            key,
            starts_at,
            ends_at,
        });
    }

    /// In some worlds, lets the log take no commits for a while, at whose end all carriers die:
    /// records are read again that were settled long before.
    fn set_back(&mut self, rng: &mut StdRng, range: Range<u64>) {
        let (starts_at, duration) = (within(rng, range), within(rng, 2_000..8_000));
        if rng.random() {
            let ends_at = starts_at + duration;
            self.refuse(StoreKey::Commits, starts_at, ends_at);
            let carriers = self.hosts_of(Service::Carrier).into_iter();
            let crash_at = ends_at - Duration::from_millis(100);
            let crashes = carriers.map(|carrier| (crash_at, Fault::Crash(carrier)));
            self.faults.extend(crashes);
        }
    }

    /// Adds an operator who has all open letters redriven at these times, too early at first. The
    /// process that works dies in the midst of it, and another one goes on.
    fn add_operator(&mut self, rng: &mut StdRng, redrives: Vec<Duration>) {
        let desk = self.hosts.len();
        self.hosts.push(Service::Operator);
        for at in &redrives[..2] {
            let crash_at = *at + within(rng, 0..400);
            self.faults.push((crash_at, Fault::Crash(desk)));
        }
        self.scene.redrives = redrives;
    }

    /// Dead letters of all kinds: whole records, without a position because history refuses their
    /// rows, or with one because a list row cannot be read; and parts of deliveries, which the
    /// mailbox of a user refuses. Some rows are refused for a while only: a record that died may
    /// come again when it could be placed, and stays dead.
    ///
    /// Judges expect that with an operator each message is placed once, by one of its records and
    /// in the order of these, that everybody has it, and that no letter is left; without one, that
    /// what was refused is a letter. Only messages that never died are in their senders' order.
    fn add_letters(&mut self, rng: &mut StdRng) {
        const SENDS: usize = 18;
        let millis = Duration::from_millis;
        self.sends = sends(rng, SENDS, 6_000..30_000);
        for number in 0..3 {
            let key = StoreKey::Rows(send_id(rng.random_range(0..SENDS)));
            let ends_at = match number {
                0 => millis(40_000),
                _ => within(rng, 8_000..34_000),
            };
            self.refuse(key, Duration::ZERO, ends_at);
        }
        if rng.random_bool(OPERATOR_SHARE) {
            let (at, from, to) = self.sends[rng.random_range(0..SENDS)];
            let owner = [from, to][rng.random_range(0..2)];
            let ends_at = at + within(rng, 3_000..8_000);
            self.refuse(StoreKey::ListRows(user(owner)), at - millis(1_000), ends_at);
            let (at, _, to) = self.sends[rng.random_range(0..SENDS)];
            let ends_at = at + within(rng, 3_000..6_000);
            self.refuse(StoreKey::Mail(user(to)), at - millis(500), ends_at);
            let redrives = vec![
                within(rng, 20_000..28_000),
                within(rng, 48_000..50_000),
                millis(60_000),
            ];
            self.add_operator(rng, redrives);
        }
        self.crash_carrier(rng, 8_000..34_000);
        self.crash_carrier(rng, 8_000..34_000);
        let silence = (within(rng, 8_000..26_000), Fault::Mute(2, millis(4_000)));
        self.faults.push(silence);
        self.set_back(rng, 12_000..34_000);
        self.set_back(rng, 44_000..58_000);
    }

    /// The handling of three records panics, for a moment or until a better carrier runs. Poison
    /// comes in bursts of one conversation, to share parts with its neighbours. Carriers crash while
    /// they write these, and read them again.
    ///
    /// Judges expect that only these records die, that heads know of each death, and otherwise what
    /// they expect of letters.
    fn add_panics(&mut self, rng: &mut StdRng) {
        const BURSTS: u64 = 5;
        const BURST_SIZE: usize = 5;
        self.crash_carrier(rng, 8_000..32_000);
        for burst in 0..BURSTS {
            let at = 6_000 + burst * 4_500 + rng.random_range(0..1_500);
            for _ in 0..BURST_SIZE {
                let from = rng.random_range(0..2);
                self.sends.push((within(rng, at..at + 60), from, 1 - from));
            }
            if rng.random() {
                self.crash_carrier(rng, at + 100..at + 1_200);
            }
        }
        let end = poison_end(rng);
        for _ in 0..3 {
            let send = send_id(rng.random_range(0..self.sends.len()));
            self.scene.poison.push(Poison { send, end });
        }
        self.redrive_poison(rng);
    }

    /// Changes panic, or a store refuses their rows for a while. They come in bursts on the newest
    /// messages of one conversation, to share parts with each other and to depend on each other: a
    /// reaction that is on changes nothing. Carriers crash while they write them, and between a
    /// death and its letter.
    ///
    /// Judges expect that changes are dense and those of the log, with each redriven one where its
    /// letter put it, and that each that died has a row that says so, and a letter.
    fn add_dead_changes(&mut self, rng: &mut StdRng) {
        const BURSTS: u64 = 5;
        const BURST_SIZE: usize = 6;
        let first = (0..4).map(|number| (Duration::from_millis(2_000 + number * 400), 0, 1));
        self.sends = first.collect();
        self.crash_carrier(rng, 8_000..32_000);
        let first_change = self.actions.steps.len();
        for burst in 0..BURSTS {
            let at = 6_000 + burst * 4_500 + rng.random_range(0..1_500);
            self.sends.push((within(rng, at..at + 60), 0, 1));
            for _ in 0..BURST_SIZE {
                let change = change(rng, burst == 2);
                let by = match change {
                    To::Edit | To::Recall => 0,
                    To::React(..) | To::Pin(_) => rng.random_range(0..2),
                };
                let action = UserAction::Change(On::Newest(0, rng.random_range(0..2)), change);
                self.actions
                    .steps
                    .push((within(rng, at..at + 60), by, action));
            }
            if rng.random() {
                self.crash_carrier(rng, at + 100..at + 1_200);
            }
        }
        let changes = first_change..self.actions.steps.len();
        let end = poison_end(rng);
        for _ in 0..4 {
            let send = action_send_id(rng.random_range(changes.clone()));
            self.scene.poison.push(Poison { send, end });
        }
        for _ in 0..2 {
            let key = StoreKey::Change(action_send_id(rng.random_range(changes.clone())));
            let ends_at = within(rng, 8_000..34_000);
            self.refuse(key, Duration::ZERO, ends_at);
        }
        self.set_back(rng, 30_000..45_000);
        self.redrive_poison(rng);
    }

    /// In most worlds, an operator has letters redriven, too early at first where they panic again.
    fn redrive_poison(&mut self, rng: &mut StdRng) {
        let redrives = vec![
            within(rng, 29_000..33_000),
            Duration::from_millis(46_000),
            Duration::from_millis(62_000),
        ];
        self.set_back(rng, 52_000..58_000);
        if rng.random_bool(OPERATOR_SHARE) {
            self.add_operator(rng, redrives);
        }
    }

    /// The clock of a carrier or of a station is ahead or behind for a while, and steps back. A push
    /// is open without an answer when a carrier's clock steps back. A station whose clock stepped
    /// back makes ids ahead of it, and is restarted, as an operator does.
    ///
    /// Judges expect that each message is placed once and everybody has it. Lists converge once the
    /// clocks are right: a device whose list is ahead starts anew. Where a carrier's clock was
    /// behind they do not: there no device is away, and lists are not judged.
    fn add_clocks(&mut self, rng: &mut StdRng) {
        let millis = Duration::from_millis;
        let (is_carrier, is_ahead) = (rng.random(), rng.random_bool(0.6));
        let service = if is_carrier {
            Service::Carrier
        } else {
            Service::Station
        };
        let host = self.any_host(service, rng);
        let difference = rng.random_range(5_000..300_000_i64);
        let offset = if is_ahead { difference } else { -difference };
        let begins_at = within(rng, 9_000..13_000);
        let ends_at = begins_at + within(rng, 7_000..11_000);
        let steps_back = if is_ahead { ends_at } else { begins_at };
        self.sends = sends(rng, 18, 6_000..30_000);
        self.death_share = 0.0;
        self.faults = vec![
            (begins_at, Fault::StepClock(host, offset)),
            (ends_at, Fault::StepClock(host, 0)),
        ];
        if is_carrier {
            self.sends.push((steps_back - millis(600), 0, 1));
            let silence = Fault::Mute(1, millis(1_200));
            self.faults.push((steps_back - millis(900), silence));
        } else {
            let restart_at = steps_back + within(rng, 1_500..3_000);
            self.faults.push((restart_at, Fault::Crash(host)));
            // Each device asks for a list of the right time.
            let cut = |device| (millis(35_000), Fault::Cut(device));
            self.faults.extend((0..USERS).map(cut));
        }
        if is_ahead || !is_carrier {
            for _ in 0..3 {
                let device = rng.random_range(0..USERS);
                self.faults
                    .push((within(rng, 8_000..30_000), Fault::Cut(device)));
                let absence = Fault::Away(device, within(rng, 1_000..4_000));
                self.faults.push((within(rng, 8_000..28_000), absence));
            }
        }
    }

    /// A carrier reads its facts so slowly that the log gives its partitions to the other one, which
    /// has the same records and writes them first. The slow one learns of it only at its next poll,
    /// and writes by its older facts before: also what it has read of a group may be older than the
    /// head that it reads then.
    ///
    /// Judges expect what they expect of any world: writes by older facts never win.
    fn add_two_carriers(&mut self, rng: &mut StdRng) {
        const ROUNDS: u64 = 4;
        let millis = Duration::from_millis;
        if self.hosts_of(Service::Carrier).len() < 2 {
            self.hosts.push(Service::Carrier);
        }
        self.death_share /= 4.0;
        let group = GroupId::new(1_200).expect("positive");
        let create = UserAction::Group(group, GroupAction::Create(CLOSED, 0b111));
        self.actions.steps.push((millis(2_000), 0, create));
        for round in 0..ROUNDS {
            let at = 6_000 + round * 7_500 + rng.random_range(0..1_000);
            let carrier = self.any_host(Service::Carrier, rng);
            let slowness = Fault::SlowReads(carrier, within(rng, 4_000..8_000));
            self.faults
                .push((millis(at) - within(rng, 0..500), slowness));
            self.sends.extend(sends(rng, 5, at..at + 100));
            // Records for the other one, while the slow one writes.
            self.sends.extend(sends(rng, 3, at + 800..at + 5_000));
            let command = match round {
                0 => Some(GroupAction::Remove(2)),
                1 => Some(GroupAction::Add(2)),
                _ => None,
            };
            if let Some(command) = command {
                let command = UserAction::Group(group, command);
                self.actions
                    .steps
                    .push((within(rng, at..at + 100), 0, command));
            }
            for _ in 0..4 {
                let (says_at, by) = (within(rng, at..at + 5_000), rng.random_range(0..2));
                self.actions
                    .steps
                    .push((says_at, by, UserAction::Say(group)));
            }
        }
    }

    /// Devices come and go, and nothing else ends: whatever waits for a device is announced to it
    /// once, and no sweep announces it again. In some worlds nothing happens to devices, either.
    ///
    /// Judges expect besides that no mail waits for a device that is there, and that the ledger says
    /// of mail what the mailboxes did; where nothing happens, that no push fails.
    fn add_visits(&mut self, rng: &mut StdRng) {
        self.death_share = 0.0;
        self.wait_max = Duration::from_millis(rng.random_range(10..60));
        self.sends = sends(rng, 40, 6_000..36_000);
        if rng.random_bool(0.3) {
            return;
        }
        for _ in 0..rng.random_range(4..16) {
            let device = rng.random_range(0..USERS);
            let (at, absence) = (within(rng, 7_000..32_000), within(rng, 500..4_000));
            let (fault, back_at) = match rng.random_range(0..3) {
                0 => (Fault::CrashDevice(device), at),
                1 => (Fault::Cut(device), at),
                _ => (Fault::Away(device, absence), at + absence),
            };
            self.faults.push((at, fault));
            // Messages for the device when it comes back.
            let from = (device + rng.random_range(1..USERS)) % USERS;
            let times = (0..8).map(|_| (back_at + within(rng, 0..2_500), from, device));
            self.sends.extend(times);
        }
    }

    /// A device asks for its list while an entry of it is outdated, or is about to be.
    ///
    /// In half of the worlds a message was edited, and the entry cannot be removed for a while. No
    /// session of the device lives when it can, so only the next list tells of the edit. In the
    /// other half, entries are removed slowly while the device signs in.
    fn add_stale_entries(&mut self, rng: &mut StdRng) {
        const ROUNDS: u64 = 3;
        let (author, reader) = (0, 1);
        let millis = Duration::from_millis;
        self.death_share = 0.0;
        self.sends = (0..3)
            .map(|number| (millis(6_000 + number * 300), author, reader))
            .collect();
        let edit = |rng: &mut StdRng| UserAction::Change(On::Shown(0, rng.random()), To::Edit);
        self.actions.steps.clear();
        if rng.random() {
            // The list that fills the entry.
            let filled_at = millis(16_000);
            let edited_at = filled_at + within(rng, 4_000..4_500);
            let asked_at = edited_at + within(rng, 9_500..10_500);
            self.actions.steps = vec![(edited_at, author, edit(rng))];
            self.refuse(StoreKey::Forgets, edited_at - millis(50), FAULT_PERIOD);
            self.faults = vec![
                (filled_at, Fault::Cut(reader)),
                (asked_at, Fault::Cut(reader)),
                // The list has come by then.
                (
                    asked_at + millis(4_000),
                    Fault::Away(reader, millis(15_000)),
                ),
            ];
            return;
        }
        self.refuse(StoreKey::SlowForgets, millis(8_000), FAULT_PERIOD);
        for round in 0..ROUNDS {
            let cut_at = millis(8_000 + round * 10_000);
            self.faults.push((cut_at, Fault::Cut(reader)));
            let edited_at = cut_at + within(rng, 0..1_000);
            self.actions.steps.push((edited_at, author, edit(rng)));
        }
    }

    /// A member sends at the moment of its removal: the station does not know of it yet, and the
    /// writer refuses the message. The station dies before the dedupe key is done, the sender is
    /// added again, and the same send comes again, under the same id. The carrier then reads both
    /// records anew, as the log took no commits meanwhile.
    fn add_outsiders(&mut self, rng: &mut StdRng) {
        const ROUNDS: u64 = 2;
        let (owner, sender) = (0, 1);
        let millis = Duration::from_millis;
        self.death_share = 0.0;
        self.wait_max = millis(40);
        self.hosts = vec![
            Service::Horn,
            Service::Carrier,
            Service::Station,
            Service::Station,
            Service::Boat,
        ];
        let carrier = self.any_host(Service::Carrier, rng);
        let group = GroupId::new(1_100).expect("positive");
        let open = GroupSettings {
            open_history: true,
            ..GroupSettings::CLOSED
        };
        let command = |action| UserAction::Group(group, action);
        let create = command(GroupAction::Create(open, 0b111));
        let mut steps = vec![(millis(1_000), owner, create)];
        for round in 0..ROUNDS {
            let removed_at = millis(6_000 + round * 18_000);
            let says_at = removed_at + within(rng, 5..60);
            // After the record is appended, before its dedupe key is done.
            let dies_at = says_at + within(rng, 10..90);
            let station = self.any_host(Service::Station, rng);
            steps.extend([
                (removed_at - millis(700), sender, UserAction::Say(group)),
                (removed_at, owner, command(GroupAction::Remove(sender))),
                (says_at, sender, UserAction::Say(group)),
                (
                    dies_at + millis(100),
                    owner,
                    command(GroupAction::Add(sender)),
                ),
            ]);
            let restart_at = removed_at + within(rng, 2_500..6_000);
            let commits_end = restart_at + millis(100);
            self.refuse(StoreKey::Commits, removed_at - millis(500), commits_end);
            self.refuse(StoreKey::DedupeEnds, says_at, dies_at);
            self.faults.extend([
                (dies_at, Fault::Cut(sender)),
                (dies_at, Fault::Crash(station)),
                (restart_at, Fault::Crash(carrier)),
            ]);
        }
        self.actions.steps = steps;
    }
}

/// One end for all poison of a world.
fn poison_end(rng: &mut StdRng) -> PoisonEnd {
    if rng.random() {
        PoisonEnd::At(Duration::from_millis(38_000))
    } else {
        PoisonEnd::After(within(rng, 100..2_000))
    }
}

/// Change of a message; a recall only where it is wanted.
fn change(rng: &mut StdRng, may_recall: bool) -> To {
    match rng.random_range(0..8) {
        0 | 1 => To::Pin(rng.random()),
        2 => To::Edit,
        3 if may_recall => To::Recall,
        _ => To::React(rng.random_range(0..2), rng.random_bool(0.6)),
    }
}

/// Random time in a range of milliseconds.
fn within(rng: &mut StdRng, range: Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

/// So many sends between users of a scene.
fn sends(rng: &mut StdRng, count: usize, range: Range<u64>) -> Vec<(Duration, usize, usize)> {
    let sends = (0..count).map(|_| {
        let from = rng.random_range(0..USERS);
        let to = (from + rng.random_range(1..USERS)) % USERS;
        (within(rng, range.clone()), from, to)
    });
    sends.collect()
}
