//! Examination of one user: derived data in the stores still matches its source.

use std::time::Duration;

use backend::clock::{Clock, SystemClock};
use protocol::UserId;
use tokio::time::sleep;

use super::report::told;
use super::snapshot::{Extent, chart};
use super::{Doctor, ProcessClock, UserReport, VERSION};
use crate::doctor::user::{Difference, UserSnapshot, lasting};
use backend::Backends;

/// Looks before a difference counts: it may be a write on its way.
const LOOKS: usize = 3;
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// A user as of the last look, and the differences that every look found.
pub(super) struct ExaminedUser {
    chart: UserSnapshot,
    extent: Extent,
    pub(super) differences: Vec<Difference>,
}

impl Doctor {
    pub(super) fn clock(&self) -> ProcessClock {
        let whole = self.parts.access.whole.as_ref();
        let now = whole.map_or_else(|| SystemClock.now(), |backends| backends.clock.now());
        ProcessClock {
            version: VERSION.to_owned(),
            now: now.into(),
        }
    }

    /// Compares all data of a user in the stores; `None` if this process does not see them. A part
    /// that does not answer is a finding.
    pub async fn examine(&self, user: UserId) -> Option<UserReport> {
        let backends = self.parts.access.whole.as_ref()?;
        Some(examined(backends, user).await.report())
    }
}

/// Looks until no difference is left, `LOOKS` times at most.
pub(super) async fn examined(backends: &Backends, user: UserId) -> ExaminedUser {
    let (mut chart_now, mut extent) = chart(backends, user).await;
    let mut differences = chart_now.differences();
    for _ in 1..LOOKS {
        if differences.is_empty() {
            break;
        }
        sleep(PAUSE).await;
        (chart_now, extent) = chart(backends, user).await;
        differences = lasting(chart_now.differences(), &differences);
    }
    ExaminedUser {
        chart: chart_now,
        extent,
        differences,
    }
}

impl ExaminedUser {
    pub(super) fn report(self) -> UserReport {
        let (verdict, differences) = told(&self.extent.unread, &self.differences);
        let mails = self.chart.mail.iter();
        UserReport {
            user: self.chart.user,
            verdict,
            differences,
            sessions: self.chart.sessions.len() as u64,
            mails: mails.map(|mailbox| mailbox.entries.len() as u64).sum(),
            conversations: self.chart.conversations.len() as u64,
            rows: self.extent.rows,
            omissions: self.extent.omissions,
        }
    }
}
