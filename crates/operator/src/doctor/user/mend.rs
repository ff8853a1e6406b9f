//! Repairs of inconsistencies. Each is one operation that its store does atomically, is safe to
//! repeat, and yields to a concurrent writer.

use std::fmt;

use protocol::conversation::{ConversationRow, Head};
use protocol::message::Target;
use protocol::message_row::MessageRow;
use protocol::presence::SessionKey;
use protocol::{ConversationId, MessageId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mend {
    /// Compare and delete: exactly this session of this life.
    Disconnect(SessionKey),
    /// Remove mail, as an acknowledgement by the device would.
    Acknowledge(Target, MessageId),
    /// Write each row where none, or an earlier one, is there.
    WriteRows(Vec<MessageRow>),
    /// Write the head unless a later head is there.
    WriteHead(ConversationId, Head),
    /// Write the list row unless one of a later source is there.
    WriteListed(ConversationRow),
}

impl fmt::Display for Mend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mend::Disconnect(key) => {
                write!(f, "remove session {} of that incarnation", key.session)
            }
            Mend::Acknowledge(target, message) => write!(
                f,
                "remove message {message} from the mailbox of {}, as an acknowledgement would; if \
                 history has it, it comes with the next sync",
                target.platform
            ),
            Mend::WriteRows(rows) => match &rows[..] {
                [row] => write!(
                    f,
                    "rewrite the row of position {} from the surviving copy",
                    row.seq()
                ),
                rows => write!(f, "rewrite {} rows from the surviving copies", rows.len()),
            },
            Mend::WriteHead(conversation, head) => {
                write!(
                    f,
                    "set the head of {conversation} to position {}, unless a writer changed it since",
                    head.seq
                )
            }
            Mend::WriteListed(row) => write!(
                f,
                "list {} up to position {}, unless a writer changed it since",
                row.conversation, row.end.seq
            ),
        }
    }
}
