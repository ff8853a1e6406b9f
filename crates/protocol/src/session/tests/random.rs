//! Random clients, stations and carriers, in random orders. Judges watch what is written, and bugs
//! are planted to see that they find them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

#[derive(Clone, Debug)]
enum Event {
    Admit(bool),
    Send {
        to: i64,
    },
    /// Resend the n-th send that was refused and may be resent.
    Resend(usize),
    GiveUp(usize),
    Push {
        id: i64,
        needs_ack: bool,
    },
    Ack(i64),
    Read(i64),
    Question,
    /// The station answers a question with so many bytes.
    AnswerQuestion(usize),
    Notice,
    Hint,
    /// The station answers its oldest batch; bits say which sends fail.
    Answer(u64),
    Receipt(bool),
    Page(Vec<i64>, bool),
    Written(usize),
    Wait(u64),
    Drain,
    /// The client sends nothing more.
    HalfClose,
    End,
}

const PAGE_BYTES_MAX: usize = 3000;

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => any::<bool>().prop_map(Event::Admit),
        20 => (2..5i64).prop_map(|to| Event::Send { to }),
        12 => (0..4usize).prop_map(Event::Resend),
        2 => (0..4usize).prop_map(Event::GiveUp),
        20 => (1..30i64, any::<bool>()).prop_map(|(id, needs_ack)| Event::Push { id, needs_ack }),
        20 => (1..30i64).prop_map(Event::Ack),
        6 => (1..30i64).prop_map(Event::Read),
        6 => Just(Event::Question),
        6 => (0..PAGE_BYTES_MAX).prop_map(Event::AnswerQuestion),
        4 => Just(Event::Notice),
        4 => Just(Event::Hint),
        // Three of four answers accept everything.
        12 => prop_oneof![3 => Just(0), 1 => any::<u64>()].prop_map(Event::Answer),
        6 => any::<bool>().prop_map(Event::Receipt),
        6 => (vec(1..30i64, 0..6), any::<bool>()).prop_map(|(ids, more)| Event::Page(ids, more)),
        20 => (0..400usize).prop_map(Event::Written),
        6 => (0..700u64).prop_map(Event::Wait),
        1 => Just(Event::Drain),
        1 => Just(Event::HalfClose),
        1 => Just(Event::End),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedBug {
    /// A notice is written at once, and so before the answer to the send that it follows from.
    NoticeFirst,
    /// Bytes of pages count as what the client fails to read.
    PagesCount,
}

/// A client, a station and a carrier around one session, and what they saw.
struct World {
    session: Session,
    now: Timestamp,
    limits: SessionLimits,
    sent_count: u8,
    next_token: u64,
    unresolved: BTreeSet<Token>,
    under_way: Option<Vec<Submit>>,
    questions: Vec<u32>,
    question: u32,
    is_sending_receipts: bool,
    is_fetching: bool,
    mail_ids: BTreeSet<MessageId>,
    acked_ids: BTreeSet<MessageId>,
    page: i64,
    /// Refused sends in the order of their first try, as the client's outbox keeps them.
    outbox: BTreeMap<u8, i64>,
    recipients: BTreeMap<u8, i64>,
    accepted_sends: Vec<(i64, u8)>,
    unwritten: usize,
    /// Unwritten frames: weight, and whether it is the page that answers a question.
    stream: VecDeque<(usize, bool)>,
    /// Time at which the socket last took something, or something first waited for it.
    written_at: Timestamp,
    /// Submitted sends whose answers are not written yet.
    unanswered_sends: BTreeSet<u8>,
    /// Sends under way when each notice came, which may be why it came.
    causes: Vec<BTreeSet<u8>>,
    planted_bug: Option<PlantedBug>,
    /// What the judges say.
    findings: Vec<String>,
    admit_count: usize,
    leave_count: usize,
    close_count: usize,
}

impl World {
    fn new() -> World {
        let limits = SessionLimits {
            send_window: 4,
            push_window: 5,
            push_window_bytes: 60,
            mail_page: 3,
            outgoing_bytes_max: 1200,
            ..SessionLimits::default()
        };
        let mut session = opened_session(limits.clone());
        session.handle_frame(ClientFrame::Hello(hello()), START);
        World {
            session,
            now: START,
            limits,
            sent_count: 0,
            next_token: 0,
            unresolved: BTreeSet::new(),
            under_way: None,
            questions: Vec::new(),
            question: 0,
            is_sending_receipts: false,
            is_fetching: false,
            mail_ids: BTreeSet::new(),
            acked_ids: BTreeSet::new(),
            page: 0,
            outbox: BTreeMap::new(),
            recipients: BTreeMap::new(),
            accepted_sends: Vec::new(),
            unwritten: 0,
            stream: VecDeque::new(),
            written_at: START,
            unanswered_sends: BTreeSet::new(),
            causes: Vec::new(),
            planted_bug: None,
            findings: Vec::new(),
            admit_count: 0,
            leave_count: 0,
            close_count: 0,
        }
    }

    fn step(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Admit(true) => self.session.handle_admitted(Ok(admission()), now),
            Event::Admit(false) => {}
            Event::Send { to } if self.sent_count < u8::MAX => {
                self.sent_count += 1;
                self.recipients.insert(self.sent_count, to);
                self.send(self.sent_count);
            }
            Event::Send { .. } => {}
            Event::Resend(nth) => {
                if let Some(&number) = self.outbox.keys().nth(nth) {
                    self.send(number);
                }
            }
            Event::GiveUp(nth) => {
                if let Some(&number) = self.outbox.keys().nth(nth) {
                    self.outbox.remove(&number);
                    self.session
                        .handle_frame(ClientFrame::GiveUp(send_id(number)), now);
                }
            }
            Event::Push { id, needs_ack } => {
                self.next_token += 1;
                self.unresolved.insert(token(self.next_token));
                let push = Push {
                    token: PushToken::from_number(self.next_token),
                    needs_ack,
                    ..push(id)
                };
                self.session.push(SOURCE, push, now);
            }
            Event::Ack(id) if self.session.is_open() => {
                self.acked_ids.insert(message(id));
                self.session.handle_frame(received(&[id]), now);
            }
            Event::Ack(_) => {}
            Event::Read(id) if self.session.is_open() => {
                self.acked_ids.insert(message(id));
                (self.session).handle_frame(ack(ReceiptKind::Read, &[id]), now);
            }
            Event::Read(_) => {}
            Event::Question if self.session.is_open() => {
                self.question += 1;
                let question = ClientFrame::Sync(question(self.question));
                self.session.handle_frame(question, now);
            }
            Event::Question => {}
            Event::AnswerQuestion(bytes) => {
                if let Some(request) = self.questions.pop() {
                    let page = Outgoing::Encoded(Bytes::from(vec![0; bytes]));
                    self.session.handle_answer(request, Ok(page), now);
                }
            }
            Event::Notice => {
                let notice = Bytes::from(self.causes.len().to_string());
                let causes = self.under_way.iter().flatten();
                self.causes.push(causes.map(send_number).collect());
                self.session.notice(notice, now);
            }
            Event::Hint => self.session.hint(),
            Event::Answer(failures) => self.answer(failures),
            Event::Receipt(ok) => {
                if std::mem::take(&mut self.is_sending_receipts) {
                    let acked = Acked {
                        kind: ReceiptKind::Received,
                        ids: vec![],
                        refusals: vec![],
                    };
                    let answer = if ok { Ok(acked) } else { Err(unavailable()) };
                    self.session.handle_receipts(answer, now);
                }
            }
            Event::Page(ids, more) => {
                if std::mem::take(&mut self.is_fetching) {
                    self.page += 1;
                    self.mail_ids.extend(ids.iter().map(|&id| message(id)));
                    self.session
                        .handle_page(mails(&ids, more.then_some(self.page)), now);
                }
            }
            Event::Written(weight) => {
                let weight = weight.min(self.unwritten);
                self.write(weight);
                self.session.handle_written(weight, now);
            }
            Event::Wait(millis) => {
                self.now = now + Duration::from_millis(millis);
                self.session.handle_timeout(self.now);
            }
            Event::Drain => self
                .session
                .drain(Refusal::new(Code::Draining, "leaving"), None, now),
            Event::HalfClose if self.session.is_open() => self.session.handle_end(now),
            Event::HalfClose => {}
            Event::End => self.session.handle_closed(now),
        }
        self.perform();
    }

    fn send(&mut self, number: u8) {
        if self.session.is_open() {
            let frame = send_to(self.recipients[&number], number);
            self.session.handle_frame(frame, self.now);
        }
    }

    /// As a station does: after a failure, nothing of the same conversation in the same batch.
    fn answer(&mut self, failures: u64) {
        let Some(batch) = self.under_way.take() else {
            return;
        };
        let mut failed_recipients = BTreeSet::new();
        let mut answers = Vec::new();
        for (index, submit) in batch.into_iter().enumerate() {
            let number = submit.send.send_id.as_bytes()[0];
            let to = self.recipients[&number];
            if failures >> index & 1 == 1 || failed_recipients.contains(&to) {
                failed_recipients.insert(to);
                answers.push(Err(unavailable()));
            } else {
                self.accepted_sends.push((to, number));
                self.outbox.remove(&number);
                answers.push(accepted_answer(number));
            }
        }
        self.session.handle_submitted(answers, self.now);
    }

    fn write(&mut self, weight: usize) {
        self.unwritten -= weight;
        self.written_at = self.now;
        let mut remaining = weight;
        while let Some((first, _)) = self.stream.front_mut() {
            let written = remaining.min(*first);
            (*first, remaining) = (*first - written, remaining - written);
            if *first > 0 {
                break;
            }
            self.stream.pop_front();
        }
    }

    /// Weight of what waits, apart from pages.
    fn unread_weight(&self) -> usize {
        let counted_frames = self.stream.iter().filter(|(_, is_page)| !is_page);
        counted_frames.map(|(weight, _)| weight).sum()
    }

    fn judge_written(&mut self, outgoing: &Outgoing) {
        match outgoing {
            Outgoing::Frame(ServerFrame::Accepted(Accepted { send_id, .. }))
            | Outgoing::Frame(ServerFrame::Refused { send_id, .. }) => {
                self.unanswered_sends.remove(&send_id.as_bytes()[0]);
            }
            Outgoing::Notice(notice) => {
                let number = str::from_utf8(notice).expect("a number");
                let causes = &self.causes[number.parse::<usize>().expect("a number")];
                let early_sends: Vec<_> = causes.intersection(&self.unanswered_sends).collect();
                if !early_sends.is_empty() {
                    let text = format!("notice {number} before the answers to {early_sends:?}");
                    self.findings.push(text);
                }
            }
            Outgoing::Frame(_) | Outgoing::Encoded(_) => {}
        }
    }

    fn judge_close(&mut self, refusal: &Refusal) {
        let unread = self.unread_weight();
        let has_read_nothing = self.now >= self.written_at + self.limits.write_wait;
        let is_slow = unread >= self.limits.outgoing_bytes_max as usize || has_read_nothing;
        if refusal.code == Code::Slow && !is_slow {
            let text = format!("slow with {unread} unread bytes apart from pages");
            self.findings.push(text);
        }
    }

    fn actions(&mut self) -> Vec<Action> {
        let max = self.limits.outgoing_bytes_max as usize;
        if self.planted_bug == Some(PlantedBug::PagesCount) && self.unwritten >= max {
            let refusal = Refusal::new(Code::Slow, "too many frames are waiting for you to read");
            self.session.close(refusal, self.now);
        }
        let mut actions = drain_actions(&mut self.session);
        if self.planted_bug == Some(PlantedBug::NoticeFirst) {
            let is_notice =
                |action: &Action| matches!(action, Action::Transmit(Outgoing::Notice(_)));
            actions.sort_by_key(|action| !is_notice(action));
        }
        actions
    }

    fn perform(&mut self) {
        for action in self.actions() {
            match action {
                Action::Transmit(outgoing) => {
                    if self.unwritten == 0 {
                        self.written_at = self.now;
                    }
                    self.unwritten += outgoing.weight();
                    let is_page =
                        matches!(&outgoing, Outgoing::Encoded(it) if it.first() == Some(&0));
                    self.stream.push_back((outgoing.weight(), is_page));
                    self.judge_written(&outgoing);
                    assert_eq!(self.close_count, 0, "nothing is written after the close");
                    if let Outgoing::Frame(ServerFrame::Refused { send_id, refusal }) = outgoing
                        && refusal.code.retryable()
                    {
                        let number = send_id.as_bytes()[0];
                        self.outbox.insert(number, self.recipients[&number]);
                    }
                }
                Action::Admit(_) => self.admit_count += 1,
                Action::Submit(batch) => {
                    assert!(self.under_way.is_none(), "two batches under way");
                    assert!(batch.len() <= self.limits.send_window as usize);
                    self.unanswered_sends.extend(batch.iter().map(send_number));
                    self.under_way = Some(batch);
                }
                Action::Receipts(_) => {
                    assert!(!self.is_sending_receipts, "two calls under way");
                    self.is_sending_receipts = true;
                }
                Action::Resolve { token, .. } => {
                    assert!(
                        self.unresolved.remove(&token),
                        "{token:?} was resolved twice"
                    );
                }
                Action::FetchMail { .. } => {
                    assert!(!self.is_fetching, "two pages under way");
                    self.is_fetching = true;
                }
                Action::RemoveMail { ids } => {
                    for id in ids {
                        assert!(self.mail_ids.contains(&id) && self.acked_ids.contains(&id));
                    }
                }
                Action::Sync(question) => {
                    self.questions.push(question.request);
                    assert!(self.questions.len() <= 4, "too many at a time");
                }
                Action::Refresh(_) | Action::Subscribe(_) | Action::Watch(_) | Action::Count(_) => {
                }
                Action::Close(refusal) => {
                    self.close_count += 1;
                    self.judge_close(&refusal);
                }
                Action::Leave => self.leave_count += 1,
            }
        }
        // An answer that refuses every id of a full window, each with its reason.
        let frame_max = 1024;
        let bound = self.limits.outgoing_bytes_max as usize;
        assert!(self.session.outgoing() <= 2 * bound + PAGE_BYTES_MAX + frame_max);
        assert_eq!(self.session.outgoing(), self.unwritten);
        assert!(self.unresolved.len() <= 3 * self.limits.push_window as usize);
    }

    fn finish(mut self) {
        let was_admitted = self.session.user().is_some();
        self.session.handle_closed(self.now);
        self.perform();
        // All answers come in the end; a client that is gone may be admitted only now.
        self.session.handle_admitted(Ok(admission()), self.now);
        while std::mem::take(&mut self.is_sending_receipts) {
            self.session.handle_receipts(Err(unavailable()), self.now);
            self.perform();
        }
        while self.under_way.is_some() {
            self.answer(0);
            self.perform();
        }
        self.perform();
        assert_eq!(self.findings, Vec::<String>::new());
        assert!(
            self.unresolved.is_empty(),
            "never resolved: {:?}",
            self.unresolved
        );
        assert!(self.session.is_settled(), "{:?}", self.session);
        assert_eq!(self.session.actions.capacity(), 0);
        assert!(self.close_count <= 1);
        assert_eq!(
            self.leave_count, 1,
            "admitted before the end: {was_admitted}"
        );

        // Each conversation was accepted in the order in which its sends were first tried.
        let mut newest: BTreeMap<i64, u8> = BTreeMap::new();
        for (to, number) in self.accepted_sends {
            let previous = newest.insert(to, number).unwrap_or(0);
            assert!(
                previous < number,
                "{number} to {to} was accepted after {previous}"
            );
        }
    }
}

fn send_number(submit: &Submit) -> u8 {
    submit.send.send_id.as_bytes()[0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_obligation_is_settled_in_order(events in vec(event(), 0..120)) {
        let mut world = World::new();
        world.perform();
        for event in events {
            world.step(event);
        }
        world.finish();
    }
}

#[test]
fn the_judges_find_what_is_planted() {
    for bug in [PlantedBug::NoticeFirst, PlantedBug::PagesCount] {
        let mut runner = TestRunner::deterministic();
        let finds_bug = |_: &usize| {
            let events = vec(event(), 0..120).new_tree(&mut runner).expect("events");
            let mut world = World::new();
            world.planted_bug = Some(bug);
            world.perform();
            events.current().into_iter().for_each(|it| world.step(it));
            !world.findings.is_empty()
        };
        let seed = (1..=100).find(finds_bug);
        assert!(seed.is_some(), "{bug:?}");
    }
}
