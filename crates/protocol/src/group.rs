//! Groups: who is in them, and who may do what.

use serde::{Deserialize, Serialize};

/// What a member is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    Member,
    Admin,
    /// Exactly one.
    Owner,
}

impl Role {
    /// May change what others wrote, and who is in.
    pub const fn administers(self) -> bool {
        matches!(self, Role::Admin | Role::Owner)
    }
}
