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

fn request(by: i64, change: MessageChange) -> ChangeRequest {
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
    overlay: Overlay,
}

impl Stands {
    fn new() -> Stands {
        Stands {
            content: Content::text("hello"),
            overlay: Overlay::default(),
        }
    }

    fn subject(&self) -> ChangeSubject<'_> {
        ChangeSubject {
            seq: Seq(1),
            from: user(1),
            accepted_at: NOON - Duration::from_secs(3600),
            content: &self.content,
            overlay: &self.overlay,
        }
    }

    fn judge(
        &self,
        change_request: &ChangeRequest,
        role: Option<Role>,
    ) -> Result<ChangeVerdict, Code> {
        let rules = ChangeRules::default();
        judge(change_request, Some(self.subject()), role, &rules).map_err(|r| r.code)
    }

    fn apply(&mut self, offset: u64, change_request: ChangeRequest) {
        let ordered_change = OrderedChange {
            rev: offset,
            seq: Seq(1),
            asked: change_request,
        };
        self.overlay.apply(at(offset), &ordered_change);
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
    let reaction_kind = ChangeKind::React {
        reaction: "+1".parse().expect("short"),
        on: true,
    };
    let kinds = [
        (ChangeKind::Recall, Some(MessageChange::Recall)),
        (
            ChangeKind::Edit,
            Some(MessageChange::Edit(Content::text("text"))),
        ),
        (reaction_kind, Some(react("+1", true))),
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
        assert_eq!(kind.message_change(&content), expected, "{kind:?}");
        let is_of_message = kind.scope() == ChangeScope::Message;
        assert_eq!(is_of_message, expected.is_some(), "{kind:?}");
    }
}

#[test]
fn an_unknown_change_is_refused_and_changes_nothing() {
    let mut message = Stands::new();
    let unknown = request(1, MessageChange::Unknown);
    assert_eq!(message.judge(&unknown, None), Err(Code::Unsupported));
    let mut marks = MessageMarks::default();
    marks.apply(&unknown);
    assert_eq!(marks, MessageMarks::default());
    message.apply(1, unknown);
    assert_eq!(message.overlay, Overlay::default());
    let mut content = Content::text("hello");
    MessageChange::Unknown.apply_to(&mut content);
    assert_eq!(content, Content::text("hello"));
}

// proves S0-61h: the sender for a time, owner and administrators at any, nobody else.
#[test]
fn recall_edit_and_pin_follow_role_and_authorship() {
    let message = Stands::new();
    let edit = || MessageChange::Edit(Content::text("good evening"));
    for change in [MessageChange::Recall, edit()] {
        let late_request = ChangeRequest {
            at: NOON + Duration::from_secs(30 * 3600),
            ..request(1, change.clone())
        };
        let (own, other) = (request(1, change.clone()), request(2, change));
        assert_eq!(message.judge(&own, None), Ok(ChangeVerdict::Change));
        assert_eq!(message.judge(&late_request, None), Err(Code::Forbidden));
        assert_eq!(message.judge(&other, None), Err(Code::Forbidden));
        let as_role = |role| message.judge(&other, Some(role));
        assert_eq!(as_role(Role::Member), Err(Code::Forbidden));
        assert_eq!(as_role(Role::Admin), Ok(ChangeVerdict::Change));
        assert_eq!(as_role(Role::Owner), Ok(ChangeVerdict::Change));
    }
    // Pins are open to both users of a private conversation, and to those who administer a group.
    let pin = request(2, MessageChange::Pin { on: true });
    let as_role = |role| message.judge(&pin, role);
    assert_eq!(as_role(None), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Member)), Err(Code::Forbidden));
    assert_eq!(as_role(Some(Role::Admin)), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Owner)), Ok(ChangeVerdict::Change));
    let reaction = request(2, react("👍", true));
    assert_eq!(message.judge(&reaction, None), Ok(ChangeVerdict::Change));
    let result = judge(&reaction, None, None, &ChangeRules::default());
    assert_eq!(result.map_err(|r| r.code), Err(Code::NotFound));
}

// proves S0-57 in part: what is recalled stays so.
#[test]
fn changes_after_a_recall_are_refused() {
    let mut message = Stands::new();
    message.apply(1, request(1, MessageChange::Recall));
    let second_recall = request(1, MessageChange::Recall);
    assert_eq!(
        message.judge(&second_recall, None),
        Ok(ChangeVerdict::Nothing)
    );
    let edit = request(1, MessageChange::Edit(Content::text("x")));
    assert_eq!(message.judge(&edit, None), Err(Code::NotFound));
    let reaction = request(2, react("👍", true));
    assert_eq!(message.judge(&reaction, None), Err(Code::NotFound));
    let pin = request(2, MessageChange::Pin { on: true });
    assert_eq!(message.judge(&pin, None), Err(Code::NotFound));
    message.apply(3, pin);
    let marks = message.overlay.marks().expect("recalled");
    assert_eq!(marks.pinned, None, "a recall takes the pin off");
    message.apply(3, edit);
    assert_eq!(message.overlay.content(&message.content), None);
}

#[test]
fn change_without_effect_uses_no_rev() {
    let mut message = Stands::new();
    let same_edit = request(1, MessageChange::Edit(Content::text("hello")));
    assert_eq!(message.judge(&same_edit, None), Ok(ChangeVerdict::Nothing));
    let off = request(2, react("👍", false));
    assert_eq!(message.judge(&off, None), Ok(ChangeVerdict::Nothing));
    let on = request(2, react("👍", true));
    message.apply(1, on.clone());
    assert_eq!(message.judge(&on, None), Ok(ChangeVerdict::Nothing));
    assert_eq!(message.judge(&off, None), Ok(ChangeVerdict::Change));
    let pin = |on| request(2, MessageChange::Pin { on });
    assert_eq!(message.judge(&pin(false), None), Ok(ChangeVerdict::Nothing));
    message.apply(2, pin(true));
    assert_eq!(message.judge(&pin(true), None), Ok(ChangeVerdict::Nothing));
    assert_eq!(message.judge(&pin(false), None), Ok(ChangeVerdict::Change));
}

// Found by seeds 10921 and 90712 of the simulator: a batch died between the overlays and the head.
#[test]
fn an_overlay_shows_that_a_part_was_broken_off() {
    let head = Head::default().moved_by(at(1), id(7), None);
    let changes = [
        request(1, MessageChange::Recall),
        request(1, MessageChange::Edit(Content::text("good evening"))),
        request(2, react("👍", true)),
        request(2, MessageChange::Pin { on: true }),
    ];
    for change in changes {
        let mut message = Stands::new();
        let place =
            |message: &Stands, offset| head.place_change(at(offset), &message.overlay, false);
        assert_eq!(place(&message, 3), ChangePlacement::New(1));
        // A group that is ahead of its head says so, too.
        let outdated_placement = head.place_change(at(3), &message.overlay, true);
        assert_eq!(outdated_placement, ChangePlacement::Interrupted);
        message.apply(3, change);
        assert_eq!(place(&message, 1), ChangePlacement::Redelivery);
        assert_eq!(place(&message, 2), ChangePlacement::Interrupted);
        assert_eq!(place(&message, 3), ChangePlacement::Interrupted);
        assert_eq!(place(&message, 4), ChangePlacement::New(1));
    }
}

#[test]
fn reactions_have_a_bound() {
    let mut message = Stands::new();
    let max = ChangeRules::default().reactions_max as u64;
    for n in 0..max {
        message.apply(n, request(2, react(&format!("r{n}"), true)));
    }
    let new_reaction = request(3, react("one more", true));
    assert_eq!(message.judge(&new_reaction, None), Err(Code::Forbidden));
    let known_reaction = request(3, react("r0", true));
    assert_eq!(
        message.judge(&known_reaction, None),
        Ok(ChangeVerdict::Change)
    );
    let off = request(2, react("r0", false));
    assert_eq!(message.judge(&off, None), Ok(ChangeVerdict::Change));
    // Reactions taken back still count as tried by the user.
    let mut message = Stands::new();
    for n in 0..max {
        message.apply(2 * n, request(2, react(&format!("r{n}"), true)));
        message.apply(2 * n + 1, request(2, react(&format!("r{n}"), false)));
    }
    let untried = request(2, react("one more", true));
    assert_eq!(message.judge(&untried, None), Err(Code::Forbidden));
    let tried_before = request(2, react("r0", true));
    assert_eq!(
        message.judge(&tried_before, None),
        Ok(ChangeVerdict::Change)
    );
    let of_other_user = request(3, react("one more", true));
    assert_eq!(
        message.judge(&of_other_user, None),
        Ok(ChangeVerdict::Change)
    );
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

fn any_request() -> impl Strategy<Value = ChangeRequest> {
    (1..=2_i64, any_change()).prop_map(|(by, change)| request(by, change))
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
    overlay: Overlay,
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
            overlay: Overlay::default(),
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
        let (mut head, mut overlay, mut placed_changes) =
            (self.head, self.overlay.clone(), Vec::new());
        let content = Content::text("hello");
        for (record, change_request) in (first..).map(at).zip(batch) {
            let placement = match bug {
                Some(Bug::OverlayUnchecked) => {
                    head.place_change(record, &Overlay::default(), false)
                }
                Some(Bug::OverlaysFirst) | None => head.place_change(record, &overlay, false),
            };
            let own_row = self.rows.values().find(|row| row.version == record);
            let facts = RulingFacts {
                placement,
                first: None,
                is_letter: false,
                own: own_row.map(|row| row.value.clone()),
                subject: Some(ChangeSubject {
                    seq: Seq(1),
                    from: user(1),
                    accepted_at: NOON,
                    content: &content,
                    overlay: &overlay,
                }),
                asker: Ok(Requester::ONE_OF_TWO),
            };
            let ruling = rule(record, change_request, facts, &ChangeRules::default());
            let ChangeRuling::Place { change, moves, .. } = ruling else {
                continue;
            };
            overlay.apply(record, &change);
            if moves {
                head = head.moved_by_change(record, change_request.id, change.rev);
            }
            placed_changes.push((record, change));
        }
        if is_reversed {
            placed_changes.reverse();
        }
        let rows = placed_changes.iter().cloned();
        let rows = rows.map(|(record, change)| Atom::Row(record, change));
        let overlays = placed_changes.iter().cloned();
        let overlays = overlays.map(|(record, change)| Atom::Overlay(record, change));
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
            Atom::Overlay(version, change) => self.overlay.apply(version, &change),
            Atom::Head(head) => self.head = head,
        }
    }

    /// State of a device that reads the changes one after the other, as far as the head goes.
    fn read(&self) -> Overlay {
        let mut overlay = Overlay::default();
        for rev in 1..=self.head.rev {
            let row = self.rows.get(&rev).expect("dense");
            overlay.apply(row.version, &row.value);
        }
        overlay
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
        if is_done { next + batch.len() } else { next }
    };
    for attempt in tries {
        next = handle(next, *attempt);
    }
    handle(next, (log.len(), usize::MAX, false));
    store
}

proptest! {
    // A writer that dies after any effect of any batches leaves the same state as one that never
    // dies, change by change; and a reader of the changes arrives at the state of the row.
    #[test]
    fn a_crash_after_any_effect_changes_nothing(
        log in vec(any_request(), 0..24),
        tries in vec((1..8_usize, 0..16_usize, any::<bool>()), 0..12),
    ) {
        let (store, expected) = (run(&log, &tries, None), run(&log, &[], None));
        prop_assert_eq!(&store, &expected);
        prop_assert_eq!(store.read(), store.overlay);
    }

    #[test]
    fn changes_may_come_in_any_order_and_again(
        (log, order) in vec(any_request(), 1..16).prop_flat_map(|log| {
            let indices: Vec<usize> = (0..log.len()).chain(0..log.len()).collect();
            (Just(log), Just(indices).prop_shuffle())
        }),
    ) {
        let apply = |overlay: &mut Overlay, index: usize| {
            let rev = index as u64 + 1;
            let (seq, change_request) = (Seq(1), log[index].clone());
            overlay.apply(at(rev), &OrderedChange { rev, seq, asked: change_request });
        };
        let (mut in_order, mut out_of_order) = (Overlay::default(), Overlay::default());
        (0..log.len()).for_each(|index| apply(&mut in_order, index));
        order.iter().for_each(|index| apply(&mut out_of_order, *index));
        prop_assert_eq!(in_order, out_of_order);
    }
}

/// The negative twin: a writer that takes its own half-done recall for another record's never gives
/// it a place.
#[test]
fn a_writer_that_trusts_its_own_half_done_work_loses_a_change() {
    let log = [request(1, MessageChange::Recall)];
    let tries = [(1, 2, false)];
    let store = run(&log, &tries, Some(Bug::OverlayUnchecked));
    assert_eq!(store.head.rev, 0, "it has no place");
    assert_ne!(
        store.read(),
        store.overlay,
        "who reads the changes never hears of it"
    );
    assert_eq!(run(&log, &tries, None), run(&log, &[], None));
}

/// The negative twin: an overlay without its change row says that the record changed nothing.
#[test]
fn a_writer_that_writes_overlays_first_loses_a_change() {
    let pin = |on| request(2, MessageChange::Pin { on });
    let log = [pin(false), pin(true), pin(false)];
    let tries = [(3, 1, false)];
    let store = run(&log, &tries, Some(Bug::OverlaysFirst));
    assert_eq!(store.head.rev, 1, "the pin has no place");
    let store = run(&log, &tries, None);
    assert_eq!(store.head.rev, 2);
    assert_eq!(store, run(&log, &[], None));
}
