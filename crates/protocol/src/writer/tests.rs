//! Logs as values: decided in one part or in many, again from any record, and after a crash between any two effects,
//! they come to the same.

pub(crate) mod log;
pub(crate) mod store;

use bytes::Bytes;
use proptest::prelude::*;

use self::log::{Act, EncodeDebug, Log, acts, group, message_to, user};
use self::store::{Store, delivery_frames, leaks};
use super::{
    Batch, Effect, Facts, NoPlan, Parts, ROUNDS_MAX, RecordOutcome, RetryFailure, Rules, bury,
    decide, retry,
};
use crate::change::ChangeKind;
use crate::conversation::StoredPosition;
use crate::delivery::Source;
use crate::event::{Encode, Event};
use crate::group::GroupCommand;
use crate::ledger::DeadReason;
use crate::message::Target;
use crate::message_row::Owner;
use crate::record::{RetryTask, Task, TaskRecord, Work};
use crate::{ConversationId, Placed, Platform, Position, Seq, Timestamp, TraceContext};

pub(crate) const NOON: Timestamp = Timestamp::from_millis(1_750_000_000_000);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A record comes to the same, whatever is decided together with it.
    #[test]
    fn any_split_of_a_log_gives_the_same_stores_and_deliveries(acts in acts()) {
        let log = Log::of(&acts);
        let (mut whole, mut single) = (Store::new(), Store::new());
        let whole_plans = whole.write(&log.records());
        let mut single_plans = Vec::new();
        for record in log.records() {
            single_plans.extend(single.write(&[record]));
        }
        prop_assert_eq!(&whole, &single);
        prop_assert_eq!(delivery_frames(&whole_plans), delivery_frames(&single_plans));
    }

    /// Offsets that were set back change nothing, and deliveries go out with the positions that they had. Events of group
    /// commands tell the roles of now, and what was recalled is not said again.
    #[test]
    fn a_replay_from_any_record_changes_nothing(acts in acts(), from in any::<prop::sample::Index>()) {
        let log = Log::of(&acts);
        let mut store = Store::new();
        let first = store.write(&log.records());
        let snapshot = store.clone();
        let from = from.index(log.records().len());
        let replay = store.write(&log.records()[from..]);
        prop_assert_eq!(&store, &snapshot);
        prop_assert_eq!(leaks(&replay, &store), Default::default());
        let first = delivery_frames(&first);
        let is_recalled = |source: &Source| {
            let mut deliveries = replay.iter().flat_map(|plan| &plan.handover.deliver);
            deliveries.any(|(task_source, task)| task_source == source && store.is_recalled(&task.placed))
        };
        let is_same = |source: &Source| !log.is_command(source.offset) && !is_recalled(source);
        for (source, frames) in delivery_frames(&replay).into_iter().filter(|(source, _)| is_same(source)) {
            prop_assert_eq!(first.get(&source), Some(&frames), "{}", source);
        }
    }

    /// A crash between any two writes brings the records back, and nothing is left of it.
    #[test]
    fn a_crash_between_any_two_writes_leaves_nothing_behind(
        acts in acts(),
        part in any::<prop::sample::Index>(),
        write in any::<prop::sample::Index>(),
    ) {
        let log = Log::of(&acts);
        let mut clean = Store::new();
        clean.write(&log.records());
        let mut crashed_store = Store::new();
        crashed_store.crash_in(&log.records(), part, write);
        crashed_store.write(&log.records());
        prop_assert_eq!(&crashed_store, &clean);
    }

    /// Messages and changes whose handling panics, but not once more after a crash between any two writes: each
    /// conversation has a message at each position, and each of its rows knows the same one; changes are dense, and a
    /// change that died is dead again.
    #[test]
    fn a_death_by_chance_moves_no_neighbour(
        acts in acts(),
        poison in prop::collection::vec(any::<bool>(), 26),
        plan in any::<prop::sample::Index>(),
        write in any::<prop::sample::Index>(),
    ) {
        let mut log = Log::of(&acts);
        let poison_acts = poison.iter().enumerate().filter(|(_, is_poison)| **is_poison);
        poison_acts.for_each(|(number, _)| _ = log.poison(number));
        let mut store = Store::new();
        let first = store.crash_in(&log.records(), plan, write);
        store.makes_all_frames = true;
        let second_run = store.write(&log.records());
        prop_assert_eq!(store.holes(), Vec::<String>::new());
        let second_run: Vec<_> = second_run.iter().flat_map(|plan| &plan.outcomes).collect();
        for (number, outcome) in first.iter().enumerate() {
            if let (RecordOutcome::Dead(_), true) = (outcome, log.is_change(number)) {
                prop_assert!(matches!(second_run[number], RecordOutcome::Dead(_)), "{} is {:?}", number, second_run[number]);
            }
        }
    }

    /// Applying an effect twice is applying it once, and an earlier one behind a later one is nothing.
    #[test]
    fn effects_may_be_applied_again(acts in acts(), effect_index in any::<prop::sample::Index>()) {
        let log = Log::of(&acts);
        let mut store = Store::new();
        let effects = store.list_effects(&log.records());
        let snapshot = store.clone();
        if !effects.is_empty() {
            store.apply(&effects[effect_index.index(effects.len())]);
        }
        prop_assert_eq!(&store, &snapshot);
    }

    /// Facts that nobody asked for decide nothing, and no fact is asked for twice.
    #[test]
    fn more_facts_never_change_a_decision(acts in acts()) {
        let log = Log::of(&acts);
        let mut store = Store::new();
        let all = log.records();
        let mut parts = Parts::of(&all, usize::MAX);
        while let Some(part) = parts.take() {
            let batch = Batch { epoch: 1, records: &all[part] };
            let (plan, facts) = store.decide(&batch, NOON);
            let all_facts = store.all_facts(&all, facts);
            let second_plan = decide(&batch, &all_facts, &rules(), NOON).expect("nothing is missing");
            prop_assert_eq!(format!("{plan:?}"), format!("{second_plan:?}"));
            store.apply_plan(&plan);
        }
    }

    /// The clock dates ledger entries, and decides nothing.
    #[test]
    fn only_the_ledger_depends_on_the_clock(acts in acts()) {
        let log = Log::of(&acts);
        let mut store = Store::new();
        let all = log.records();
        let mut parts = Parts::of(&all, usize::MAX);
        while let Some(part) = parts.take() {
            let batch = Batch { epoch: 1, records: &all[part] };
            let (first_plan, _) = store.decide(&batch, NOON);
            let (later_plan, _) = store.decide(&batch, NOON + std::time::Duration::from_secs(3600));
            prop_assert_eq!(format!("{:?}", first_plan.stages), format!("{:?}", later_plan.stages));
            prop_assert_eq!(&first_plan.outcomes, &later_plan.outcomes);
            store.apply_plan(&first_plan);
        }
    }
}

fn rules() -> Rules<'static> {
    Rules {
        push_max: 10,
        unsure_margin: std::time::Duration::from_secs(2),
        encode: &EncodeDebug,
    }
}

/// A head from before what stands: the record's own row is not where it would be placed next.
#[test]
fn a_writer_that_is_overtaken_stops() {
    let log = Log::of(&[Act::say(1, 2), Act::say(1, 2)]);
    let records = log.records();
    let mut store = Store::new();
    store.write(&records);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let stale = crate::conversation::Head {
        max_id: records[1].task.work.message(),
        ..Default::default()
    };
    store.cached_heads.insert(conversation, stale);
    let batch = Batch {
        epoch: 1,
        records: &records[1..],
    };
    let mut facts = Facts::default();
    let error = loop {
        match decide(&batch, &facts, &rules(), NOON) {
            Err(NoPlan::Missing(missing_facts)) => store.answer(&missing_facts, &mut facts),
            other => break other.err(),
        }
    };
    assert_eq!(error, Some(NoPlan::Overtaken(conversation)));
    // With the head as it is, the record is only a redelivery.
    store.cached_heads.clear();
    let (plan, _) = store.decide(&batch, NOON);
    assert_eq!(plan.outcomes, [RecordOutcome::Placed]);
}

/// A frame that cannot be made costs its own record alone, which gets no position.
#[test]
fn a_panic_is_the_end_of_its_record_alone() {
    let mut log = Log::of(&[Act::say(1, 2), Act::say(1, 2), Act::say(1, 2)]);
    if let Work::Message(task) = &mut log.tasks[1].work {
        task.message.content.data = log::PANICS.into();
    }
    let mut store = Store::new();
    let plans = store.write(&log.records());
    let outcomes: Vec<_> = plans.iter().flat_map(|plan| &plan.outcomes).collect();
    let dead = RecordOutcome::Dead(DeadReason::HandlerPanic);
    let expected = [&RecordOutcome::Placed, &dead, &RecordOutcome::Placed];
    assert_eq!(outcomes, expected);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    assert_eq!(store.heads[&conversation].seq, crate::Seq(2));
    // Again, and with it the record of the panic.
    store.write(&log.records());
    assert_eq!(store.heads[&conversation].seq, crate::Seq(2));
}

/// Crashes between the rows of a message and its head, behind one that died of a panic that does not come again: it
/// stays dead, as its death was written first. The twin forgets the death.
#[test]
fn a_message_that_died_stays_dead() {
    for forgets in [false, true] {
        let mut log = Log::of(&[
            Act::say(1, 2),
            Act::say(1, 2),
            Act::say(2, 1).late(),
            Act::say(1, 2),
        ]);
        assert!(log.poison(1));
        let records = log.records();
        let conversation = ConversationId::private(user(1), user(2)).expect("two");
        let mut store = Store::new();
        let mut parts = Parts::of(&records, usize::MAX);
        let death = store.next_plan(&records, &mut parts).expect("a plan");
        let dead = RecordOutcome::Dead(DeadReason::HandlerPanic);
        assert_eq!(death.outcomes, [RecordOutcome::Placed, dead]);
        store.apply_plan(&death);
        if forgets {
            let head = store.heads.get_mut(&conversation).expect("a head");
            head.version.offset = 0;
        }
        let plan = store.next_plan(&records, &mut parts).expect("the rest");
        store.apply(&plan.stages[0].0[0]);
        store.makes_all_frames = true;
        let batch = Batch {
            epoch: 1,
            records: &records,
        };
        let mut facts = Facts::default();
        let result = loop {
            match decide(&batch, &facts, &store.rules(), NOON) {
                Err(NoPlan::Missing(missing_facts)) => store.answer(&missing_facts, &mut facts),
                other => break other,
            }
        };
        if forgets {
            // The dead one takes the position of the late one, whose row is there already.
            assert_eq!(result.err(), Some(NoPlan::Overtaken(conversation)));
            continue;
        }
        let outcomes = result.expect("decided").outcomes;
        let placed_outcome = RecordOutcome::Placed;
        let dead = RecordOutcome::Dead(DeadReason::StoreRejected);
        assert_eq!(
            outcomes,
            [placed_outcome, dead, placed_outcome, placed_outcome]
        );
        store.write(&records);
        assert_eq!(store.holes(), Vec::<String>::new());
        assert_eq!(store.heads[&conversation].seq, Seq(3));
    }
}

/// Crashes behind any write of a change that died of a panic that does not come again, and behind all of them, before
/// its letter: it keeps its place, dead or alive, and what follows has the next one. Where the letter may be written
/// already, it is dead again.
#[test]
fn a_change_that_died_keeps_its_place() {
    let mut log = Log::of(&[
        Act::say(1, 2),
        Act::react(2, 1, true),
        Act::react(1, 2, true),
        Act::react(2, 1, false),
    ]);
    assert!(log.poison(2));
    let records = log.records();
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let kinds = |store: &Store| -> Vec<_> {
        let rows = store.changes.values();
        rows.map(|row| (row.version.offset, row.changed.has_died()))
            .collect()
    };
    let dead = RecordOutcome::Dead(DeadReason::HandlerPanic);
    let mut parts = Parts::of(&records, usize::MAX);
    let death = Store::new()
        .next_plan(&records, &mut parts)
        .expect("a plan");
    let outcomes = [RecordOutcome::Placed, RecordOutcome::Changed, dead];
    assert_eq!(death.outcomes, outcomes, "it ends the plan");
    let mut writes = 0;
    loop {
        let mut store = Store::new();
        let all = store.crash_behind(&records, writes);
        let is_over = store
            .heads
            .get(&conversation)
            .is_some_and(|head| head.rev == 2);
        store.makes_all_frames = true;
        let plans = store.write(&records);
        let outcomes: Vec<_> = plans.iter().flat_map(|plan| &plan.outcomes).collect();
        let third = if is_over {
            RecordOutcome::Dead(DeadReason::StoreRejected)
        } else {
            RecordOutcome::Changed
        };
        assert_eq!(outcomes[2..], [&third, &RecordOutcome::Changed], "{writes}");
        assert_eq!(kinds(&store), [(1, false), (2, is_over), (3, false)]);
        assert_eq!(store.heads[&conversation].rev, 3);
        assert_eq!(store.holes(), Vec::<String>::new(), "{writes}");
        if writes == all {
            assert!(is_over, "its letter may be written");
            break;
        }
        writes += 1;
    }
    assert!(writes > 5, "rows, changes, overlay, head, list rows");
}

/// A change that a store refuses is buried at its place. Behind a crash its row may stand, or that of its death, and
/// stays as it is.
#[test]
fn a_buried_change_keeps_its_place() {
    let log = Log::of(&[
        Act::say(1, 2),
        Act::react(2, 1, true),
        Act::react(1, 2, true),
        Act::react(2, 1, false),
    ]);
    let records = log.records();
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let bury_one = |store: &Store, index: usize| {
        let batch = Batch {
            epoch: 1,
            records: &records[index..=index],
        };
        let mut facts = Facts::default();
        for _ in 0..=ROUNDS_MAX {
            match bury(&batch, &facts, &rules(), "refused", NOON) {
                Ok(plan) => return plan,
                Err(NoPlan::Missing(missing_facts)) => store.answer(&missing_facts, &mut facts),
                Err(other) => panic!("{other:?}"),
            }
        }
        panic!("not decided");
    };
    let mut store = Store::new();
    store.write(&records[..2]);
    let snapshot = store.clone();
    let burial = bury_one(&store, 2);
    // Again behind its own row: as in a crash before the head.
    store.apply(&burial.stages[0].0[0]);
    let second_burial = bury_one(&store, 2);
    assert_eq!(
        format!("{:?}", second_burial.stages),
        format!("{:?}", burial.stages)
    );
    store.apply_plan(&second_burial);
    assert_eq!(store.heads[&conversation].rev, 2);
    store.write(&records[2..]);
    let outcome = |store: &mut Store| store.write(&records[2..3])[0].outcomes[0];
    let dead = RecordOutcome::Dead(DeadReason::StoreRejected);
    assert_eq!(outcome(&mut store), dead);
    assert_eq!(store.holes(), Vec::<String>::new());
    assert_eq!(store.heads[&conversation].rev, 3);
    // A letter is another record: what died is not there yet.
    let mut letter = records[2].task.clone();
    if let Work::Message(task) = &mut letter.work {
        task.letter = Some("message-0-2".to_owned());
    }
    let mut redriven = TaskRecord {
        task: &letter,
        ..records[2]
    };
    redriven.source.offset = 9;
    let plans = store.write(&[redriven]);
    assert_eq!(plans[0].outcomes, [RecordOutcome::Changed]);
    assert_eq!(store.heads[&conversation].rev, 4);
    assert_eq!(store.holes(), Vec::<String>::new());

    // Its own row stands, and nothing behind it: neither its effect nor the head.
    let mut store = snapshot;
    let plan = store.next_plan(&records[2..3], &mut Parts::of(&records[2..3], usize::MAX));
    let plan = plan.expect("a plan");
    let Effect::Changes(rows) = &plan.stages[0].0[0] else {
        panic!("{plan:?}");
    };
    store.changes.insert((conversation, 2), rows[0].clone());
    let burial = bury_one(&store, 2);
    store.apply_plan(&burial);
    assert!(!store.changes[&(conversation, 2)].changed.has_died());
    assert_eq!(store.heads[&conversation].rev, 2);
    assert_eq!(store.holes(), Vec::<String>::new());
}

/// A change whose message comes behind it changes nothing, also where a crash left the row of that message.
#[test]
fn a_message_behind_a_change_is_not_its_subject() {
    let log = Log::of(&[
        Act::say(1, 2),
        Act::change(2, 1, 0, ChangeKind::Pin { on: true }),
        Act::react(2, 1, true),
    ]);
    let mut records = log.records();
    records.swap(0, 1);
    for (offset, record) in (0..).zip(&mut records) {
        record.source.offset = offset;
    }
    let mut clean = Store::new();
    let outcomes = [
        RecordOutcome::Unchanged,
        RecordOutcome::Placed,
        RecordOutcome::Changed,
    ];
    assert_eq!(clean.write(&records)[0].outcomes, outcomes);
    let mut writes = 0;
    loop {
        let mut crashed_store = Store::new();
        let all = crashed_store.crash_behind(&records, writes);
        crashed_store.write(&records);
        assert_eq!(crashed_store, clean, "a crash behind {writes} writes");
        if writes == all {
            break;
        }
        writes += 1;
    }
    assert!(writes > 5, "rows, change, overlay, head, list rows");
}

/// A letter that was placed by a later redrive keeps that position; what came before that redrive does not know it.
#[test]
fn a_message_placed_by_a_later_letter_is_no_earlier_subject() {
    let log = Log::of(&[Act::say(1, 2), Act::change(2, 1, 0, ChangeKind::Hide)]);
    let mut store = Store::new();
    let mut records = log.records();
    store.write(&records[..1]);
    let mut letter = records[0].task.clone();
    if let Work::Message(task) = &mut letter.work {
        task.letter = Some("message-0-7".to_owned());
    }
    records[0].task = &letter;
    for version in [0, 5] {
        let rows = store.rows.values_mut();
        rows.for_each(|row| row.version.offset = version);
        let heads = store.heads.values_mut();
        heads.for_each(|head| head.version.offset = version);
        let batch = Batch {
            epoch: 1,
            records: &records,
        };
        let (plan, _) = store.decide(&batch, NOON);
        let hide_outcome = match version {
            0 => RecordOutcome::Listed,
            _ => RecordOutcome::Unchanged,
        };
        assert_eq!(plan.outcomes, [RecordOutcome::Placed, hide_outcome]);
    }
}

/// While nobody can tell whether a send was accepted, a client uses its send_id for another receiver, too: that is
/// another message, whether the two are decided together or not.
#[test]
fn one_send_id_for_two_receivers_is_two_messages() {
    let log = Log::of(&[
        Act::say(1, 2),
        Act::say(1, 3).repeating(0),
        Act::say(1, 2).repeating(0),
        Act::create(1, 100),
        Act::say_in(1, 100).repeating(0),
    ]);
    let mut store = Store::new();
    let plans = store.write(&log.records());
    let outcomes: Vec<_> = plans.iter().flat_map(|plan| &plan.outcomes).collect();
    let expected = [
        &RecordOutcome::Placed,
        &RecordOutcome::Placed,
        &RecordOutcome::Repeat,
        &RecordOutcome::Granted,
        &RecordOutcome::Placed,
    ];
    assert_eq!(outcomes, expected);
}

/// Under other send_ids, from other devices, in one batch and in several: one row, and the rest is nothing to do. A
/// crash behind the first row changes nothing of that.
#[test]
fn a_message_hidden_twice_is_hidden_once() {
    let hide = |by, to| Act::change(by, to, 0, ChangeKind::Hide);
    let log = Log::of(&[
        Act::say(1, 2),
        hide(1, 2),
        hide(1, 2),
        hide(2, 1),
        hide(1, 2),
    ]);
    let records = log.records();
    let (mut whole_store, mut split_store) = (Store::new(), Store::new());
    let plans = whole_store.write(&records);
    for record in &records {
        split_store.write(&[*record]);
    }
    let outcomes = [
        RecordOutcome::Placed,
        RecordOutcome::Listed,
        RecordOutcome::Unchanged,
        RecordOutcome::Listed,
        RecordOutcome::Unchanged,
    ];
    assert_eq!(plans[0].outcomes, outcomes);
    assert_eq!(whole_store.hide_marks.len(), 2);
    assert_eq!(whole_store, split_store);
    let replay = whole_store.write(&records[1..]);
    assert_eq!(replay[0].outcomes, outcomes[1..]);
    assert_eq!(whole_store, split_store);
}

/// A letter of a message that has its place, and of an edit of it: once it is recalled, neither says it again.
#[test]
fn recalled_text_is_in_no_redriven_letter() {
    let edit = Act::change(1, 2, 0, ChangeKind::Edit);
    let log = Log::of(&[
        Act::say(1, 2),
        edit,
        Act::change(1, 2, 0, ChangeKind::Recall),
    ]);
    let mut store = Store::new();
    store.write(&log.records());
    let letters = [0, 1].map(|index| {
        let mut task = log.tasks[index].clone();
        if let Work::Message(task) = &mut task.work {
            task.letter = Some("message-0-7".to_owned());
        }
        task
    });
    let records = (7..).zip(&letters).map(|(offset, task)| TaskRecord {
        source: Source {
            offset,
            ..log.records()[0].source
        },
        task,
    });
    let plans = store.write(&records.collect::<Vec<_>>());
    assert_eq!(plans[0].handover.deliver.len(), 2);
    assert_eq!(leaks(&plans, &store), Default::default());
}

/// A change has the place of its row, also where the one before it died when both were handled again.
#[test]
fn a_change_keeps_its_place_behind_one_that_died() {
    let log = Log::of(&[
        Act::say(1, 2),
        Act::say(1, 2),
        Act::react(2, 1, true),
        Act::change(2, 1, 1, ChangeKind::Pin { on: true }),
    ]);
    let records = log.records();
    let (messages, changes) = records.split_at(2);
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let mut store = Store::new();
    store.write(messages);
    let head = store.heads[&conversation];
    store.write(changes);
    store.heads.insert(conversation, head);
    // The first one died: its death moves no head.
    let second = Batch {
        epoch: 1,
        records: &changes[1..],
    };
    let (plan, _) = store.decide(&second, NOON);
    assert_eq!(plan.outcomes, [RecordOutcome::Changed]);
    store.apply_plan(&plan);
    let revs: Vec<_> = store
        .changes
        .values()
        .map(|row| row.version.offset)
        .collect();
    assert_eq!(revs, [2, 3]);
    assert_eq!(store.heads[&conversation].rev, 2);
}

/// A store refuses the rows of a message: its death moves the head, also of a conversation without a message.
#[test]
fn a_refused_message_is_buried_before_others_are_placed() {
    let log = Log::of(&[Act::say(1, 2), Act::react(1, 2, true), Act::say(1, 2)]);
    let records = log.records();
    let conversation = ConversationId::private(user(1), user(2)).expect("two");
    let mut store = Store::new();
    for (index, moves) in [(0, true), (0, false), (1, true), (1, false)] {
        let batch = Batch {
            epoch: 1,
            records: &records[index..=index],
        };
        let mut facts = Facts::default();
        let plan = loop {
            match bury(&batch, &facts, &rules(), "too large", NOON) {
                Err(NoPlan::Missing(missing_facts)) => store.answer(&missing_facts, &mut facts),
                other => break other.expect("not overtaken"),
            }
        };
        store.apply_plan(&plan);
        let dead = RecordOutcome::Dead(DeadReason::StoreRejected);
        assert_eq!(plan.outcomes, [dead]);
        assert_eq!(plan.handover.dead[0].error, "too large");
        assert_eq!(!plan.stages.is_empty(), moves, "record {index}");
    }
    let version = records[1].version(1);
    let head = store.heads[&conversation];
    assert_eq!((head.seq, head.rev, head.version), (Seq::ZERO, 1, version));
    let plans = store.write(&records);
    let outcomes: Vec<_> = plans.iter().flat_map(|plan| &plan.outcomes).collect();
    let dead = &RecordOutcome::Dead(DeadReason::StoreRejected);
    assert_eq!(outcomes, [dead, dead, &RecordOutcome::Placed]);
    let head = store.heads[&conversation];
    assert_eq!((head.seq, head.rev), (Seq(1), 1));
    assert_eq!(store.holes(), Vec::<String>::new());
}

/// A retry whose frame cannot be made dies alone, and not with it the consumer of its tier.
#[test]
fn a_retry_that_panics_is_dead() {
    let mut log = Log::of(&[Act::say(1, 2)]);
    let Work::Message(task) = &mut log.tasks[0].work else {
        unreachable!("a message")
    };
    task.message.content.data = log::PANICS.into();
    let placed_message = Placed {
        conversation: task.message.conversation().expect("two"),
        position: Position {
            seq: Seq(1),
            prev: None,
        },
        message: task.message.clone(),
    };
    let deliver = RetryTask {
        rev: 0,
        placed: placed_message,
        targets: Vec::new(),
        live_users: vec![user(2)],
        due_at: NOON,
        cause: "a test".to_owned(),
        letter: None,
    };
    let mut facts = Facts::default();
    let row = (Owner::User(user(2)), deliver.placed.message.id);
    facts.rows.insert(row, None);
    let task = Task::new(Work::Deliver(deliver.clone()), NOON);
    let failure = retry(&task, &deliver, &facts, &EncodeDebug).err();
    let is_dead = |failure| matches!(failure, RetryFailure::Dead(DeadReason::HandlerPanic, _));
    assert!(failure.is_some_and(is_dead));
}

/// Frames of messages that are their text.
struct EncodeText;

impl Encode for EncodeText {
    fn encode(&self, event: &Event<'_>, _: Option<TraceContext>) -> Bytes {
        match event {
            Event::Message(message) => message.message.content.data.clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// A user who was removed since gets a retried message without later edits, and what is put into mailboxes has none
/// either: a station adds them for who may read them. A recall is for all.
#[test]
fn a_retry_tells_former_members_no_later_edit() {
    let (create, say) = (Act::create(1, 100), Act::say_in(1, 100));
    let edit = Act::change(1, 2, 1, ChangeKind::Edit);
    let recall = Act::change(1, 2, 1, ChangeKind::Recall);
    let remove = Act::command(1, 100, GroupCommand::Remove(vec![user(3)]));
    let cases = [
        (
            vec![remove.clone(), edit.clone()],
            ["text 1", "edited", "text 1"],
        ),
        (vec![edit.clone(), remove.clone()], ["edited"; 3]),
        (vec![remove, edit, recall], [""; 3]),
    ];
    for (acts, texts) in cases {
        let acts: Vec<Act> = [create.clone(), say.clone()]
            .into_iter()
            .chain(acts)
            .collect();
        let log = Log::of(&acts);
        let mut store = Store::new();
        store.write(&log.records());
        let mut rows = store.rows.values();
        let row = rows.find(|row| row.owner == Owner::Group(group(100)));
        let target = |number| Target {
            user: user(number),
            platform: Platform::Ios,
        };
        let deliver = RetryTask {
            rev: 0,
            placed: row.expect("said").placed.clone(),
            targets: vec![target(2), target(3)],
            live_users: Vec::new(),
            due_at: NOON,
            cause: "a test".to_owned(),
            letter: None,
        };
        let task = Task::new(Work::Deliver(deliver.clone()), NOON);
        let mut facts = Facts::default();
        let delivery = loop {
            match retry(&task, &deliver, &facts, &EncodeText) {
                Ok(delivery) => break delivery,
                Err(RetryFailure::Missing(missing_facts)) => {
                    store.answer(&missing_facts, &mut facts)
                }
                Err(RetryFailure::Dead(reason, error)) => panic!("{reason:?}: {error}"),
            }
        };
        let frames = [
            &delivery.frame,
            delivery.frame_for(user(2)),
            delivery.frame_for(user(3)),
        ];
        assert_eq!(frames, texts);
    }
}

/// An edit that waited for a retry goes out without its text once the message is recalled.
#[test]
fn a_retry_of_an_edit_says_nothing_that_was_recalled() {
    let edit = Act::change(1, 2, 0, ChangeKind::Edit);
    let recall = Act::change(1, 2, 0, ChangeKind::Recall);
    for is_recalled in [false, true] {
        let acts = [Act::say(1, 2), edit.clone(), recall.clone()];
        let log = Log::of(&acts[..2 + usize::from(is_recalled)]);
        let mut store = Store::new();
        let plans = store.write(&log.records());
        let (_, edit_task) = &plans[0].handover.deliver[1];
        let deliver = RetryTask {
            rev: edit_task.rev,
            placed: edit_task.placed.clone(),
            targets: Vec::new(),
            live_users: vec![user(2)],
            due_at: NOON,
            cause: "a test".to_owned(),
            letter: None,
        };
        let task = Task::new(Work::Deliver(deliver.clone()), NOON);
        let mut facts = Facts::default();
        let delivery = loop {
            match retry(&task, &deliver, &facts, &EncodeDebug) {
                Ok(delivery) => break delivery,
                Err(RetryFailure::Missing(missing_facts)) => {
                    store.answer(&missing_facts, &mut facts)
                }
                Err(RetryFailure::Dead(reason, error)) => panic!("{reason:?}: {error}"),
            }
        };
        let data = &delivery.placed.message.content.data;
        assert_eq!(data.is_empty(), is_recalled);
        let frame = String::from_utf8_lossy(&delivery.frame);
        assert_eq!(frame.contains("(0 bytes)"), is_recalled, "{frame}");
    }
}

#[test]
fn commands_share_a_part_only_with_other_groups_commands() {
    let split = |acts: &[Act]| {
        let log = Log::of(acts);
        let mut parts = Parts::of(&log.records(), usize::MAX);
        std::iter::from_fn(|| parts.take()).collect::<Vec<_>>()
    };
    let many: Vec<Act> = (0..65).map(|group| Act::create(1, 100 + group)).collect();
    assert_eq!(split(&many), [0..64, 64..65]);
    let same = [Act::create(1, 100), Act::create(1, 100), Act::say(1, 2)];
    assert_eq!(split(&same), [0..1, 1..2, 2..3]);
    let mixed_acts = [
        Act::say_in(1, 100),
        Act::say(1, 2),
        Act::create(1, 100),
        Act::create(1, 101),
    ];
    assert_eq!(split(&mixed_acts), [0..2, 2..4]);
    let log = Log::of(&(0..5).map(|_| Act::say(1, 2)).collect::<Vec<_>>());
    let mut parts = Parts::of(&log.records(), 2);
    let parts: Vec<_> = std::iter::from_fn(|| parts.take()).collect();
    assert_eq!(parts, [0..2, 2..4, 4..5]);
}

#[test]
fn a_refused_part_is_halved_down_to_one_record() {
    let log = Log::of(&[Act::say(1, 2), Act::say(1, 2), Act::say(1, 2)]);
    let mut parts = Parts::of(&log.records(), usize::MAX);
    let whole = parts.take().expect("one part");
    assert_eq!((whole.clone(), parts.refused(whole)), (0..3, None));
    let first = parts.take().expect("a half");
    assert_eq!((first.clone(), parts.refused(first)), (0..1, Some(0)));
    let second = parts.take().expect("the other half");
    assert_eq!(second, 1..3);
    parts.put_back(second);
    assert_eq!(parts.rest(), Some(1));
}

/// 512 reactions are two rounds of reading, 512 messages of known conversations none beyond their heads.
#[test]
fn keys_are_named_together() {
    let mut acts = vec![Act::say(1, 2)];
    acts.extend((0..512).map(|n| Act::react(1, 2, n % 2 == 0)));
    let log = Log::of(&acts);
    let records = log.records();
    let mut store = Store::new();
    store.write(&records[..1]);
    assert_eq!(store.rounds(&records[1..]), 2);
    let message_log = Log::of(&(0..512).map(|_| Act::say(1, 2)).collect::<Vec<_>>());
    assert_eq!(Store::new().rounds(&message_log.records()), 1);
}

/// The longest way of a record through the stores: group and head, the row of its id, the head anew as that is a later
/// record's, and what became of the message.
#[test]
fn the_longest_way_has_as_many_rounds_as_the_bound() {
    let log = Log::of(&[
        Act::create(1, 100),
        Act::say_in(1, 100),
        Act::say_in(1, 100),
    ]);
    let mut store = Store::new();
    let mut records = log.records();
    store.write(&records);
    let mut task = records[1].task.clone();
    if let Work::Message(task) = &mut task.work {
        task.letter = Some("message-0-7".to_owned());
    }
    records[1] = TaskRecord {
        task: &task,
        ..records[1]
    };
    let conversation = ConversationId::Group(group(100));
    let (owner, id) = (Owner::Group(group(100)), records[1].task.work.message());
    let row = store.rows.get_mut(&(owner, id.expect("a message")));
    if let Some(row) = row {
        row.version.offset = 2;
    }
    // The writer's own head is from before it.
    let mut cached_head = store.heads[&conversation];
    cached_head.version.offset = 1;
    store.cached_heads.insert(conversation, cached_head);
    assert_eq!(store.rounds(&records[1..2]), ROUNDS_MAX - 1);
}

// A message that an earlier record of the batch placed is found by changes behind it.
#[test]
fn changes_find_messages_of_their_own_batch() {
    let log = Log::of(&[Act::say(1, 2), Act::change(1, 2, 0, ChangeKind::Recall)]);
    let mut store = Store::new();
    let plans = store.write(&log.records());
    assert_eq!(plans.len(), 1);
    let outcomes = [RecordOutcome::Placed, RecordOutcome::Changed];
    assert_eq!(plans[0].outcomes, outcomes);
    let kinds = plans[0].stages.iter().flat_map(|stage| &stage.0);
    let kinds: Vec<_> = kinds.map(std::mem::discriminant).collect();
    assert_eq!(kinds.len(), 5, "rows, change, mark, head, lists");
}

#[test]
fn stages_keep_the_order_of_the_table() {
    let log = Log::of(&[
        Act::create(1, 100),
        Act::say(1, 2),
        Act::change(1, 2, 1, ChangeKind::Hide),
        Act::say_in(1, 101),
    ]);
    let mut store = Store::new();
    let plans = store.write(&log.records());
    let order = |effect: &Effect| match effect {
        Effect::Group(_) => 1,
        Effect::Touch { .. } => 2,
        Effect::Invalidate(_) => 3,
        Effect::Permits(_) | Effect::Messages(_) => 4,
        Effect::Changes(_) => 5,
        Effect::Recalled(_) => 6,
        Effect::Heads(_) => 7,
        Effect::Renew(_) | Effect::Timeline(_) | Effect::ListRows(_) | Effect::ListOps { .. } => 8,
    };
    for plan in &plans {
        let stages = plan.stages.iter();
        let numbers: Vec<u8> = stages.map(|stage| order(&stage.0[0])).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
    let lazy = |effect: &Effect| effect.kind().is_lazy();
    assert!(
        plans
            .iter()
            .flat_map(|plan| &plan.stages[..1])
            .all(|stage| !stage.0.iter().any(lazy))
    );
}

#[test]
fn a_stamp_holds_for_half_of_the_margin() {
    let secs = std::time::Duration::from_secs;
    assert!(super::stamp_holds(secs(5), secs(10)));
    assert!(!super::stamp_holds(
        secs(5) + std::time::Duration::from_nanos(1),
        secs(10)
    ));
}

// The row of a message as its recipient counts it is found by position, too.
#[test]
fn stored_positions_of_both_rows_are_one() {
    let log = Log::of(&[message_to(1, 2), message_to(2, 1)]);
    let mut store = Store::new();
    store.write(&log.records());
    let mut positions: Vec<StoredPosition> =
        store.rows.values().map(|row| row.position()).collect();
    positions.dedup();
    positions.sort_by_key(|position| position.position.seq);
    positions.dedup();
    assert_eq!(positions.len(), 2, "{positions:?}");
}
