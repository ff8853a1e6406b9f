//! One seeded world: devices, boats, stations, a carrier and the stores under them, and a clock
//! that jumps from event to event. Another event, also a crash, may come between any two effects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::conversation::Head;
use protocol::keys::Topic;
use protocol::mailbox::{DedupeKey, FirstSend};
use protocol::record::Work;
use protocol::{ConversationId, DeviceId, Platform, SendId, Timestamp, UserId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::actions::{FAULT_PERIOD, START, user};

use crate::boat::{Boat, BoatEvent};
use crate::cache::Copies;
use crate::carrier::{Carrier, CarrierEvent};
use crate::clocks::Host;
use crate::device::{Device, DeviceEvent};
use crate::effects::{Answer, Disk, Effect};
use crate::judge::Judge;
use crate::letters::{Operator, OperatorEvent};
use crate::oracle::{Tally, Witness};
use crate::plan::{Fault, Plan, Sabotage};
use crate::station::{CallEvent, Calls, Station};
use crate::wire::{Connections, WireEvent};

/// Time without faults after which a world must have come to rest.
const QUIET_PERIOD: Duration = Duration::from_secs(600);
/// Time in which devices that came back sync.
const RETURN_PERIOD: Duration = Duration::from_secs(90);
/// Most events before a world must come to rest; more are a loop.
const EVENTS_MAX: u64 = 400_000;

#[derive(Debug)]
pub(crate) enum Event {
    Wire(WireEvent),
    Boat(BoatEvent),
    Call(CallEvent),
    Carrier(CarrierEvent),
    Device(DeviceEvent),
    Operator(OperatorEvent),
    Fault(Fault),
    Heal,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Option<Sabotage>,
    /// The right time.
    pub(crate) now: Timestamp,
    /// Differences of hosts' clocks from it, in milliseconds.
    pub(crate) clocks: BTreeMap<Host, i64>,
    pub(crate) is_healed: bool,
    pub(crate) rng: StdRng,
    /// Random numbers for times between reads, apart from `rng`, whose sequence must not change.
    pub(crate) dice: StdRng,
    pub(crate) disk: Disk,
    pub(crate) copies: Copies,
    pub(crate) wire: Connections,
    pub(crate) boats: Vec<Boat>,
    pub(crate) calls: Calls,
    pub(crate) stations: Vec<Station>,
    pub(crate) carrier: Carrier,
    /// Heads that older carriers remember, by life.
    pub(crate) older_heads: BTreeMap<u32, BTreeMap<ConversationId, Head>>,
    /// True during a step of an older carrier.
    pub(crate) is_older: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) operator: Operator,
    pub(crate) judge: Judge,
    pub(crate) witness: Witness,
    /// Hash of all events and effects: the same for the same seed.
    pub(crate) fingerprint: u64,
    /// Sends whose records have made a carrier panic.
    pub(crate) panicking_sends: BTreeSet<SendId>,
    /// True once the machine died with registers that were not on disk.
    pub(crate) reads_lost: bool,
    /// Whether each event is printed.
    is_traced: bool,
    /// Last serial number given out.
    serial: i64,
    events: BTreeMap<(Timestamp, u64), Event>,
    event_count: u64,
}

impl World {
    pub(crate) fn new((plan, rng): (Plan, StdRng), sabotage: Option<Sabotage>) -> World {
        let platforms = [Platform::Ios, Platform::Web, Platform::Desktop];
        let devices = plan
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| {
                let name = DeviceId::new(&format!("device-{index}")).expect("short");
                let platform = platforms[device.platform];
                let mut device = Device::new(user(device.user), platform, name);
                device.lists_may_be_ahead = plan.steps_clocks();
                device
            })
            .collect();
        let mut world = World {
            disk: Disk::new(plan.is_embedded),
            copies: Copies::default(),
            boats: (0..plan.boats).map(Boat::new).collect(),
            stations: (0..plan.stations).map(|_| Station::new()).collect(),
            carrier: Carrier::new(plan.partitions, plan.limits()),
            older_heads: BTreeMap::new(),
            is_older: false,
            wire: Connections::default(),
            calls: Calls::default(),
            operator: Operator::default(),
            judge: Judge::default(),
            witness: Witness::default(),
            devices,
            plan,
            sabotage,
            now: START,
            clocks: BTreeMap::new(),
            is_healed: false,
            dice: StdRng::seed_from_u64(rng.clone().random()),
            rng,
            fingerprint: 0,
            panicking_sends: BTreeSet::new(),
            reads_lost: false,
            is_traced: std::env::var_os("PACKETBOAT_SIM_TRACE").is_some(),
            serial: 0,
            events: BTreeMap::new(),
            event_count: 0,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for index in 0..self.stations.len() {
            self.start_station(index);
        }
        self.start_carrier();
        for (index, _) in self.plan.devices.clone().iter().enumerate() {
            let delay = self
                .plan
                .actions
                .delays
                .get(index)
                .copied()
                .unwrap_or_default();
            let wait = delay + self.up_to(Duration::from_secs(5));
            self.after(wait, Event::Device(DeviceEvent::Start { device: index }));
        }
        for (index, (at, from, to)) in self.plan.sends.clone().into_iter().enumerate() {
            let send = DeviceEvent::Send {
                device: from,
                to: user(to),
                number: index,
            };
            self.after(at, Event::Device(send));
        }
        for (number, (at, device, action)) in
            self.plan.actions.steps.clone().into_iter().enumerate()
        {
            let action = DeviceEvent::Do {
                device,
                action,
                number,
            };
            self.after(at, Event::Device(action));
        }
        for (at, fault) in self.plan.faults.clone() {
            self.after(at, Event::Fault(fault));
        }
        for at in self.plan.letters.redrives.clone() {
            self.after(at, Event::Operator(OperatorEvent::Redrive));
        }
        self.after(FAULT_PERIOD, Event::Heal);
    }

    /// Runs to the end and judges. Returns the fingerprint and the right verdicts, or the finding.
    pub(crate) fn run(mut self) -> Result<(u64, Tally), String> {
        let end = START + FAULT_PERIOD + QUIET_PERIOD;
        self.run_until(end)?;
        let tally = self.judge_all()?;
        if !self.plan.is_plain() {
            self.come_back();
            self.run_until(end + RETURN_PERIOD)?;
            self.judge_return()?;
        }
        Ok((self.fingerprint, tally))
    }

    fn run_until(&mut self, end: Timestamp) -> Result<(), String> {
        let mut events = 0;
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= end
        {
            let ((at, number), event) = entry.remove_entry();
            self.now = at;
            events += 1;
            if events > EVENTS_MAX {
                return Err("the world does not come to rest".into());
            }
            self.note(at.millis() as u64 ^ number);
            self.trace(|| format!("{event:?}"));
            self.dispatch(event);
            if let Some(finding) = self.judge.finding() {
                return Err(finding);
            }
        }
        Ok(())
    }

    /// Cuts the connections of all devices, which then sync, and adds for each user a new device
    /// that knows nothing.
    fn come_back(&mut self) {
        for index in self.standing_devices() {
            self.cut_device(index);
        }
        let users: BTreeSet<UserId> = self.devices.iter().map(|device| device.user).collect();
        for user in users {
            let index = self.devices.len();
            let name = DeviceId::new(&format!("newcomer-{user}")).expect("short");
            let mut newcomer = Device::new(user, Platform::Pad, name);
            newcomer.lists_may_be_ahead = self.plan.steps_clocks();
            self.devices.push(newcomer);
            let start = DeviceEvent::Start { device: index };
            self.after(Duration::ZERO, Event::Device(start));
            // Some die before they have everything.
            let wait = self.up_to(Duration::from_millis(600));
            self.after(wait, Event::Fault(Fault::CrashDevice(index)));
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Wire(event) => self.wire_event(event),
            Event::Boat(event) => self.boat_event(event),
            Event::Call(event) => self.call_event(event),
            Event::Carrier(event) => self.carrier_event(event),
            Event::Device(event) => self.device_event(event),
            Event::Operator(event) => self.operator_event(event),
            Event::Fault(fault) => self.fault(fault),
            Event::Heal => self.heal(),
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::CrashBoat(boat) => self.crash_boat(boat),
            Fault::CrashStation(station) => self.crash_station(station),
            Fault::CrashCarrier => self.crash_carrier(),
            Fault::CrashDevice(device) => self.crash_device(device),
            Fault::LoseDevice(device) => self.lose_device(device),
            Fault::Away(device, duration) => self.leave_network(device, duration),
            Fault::Cut(device) => self.cut_device(device),
            Fault::Mute(device, duration) => self.mute_device(device, duration),
            Fault::FlushMailbox => {
                let marker = self.rng.random();
                self.apply(Effect::Flush { marker });
                self.copies.clear();
            }
            Fault::CacheAway(duration) => self.lose_invalidations(duration),
            Fault::CrashAll => self.crash_all(),
            Fault::CrashOperator => self.crash_operator(),
            Fault::Rebalance => self.rebalance(),
            Fault::SetBack(share) => self.set_offsets_back(share),
            Fault::StepClock(host, offset) => self.step_clock(host, offset),
            Fault::Silence(boat, duration) => self.silence_boat(boat, duration),
        }
    }

    /// Crashes the machine with all four services; devices live on.
    pub(crate) fn crash_all(&mut self) {
        (0..self.boats.len()).for_each(|boat| self.crash_boat(boat));
        (0..self.stations.len()).for_each(|station| self.crash_station(station));
        self.crash_carrier();
        if self.plan.letters.has_operator() {
            self.crash_operator();
        }
        self.copies.clear();
        let luck = self.rng.random();
        let old_positions = self.disk.read();
        self.disk.crash(luck);
        self.reads_lost |= self.disk.read() != old_positions;
        self.remember_sends();
    }

    /// Rebuilds the dedupe keys from the log: they were in memory.
    fn remember_sends(&mut self) {
        let log = self
            .disk
            .log
            .iter()
            .filter(|((topic, _), _)| *topic == Topic::Message);
        let tasks: Vec<_> = log
            .flat_map(|(_, records)| records)
            .map(|r| r.task.clone())
            .collect();
        for task in tasks {
            let Work::Message(work) = &task.work else {
                continue;
            };
            let (from, send_id) = (work.message.from, work.message.send_id);
            let (key, now) = (DedupeKey { from, send_id }, self.now);
            let first_send = FirstSend {
                id: work.message.id,
                conversation: work.message.conversation().expect("two users"),
            };
            self.apply(Effect::DedupeBegin {
                key,
                candidate: first_send,
                now,
            });
            self.apply(Effect::DedupeDone { key, first_send });
        }
    }

    fn heal(&mut self) {
        self.is_healed = true;
        self.plan.call_loss = 0.0;
        self.plan.call_slow = 0.0;
    }

    /// Applies an effect now.
    pub(crate) fn apply(&mut self, effect: Effect) -> Answer {
        self.note(1 + self.disk.mark() as u64);
        self.disk.apply(effect)
    }

    /// Schedules `event` after `wait`.
    pub(crate) fn after(&mut self, wait: Duration, event: Event) {
        self.at(self.now + wait, event);
    }

    pub(crate) fn at(&mut self, at: Timestamp, event: Event) {
        self.event_count += 1;
        self.events
            .insert((at.max(self.now), self.event_count), event);
    }

    /// Random latency, up to the most of the plan.
    pub(crate) fn hop(&mut self) -> Duration {
        self.up_to(self.plan.latency_max)
    }

    pub(crate) fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_millis(self.rng.random_range(0..=max.as_millis() as u64))
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now.since(START)
    }

    /// Next serial number, for anything.
    pub(crate) fn next_serial(&mut self) -> i64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.is_traced
    }

    /// Prints an event if a trace is asked for.
    pub(crate) fn trace(&self, describe: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>8} {}", self.now.since(START).as_millis(), describe());
        }
    }

    fn note(&mut self, value: u64) {
        self.fingerprint = (self.fingerprint ^ value)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(7);
    }
}
