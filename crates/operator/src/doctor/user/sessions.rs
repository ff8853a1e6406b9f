//! Sessions against the boats that should hold them.

use protocol::presence::SessionEntry;

use super::{Damage, Difference, Mend, UserSnapshot};

/// Reports nothing if discovery lists no boat at all: then discovery itself is at fault.
pub(super) fn differences(snapshot: &UserSnapshot) -> Vec<Difference> {
    if snapshot.boats.is_empty() {
        return Vec::new();
    }
    let sessions = snapshot.sessions.iter();
    sessions
        .filter_map(|session| difference(snapshot, session))
        .collect()
}

fn difference(snapshot: &UserSnapshot, session: &SessionEntry) -> Option<Difference> {
    let mut lives = snapshot.boats.iter();
    match lives.find(|life| life.boat == session.life.boat) {
        // Incarnations are never reused, and a name has one lease: a later life ended this one.
        Some(life) if life.incarnation > session.life.incarnation => Some(Difference {
            damage: Damage::SessionOfEndedLife {
                session: session.clone(),
                newer_life: life.clone(),
            },
            mend: Some(Mend::Disconnect(session.clone().into_key(snapshot.user))),
        }),
        Some(_) => None,
        None => Some(Difference {
            damage: Damage::SessionOfAbsentBoat {
                session: session.clone(),
            },
            mend: None,
        }),
    }
}
