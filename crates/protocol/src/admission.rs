//! The station's decision on a send before the log sees it: is it allowed, and is it new.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::bounds::Bounds;
use crate::change::{ChangeKind, ChangeRequest, ChangeRules, ChangeSubject, Overlay};
use crate::delivery::Origin;
use crate::frame::Send;
use crate::group::Role;
use crate::mailbox::{DedupeAnswer, FirstSend};
use crate::record::{MessageTask, Task, Work};
use crate::{
    Code, ConversationId, DeviceId, GroupId, Message, MessageId, Options, Placed, Recipient,
    Refusal, SessionId, Timestamp, UserId, change,
};

/// Time for which a positive membership answer may be cached. Negative answers are never cached.
pub const MEMBERSHIP_CACHE_TTL: Duration = Duration::from_secs(3);

/// Age by which every accepted message has been placed.
const PLACEMENT_TIMEOUT: Duration = Duration::from_secs(600);

/// Limits of one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// The largest body; exactly this many bytes are still accepted.
    pub body_bytes_max: usize,
}

/// Message kind 0: a text. The other kinds are opaque to the server.
const TEXT: i32 = 0;

/// Decides whether `from` may send this, and to which conversation it belongs. Membership of a
/// group is not known here: see [`needs_membership`].
///
/// The receiver need not exist: a user who never signed in finds the message by sync at the first
/// sign-in. An empty text is refused as a mistake of its sender; other kinds may be empty, since
/// the server does not interpret them.
pub fn admit(from: UserId, send: &Send, limits: &SendLimits) -> Result<ConversationId, Refusal> {
    let conversation = match send.to {
        Recipient::User(to) => ConversationId::private(from, to).ok_or_else(|| {
            Refusal::new(Code::ToSelf, "a message needs a receiver other than you")
        })?,
        Recipient::Group(group) => ConversationId::Group(group),
    };
    if is_group_command(send) && !matches!(conversation, ConversationId::Group(_)) {
        return Err(Refusal::new(
            Code::InvalidArgument,
            "only a group can be created, joined or left: name one as the receiver",
        ));
    }
    let size = send.content.data.len();
    if size > limits.body_bytes_max {
        return Err(Refusal::new(
            Code::TooLarge,
            format!(
                "the body has {size} bytes, {} are allowed",
                limits.body_bytes_max
            ),
        ));
    }
    let change = send.content.change.as_deref();
    let has_text = change.is_none_or(|change| change.kind.has_text());
    if !has_text && size > 0 {
        return Err(Refusal::new(
            Code::InvalidArgument,
            "this kind of change has no text: leave the body empty",
        ));
    }
    if has_text && size == 0 && send.content.kind == TEXT {
        return Err(Refusal::new(Code::InvalidArgument, "the text is empty"));
    }
    Ok(conversation)
}

/// The group whose members alone may send this. Group commands need no membership here: the group's
/// writer judges them, since a user who joins is not a member yet.
pub fn needs_membership(send: &Send) -> Option<GroupId> {
    match send.to {
        Recipient::Group(group) if !is_group_command(send) => Some(group),
        Recipient::Group(_) | Recipient::User(_) => None,
    }
}

/// Whether a muted member may not send this: a message, an edit or a reaction.
pub fn is_written(send: &Send) -> bool {
    let change = send.content.change.as_deref();
    change.is_none_or(|change| change.kind.is_written())
}

fn is_group_command(send: &Send) -> bool {
    let change = send.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::GroupCommand(_)))
}

/// Options of an admitted send. A change has none: live sessions get it, everybody else finds it by
/// sync.
pub fn send_options(send: &Send) -> Options {
    match send.content.change {
        Some(_) => Options::NONE,
        None => send.options,
    }
}

/// The message that an admitted send becomes.
pub fn accepted_message(from: UserId, device: DeviceId, send: &Send, id: MessageId) -> Message {
    Message {
        id,
        from,
        to: send.to,
        // The id's own time: a repeat under the same id has the same one.
        accepted_at: id.timestamp(),
        device,
        send_id: send.send_id,
        options: send_options(send),
        content: send.content.clone(),
    }
}

/// The record of an admitted send, published at `at`; `bounds` are those of the station.
pub fn message_task(
    message: Message,
    origin: Origin,
    doubt: Doubt,
    bounds: Bounds,
    at: Timestamp,
) -> Task {
    let age = doubt.age();
    // Ids may run ahead of the clock, as after a restart: the first try's may be older by that lead.
    let lead = message.accepted_at.since(at);
    let work = Work::Message(MessageTask {
        message,
        origin: Some(origin),
        maybe_repeat: doubt == Doubt::MaybeRepeat,
        unsure: age.is_some(),
        age: age.unwrap_or_default().saturating_add(lead),
        letter: None,
        bounds,
    });
    Task::new(work, at)
}

/// Checks a change against the message that it is about, as a reader of the conversation has it, and
/// its changes so far. The writer judges again, at the change's place in the log: a change that
/// cannot be judged yet passes.
///
/// # Errors
/// The reason why it would have no effect.
pub fn check_change(
    request: &ChangeRequest,
    role: Option<Role>,
    original: Option<(&Placed, &Overlay)>,
    rules: &ChangeRules,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Some((placed, overlay)) = original else {
        return if now.since(request.subject.timestamp()) > PLACEMENT_TIMEOUT {
            Err(Refusal::new(
                Code::NotFound,
                "no such message in this conversation",
            ))
        } else {
            Ok(())
        };
    };
    let subject = ChangeSubject {
        seq: placed.position.seq,
        from: placed.message.from,
        accepted_at: placed.message.accepted_at,
        content: &placed.message.content,
        overlay,
    };
    change::judge(request, Some(subject), role, rules).map(drop)
}

/// Order of sends in a batch: after one that may be retried, later ones of its session to its
/// conversation wait for it.
#[derive(Clone, Debug, Default)]
pub struct SendOrder(BTreeSet<(SessionId, ConversationId)>);

impl SendOrder {
    /// Notes the refusal of a send.
    pub fn refused(&mut self, session: SessionId, conversation: ConversationId, refusal: &Refusal) {
        if refusal.code.retryable() {
            self.0.insert((session, conversation));
        }
    }

    /// Checks that no earlier send has to be repeated first.
    ///
    /// # Errors
    /// `EarlierSendFailed`.
    pub fn check(&self, session: SessionId, conversation: ConversationId) -> Result<(), Refusal> {
        if self.0.contains(&(session, conversation)) {
            Err(earlier_failed())
        } else {
            Ok(())
        }
    }
}

fn earlier_failed() -> Refusal {
    Refusal::new(
        Code::EarlierSendFailed,
        "an earlier message of yours to this conversation failed: resend that one first",
    )
}

/// Next step for an admitted send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Already in the log under this id: answer, and publish nothing.
    Known(MessageId),
    /// Publish under this id.
    Publish { id: MessageId, doubt: Doubt },
}

/// Reason to expect a second record of the same send in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// None: the send is new.
    None,
    /// Published before under the same id, with unknown outcome.
    MaybeRepeat,
    /// First try, and the dedupe store did not answer: a resend may stand in the log before it.
    Unasked,
    /// Resend by the client, and its key is missing: the send may be in the log under another id,
    /// made at most this long before this one.
    Unsure { age: Duration },
}

impl Doubt {
    /// True for a first try.
    pub fn is_first(self) -> bool {
        matches!(self, Doubt::None | Doubt::Unasked)
    }

    /// Maximum age, at this record's id, of an id that another record of the same send may have;
    /// `None` if the writer does not look for one.
    pub fn age(self) -> Option<Duration> {
        match self {
            Doubt::None | Doubt::MaybeRepeat => None,
            Doubt::Unasked => Some(AGE_MARGIN),
            Doubt::Unsure { age } => Some(age),
        }
    }
}

/// Margin on top of the age that a client states: the first try may have got its id this much
/// earlier, because this try travelled longer or because another station's clock made that id.
pub const AGE_MARGIN: Duration = Duration::from_secs(60);

/// Age of the oldest first try that the writer looks for. Clients give up long before.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Judges a send by the answer of its dedupe key; `None` if the store did not answer. `new_send`
/// is the id and conversation of the send, should it be new.
///
/// # Errors
/// `InvalidArgument` if the key belongs to a message to another conversation: answering
/// with that message's id would acknowledge a message that the log never saw, and publishing under
/// that id would put two messages under one.
pub fn judge(
    send: &Send,
    new_send: FirstSend,
    answer: Option<DedupeAnswer>,
) -> Result<Verdict, Refusal> {
    if let Some(DedupeAnswer::Pending(first) | DedupeAnswer::Done(first)) = answer
        && first.conversation != new_send.conversation
    {
        return Err(send_id_taken());
    }
    let (id, first) = match answer {
        Some(DedupeAnswer::Done(first)) => return Ok(Verdict::Known(first.id)),
        // The pending send may itself be an unsure copy that the writer dropped: then no row has
        // its id, and the writer must look for a second record under it as well.
        Some(DedupeAnswer::Pending(first)) => (first.id, Doubt::MaybeRepeat),
        Some(DedupeAnswer::Fresh) => (new_send.id, Doubt::None),
        // A slow first try may arrive behind its own resend, which found no key of it.
        None => (new_send.id, Doubt::Unasked),
    };
    let doubt = match send.attempt {
        0 => first,
        _ => Doubt::Unsure {
            age: send.age.saturating_add(AGE_MARGIN).min(AGE_MAX),
        },
    };
    Ok(Verdict::Publish { id, doubt })
}

/// One send_id, two receivers. Not retryable: under this send_id the second send will never be
/// accepted.
pub fn send_id_taken() -> Refusal {
    Refusal::new(
        Code::InvalidArgument,
        "this send_id was already used for your message to someone else, so this one was not \
         accepted: use a new send_id for each message, and reuse it only to resend that message",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::ChangeOf;
    use crate::group::GroupCommand;
    use crate::message::Content;
    use crate::presence::BoatLife;
    use crate::{BoatId, Incarnation, Options, SendId};

    #[test]
    fn sends_behind_one_that_is_to_be_repeated_wait_for_it() {
        let session = |number| SessionId::new(number).expect("positive");
        let user = |number| UserId::new(number).expect("positive");
        let conversation_with = |other| ConversationId::private(user(1), user(other)).expect("two");
        let mut order = SendOrder::default();
        order.refused(
            session(1),
            conversation_with(2),
            &Refusal::new(Code::TooLarge, "for good"),
        );
        assert_eq!(order.check(session(1), conversation_with(2)), Ok(()));
        order.refused(
            session(1),
            conversation_with(2),
            &Refusal::new(Code::Unavailable, "for now"),
        );
        let outcome = order
            .check(session(1), conversation_with(2))
            .map_err(|refusal| refusal.code);
        assert_eq!(outcome, Err(Code::EarlierSendFailed));
        assert_eq!(order.check(session(1), conversation_with(3)), Ok(()));
        assert_eq!(order.check(session(2), conversation_with(2)), Ok(()));
    }

    #[test]
    fn a_message_that_was_never_placed_is_unknown_after_a_while() {
        let id = |millis| MessageId::floor_of(Timestamp::from_millis(millis));
        let message_id = id(1_750_000_000_000);
        let request = ChangeRequest {
            id: id(1_750_000_000_001),
            by: UserId::new(1).expect("positive"),
            at: Timestamp::ZERO,
            send_id: SendId::from_bytes([1; 16]),
            subject: message_id,
            change: change::MessageChange::Recall,
        };
        let check = |age| {
            let now = message_id.timestamp() + age;
            check_change(&request, None, None, &ChangeRules::default(), now)
        };
        assert_eq!(check(PLACEMENT_TIMEOUT), Ok(()));
        let late_check = check(PLACEMENT_TIMEOUT + Duration::from_millis(1));
        assert_eq!(
            late_check.map_err(|refusal| refusal.code),
            Err(Code::NotFound)
        );
        assert_eq!(PLACEMENT_TIMEOUT, Duration::from_secs(600));
        assert_eq!(MEMBERSHIP_CACHE_TTL, Duration::from_secs(3));
    }

    const LIMITS: SendLimits = SendLimits { body_bytes_max: 8 };

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn id(number: i64) -> MessageId {
        MessageId::new(number).expect("positive")
    }

    fn conversation(peer: i64) -> ConversationId {
        ConversationId::private(user(1), user(peer)).expect("two users")
    }

    /// A send of user 1 to user 2 under this id.
    fn first(number: i64) -> FirstSend {
        FirstSend {
            id: id(number),
            conversation: conversation(2),
        }
    }

    fn send(to: Recipient, text: &str) -> Send {
        Send {
            send_id: SendId::from_bytes([7; 16]),
            to,
            options: Options::CHAT,
            content: Content::text(text),
            attempt: 0,
            age: Duration::ZERO,
            seen_seq: None,
            trace: None,
        }
    }

    fn refusal_code(to: Recipient, text: &str) -> Option<Code> {
        admit(user(1), &send(to, text), &LIMITS)
            .err()
            .map(|refusal| refusal.code)
    }

    #[test]
    fn sends_are_refused_for_what_is_wrong_with_them() {
        let peer = Recipient::User(user(2));
        assert_eq!(refusal_code(peer, "12345678"), None, "exactly the limit");
        assert_eq!(refusal_code(peer, "123456789"), Some(Code::TooLarge));
        assert_eq!(refusal_code(peer, ""), Some(Code::InvalidArgument));
        assert_eq!(
            refusal_code(Recipient::User(user(1)), "me"),
            Some(Code::ToSelf),
            "to oneself"
        );
        let group = Recipient::Group(GroupId::new(5).expect("positive"));
        assert_eq!(refusal_code(group, "all"), None);
        assert_eq!(refusal_code(group, "123456789"), Some(Code::TooLarge));
    }

    #[test]
    fn a_command_is_for_a_group_and_says_nothing_else() {
        let group = GroupId::new(5).expect("positive");
        let command = |to, text| {
            let mut command = send(to, text);
            let kind = ChangeKind::GroupCommand(GroupCommand::Join);
            let subject = None;
            command.content.change = Some(Box::new(ChangeOf { subject, kind }));
            command
        };
        let try_admit = |send: &Send| admit(user(1), send, &LIMITS).map_err(|r| r.code);
        let join = command(Recipient::Group(group), "");
        assert_eq!(try_admit(&join), Ok(ConversationId::Group(group)));
        assert_eq!(needs_membership(&join), None);
        let with_text = command(Recipient::Group(group), "hello");
        assert_eq!(try_admit(&with_text), Err(Code::InvalidArgument));
        let to_user = command(Recipient::User(user(2)), "");
        assert_eq!(try_admit(&to_user), Err(Code::InvalidArgument));
        let message = send(Recipient::Group(group), "hello");
        assert_eq!(needs_membership(&message), Some(group));
        let private = send(Recipient::User(user(2)), "hello");
        assert_eq!(needs_membership(&private), None);
    }

    #[test]
    fn a_repeat_is_looked_for_behind_the_lead_of_ids() {
        let at = Timestamp::from_millis(50_000);
        let task = |accepted_at, doubt| {
            let message = Message {
                accepted_at,
                ..accepted_message(
                    user(1),
                    DeviceId::new("phone").expect("short"),
                    &send(Recipient::User(user(2)), "hello"),
                    id(1),
                )
            };
            let origin = Origin {
                session: SessionId::new(1).expect("positive"),
                life: BoatLife {
                    boat: BoatId::new("boat-1").expect("a name"),
                    incarnation: Incarnation(1),
                },
            };
            match message_task(message, origin, doubt, Bounds::default(), at).work {
                Work::Message(task) => task.age,
                Work::Deliver(_) | Work::Kickout(_) => panic!("a message"),
            }
        };
        let seconds = Duration::from_secs;
        let unsure = Doubt::Unsure { age: seconds(44) };
        assert_eq!(task(at, unsure), seconds(44));
        assert_eq!(task(at + seconds(600), unsure), seconds(644));
        assert_eq!(task(at + seconds(600), Doubt::None), seconds(600));
        assert_eq!(
            task(Timestamp::ZERO, unsure),
            seconds(44),
            "ids behind the clock"
        );
    }

    #[test]
    fn a_picture_may_be_empty() {
        let mut picture = send(Recipient::User(user(2)), "");
        picture.content.kind = 1;
        assert_eq!(admit(user(1), &picture, &LIMITS), Ok(conversation(2)));
    }

    // proves S3-22: whatever the key says, a resend never becomes a second message unmarked.
    #[test]
    fn a_resend_is_known_repeated_or_marked() {
        let mut resend = send(Recipient::User(user(2)), "x");
        let publish = |id, doubt| Ok(Verdict::Publish { id, doubt });
        let judge = |send: &Send, known| judge(send, first(9), known);
        let fresh = Some(DedupeAnswer::Fresh);
        assert_eq!(judge(&resend, fresh), publish(id(9), Doubt::None));
        assert_eq!(judge(&resend, None), publish(id(9), Doubt::Unasked));
        assert_eq!(Doubt::Unasked.age(), Some(AGE_MARGIN));
        let pending = Some(DedupeAnswer::Pending(first(4)));
        assert_eq!(judge(&resend, pending), publish(id(4), Doubt::MaybeRepeat));

        resend.attempt = 1;
        resend.age = Duration::from_secs(3);
        let unsure = Doubt::Unsure {
            age: Duration::from_secs(63),
        };
        assert_eq!(judge(&resend, fresh), publish(id(9), unsure));
        assert_eq!(judge(&resend, None), publish(id(9), unsure));
        assert_eq!(judge(&resend, pending), publish(id(4), unsure));
        assert_eq!(
            judge(&resend, Some(DedupeAnswer::Done(first(4)))),
            Ok(Verdict::Known(id(4)))
        );
    }

    // Sentence 4 of the promise: the first message's id would be a false acknowledgement of the
    // second.
    #[test]
    fn a_send_id_of_another_conversation_is_refused() {
        let mut second = send(Recipient::User(user(3)), "x");
        let new_send = FirstSend {
            id: id(9),
            conversation: conversation(3),
        };
        for attempt in [0, 1] {
            second.attempt = attempt;
            for answer in [
                DedupeAnswer::Pending(first(4)),
                DedupeAnswer::Done(first(4)),
            ] {
                let refusal = judge(&second, new_send, Some(answer)).expect_err("taken");
                assert_eq!(refusal.code, Code::InvalidArgument);
                assert!(!refusal.code.retryable());
            }
        }
    }

    #[test]
    fn an_absurd_age_is_capped() {
        let mut resend = send(Recipient::User(user(2)), "x");
        (resend.attempt, resend.age) = (3, Duration::MAX);
        assert_eq!(
            judge(&resend, first(9), None),
            Ok(Verdict::Publish {
                id: id(9),
                doubt: Doubt::Unsure { age: AGE_MAX }
            })
        );
    }
}
