//! World of a seed: its participants, and its faults with their times.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tests::actions::{FAULT_PERIOD, UserActions, moment};
use tests::world::{Risks, Server};

use crate::scenes::SceneFaults;

/// Services of a world, in the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    Horn,
    Carrier,
    Station,
    Boat,
    /// Works at the desk for dead letters.
    Operator,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A host dies between two calls, and restarts a little later.
    Crash(usize),
    /// A host leaves in order, and restarts.
    Restart(usize),
    /// A host reaches no part and no other host for this time; its clients reach it.
    Isolate(usize, Duration),
    /// No host reaches this server for this time.
    Outage(Server, Duration),
    /// Discovery drops the registration of a host.
    Revoke(usize),
    CrashDevice(usize),
    /// The connection ends; frames under way are lost.
    Cut(usize),
    /// The device has no network for this time.
    Away(usize, Duration),
    /// The device reads nothing for this time.
    Mute(usize, Duration),
    /// The clock of a host is this many milliseconds off from now on.
    StepClock(usize, i64),
    /// Reads of a host take seconds for this time.
    SlowReads(usize, Duration),
}

/// Loss of all memory, of all hosts and of the newest writes to the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PowerCut {
    /// Time before it in which the disk answers no fsync.
    pub(crate) stall: Duration,
    /// Share of the writes without an fsync that are on the disk: the first ones.
    pub(crate) written_share: f64,
}

/// User and platform of a device, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DevicePlan {
    pub(crate) user: usize,
    pub(crate) platform: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) hosts: Vec<Service>,
    pub(crate) devices: Vec<DevicePlan>,
    pub(crate) partitions: u32,
    /// Time, sender and recipient of each message.
    pub(crate) sends: Vec<(Duration, usize, usize)>,
    pub(crate) actions: UserActions,
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// Cuts in the order of their times; each comes after the stall of the one before.
    pub(crate) power_cuts: Vec<(Duration, PowerCut)>,
    /// Share of hosts' lives that end at a call with an effect.
    pub(crate) death_share: f64,
    /// Share of calls that fail without an effect.
    pub(crate) failure_share: f64,
    /// Share of calls whose answer is lost.
    pub(crate) lost_share: f64,
    /// Share of calls that are never answered.
    pub(crate) hang_share: f64,
    /// Longest call if nothing is wrong.
    pub(crate) wait_max: Duration,
    /// Whether stations cache pages.
    pub(crate) keeps_pages: bool,
    pub(crate) scene: SceneFaults,
}

const PLATFORMS: usize = 3;
/// Latest power cut: three stalls in a row end before the trouble does.
const LAST_CUT: Duration = FAULT_PERIOD.saturating_sub(Duration::from_secs(6));

impl Plan {
    pub(crate) fn of(seed: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut hosts = vec![Service::Horn];
        let services = [Service::Carrier, Service::Station, Service::Boat];
        for service in services {
            let count = rng.random_range(1..=2);
            hosts.extend(std::iter::repeat_n(service, count));
        }
        let users = rng.random_range(2..=4);
        let mut devices = Vec::new();
        for user in 0..users {
            let first = rng.random_range(0..PLATFORMS);
            for number in 0..rng.random_range(1..=2) {
                let platform = (first + number) % PLATFORMS;
                devices.push(DevicePlan { user, platform });
            }
        }
        let mut sends = Vec::new();
        for _ in 0..rng.random_range(10..60) {
            let (from, to) = (
                rng.random_range(0..devices.len()),
                rng.random_range(0..users),
            );
            if devices[from].user != to {
                sends.push((moment(&mut rng), from, to));
            }
        }
        let is_quiet = rng.random_bool(0.1);
        let never_fails = is_quiet || rng.random_bool(0.4);
        let mut share = |max: f64| {
            if never_fails {
                0.0
            } else {
                rng.random_range(0.0..max)
            }
        };
        let (failure_share, lost_share, hang_share) = (share(0.03), share(0.02), share(0.003));
        let faults = if is_quiet { 0 } else { rng.random_range(1..10) };
        let faults = (0..faults).map(|_| {
            let fault = fault(&mut rng, hosts.len(), devices.len());
            (moment(&mut rng), fault)
        });
        Plan {
            seed,
            faults: faults.collect(),
            power_cuts: Vec::new(),
            actions: UserActions::of(seed, devices.len(), users),
            hosts,
            devices,
            partitions: rng.random_range(1..=3),
            sends,
            death_share: if is_quiet {
                0.0
            } else {
                rng.random_range(0.0..0.7)
            },
            failure_share,
            lost_share,
            hang_share,
            wait_max: Duration::from_millis(rng.random_range(0..40)),
            keeps_pages: rng.random_bool(0.5),
            scene: SceneFaults::default(),
        }
    }

    /// The same world, on a machine that loses its power once or more. Dice of its own, so that
    /// worlds without power cuts stay as they are.
    pub(crate) fn with_power_cuts(seed: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x90_E6);
        let cuts = (0..rng.random_range(1..=3)).map(|_| {
            let stall = Duration::from_millis(rng.random_range(0..2_000));
            let written_share = match rng.random_range(0..4) {
                0 => 0.0,
                1 => 1.0,
                _ => rng.random_range(0.0..1.0),
            };
            let at = moment(&mut rng).min(LAST_CUT);
            (
                at,
                PowerCut {
                    stall,
                    written_share,
                },
            )
        });
        let mut power_cuts: Vec<_> = cuts.collect();
        power_cuts.sort_by_key(|(at, _)| *at);
        Plan {
            power_cuts,
            ..Plan::of(seed)
        }
    }

    /// Whether nothing fails and nothing ends.
    pub(crate) fn is_quiet(&self) -> bool {
        self.faults.is_empty()
            && self.power_cuts.is_empty()
            && !self.scene.has_troubles()
            && self.death_share == 0.0
            && self.failure_share == 0.0
    }

    fn clock_steps(&self) -> impl Iterator<Item = (usize, i64)> {
        self.faults.iter().filter_map(|(_, fault)| match fault {
            Fault::StepClock(host, offset) => Some((*host, *offset)),
            _ => None,
        })
    }

    pub(crate) fn steps_clocks(&self) -> bool {
        self.clock_steps().next().is_some()
    }

    /// Whether the clock of a carrier is far behind for a time. Rows that it writes then are in no
    /// list difference: these are complete while clocks differ by less than half of the look-back.
    pub(crate) fn lists_miss_rows(&self) -> bool {
        self.clock_steps()
            .any(|(host, offset)| offset < 0 && self.hosts[host] == Service::Carrier)
    }

    /// Risks of each life of a host.
    pub(crate) const fn risks(&self) -> Risks {
        Risks {
            death_share: self.death_share,
            failure_share: self.failure_share,
            lost_share: self.lost_share,
            hang_share: self.hang_share,
            wait_max: self.wait_max,
        }
    }
}

fn fault(rng: &mut StdRng, hosts: usize, devices: usize) -> Fault {
    let (host, device) = (rng.random_range(0..hosts), rng.random_range(0..devices));
    let duration = Duration::from_millis(rng.random_range(500..15_000));
    match rng.random_range(0..18) {
        0..=4 => Fault::Crash(host),
        5 | 6 => Fault::Restart(host),
        12 | 13 => Fault::Isolate(host, duration),
        14 => Fault::Revoke(host),
        15..=17 => Fault::Outage(Server::ALL[rng.random_range(0..4)], duration),
        7 => Fault::CrashDevice(device),
        8 | 9 => Fault::Cut(device),
        10 => Fault::Away(device, duration),
        _ => Fault::Mute(device, duration),
    }
}
