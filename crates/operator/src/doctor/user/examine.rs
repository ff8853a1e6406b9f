//! Examination of one user: derived data in the stores still matches its source.

use std::time::Duration;

use backend::clock::{Clock, SystemClock};
use protocol::UserId;
use tokio::time::sleep;

use super::snapshot::{Extent, take_snapshot};
use super::{Difference, UserSnapshot, retain_lasting};
use crate::doctor::report::summarize;
use crate::doctor::{Doctor, ProcessClock, UserReport, VERSION};
use backend::Backends;

/// Looks before a difference counts: it may be a write on its way.
const MAX_LOOKS: usize = 3;
/// Pause between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// A user as of the last look, and the differences that every look found.
pub(super) struct ExaminedUser {
    snapshot: UserSnapshot,
    extent: Extent,
    pub(super) differences: Vec<Difference>,
}

impl Doctor {
    pub(in crate::doctor) fn clock(&self) -> ProcessClock {
        let all_backends = self.parts.access.backends.as_ref();
        let now = all_backends.map_or_else(|| SystemClock.now(), |backends| backends.clock.now());
        ProcessClock {
            version: VERSION.to_owned(),
            now: now.into(),
        }
    }

    /// Compares all data of a user in the stores; `None` if this process does not see them. A part
    /// that does not answer is a finding.
    pub async fn examine(&self, user: UserId) -> Option<UserReport> {
        let backends = self.parts.access.backends.as_ref()?;
        Some(examine_user(backends, user).await.report())
    }
}

/// Looks until no difference is left, `MAX_LOOKS` times at most.
pub(super) async fn examine_user(backends: &Backends, user: UserId) -> ExaminedUser {
    let (mut snapshot, mut extent) = take_snapshot(backends, user).await;
    let mut differences = snapshot.differences();
    for _ in 1..MAX_LOOKS {
        if differences.is_empty() {
            break;
        }
        sleep(LOOK_INTERVAL).await;
        (snapshot, extent) = take_snapshot(backends, user).await;
        differences = retain_lasting(snapshot.differences(), &differences);
    }
    ExaminedUser {
        snapshot,
        extent,
        differences,
    }
}

impl ExaminedUser {
    pub(super) fn report(self) -> UserReport {
        let (verdict, differences) = summarize(&self.extent.unread, &self.differences);
        let mails = self.snapshot.mail.iter();
        UserReport {
            user: self.snapshot.user,
            verdict,
            differences,
            sessions: self.snapshot.sessions.len() as u64,
            mails: mails.map(|mailbox| mailbox.entries.len() as u64).sum(),
            conversations: self.snapshot.conversations.len() as u64,
            rows: self.extent.rows,
            omissions: self.extent.omissions,
        }
    }
}
