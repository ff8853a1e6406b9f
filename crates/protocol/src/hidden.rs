//! Secrets and bodies in debugging output: their length, never their content.

use std::fmt;

/// Placeholder for this many bytes that nobody may read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hidden(usize);

impl Hidden {
    pub fn of(content: &(impl AsRef<[u8]> + ?Sized)) -> Hidden {
        Hidden(content.as_ref().len())
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use crate::frame::{Hello, Send};
    use crate::mailbox::Mail;
    use crate::message::Content;
    use crate::{Options, Recipient, SendId, Timestamp};

    #[test]
    fn a_token_and_a_body_are_not_shown() {
        let user = crate::UserId::new(7).expect("a user");
        let hello = Hello {
            version: 1,
            token: "hunter2".into(),
            device: "phone".parse().expect("a device"),
            platform: crate::Platform::Ios,
            marker: None,
            resume: None,
        };
        let send = Send {
            send_id: SendId::from_bytes([1; 16]),
            to: Recipient::User(user),
            options: Options::CHAT,
            content: Content::text("hunter2"),
            attempt: 0,
            age: std::time::Duration::ZERO,
            seen_seq: None,
            trace: None,
        };
        let mail = Mail {
            id: crate::MessageId::new(9).expect("an id"),
            accepted_at: Timestamp::from_millis(1),
            body: Bytes::from_static(b"hunter2"),
        };
        for debug_text in [
            format!("{hello:?}"),
            format!("{send:?}"),
            format!("{mail:#?}"),
        ] {
            assert!(!debug_text.contains("hunter2"), "{debug_text}");
            assert!(debug_text.contains("(7 bytes)"), "{debug_text}");
        }
    }
}
