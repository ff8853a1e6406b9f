//! Sessions and boat lives.

mod liveness;
mod loss_detector;
mod restoration;

pub use liveness::{BoatLiveness, LEASE_GRACE};
pub use loss_detector::LossDetector;
pub use restoration::{RESYNC_INTERVAL, Restoration, syncs_restored};

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
    /// Grows with each login of the user: the largest on a platform is the newest session.
    pub login: u64,
}

impl SessionEntry {
    /// Key of the session among those of all users.
    pub fn into_key(self, user: UserId) -> SessionKey {
        SessionKey {
            user,
            session: self.session,
            life: self.life,
        }
    }
}

/// Identity of one exact registration, for compare-and-delete and for kicks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    pub user: UserId,
    pub session: SessionId,
    pub life: BoatLife,
}

/// Boat lives known to have ended. Unknown means alive.
pub type DeniedBoats = Arc<BTreeSet<BoatLife>>;
