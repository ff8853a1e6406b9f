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

    fn judge(
        &self,
        offset: u64,
        asked: &ChangeRequest,
        role: Option<Role>,
    ) -> Result<ChangeVerdict, Code> {
        let rules = ChangeRules::default();
        judge(at(offset), asked, Some(self.subject()), role, &rules).map_err(|r| r.code)
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
        (ChangeKind::Wish(GroupCommand::Leave), None),
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
    assert_eq!(stands.judge(1, &unknown, None), Err(Code::Unsupported));
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
        assert_eq!(stands.judge(1, &own, None), Ok(ChangeVerdict::Change));
        assert_eq!(stands.judge(1, &late, None), Err(Code::Forbidden));
        assert_eq!(stands.judge(1, &other, None), Err(Code::Forbidden));
        let as_role = |role| stands.judge(1, &other, Some(role));
        assert_eq!(as_role(Role::Member), Err(Code::Forbidden));
        assert_eq!(as_role(Role::Admin), Ok(ChangeVerdict::Change));
        assert_eq!(as_role(Role::Owner), Ok(ChangeVerdict::Change));
    }
    // Pins are open to both users of a private conversation, and to those who administer a group.
    let pin = asked(2, MessageChange::Pin { on: true });
    let as_role = |role| stands.judge(1, &pin, role);
    assert_eq!(as_role(None), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Member)), Err(Code::Forbidden));
    assert_eq!(as_role(Some(Role::Admin)), Ok(ChangeVerdict::Change));
    assert_eq!(as_role(Some(Role::Owner)), Ok(ChangeVerdict::Change));
    let anybody = asked(2, react("👍", true));
    assert_eq!(stands.judge(1, &anybody, None), Ok(ChangeVerdict::Change));
    let refused = judge(at(1), &anybody, None, None, &ChangeRules::default());
    assert_eq!(refused.map_err(|r| r.code), Err(Code::NotFound));
}

// proves S0-57 in part: what is recalled stays so.
#[test]
fn nothing_comes_after_a_recall() {
    let mut stands = Stands::new();
    stands.apply(1, asked(1, MessageChange::Recall));
    let again = asked(1, MessageChange::Recall);
    assert_eq!(stands.judge(2, &again, None), Ok(ChangeVerdict::Nothing));
    let edit = asked(1, MessageChange::Edit(Content::text("x")));
    assert_eq!(stands.judge(2, &edit, None), Err(Code::NotFound));
    let reaction = asked(2, react("👍", true));
    assert_eq!(stands.judge(2, &reaction, None), Err(Code::NotFound));
    let pin = asked(2, MessageChange::Pin { on: true });
    assert_eq!(stands.judge(2, &pin, None), Err(Code::NotFound));
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
    assert_eq!(stands.judge(1, &same, None), Ok(ChangeVerdict::Nothing));
    let off = asked(2, react("👍", false));
    assert_eq!(stands.judge(1, &off, None), Ok(ChangeVerdict::Nothing));
    let on = asked(2, react("👍", true));
    stands.apply(1, on.clone());
    assert_eq!(stands.judge(2, &on, None), Ok(ChangeVerdict::Nothing));
    assert_eq!(stands.judge(2, &off, None), Ok(ChangeVerdict::Change));
    let pin = |on| asked(2, MessageChange::Pin { on });
    assert_eq!(
        stands.judge(2, &pin(false), None),
        Ok(ChangeVerdict::Nothing)
    );
    stands.apply(2, pin(true));
    assert_eq!(
        stands.judge(3, &pin(true), None),
        Ok(ChangeVerdict::Nothing)
    );
    assert_eq!(
        stands.judge(3, &pin(false), None),
        Ok(ChangeVerdict::Change)
    );
}

// Found by seed 10921 of the simulator: a batch died between the registers and the head.
#[test]
fn what_a_later_record_hides_is_a_change() {
    let mut stands = Stands::new();
    let on = asked(2, react("👍", true));
    let off = asked(2, react("👍", false));
    stands.apply(3, on.clone());
    for record in [&off, &on] {
        assert_eq!(stands.judge(2, record, None), Ok(ChangeVerdict::Change));
        assert_eq!(stands.judge(3, record, None), Ok(ChangeVerdict::Change));
    }
    assert_eq!(stands.judge(4, &on, None), Ok(ChangeVerdict::Nothing));
    let pin = asked(2, MessageChange::Pin { on: true });
    stands.apply(3, pin.clone());
    assert_eq!(stands.judge(2, &pin, None), Ok(ChangeVerdict::Change));
    assert_eq!(stands.judge(4, &pin, None), Ok(ChangeVerdict::Nothing));
    let edit = asked(1, MessageChange::Edit(Content::text("good evening")));
    stands.apply(3, edit.clone());
    assert_eq!(stands.judge(2, &edit, None), Ok(ChangeVerdict::Change));
    assert_eq!(stands.judge(4, &edit, None), Ok(ChangeVerdict::Nothing));
}

#[test]
fn reactions_have_a_bound() {
    let mut stands = Stands::new();
    let most = ChangeRules::default().reactions_max as u64;
    for n in 0..most {
        stands.apply(n, asked(2, react(&format!("r{n}"), true)));
    }
    let another = asked(3, react("one more", true));
    assert_eq!(stands.judge(most, &another, None), Err(Code::Forbidden));
    let known = asked(3, react("r0", true));
    assert_eq!(stands.judge(most, &known, None), Ok(ChangeVerdict::Change));
    let off = asked(2, react("r0", false));
    assert_eq!(stands.judge(most, &off, None), Ok(ChangeVerdict::Change));
    // Reactions taken back still count as tried by the user.
    let mut stands = Stands::new();
    for n in 0..most {
        stands.apply(2 * n, asked(2, react(&format!("r{n}"), true)));
        stands.apply(2 * n + 1, asked(2, react(&format!("r{n}"), false)));
    }
    let more = asked(2, react("one more", true));
    assert_eq!(stands.judge(2 * most, &more, None), Err(Code::Forbidden));
    let again = asked(2, react("r0", true));
    assert_eq!(
        stands.judge(2 * most, &again, None),
        Ok(ChangeVerdict::Change)
    );
    let others = asked(3, react("one more", true));
    assert_eq!(
        stands.judge(2 * most, &others, None),
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

fn any_asked() -> impl Strategy<Value = ChangeRequest> {
    (1..=2_i64, any_change()).prop_map(|(by, change)| asked(by, change))
}

/// The stores of one conversation with one message, and a writer that may die after any effect.
#[derive(Clone)]
struct Store {
    head: Head,
    rows: BTreeMap<u64, Register<OrderedChange>>,
    altered: Overlay,
}

impl Store {
    fn new() -> Store {
        Store {
            head: Head::default().moved_by(at(0), id(7), None),
            rows: BTreeMap::new(),
            altered: Overlay::default(),
        }
    }

    /// Handles a record, and dies after so many effects. True if it finished.
    fn handle(
        &mut self,
        offset: u64,
        asked: &ChangeRequest,
        effects: usize,
        sees_itself: bool,
    ) -> bool {
        let record = at(offset);
        let rev = match self.head.place_change(record) {
            ChangePlacement::Redelivery => return true,
            ChangePlacement::New(rev) => rev,
        };
        let content = Content::text("hello");
        let subject = ChangeSubject {
            seq: Seq(1),
            from: user(1),
            accepted_at: NOON,
            content: &content,
            altered: &self.altered,
        };
        // The negative twin takes its own half-done work for another record's.
        let seen_as = match sees_itself {
            true => at(offset + 1),
            false => record,
        };
        let verdict = judge(seen_as, asked, Some(subject), None, &ChangeRules::default());
        if verdict != Ok(ChangeVerdict::Change) {
            return true;
        }
        let changed = OrderedChange {
            rev,
            seq: Seq(1),
            asked: asked.clone(),
        };
        if effects == 0 {
            return false;
        }
        self.altered.apply(record, &changed);
        if effects == 1 {
            return false;
        }
        let written = Register {
            version: record,
            value: changed,
        };
        self.rows.insert(rev, written);
        if effects == 2 {
            return false;
        }
        let id = self.rows[&rev].value.asked.id;
        self.head = self.head.moved_by_change(record, id);
        true
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

fn run(log: &[(ChangeRequest, Vec<usize>)], sees_itself: bool) -> Store {
    let mut store = Store::new();
    for (index, (asked, deaths)) in log.iter().enumerate() {
        let offset = index as u64 + 1;
        for effects in deaths {
            store.handle(offset, asked, *effects, sees_itself);
        }
        assert!(store.handle(offset, asked, usize::MAX, sees_itself));
    }
    store
}

proptest! {
    // A writer that dies after any effect, any number of times, leaves the same state as one that
    // never dies; and a reader of the changes arrives at the state of the row.
    #[test]
    fn a_crash_after_any_effect_changes_nothing(
        log in vec((any_asked(), vec(0..3_usize, 0..3)), 0..24),
    ) {
        let calm: Vec<_> = log.iter().map(|(asked, _)| (asked.clone(), Vec::new())).collect();
        let (store, undisturbed) = (run(&log, false), run(&calm, false));
        prop_assert_eq!(store.head, undisturbed.head);
        prop_assert_eq!(&store.altered, &undisturbed.altered);
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
fn a_writer_that_sees_its_own_half_done_work_loses_a_change() {
    let log = [(asked(1, MessageChange::Recall), vec![1])];
    let store = run(&log, true);
    assert_eq!(store.head.rev, 0, "it has no place");
    assert_ne!(
        store.read(),
        store.altered,
        "who reads the changes never hears of it"
    );
    let store = run(&log, false);
    assert_eq!(store.read(), store.altered);
}
