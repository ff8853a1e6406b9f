//! What would mend it. Each is one operation that its store does atomically, that may be repeated, and that
//! gives way to what a writer does at the same time.

use std::fmt;

use crate::conversation::{ConversationRow, Head};
use crate::history::PrivateRow;
use crate::message::Target;
use crate::presence::SessionKey;
use crate::{ConversationId, MessageId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Compare and delete: exactly this session of this life.
    Disconnect(SessionKey),
    /// As if the device had acknowledged it.
    Acknowledge(Target, MessageId),
    /// Put where no row, or an earlier one, stands.
    WriteRows(Vec<PrivateRow>),
    /// Put where no later head stands.
    WriteHead(ConversationId, Head),
    /// Put where no row of a later source stands.
    WriteListed(ConversationRow),
}

impl fmt::Display for Mend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mend::Disconnect(key) => write!(f, "remove session {} of that life", key.session),
            Mend::Acknowledge(target, message) => write!(
                f,
                "take message {message} out of the mailbox of {}, as an acknowledgement does; what history has comes \
                 with the next sync",
                target.platform
            ),
            Mend::WriteRows(rows) => match &rows[..] {
                [row] => write!(
                    f,
                    "write the row of position {} again, from what is left of it",
                    row.seq
                ),
                rows => write!(
                    f,
                    "write {} rows again, from what is left of them",
                    rows.len()
                ),
            },
            Mend::WriteHead(conversation, head) => {
                write!(
                    f,
                    "set the head of {conversation} to position {}, unless a writer was there since",
                    head.seq
                )
            }
            Mend::WriteListed(row) => write!(
                f,
                "list {} up to position {}, unless a writer was there since",
                row.conversation, row.end.seq
            ),
        }
    }
}
