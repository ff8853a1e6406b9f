//! Sessions against the boats that should hold them.

use super::{Chart, Damage, Difference, Mend};
use crate::presence::SessionEntry;

/// Where no boat at all is in discovery, nothing is said: then it is discovery that is wrong.
pub(super) fn differences(chart: &Chart) -> Vec<Difference> {
    if chart.boats.is_empty() {
        return Vec::new();
    }
    let sessions = chart.sessions.iter();
    sessions
        .filter_map(|session| difference(chart, session))
        .collect()
}

fn difference(chart: &Chart, session: &SessionEntry) -> Option<Difference> {
    let mut lives = chart.boats.iter();
    match lives.find(|life| life.boat == session.life.boat) {
        // An incarnation is never given twice, and a name has one lease: a later life ended this one.
        Some(life) if life.incarnation > session.life.incarnation => Some(Difference {
            damage: Damage::SessionOfEndedLife {
                session: session.clone(),
                later: life.clone(),
            },
            mend: Some(Mend::Disconnect(session.clone().into_key(chart.user))),
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
