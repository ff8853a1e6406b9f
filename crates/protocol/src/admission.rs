//! What station decides of a send before the log sees it: may it be, and is it new.

use std::time::Duration;

use crate::change::ChangeKind;
use crate::frame::Send;
use crate::mailbox::{DedupeAnswer, FirstSend};
use crate::{Code, ConversationId, GroupId, MessageId, Options, Recipient, Refusal, UserId};

/// What one send may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// The largest body; exactly this many bytes are still accepted.
    pub body_bytes_max: usize,
}

/// Message kind 0: a text. The other kinds are opaque to the server.
const TEXT: i32 = 0;

/// Decides whether `from` may send this, and to which conversation it belongs. Whether they are in a group is not
/// known here: see [`needs_membership`].
///
/// Whether the receiver exists is not asked: a user who never signed in finds the message by sync at
/// the first sign-in. An empty text is refused, because a sender who sends one has made a mistake; other
/// kinds may be empty, since what they mean is not the server's to know.
pub fn admit(from: UserId, send: &Send, limits: &SendLimits) -> Result<ConversationId, Refusal> {
    let conversation = match send.to {
        Recipient::User(to) => ConversationId::private(from, to).ok_or_else(|| {
            Refusal::new(Code::ToSelf, "a message needs a receiver other than you")
        })?,
        Recipient::Group(group) => ConversationId::Group(group),
    };
    if is_wish(send) && !matches!(conversation, ConversationId::Group(_)) {
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
    let says = change.is_none_or(|change| change.kind.has_text());
    if !says && size > 0 {
        return Err(Refusal::new(
            Code::InvalidArgument,
            "this change has no text of its own: leave the body empty",
        ));
    }
    if says && size == 0 && send.content.kind == TEXT {
        return Err(Refusal::new(Code::InvalidArgument, "the text is empty"));
    }
    Ok(conversation)
}

/// The group that a sender must be in for this to be admitted: wishes are for its writer to judge, for who joins is not
/// in yet.
pub fn needs_membership(send: &Send) -> Option<GroupId> {
    match send.to {
        Recipient::Group(group) if !is_wish(send) => Some(group),
        Recipient::Group(_) | Recipient::User(_) => None,
    }
}

fn is_wish(send: &Send) -> bool {
    let change = send.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Wish(_)))
}

/// What an admitted send asks for: a change is told to who is there; the others find it by sync.
pub fn options_of(send: &Send) -> Options {
    match send.content.change {
        Some(_) => Options::NONE,
        None => send.options,
    }
}

/// What is to be done with an admitted send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log has it under this id: answer, and publish nothing.
    Known(MessageId),
    /// Publish it under this id.
    Publish { id: MessageId, doubt: Doubt },
}

/// Why the writer may meet this send a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is new.
    None,
    /// Published before under the same id, and whether the log took it is not known.
    MaybeRepeat,
    /// A first try whose key could not be asked: a resend of it may stand in the log before it.
    Unasked,
    /// A client's resend whose key is missing: it may stand in the log under another id, made at most
    /// this long before this one.
    Unsure { age: Duration },
}

impl Doubt {
    /// Nobody has sent it before this.
    pub fn is_first(self) -> bool {
        matches!(self, Doubt::None | Doubt::Unasked)
    }

    /// How long before its id another record of the same send may have got one; `None` where it is not looked for.
    pub fn age(self) -> Option<Duration> {
        match self {
            Doubt::None | Doubt::MaybeRepeat => None,
            Doubt::Unasked => Some(AGE_MARGIN),
            Doubt::Unsure { age } => Some(age),
        }
    }
}

/// Added to the age that a client names: its first try may have got its id this much earlier, because
/// this try travelled longer or because another station's clock made that id.
pub const AGE_MARGIN: Duration = Duration::from_secs(60);

/// The oldest first try that is looked for. Clients give up long before.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Judges a send by what its dedupe key says; `None` where the key could not be asked. `offered` is what it
/// would be if it is new.
///
/// # Errors
/// `InvalidArgument` where the key stands for a message to another conversation: answering with that
/// one's id would call a message accepted that the log never saw, and publishing under that id would put
/// two messages under one.
pub fn judge(
    send: &Send,
    offered: FirstSend,
    known: Option<DedupeAnswer>,
) -> Result<Verdict, Refusal> {
    if let Some(DedupeAnswer::Pending(first) | DedupeAnswer::Done(first)) = known
        && first.conversation != offered.conversation
    {
        return Err(send_id_taken());
    }
    let (id, first) = match known {
        Some(DedupeAnswer::Done(first)) => return Ok(Verdict::Known(first.id)),
        // The pending one may itself be an unsure copy that the writer dropped: then its id stands nowhere,
        // and a second record under it must be looked for as well.
        Some(DedupeAnswer::Pending(first)) => (first.id, Doubt::MaybeRepeat),
        Some(DedupeAnswer::Fresh) => (offered.id, Doubt::None),
        // A first try that travels slowly may come behind its own resend, which found no key of it.
        None => (offered.id, Doubt::Unasked),
    };
    let doubt = match send.attempt {
        0 => first,
        _ => Doubt::Unsure {
            age: send.age.saturating_add(AGE_MARGIN).min(AGE_MAX),
        },
    };
    Ok(Verdict::Publish { id, doubt })
}

/// One send_id, two receivers. Not retryable: under this send_id it will never be accepted.
pub fn send_id_taken() -> Refusal {
    Refusal::new(
        Code::InvalidArgument,
        "this send_id stands for a message of yours to somebody else, so this one was not accepted: \
         make a new send_id for each message, and keep it only to resend that message",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::ChangeOf;
    use crate::group::Wish;
    use crate::message::Content;
    use crate::{Options, SendId};

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

    fn code_of(to: Recipient, text: &str) -> Option<Code> {
        admit(user(1), &send(to, text), &LIMITS)
            .err()
            .map(|refusal| refusal.code)
    }

    #[test]
    fn sends_are_refused_for_what_is_wrong_with_them() {
        let peer = Recipient::User(user(2));
        assert_eq!(code_of(peer, "12345678"), None, "exactly the limit");
        assert_eq!(code_of(peer, "123456789"), Some(Code::TooLarge));
        assert_eq!(code_of(peer, ""), Some(Code::InvalidArgument));
        assert_eq!(
            code_of(Recipient::User(user(1)), "me"),
            Some(Code::ToSelf),
            "to oneself"
        );
        let group = Recipient::Group(GroupId::new(5).expect("positive"));
        assert_eq!(code_of(group, "all"), None);
        assert_eq!(code_of(group, "123456789"), Some(Code::TooLarge));
    }

    #[test]
    fn a_wish_is_for_a_group_and_says_nothing_else() {
        let group = GroupId::new(5).expect("positive");
        let wish = |to, text| {
            let mut wish = send(to, text);
            let kind = ChangeKind::Wish(Wish::Join);
            let subject = None;
            wish.content.change = Some(Box::new(ChangeOf { subject, kind }));
            wish
        };
        let admitted = |send: &Send| admit(user(1), send, &LIMITS).map_err(|r| r.code);
        let join = wish(Recipient::Group(group), "");
        assert_eq!(admitted(&join), Ok(ConversationId::Group(group)));
        assert_eq!(needs_membership(&join), None);
        let talks = wish(Recipient::Group(group), "hello");
        assert_eq!(admitted(&talks), Err(Code::InvalidArgument));
        let nobody = wish(Recipient::User(user(2)), "");
        assert_eq!(admitted(&nobody), Err(Code::InvalidArgument));
        let message = send(Recipient::Group(group), "hello");
        assert_eq!(needs_membership(&message), Some(group));
        let private = send(Recipient::User(user(2)), "hello");
        assert_eq!(needs_membership(&private), None);
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

    // The promise's sentence 4: the first one's id would be a false acknowledgement of the second.
    #[test]
    fn a_send_id_of_another_conversation_is_refused() {
        let mut second = send(Recipient::User(user(3)), "x");
        let offered = FirstSend {
            id: id(9),
            conversation: conversation(3),
        };
        for attempt in [0, 1] {
            second.attempt = attempt;
            for known in [
                DedupeAnswer::Pending(first(4)),
                DedupeAnswer::Done(first(4)),
            ] {
                let refused = judge(&second, offered, Some(known)).expect_err("taken");
                assert_eq!(refused.code, Code::InvalidArgument);
                assert!(!refused.code.retryable());
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
