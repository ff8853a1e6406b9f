//! What is looked at.

use serde::{Deserialize, Serialize};

/// A check of an installation; docs/operations/doctor.md has a line for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    // Of the command.
    AdminPort,
    Version,
    Clock,
    // Of a process.
    Ready,
    TokenKey,
    Identity,
    Links,
    Operators,
    Auditing,
    Copies,
    OpenFiles,
    Space,
    Log,
    Mailbox,
    History,
    Heads,
    Conversations,
    Devices,
    Ledger,
    AuditStore,
    Discovery,
    Members,
    Topics,
    Schema,
    LogClock,
    Carriers,
    Horns,
    DeadLetters,
    ClosedMinutes,
}

impl Check {
    pub const ALL: [Check; 29] = [
        Check::AdminPort,
        Check::Version,
        Check::Clock,
        Check::Ready,
        Check::TokenKey,
        Check::Identity,
        Check::Links,
        Check::Operators,
        Check::Auditing,
        Check::Copies,
        Check::OpenFiles,
        Check::Space,
        Check::Log,
        Check::Mailbox,
        Check::History,
        Check::Heads,
        Check::Conversations,
        Check::Devices,
        Check::Ledger,
        Check::AuditStore,
        Check::Discovery,
        Check::Members,
        Check::Topics,
        Check::Schema,
        Check::LogClock,
        Check::Carriers,
        Check::Horns,
        Check::DeadLetters,
        Check::ClosedMinutes,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Check::AdminPort => "admin-port",
            Check::Version => "version",
            Check::Clock => "clock",
            Check::Ready => "ready",
            Check::TokenKey => "token-key",
            Check::Identity => "identity",
            Check::Links => "links",
            Check::Operators => "operators",
            Check::Auditing => "auditing",
            Check::Copies => "copies",
            Check::OpenFiles => "open-files",
            Check::Space => "space",
            Check::Log => "log",
            Check::Mailbox => "mailbox",
            Check::History => "history",
            Check::Heads => "heads",
            Check::Conversations => "conversations",
            Check::Devices => "devices",
            Check::Ledger => "ledger",
            Check::AuditStore => "audit-store",
            Check::Discovery => "discovery",
            Check::Members => "members",
            Check::Topics => "topics",
            Check::Schema => "schema",
            Check::LogClock => "log-clock",
            Check::Carriers => "carriers",
            Check::Horns => "horns",
            Check::DeadLetters => "dead-letters",
            Check::ClosedMinutes => "closed-minutes",
        }
    }
}
