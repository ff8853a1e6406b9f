//! Checks of the doctor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A check of an installation; docs/operations/doctor.md has a line for each.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    // Run by the command.
    AdminPort,
    Version,
    Clock,
    // Run by a process.
    Ready,
    TokenKey,
    Identity,
    Tickets,
    Links,
    Operators,
    DeskCertificate,
    Auditing,
    Copies,
    OpenFiles,
    ClientAddresses,
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
    pub const ALL: [Check; 32] = [
        Check::AdminPort,
        Check::Version,
        Check::Clock,
        Check::Ready,
        Check::TokenKey,
        Check::Identity,
        Check::Tickets,
        Check::Links,
        Check::Operators,
        Check::DeskCertificate,
        Check::Auditing,
        Check::Copies,
        Check::OpenFiles,
        Check::ClientAddresses,
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

    /// Label of metric `part_up`.
    pub const fn label(self) -> &'static str {
        match self {
            Check::AuditStore => "audit-store",
            other => other.name(),
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Check::AdminPort => "admin_port",
            Check::Version => "version",
            Check::Clock => "clock",
            Check::Ready => "ready",
            Check::TokenKey => "token_key",
            Check::Identity => "identity",
            Check::Tickets => "tickets",
            Check::Links => "links",
            Check::Operators => "operators",
            Check::DeskCertificate => "desk_certificate",
            Check::Auditing => "auditing",
            Check::Copies => "copies",
            Check::OpenFiles => "open_files",
            Check::ClientAddresses => "client_addresses",
            Check::Space => "space",
            Check::Log => "log",
            Check::Mailbox => "mailbox",
            Check::History => "history",
            Check::Heads => "heads",
            Check::Conversations => "conversations",
            Check::Devices => "devices",
            Check::Ledger => "ledger",
            Check::AuditStore => "audit_store",
            Check::Discovery => "discovery",
            Check::Members => "members",
            Check::Topics => "topics",
            Check::Schema => "schema",
            Check::LogClock => "log_clock",
            Check::Carriers => "carriers",
            Check::Horns => "horns",
            Check::DeadLetters => "dead_letters",
            Check::ClosedMinutes => "closed_minutes",
        }
    }
}
