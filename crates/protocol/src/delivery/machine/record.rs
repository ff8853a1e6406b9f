//! A record in flight, with its state so far.

use crate::delivery::settle::{PartFailure, insists};
use crate::delivery::{DeliveryTask, Obligation, RouteFailure, Source};
use crate::ledger::{FailureCause, LedgerEntry, LedgerEvent};
use crate::mailbox::Mail;
use crate::message::Target;
use crate::notify::{Notification, wants_notification};
use crate::presence::SessionEntry;
use crate::{Moment, Options, Platform, UserId};

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) source: Source,
    pub(super) task: DeliveryTask,
    pub(super) legs: Vec<Leg>,
    /// Routes, legs and further pushes that have not ended.
    pub(super) open: usize,
    /// Member of the audience that was looked up last.
    pub(super) last_member: Option<UserId>,
    /// True once the ledger says that some recipient gets the message by sync alone.
    pub(super) is_sync_noted: bool,
    pub(super) failures: Vec<PartFailure>,
    pub(super) notifications: Vec<Notification>,
    pub(super) ledger: Vec<LedgerEntry>,
}

#[derive(Clone, Debug)]
pub(super) struct Leg {
    pub(super) target: Target,
    /// True for a leg to the sender's own other sessions: never stored. One whose window is full is
    /// told to sync; one whose boat does not answer is tried again.
    pub(super) is_mirror: bool,
    /// Sessions of the platform, newest first; the first one decides.
    pub(super) sessions: Vec<SessionEntry>,
    pub(super) reroutes: u8,
}

impl Record {
    pub(super) fn stores_for(&self, target: Target) -> bool {
        let options = self.task.placed.message.options;
        options.has(Options::STORE_OFFLINE) && target.platform.keeps_mail()
    }

    pub(super) fn note(&mut self, now: Moment, target: Option<Target>, event: LedgerEvent) {
        self.ledger.push(LedgerEntry {
            message: self.task.placed.message.id,
            at: now.wall,
            target,
            event,
        });
    }

    pub(super) fn note_stored(&mut self, now: Moment, target: Target) {
        self.note(now, Some(target), LedgerEvent::StoredOffline);
        self.notify(now, target);
    }

    /// Notes that a device acknowledged it a short while ago; the ledger has that from the receiver
    /// of the ack.
    pub(super) fn note_acknowledged(&mut self, now: Moment, target: Target) {
        self.note(now, Some(target), LedgerEvent::ReachableBySync);
    }

    /// Notes that no session lives, and that the options ask for no storing.
    pub(super) fn note_absent(&mut self, now: Moment, target: Target) {
        let event = if insists(self.task.placed.message.options) {
            LedgerEvent::ReachableBySync
        } else {
            LedgerEvent::Dropped
        };
        self.note(now, Some(target), event);
        self.notify(now, target);
    }

    pub(super) fn notify(&mut self, now: Moment, target: Target) {
        let message = &self.task.placed.message;
        if wants_notification(message.options) {
            self.notifications.push(Notification {
                message: message.id,
                from: message.from,
                target,
                conversation: self.task.placed.conversation,
                accepted_at: message.accepted_at,
            });
            self.note(now, Some(target), LedgerEvent::Notified);
        }
    }

    pub(super) fn note_failed(&mut self, now: Moment, target: Option<Target>, cause: FailureCause) {
        let attempt = self.task.retry_count;
        self.note(now, target, LedgerEvent::Failed { cause, attempt });
    }

    /// Notes a failed attempt at the target. The obligation stays if the sender insists, or if it
    /// was no attempt at all.
    pub(super) fn fail(&mut self, now: Moment, target: Target, cause: FailureCause) {
        self.note_failed(now, Some(target), cause);
        if self.stays_owed(cause) {
            self.failures.push(PartFailure {
                user: target.user,
                platform: Some(target.platform),
                cause,
            });
        } else {
            self.note(now, Some(target), LedgerEvent::Dropped);
        }
    }

    pub(super) fn stays_owed(&self, cause: FailureCause) -> bool {
        cause == FailureCause::MailboxUnavailable || insists(self.task.placed.message.options)
    }

    /// Notes that the user could not be routed at all.
    pub(super) fn fail_all(&mut self, now: Moment, obligation: &Obligation, failure: RouteFailure) {
        let cause = failure_cause(failure);
        for target in targets(obligation.user, &obligation.platforms) {
            self.fail(now, target, cause);
        }
        if obligation.live {
            self.note_failed(now, None, cause);
        }
        let is_mirror = self.task.is_live_only(obligation.user);
        if obligation.live && (is_mirror || self.stays_owed(cause)) {
            self.failures.push(PartFailure {
                user: obligation.user,
                platform: None,
                cause,
            });
        }
    }
}

pub(super) fn targets<'a>(
    user: UserId,
    platforms: impl IntoIterator<Item = &'a Platform>,
) -> impl Iterator<Item = Target> {
    let platforms = platforms.into_iter().copied();
    platforms.map(move |platform| Target { user, platform })
}

pub(super) fn mail_platforms(platforms: &[Platform]) -> Vec<Platform> {
    let platforms = platforms.iter().copied();
    platforms.filter(|platform| platform.keeps_mail()).collect()
}

pub(super) fn mail(task: &DeliveryTask) -> Mail {
    Mail {
        id: task.placed.message.id,
        accepted_at: task.placed.message.accepted_at,
        body: task.frame.clone(),
    }
}

pub(super) fn failure_cause(failure: RouteFailure) -> FailureCause {
    match failure {
        RouteFailure::Unavailable => FailureCause::MailboxUnavailable,
        RouteFailure::Refused => FailureCause::MailboxRefused,
    }
}
