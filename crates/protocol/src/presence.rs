//! Who is connected where.

mod losses;
mod obituary;
mod restoration;

pub use losses::Losses;
pub use obituary::{LEASE_PATIENCE, Obituary};
pub use restoration::{RESYNC_REST, Restoration, syncs_restored};

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{BoatId, Incarnation, Platform, SessionId, UserId};

/// One life of one boat.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BoatLife {
    pub boat: BoatId,
    pub incarnation: Incarnation,
}

/// A session as the mailbox store records it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionEntry {
    pub session: SessionId,
    pub platform: Platform,
    pub life: BoatLife,
    /// Grows with each login of the user: the largest of a platform is the one that counts.
    pub login: u64,
}

impl SessionEntry {
    /// What names it among the sessions of all users.
    pub fn into_key(self, user: UserId) -> SessionKey {
        SessionKey {
            user,
            session: self.session,
            life: self.life,
        }
    }
}

/// Exactly one registration: what compare-and-delete and kicks name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    pub user: UserId,
    pub session: SessionId,
    pub life: BoatLife,
}

/// Boat lives that are known to have ended. Unknown means alive.
pub type Denied = Arc<BTreeSet<BoatLife>>;
