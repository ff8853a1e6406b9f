//! Lanes, pushes, and the answers of boats.

use std::time::Duration;

use bytes::Bytes;

use super::record::{Leg, mail, mail_platforms};
use super::{Delivery, OpenPush, RouteKind};
use crate::delivery::arena::Key;
use crate::delivery::lanes::{LaneEntry, LegKey};
use crate::delivery::settle::PartFailure;
use crate::delivery::{Action, Notice, SessionEvent};
use crate::ledger::{FailureCause, LedgerEntry, LedgerEvent};
use crate::message::Target;
use crate::presence::{BoatLife, SessionEntry};
use crate::{MessageId, Moment, Options, SessionId, TraceContext};

/// Names an open [`Push`]; on the wire it is [`PushToken::number`], which is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushToken(pub(super) Key);

impl PushToken {
    pub fn number(self) -> u64 {
        self.0.number()
    }

    /// Any number is accepted: 0 asks for no outcome, and an answer to a push that does not exist
    /// is ignored.
    pub fn from_number(number: u64) -> PushToken {
        PushToken(Key::from_number(number))
    }
}

/// A message for one session: from this machine to the [`Session`](crate::session::Session).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    pub token: PushToken,
    pub session: SessionId,
    pub message: MessageId,
    /// The complete frame, shared by all its recipients.
    pub frame: Bytes,
    /// False: the push is done once written.
    pub needs_ack: bool,
    /// Trace context of this delivery.
    pub trace: Option<TraceContext>,
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PushOutcome {
    /// Acknowledged, or written if no acknowledgement was requested.
    Done,
    NoAck,
    NoSession,
    /// The session's windows are full.
    Full,
    /// The boat was unreachable, or its answer did not come.
    Unreachable,
}

impl Delivery {
    pub(super) fn add_leg(
        &mut self,
        key: Key,
        target: Target,
        is_mirror: bool,
        sessions: Vec<SessionEntry>,
    ) -> Option<LegKey> {
        let record = self.records.get_mut(key)?;
        record.open += 1;
        record.legs.push(Leg {
            target,
            is_mirror,
            sessions,
            reroutes: 0,
        });
        Some(LegKey {
            record: key,
            leg: record.legs.len() as u32 - 1,
        })
    }

    /// Enters a leg into its lane: pushes it, queues it, or fails it for lack of room.
    pub(super) fn enter_lane(&mut self, now: Moment, key: LegKey) {
        let Some(leg) = self.leg(key.record, key.leg) else {
            return;
        };
        let (target, newest) = (leg.target, leg.sessions[0].clone());
        let (window, most) = (self.limits.lane_window, self.limits.lane_max);
        let lane = self.lanes.lane_mut(target);
        if lane.queue.is_empty() && lane.has_room(window) {
            self.push(now, key);
        } else if lane.queue.len() + lane.outstanding_pushes < most {
            lane.queue.push_back(LaneEntry {
                key,
                session: newest.session,
                life: newest.life,
            });
        } else {
            self.session_failed(now, key, PushOutcome::Full);
        }
    }

    pub(super) fn pump(&mut self, now: Moment, target: Target) {
        while let Some(key) = self.lanes.next(target, self.limits.lane_window) {
            self.push(now, key);
        }
    }

    /// Pushes to all sessions of the leg; the newest decides.
    pub(super) fn push(&mut self, now: Moment, key: LegKey) {
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let leg = &record.legs[key.leg as usize];
        let message = &record.task.placed.message;
        let target = leg.target;
        let attempt = record.task.retry_count;
        let deadline = now.timer + self.limits.push_deadline();
        let trace = record.task.trace;
        let trace = trace.map(|trace| trace.delivery(record.source, Some(target)));
        for (nth, entry) in leg.sessions.iter().enumerate() {
            let push = self.pushes.insert(OpenPush {
                leg: key,
                session: entry.clone().into_key(target.user),
                target,
                decides: nth == 0,
                sent_at: now.timer,
            });
            self.deadlines.push_back((deadline, push));
            let push = Push {
                token: PushToken(push),
                session: entry.session,
                message: message.id,
                frame: record.task.frame_for(target.user).clone(),
                needs_ack: message.options.has(Options::NEEDS_ACK),
                trace,
            };
            self.actions.push_back(Action::Push {
                push,
                life: entry.life.clone(),
                deadline,
            });
            record.ledger.push(LedgerEntry {
                message: message.id,
                at: now.wall,
                target: Some(target),
                event: LedgerEvent::Pushed {
                    session: entry.session,
                    life: entry.life.clone(),
                    attempt,
                },
            });
        }
        // The leg itself is counted already; each further session counts as one more.
        record.open += leg.sessions.len() - 1;
        self.lanes.lane_mut(target).outstanding_pushes += 1;
        self.forget_old_deadlines();
    }

    /// Sweeps the deadlines that answered pushes leave behind, before they outnumber the open ones.
    fn forget_old_deadlines(&mut self) {
        if self.deadlines.len() > 2 * self.pushes.len() + 1024 {
            let pushes = &self.pushes;
            self.deadlines
                .retain(|(_, push)| pushes.get(*push).is_some());
        }
    }

    /// Ends a push that was taken. Returns the device's acknowledgement latency, if one was
    /// requested.
    pub(super) fn push_done(&mut self, now: Moment, push: &OpenPush) -> Option<Duration> {
        let record = self.records.get_mut(push.leg.record)?;
        let session = push.session.session;
        let needs_ack = record.task.placed.message.options.has(Options::NEEDS_ACK);
        let latency = needs_ack.then(|| now.timer.since(push.sent_at));
        let event = match latency {
            Some(latency) => {
                self.budget.record_ack(now.timer, latency);
                LedgerEvent::Acked { session }
            }
            None => LedgerEvent::Written { session },
        };
        if push.decides {
            record.note(now, Some(push.target), event);
        }
        self.close_one(now, push.leg.record);
        latency
    }

    /// Handles the failure of a session that does not decide, and is owed nothing: it syncs what it
    /// missed.
    pub(super) fn further_push_failed(
        &mut self,
        now: Moment,
        push: &OpenPush,
        outcome: PushOutcome,
    ) {
        let session = &push.session;
        match outcome {
            PushOutcome::NoSession => self.actions.push_back(Action::Forget(session.clone())),
            PushOutcome::Full => {
                (self.actions).push_back(resync(session.life.clone(), session.session))
            }
            // Without an acknowledgement it is on its way, or the session ends by itself.
            PushOutcome::Done | PushOutcome::NoAck | PushOutcome::Unreachable => {}
        }
        self.close_one(now, push.leg.record);
    }

    pub(super) fn deciding_push_failed(
        &mut self,
        now: Moment,
        push: &OpenPush,
        outcome: PushOutcome,
    ) {
        let session = &push.session;
        if outcome == PushOutcome::NoSession {
            self.actions.push_back(Action::Forget(session.clone()));
        }
        self.session_failed(now, push.leg, outcome);
        // The session's failure applies to all legs that wait for it.
        let waiting_legs = self
            .lanes
            .remove_waiting(push.target, |entry| match outcome {
                PushOutcome::Unreachable => entry.life == session.life,
                PushOutcome::Done
                | PushOutcome::NoAck
                | PushOutcome::NoSession
                | PushOutcome::Full => entry.session == session.session,
            });
        for key in waiting_legs {
            self.session_failed(now, key, outcome);
        }
    }

    /// Handles the failure of the deciding session.
    pub(super) fn session_failed(&mut self, now: Moment, key: LegKey, outcome: PushOutcome) {
        let reroutes_max = self.limits.reroutes_max;
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let options = record.task.placed.message.options;
        let leg = &mut record.legs[key.leg as usize];
        let target = leg.target;
        let cause = match outcome {
            PushOutcome::Done => return,
            PushOutcome::NoAck => FailureCause::NoAck,
            PushOutcome::NoSession => FailureCause::NoSession,
            PushOutcome::Full => FailureCause::SessionFull,
            PushOutcome::Unreachable => FailureCause::BoatUnreachable,
        };
        if leg.is_mirror {
            return self.mirror_failed(now, key, cause);
        }
        let stores = options.has(Options::STORE_OFFLINE) && target.platform.keeps_mail();
        match outcome {
            PushOutcome::NoSession if leg.reroutes < reroutes_max => {
                leg.reroutes += 1;
                let mail = stores.then(|| mail(&record.task));
                record.note_failed(now, Some(target), cause);
                self.lanes.lane_mut(target).reroute_count += 1;
                let route_kind = RouteKind::Again(key.leg);
                let platforms = mail_platforms(&[target.platform]);
                self.route(
                    key.record,
                    route_kind,
                    target.user,
                    platforms,
                    Vec::new(),
                    mail,
                );
            }
            PushOutcome::Full if stores => {
                let mail = Some(mail(&record.task));
                record.note_failed(now, Some(target), cause);
                let platforms = vec![target.platform];
                self.route(
                    key.record,
                    RouteKind::Store(key.leg),
                    target.user,
                    platforms.clone(),
                    platforms,
                    mail,
                );
            }
            PushOutcome::Done
            | PushOutcome::NoAck
            | PushOutcome::NoSession
            | PushOutcome::Full
            | PushOutcome::Unreachable => self.fail_leg(now, key.record, target, cause),
        }
    }

    /// Handles a failed push to the sender's other session: has it sync, or keeps the obligation for
    /// a retry, if the boat is unreachable.
    fn mirror_failed(&mut self, now: Moment, key: LegKey, cause: FailureCause) {
        let Some(record) = self.records.get_mut(key.record) else {
            return;
        };
        let leg = &record.legs[key.leg as usize];
        let (target, newest) = (leg.target, leg.sessions[0].clone());
        record.note_failed(now, Some(target), cause);
        match cause {
            FailureCause::BoatUnreachable => record.failures.push(PartFailure {
                user: target.user,
                platform: None,
                cause,
            }),
            FailureCause::NoAck
            | FailureCause::NoSession
            | FailureCause::SessionFull
            | FailureCause::MailboxUnavailable
            | FailureCause::MailboxRefused => {
                record.note(now, Some(target), LedgerEvent::ReachableBySync);
                if cause == FailureCause::SessionFull {
                    (self.actions).push_back(resync(newest.life, newest.session));
                }
            }
        }
        self.close_one(now, key.record);
    }
}

/// Has a session that missed a message compare its cursors.
pub(super) fn resync(life: BoatLife, session: SessionId) -> Action {
    Action::Notice(Notice {
        life,
        session,
        event: SessionEvent::Resync,
    })
}
