//! What station decides of a send before the log sees it: may it be, and is it new.

use std::time::Duration;

use crate::frame::Send;
use crate::mailbox::DedupeAnswer;
use crate::{Code, ConversationId, MessageId, Recipient, Refusal, UserId};

/// What one send may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendLimits {
    /// The largest body; exactly this many bytes are still accepted.
    pub body_bytes_max: usize,
}

/// Message kind 0: a text. The other kinds are opaque to the server.
const TEXT: i32 = 0;

/// Decides whether `from` may send this, and to which conversation it belongs.
///
/// Whether the receiver exists is not asked: a user who never signed in finds the message by sync at
/// the first sign-in. An empty text is refused, because a sender who sends one has made a mistake; other
/// kinds may be empty, since what they mean is not the server's to know.
pub fn admit(from: UserId, send: &Send, limits: &SendLimits) -> Result<ConversationId, Refusal> {
    let to = match send.to {
        Recipient::User(to) => to,
        Recipient::Group(_) => {
            return Err(Refusal::new(
                Code::Unsupported,
                "this server carries private messages only",
            ));
        }
    };
    let conversation = ConversationId::private(from, to)
        .ok_or_else(|| Refusal::new(Code::ToSelf, "a message needs a receiver other than you"))?;
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
    if size == 0 && send.content.kind == TEXT {
        return Err(Refusal::new(Code::InvalidArgument, "the text is empty"));
    }
    Ok(conversation)
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
    /// A client's resend whose key is missing: it may stand in the log under another id, made at most
    /// this long before this one.
    Unsure { age: Duration },
}

/// Added to the age that a client names: its first try may have got its id this much earlier, because
/// this try travelled longer or because another station's clock made that id.
pub const AGE_MARGIN: Duration = Duration::from_secs(60);

/// The oldest first try that is looked for. Clients give up long before.
pub const AGE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Judges a send by what its dedupe key says; `None` where the key could not be asked.
pub fn judge(send: &Send, offered: MessageId, known: Option<DedupeAnswer>) -> Verdict {
    let unsure = || Doubt::Unsure {
        age: send.age.saturating_add(AGE_MARGIN).min(AGE_MAX),
    };
    match known {
        Some(DedupeAnswer::Done(id)) => Verdict::Known(id),
        // The pending one may itself be an unsure copy that the writer dropped: then its id stands nowhere,
        // and a second record under it must be looked for as well.
        Some(DedupeAnswer::Pending(id)) => Verdict::Publish {
            id,
            doubt: match send.attempt {
                0 => Doubt::MaybeRepeat,
                _ => unsure(),
            },
        },
        Some(DedupeAnswer::Fresh) | None => Verdict::Publish {
            id: offered,
            doubt: match send.attempt {
                0 => Doubt::None,
                _ => unsure(),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Content;
    use crate::{GroupId, Options, SendId};

    const LIMITS: SendLimits = SendLimits { body_bytes_max: 8 };

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn id(number: i64) -> MessageId {
        MessageId::new(number).expect("positive")
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
        let group = GroupId::new(5).expect("positive");
        assert_eq!(
            code_of(Recipient::Group(group), "all"),
            Some(Code::Unsupported)
        );
    }

    #[test]
    fn a_picture_may_be_empty() {
        let mut picture = send(Recipient::User(user(2)), "");
        picture.content.kind = 1;
        assert_eq!(
            admit(user(1), &picture, &LIMITS),
            Ok(ConversationId::private(user(1), user(2)).expect("two users"))
        );
    }

    // proves S3-22: whatever the key says, a resend never becomes a second message unmarked.
    #[test]
    fn a_resend_is_known_repeated_or_marked() {
        let mut resend = send(Recipient::User(user(2)), "x");
        let publish = |id, doubt| Verdict::Publish { id, doubt };
        let fresh = Some(DedupeAnswer::Fresh);
        assert_eq!(judge(&resend, id(9), fresh), publish(id(9), Doubt::None));
        assert_eq!(judge(&resend, id(9), None), publish(id(9), Doubt::None));
        let pending = Some(DedupeAnswer::Pending(id(4)));
        assert_eq!(
            judge(&resend, id(9), pending),
            publish(id(4), Doubt::MaybeRepeat)
        );

        resend.attempt = 1;
        resend.age = Duration::from_secs(3);
        let unsure = Doubt::Unsure {
            age: Duration::from_secs(63),
        };
        assert_eq!(judge(&resend, id(9), fresh), publish(id(9), unsure));
        assert_eq!(judge(&resend, id(9), None), publish(id(9), unsure));
        assert_eq!(judge(&resend, id(9), pending), publish(id(4), unsure));
        assert_eq!(
            judge(&resend, id(9), Some(DedupeAnswer::Done(id(4)))),
            Verdict::Known(id(4))
        );
    }

    #[test]
    fn an_absurd_age_is_capped() {
        let mut resend = send(Recipient::User(user(2)), "x");
        (resend.attempt, resend.age) = (3, Duration::MAX);
        assert_eq!(
            judge(&resend, id(9), None),
            Verdict::Publish {
                id: id(9),
                doubt: Doubt::Unsure { age: AGE_MAX }
            }
        );
    }
}
