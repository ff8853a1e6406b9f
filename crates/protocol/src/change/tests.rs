//! Changes in any order, with a crash after any of their effects.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn user(n: i64) -> UserId {
    UserId::new(n).expect("positive")
}

fn id(n: i64) -> MessageId {
    MessageId::new(n).expect("positive")
}

fn at(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

const NOON: Timestamp = Timestamp::from_millis(1_790_000_000_000);

fn asked(by: i64, change: MessageChange) -> ChangeRequest {
    ChangeRequest {
        id: id(8),
        send_id: SendId::from_bytes([8; 16]),
        subject: id(7),
        by: user(by),
        at: NOON,
        change,
    }
}

fn react(text: &str, on: bool) -> MessageChange {
    let reaction = text.parse().expect("short");
    MessageChange::React { reaction, on }
}

/// A message of user 1, accepted an hour before noon.
struct Stands {
    content: Content,
    altered: Overlay,
}

impl Stands {
    fn new() -> Stands {
        Stands {
            content: Content::text("hello"),
            altered: Overlay::default(),
        }
    }

    fn subject(&self) -> ChangeSubject<'_> {
        ChangeSubject {
            seq: Seq(1),
            from: user(1),
            accepted_at: NOON - Duration::from_secs(3600),
            content: &self.content,
            altered: &self.altered,
        }
    }

    fn judge(&self, asked: &ChangeRequest, role: Option<Role>) -> Result<ChangeVerdict, Code> {
        let rules = ChangeRules::default();
        judge(asked, Some(self.subject()), role, &rules).map_err(|r| r.code)
    }

    fn apply(&mut self, offset: u64, asked: ChangeRequest) {
        let changed = OrderedChange {
            rev: offset,
            seq: Seq(1),
            asked,
        };
        self.altered.apply(at(offset), &changed);
    }
}

#[test]
fn kinds_of_a_message_have_a_change_and_no_others() {
    let content = Content {
        change: Some(Box::new(ChangeOf {
            subject: Some(id(7)),
            kind: ChangeKind::Edit,
        })),
        ..Content::text("text")
    };
    let reacts = ChangeKind::React {
        reaction: "+1".parse().expect("short"),
        on: true,
    };
    let kinds = [
        (ChangeKind::Recall, Some(MessageChange::Recall)),
        (
            ChangeKind::Edit,
            Some(MessageChange::Edit(Content::text("text"))),
        ),
        (reacts, Some(react("+1", true))),
        (
            ChangeKind::Pin { on: false },
            Some(MessageChange::Pin { on: false }),
        ),
        (ChangeKind::Clear, None),
        (ChangeKind::Arrange(ListArrangement::default()), None),
        (ChangeKind::Hide, None),
        (ChangeKind::GroupCommand(GroupCommand::Leave), None),
    ];
    for (kind, expected) in kinds {
        assert_eq!(kind.of_message(&content), expected, "{kind:?}");
        let is_of_message = kind.scope() == ChangeScope::Message;
        assert_eq!(is_of_message, expected.is_some(), "{kind:?}");
    }
}

#[test]
fn an_unknown_change_is_refused_and_changes_nothing() {
    let mut stands = Stands::new();
    let unknown = asked(1, MessageChange::Unknown);
    assert_eq!(stands.judge(&unknown, None), Err(Code::Unsupported));
    let mut marks = MessageMarks::default();
    marks.apply(&unknown);
    assert_eq!(marks, MessageMarks::default());
    stands.apply(1, unknown);
    assert_eq!(stands.altered, Overlay::default());
    let mut content = Content::text("hello");
    MessageChange::Unknown.apply_to(&mut content);
    assert_eq!(content, Content::text("hello"));
}

// proves S0-61h: the sender for a time, owner and administrators at any, nobody else.
#[test]
fn who_may_recall_edit_and_pin() {
    let stands = Stands::new();
    let edit = || MessageChange::Edit(Content::text("good evening"));
    for change in [MessageChange::Recall, edit()] {
        let late = ChangeRequest {
            at: NOON + Duration::from_secs(30 * 3600),
            ..asked(1, change.clone())
        };
        let (own, other) = (asked(1, change.clone()), asked(2, change));
        assert_eq!(stands.judge(&own, None), Ok(ChangeVerdict::Change));
        assert_eq!(stands.judge(&late, None), Err(Code::Forbidden));
        assert_eq!(stands.judge(&other, None), Err(Code::Forbidden));
        let as_role = |role| stands.judge(&other, Some(role));
        assert_eq!(as_role(Role::Member), Err(Code::Forbidden));
        assert_eq!(as_role(Role::Admin), Ok(ChangeVerdict::Change));
        assert_eq!(as_role(Role::Owner), Ok(ChangeVerdict::Change));
    }
    // Pins are open to both users of a private conversation, and to those who administer a group.
    let pin = asked(2, MessageChange::Pin { on: true });
    let as_role = |role| stands.judge(&pin, role);
    assert_eq!(as_role(None), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Member)), Err(Code::Forbidden));
    assert_eq!(as_role(Some(Role::Admin)), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Owner)), Ok(ChangeVerdict::Change));
    let anybody = asked(2, react("👍", true));
    assert_eq!(stands.judge(&anybody, None), Ok(ChangeVerdict::Change));
    let refused = judge(&anybody, None, None, &ChangeRules::default());
    assert_eq!(refused.map_err(|r| r.code), Err(Code::NotFound));
}

// proves S0-57 in part: what is recalled stays so.
#[test]
fn nothing_comes_after_a_recall() {
    let mut stands = Stands::new();
    stands.apply(1, asked(1, MessageChange::Recall));
    let again = asked(1, MessageChange::Recall);
    assert_eq!(stands.judge(&again, None), Ok(ChangeVerdict::Nothing));
    let edit = asked(1, MessageChange::Edit(Content::text("x")));
    assert_eq!(stands.judge(&edit, None), Err(Code::NotFound));
    let reaction = asked(2, react("👍", true));
    assert_eq!(stands.judge(&reaction, None), Err(Code::NotFound));
    let pin = asked(2, MessageChange::Pin { on: true });
    assert_eq!(stands.judge(&pin, None), Err(Code::NotFound));
    stands.apply(3, pin);
    let marks = stands.altered.marks().expect("recalled");
    assert_eq!(marks.pinned, None, "a recall takes the pin off");
    stands.apply(3, edit);
    assert_eq!(stands.altered.content(&stands.content), None);
}

#[test]
fn what_is_so_already_uses_no_place() {
    let mut stands = Stands::new();
    let same = asked(1, MessageChange::Edit(Content::text("hello")));
    assert_eq!(stands.judge(&same, None), Ok(ChangeVerdict::Nothing));
    let off = asked(2, react("👍", false));
    assert_eq!(stands.judge(&off, None), Ok(ChangeVerdict::Nothing));
    let on = asked(2, react("👍", true));
    stands.apply(1, on.clone());
    assert_eq!(stands.judge(&on, None), Ok(ChangeVerdict::Nothing));
    assert_eq!(stands.judge(&off, None), Ok(ChangeVerdict::Change));
    let pin = |on| asked(2, MessageChange::Pin { on });
    assert_eq!(stands.judge(&pin(false), None), Ok(ChangeVerdict::Nothing));
    stands.apply(2, pin(true));
    assert_eq!(stands.judge(&pin(true), None), Ok(ChangeVerdict::Nothing));
    assert_eq!(stands.judge(&pin(false), None), Ok(ChangeVerdict::Change));
}

// Found by seeds 10921 and 90712 of the simulator: a batch died between the overlays and the head.
#[test]
fn an_overlay_shows_that_a_part_was_broken_off() {
    let head = Head::default().moved_by(at(1), id(7), None);
    let changes = [
        asked(1, MessageChange::Recall),
        asked(1, MessageChange::Edit(Content::text("good evening"))),
        asked(2, react("👍", true)),
        asked(2, MessageChange::Pin { on: true }),
    ];
    for change in changes {
        let mut stands = Stands::new();
        let place = |stands: &Stands, offset| head.place_change(at(offset), &stands.altered, false);
        assert_eq!(place(&stands, 3), ChangePlacement::New(1));
        // A group that is ahead of its head says so, too.
        let behind = head.place_change(at(3), &stands.altered, true);
        assert_eq!(behind, ChangePlacement::Interrupted);
        stands.apply(3, change);
        assert_eq!(place(&stands, 1), ChangePlacement::Redelivery);
        assert_eq!(place(&stands, 2), ChangePlacement::Interrupted);
        assert_eq!(place(&stands, 3), ChangePlacement::Interrupted);
        assert_eq!(place(&stands, 4), ChangePlacement::New(1));
    }
}

#[test]
fn reactions_have_a_bound() {
    let mut stands = Stands::new();
    let most = ChangeRules::default().reactions_max as u64;
    for n in 0..most {
        stands.apply(n, asked(2, react(&format!("r{n}"), true)));
    }
    let another = asked(3, react("one more", true));
    assert_eq!(stands.judge(&another, None), Err(Code::Forbidden));
    let known = asked(3, react("r0", true));
    assert_eq!(stands.judge(&known, None), Ok(ChangeVerdict::Change));
    let off = asked(2, react("r0", false));
    assert_eq!(stands.judge(&off, None), Ok(ChangeVerdict::Change));
    // Reactions taken back still count as tried by the user.
    let mut stands = Stands::new();
    for n in 0..most {
        stands.apply(2 * n, asked(2, react(&format!("r{n}"), true)));
        stands.apply(2 * n + 1, asked(2, react(&format!("r{n}"), false)));
    }
    let more = asked(2, react("one more", true));
    assert_eq!(stands.judge(&more, None), Err(Code::Forbidden));
    let again = asked(2, react("r0", true));
    assert_eq!(stands.judge(&again, None), Ok(ChangeVerdict::Change));
    let others = asked(3, react("one more", true));
    assert_eq!(stands.judge(&others, None), Ok(ChangeVerdict::Change));
    assert!("".parse::<Reaction>().is_err());
    assert!("a\nb".parse::<Reaction>().is_err());
    assert!("x".repeat(65).parse::<Reaction>().is_err());
}

fn any_change() -> impl Strategy<Value = MessageChange> {
    prop_oneof![
        1 => Just(MessageChange::Recall),
        4 => (0..3_u8).prop_map(|n| MessageChange::Edit(Content::text(format!("text {n}")))),
        6 => (0..2_u8, any::<bool>()).prop_map(|(n, on)| react(&format!("r{n}"), on)),
        3 => any::<bool>().prop_map(|on| MessageChange::Pin { on }),
    ]
}

fn any_asked() -> impl Strategy<Value = ChangeRequest> {
    (1..=2_i64, any_change()).prop_map(|(by, change)| asked(by, change))
}

/// Bug of a writer, as a negative twin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    /// Takes its own half-done work, or that of a later record, for an earlier record's.
    OverlayUnchecked,
    /// Writes overlays before change rows.
    OverlaysFirst,
}

/// The stores of one conversation with one message, and a writer that may die after any effect.
#[derive(Clone, Debug, PartialEq)]
struct Store {
    head: Head,
    rows: BTreeMap<u64, Register<OrderedChange>>,
    altered: Overlay,
}

/// Write that a store does at once.
enum Atom {
    Row(Version, OrderedChange),
    Overlay(Version, OrderedChange),
    Head(Head),
}

/// A try of a batch: number of records, number of atoms that are written before it dies, and
/// whether writes side by side happen in reverse order.
type Try = (usize, usize, bool);

impl Store {
    fn new() -> Store {
        Store {
            head: Head::default().moved_by(at(0), id(7), None),
            rows: BTreeMap::new(),
            altered: Overlay::default(),
        }
    }

    /// Writes of a batch whose first record has this offset, in order.
    fn atoms(
        &self,
        first: u64,
        batch: &[ChangeRequest],
        is_reversed: bool,
        bug: Option<Bug>,
    ) -> Vec<Atom> {
        let (mut head, mut altered, mut made) = (self.head, self.altered.clone(), Vec::new());
        let content = Content::text("hello");
        for (record, asked) in (first..).map(at).zip(batch) {
            let placement = match bug {
                Some(Bug::OverlayUnchecked) => {
                    head.place_change(record, &Overlay::default(), false)
                }
                Some(Bug::OverlaysFirst) | None => head.place_change(record, &altered, false),
            };
            let own = self.rows.values().find(|row| row.version == record);
            let known = RulingFacts {
                placement,
                first: None,
                is_letter: false,
                own: own.map(|row| row.value.clone()),
                subject: Some(ChangeSubject {
                    seq: Seq(1),
                    from: user(1),
                    accepted_at: NOON,
                    content: &content,
                    altered: &altered,
                }),
                asker: Ok(Requester::ONE_OF_TWO),
            };
            let ruling = rule(record, asked, known, &ChangeRules::default());
            let ChangeRuling::Place { changed, moves, .. } = ruling else {
                continue;
            };
            altered.apply(record, &changed);
            if moves {
                head = head.moved_by_change(record, asked.id, changed.rev);
            }
            made.push((record, changed));
        }
        if is_reversed {
            made.reverse();
        }
        let rows = made.iter().cloned();
        let rows = rows.map(|(record, changed)| Atom::Row(record, changed));
        let overlays = made.iter().cloned();
        let overlays = overlays.map(|(record, changed)| Atom::Overlay(record, changed));
        let mut atoms: Vec<Atom> = match bug {
            Some(Bug::OverlaysFirst) => overlays.chain(rows).collect(),
            Some(Bug::OverlayUnchecked) | None => rows.chain(overlays).collect(),
        };
        atoms.push(Atom::Head(head));
        atoms
    }

    fn apply(&mut self, atom: Atom) {
        match atom {
            Atom::Row(version, value) => {
                let mut row = self.rows.remove(&value.rev);
                let rev = value.rev;
                write(&mut row, version, value);
                self.rows.extend(row.map(|row| (rev, row)));
            }
            Atom::Overlay(version, changed) => self.altered.apply(version, &changed),
            Atom::Head(head) => self.head = head,
        }
    }

    /// State of a device that reads the changes one after the other, as far as the head goes.
    fn read(&self) -> Overlay {
        let mut altered = Overlay::default();
        for rev in 1..=self.head.rev {
            let row = self.rows.get(&rev).expect("dense");
            altered.apply(row.version, &row.value);
        }
        altered
    }
}

/// Handles the log: tries that die, each from the first record that is not committed, and then all.
fn run(log: &[ChangeRequest], tries: &[Try], bug: Option<Bug>) -> Store {
    let (mut store, mut next) = (Store::new(), 0);
    let mut handle = |next: usize, (records, writes, is_reversed): Try| {
        let batch = &log[next..log.len().min(next + records)];
        let atoms = store.atoms(next as u64 + 1, batch, is_reversed, bug);
        let is_done = atoms.len() <= writes;
        atoms
            .into_iter()
            .take(writes)
            .for_each(|atom| store.apply(atom));
        match is_done {
            true => next + batch.len(),
            false => next,
        }
    };
    for one in tries {
        next = handle(next, *one);
    }
    handle(next, (log.len(), usize::MAX, false));
    store
}

proptest! {
    // A writer that dies after any effect of any batches leaves the same state as one that never
    // dies, change by change; and a reader of the changes arrives at the state of the row.
    #[test]
    fn a_crash_after_any_effect_changes_nothing(
        log in vec(any_asked(), 0..24),
        tries in vec((1..8_usize, 0..16_usize, any::<bool>()), 0..12),
    ) {
        let (store, undisturbed) = (run(&log, &tries, None), run(&log, &[], None));
        prop_assert_eq!(&store, &undisturbed);
        prop_assert_eq!(store.read(), store.altered);
    }

    #[test]
    fn changes_may_come_in_any_order_and_again(
        (log, order) in vec(any_asked(), 1..16).prop_flat_map(|log| {
            let again: Vec<usize> = (0..log.len()).chain(0..log.len()).collect();
            (Just(log), Just(again).prop_shuffle())
        }),
    ) {
        let apply = |altered: &mut Overlay, index: usize| {
            let rev = index as u64 + 1;
            let (seq, asked) = (Seq(1), log[index].clone());
            altered.apply(at(rev), &OrderedChange { rev, seq, asked });
        };
        let (mut ordered, mut shuffled) = (Overlay::default(), Overlay::default());
        (0..log.len()).for_each(|index| apply(&mut ordered, index));
        order.iter().for_each(|index| apply(&mut shuffled, *index));
        prop_assert_eq!(ordered, shuffled);
    }
}

/// The negative twin: a writer that takes its own half-done recall for another record's never gives
/// it a place.
#[test]
fn a_writer_that_trusts_its_own_half_done_work_loses_a_change() {
    let log = [asked(1, MessageChange::Recall)];
    let tries = [(1, 2, false)];
    let store = run(&log, &tries, Some(Bug::OverlayUnchecked));
    assert_eq!(store.head.rev, 0, "it has no place");
    assert_ne!(
        store.read(),
        store.altered,
        "who reads the changes never hears of it"
    );
    assert_eq!(run(&log, &tries, None), run(&log, &[], None));
}

/// The negative twin: an overlay without its change row says that the record changed nothing.
#[test]
fn a_writer_that_writes_overlays_first_loses_a_change() {
    let pin = |on| asked(2, MessageChange::Pin { on });
    let log = [pin(false), pin(true), pin(false)];
    let tries = [(3, 1, false)];
    let store = run(&log, &tries, Some(Bug::OverlaysFirst));
    assert_eq!(store.head.rev, 1, "the pin has no place");
    let store = run(&log, &tries, None);
    assert_eq!(store.head.rev, 2);
    assert_eq!(store, run(&log, &[], None));
}
