//! Random answers of the mailbox and the boats, in random order.

use proptest::prelude::*;

use super::*;

/// One random event; the numbers choose among the possible targets.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send { to: i64, options: u8 },
    SignIn { user: i64, platform: u8 },
    SignOut { nth: usize },
    Answer { nth: usize, outcome: u8 },
    Mailbox { state: u8 },
    Pass { millis: u64 },
    Retry,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (BOB..BOB + 3, 0u8..8).prop_map(|(to, options)| Step::Send { to, options }),
        2 => (ALICE..BOB + 3, 0u8..2).prop_map(|(user, platform)| Step::SignIn { user, platform }),
        1 => any::<usize>().prop_map(|nth| Step::SignOut { nth }),
        8 => (any::<usize>(), 0u8..8).prop_map(|(nth, outcome)| Step::Answer { nth, outcome }),
        1 => (0u8..4).prop_map(|state| Step::Mailbox { state }),
        2 => (1u64..2_000).prop_map(|millis| Step::Pass { millis }),
        1 => Just(Step::Retry),
    ]
}

const PLATFORMS: [Platform; 2] = [Platform::Ios, Platform::Web];

struct Judge {
    world: World,
    next_message: i64,
    next_session: i64,
    /// Every settlement of a message, in order.
    history: BTreeMap<MessageId, Vec<Settlement>>,
    sources: BTreeSet<Source>,
}

impl Judge {
    fn take(&mut self, step: Step) {
        let world = &mut self.world;
        match step {
            Step::Send { to, options } => {
                self.next_message += 1;
                let options = Options::from_bits(options).expect("three bits");
                world.send(self.next_message, to, &PLATFORMS, options);
            }
            Step::SignIn { user, platform } => {
                self.next_session += 1;
                world.sign_in(user, PLATFORMS[usize::from(platform)], self.next_session);
            }
            Step::SignOut { nth } => {
                let all: Vec<i64> = (world.live.values().flatten())
                    .map(|entry| entry.session.get())
                    .collect();
                if !all.is_empty() {
                    world.sign_out(all[nth % all.len()]);
                }
            }
            Step::Answer { nth, outcome } if !world.pushes.is_empty() => {
                let push = world.pushes.remove(nth % world.pushes.len());
                let outcome = match outcome {
                    0 => PushOutcome::NoAck,
                    1 => PushOutcome::NoSession,
                    2 => PushOutcome::Full,
                    3 => PushOutcome::Unreachable,
                    _ => PushOutcome::Done,
                };
                world
                    .delivery
                    .handle_outcome(world.now, push.token, outcome);
                world.drain();
            }
            Step::Answer { .. } => {}
            Step::Mailbox { state } => {
                world.mailbox_fails = match state {
                    0 => Some(RouteFailure::Unavailable),
                    1 => Some(RouteFailure::Refused),
                    _ => None,
                };
            }
            Step::Pass { millis } => world.pass(Duration::from_millis(millis)),
            Step::Retry => self.retry(),
        }
        self.read();
    }

    fn retry(&mut self) {
        self.read();
        let mut due_tasks = Vec::new();
        for settlement in self.history.values_mut().flatten() {
            // Every retry is submitted once.
            for retry in std::mem::take(&mut settlement.retries) {
                due_tasks.push(World::retry_task(settlement, &retry));
            }
        }
        due_tasks
            .into_iter()
            .for_each(|task| self.world.submit(task));
    }

    fn read(&mut self) {
        for settlement in std::mem::take(&mut self.world.settlements) {
            assert!(self.sources.insert(settlement.source), "settled twice");
            let message = settlement.task.placed.message.id;
            for retry in &settlement.retries {
                assert!(retry.retry_count >= settlement.task.retry_count);
                assert!(retry.retry_count <= DeliveryLimits::default().retry_max);
                assert!(retry.due_at > self.world.now);
            }
            self.history.entry(message).or_default().push(settlement);
        }
    }

    /// Heals the mailbox, and acknowledges every push.
    fn heal(&mut self) {
        self.world.mailbox_fails = None;
        for _ in 0..20 {
            while !self.world.pushes.is_empty() {
                self.take(Step::Answer { nth: 0, outcome: 7 });
            }
            self.retry();
            self.read();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_obligation_ends_exactly_once(steps in prop::collection::vec(step(), 1..120)) {
        let mut judge = Judge {
            world: World::with(DeliveryLimits { lane_window: 2, lane_max: 4, ..DeliveryLimits::default() }),
            next_message: 0,
            next_session: 100,
            history: BTreeMap::new(),
            sources: BTreeSet::new(),
        };
        steps.into_iter().for_each(|step| judge.take(step));
        judge.heal();

        prop_assert!(judge.world.delivery.is_idle());
        let load = judge.world.delivery.load();
        prop_assert_eq!((load.records, load.pushes, load.lanes), (0, 0, 0));
        prop_assert_eq!(judge.sources.len() as u64, judge.world.next_offset);
        prop_assert_eq!(judge.history.len() as i64, judge.next_message);
        for (message, settlements) in &judge.history {
            let mut counts: BTreeMap<Target, usize> = BTreeMap::new();
            for (target, _) in settlements.iter().flat_map(ends) {
                if let Some(target) = target.filter(|target| target.user != user(ALICE)) {
                    *counts.entry(target).or_default() += 1;
                }
            }
            // Both known platforms, online or not; no other was ever signed in on.
            prop_assert_eq!(counts.len(), 2, "{:?}: {:?}", message, settlements);
            prop_assert!(counts.values().all(|count| *count == 1), "{:?}: {:#?}", message, settlements);
            // `StoredOffline` in the ledger if and only if the mailbox has it.
            for target in counts.keys() {
                let is_noted = settlements.iter().flat_map(ends)
                    .any(|(t, event)| t == Some(*target) && *event == LedgerEvent::StoredOffline);
                prop_assert_eq!(is_noted, judge.world.stored_mail.contains(&(*target, *message)));
            }
        }
    }
}
