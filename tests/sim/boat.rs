//! Boats: the real session machines, and the boat's work around them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::delivery::Push;
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::presence::BoatLife;
use protocol::session::{Action, Outgoing, Session, SessionLimits, Token};
use protocol::{BoatId, Code, Incarnation, Refusal, SessionId, Timestamp};

use crate::carrier::CarrierEvent;
use crate::plan::Sabotage;
use crate::station::Call;
use crate::wire::Connection;
use crate::world::{Event, World};

/// Downtime of a boat after a crash.
const RESTART_DELAY: Duration = Duration::from_millis(700);
/// Interval between sweeps, which register a boat's sessions again.
const SWEEP_INTERVAL: Duration = Duration::from_secs(20);

/// Bytes a socket takes in a millisecond.
const LINK_BYTES_PER_MILLI: u64 = 64;

pub(crate) struct Boat {
    pub(crate) index: usize,
    /// Counts its starts; doubles as the incarnation.
    pub(crate) life: u64,
    pub(crate) is_up: bool,
    sessions: BTreeMap<SessionId, BoatSession>,
    limits: Arc<SessionLimits>,
    /// End of the time in which pushes to the boat are lost.
    silent_until: Timestamp,
}

struct BoatSession {
    session: Session,
    timer: Option<Timestamp>,
    /// Whether the last reassertion got no answer.
    in_doubt: bool,
}

#[derive(Debug)]
pub(crate) enum BoatEvent {
    Timer {
        boat: usize,
        life: u64,
        session: SessionId,
    },
    Push {
        boat: usize,
        life: BoatLife,
        source: u32,
        push: Push,
    },
    /// Planted bug: expect the acknowledgement only now.
    LatePush {
        boat: usize,
        life: u64,
        source: u32,
        push: Push,
    },
    Notice {
        boat: usize,
        life: BoatLife,
        session: SessionId,
        notice: Notice,
    },
    /// The socket has taken a frame of this weight.
    Written {
        boat: usize,
        life: u64,
        session: SessionId,
        weight: usize,
    },
    Sweep {
        boat: usize,
        life: u64,
    },
    Up {
        boat: usize,
    },
}

/// Event for a session that needs no answer.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    Frame(bytes::Bytes),
    Hint,
    Resync,
    Close(Refusal),
}

fn decode(frame: bytes::Bytes) -> ServerFrame {
    api::codec::decode_server(frame, usize::MAX).expect("our own encoding")
}

impl Boat {
    pub(crate) fn new(index: usize) -> Boat {
        Boat {
            index,
            life: 1,
            is_up: true,
            sessions: BTreeMap::new(),
            limits: Arc::new(SessionLimits::default()),
            silent_until: Timestamp::ZERO,
        }
    }

    pub(crate) fn life(&self) -> BoatLife {
        BoatLife {
            boat: BoatId::new(&format!("boat-{}", self.index)).expect("short"),
            incarnation: Incarnation(self.life),
        }
    }

    /// Sets `in_doubt`; returns its old value.
    pub(crate) fn replace_doubt(&mut self, id: SessionId, doubt: bool) -> bool {
        let entry = self.sessions.get_mut(&id);
        entry.is_some_and(|entry| std::mem::replace(&mut entry.in_doubt, doubt))
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id).map(|entry| &entry.session)
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values().map(|entry| &entry.session)
    }
}

impl World {
    pub(crate) fn boat_event(&mut self, event: BoatEvent) {
        let now = self.now;
        match event {
            BoatEvent::Timer {
                boat,
                life,
                session,
            } => {
                if self.boats[boat].life == life
                    && let Some(entry) = self.boats[boat].sessions.get_mut(&session)
                {
                    entry.timer = None;
                    entry.session.handle_timeout(now);
                    self.drive_session(boat, session);
                }
            }
            BoatEvent::Push {
                boat,
                life,
                source,
                push,
            } => self.handle_push(boat, life, source, push),
            BoatEvent::LatePush {
                boat,
                life,
                source,
                push,
            } => {
                if self.boats[boat].life == life {
                    let session = push.session;
                    self.with_session(boat, session, |s| s.push(source, push, now), false);
                }
            }
            BoatEvent::Notice {
                boat,
                life,
                session,
                notice,
            } => {
                if self.boats[boat].is_up && self.boats[boat].life() == life {
                    self.with_session(
                        boat,
                        session,
                        |s| match notice {
                            Notice::Frame(frame) => s.notice(frame, now),
                            Notice::Hint => s.hint(),
                            Notice::Resync => s.resync(now),
                            Notice::Close(refusal) => s.close(refusal, now),
                        },
                        true,
                    );
                }
            }
            BoatEvent::Written {
                boat,
                life,
                session,
                weight,
            } => {
                if self.boats[boat].life == life {
                    let handle_written = |s: &mut Session| s.handle_written(weight, now);
                    self.with_session(boat, session, handle_written, true);
                }
            }
            BoatEvent::Sweep { boat, life } => self.sweep(boat, life),
            // One process: it admits clients once the carrier has caught up with the log.
            BoatEvent::Up { boat } if self.plan.is_embedded && !self.carrier_caught_up() => {
                self.after(RESTART_DELAY, Event::Boat(BoatEvent::Up { boat }));
            }
            BoatEvent::Up { boat } => {
                self.boats[boat].is_up = true;
                self.start_sweep(boat);
            }
        }
    }

    /// Opens a session; it is in the boat's map before anything else happens.
    pub(crate) fn open_session(&mut self, boat: usize, session: SessionId) {
        let now = self.now;
        let home = &mut self.boats[boat];
        let machine = Session::new(session, home.limits.clone(), now);
        home.sessions.insert(
            session,
            BoatSession {
                session: machine,
                timer: None,
                in_doubt: false,
            },
        );
        if home.sessions.len() == 1 {
            self.start_sweep(boat);
        }
        self.drive_session(boat, session);
    }

    pub(crate) fn frame_at_boat(&mut self, boat: usize, session: SessionId, frame: ClientFrame) {
        let now = self.now;
        self.with_session(boat, session, |s| s.handle_frame(frame, now), true);
    }

    pub(crate) fn connection_ended_at_boat(&mut self, connection: &Connection) {
        let now = self.now;
        if self.boats[connection.boat].life == connection.boat_life {
            self.with_session(
                connection.boat,
                connection.session,
                |s| s.handle_closed(now),
                true,
            );
        }
    }

    pub(crate) fn crash_boat(&mut self, boat: usize) {
        let lost_life = self.boats[boat].life();
        let home = &mut self.boats[boat];
        home.is_up = false;
        home.life += 1;
        home.sessions.clear();
        for connection in self.wire.boat_connections(boat) {
            self.cut(
                connection,
                Refusal::new(Code::Unavailable, "the boat is gone"),
            );
        }
        self.after(RESTART_DELAY, Event::Boat(BoatEvent::Up { boat }));
        let notice_delay = self.hop();
        self.after(
            notice_delay,
            Event::Carrier(CarrierEvent::BoatLost {
                life: lost_life.clone(),
            }),
        );
        let denial_delay = Duration::from_secs(3) + self.up_to(Duration::from_secs(5));
        self.after(
            denial_delay,
            Event::Carrier(CarrierEvent::Denied { life: lost_life }),
        );
    }

    pub(crate) fn silence_boat(&mut self, boat: usize, duration: Duration) {
        self.boats[boat].silent_until = self.now + duration;
    }

    /// Calls a session, then runs all its actions.
    pub(crate) fn with_session(
        &mut self,
        boat: usize,
        session: SessionId,
        action: impl FnOnce(&mut Session),
        transmit: bool,
    ) {
        if let Some(entry) = self.boats[boat].sessions.get_mut(&session) {
            action(&mut entry.session);
            if transmit {
                self.drive_session(boat, session);
            } else {
                self.drive_without_writing(boat, session);
            }
        }
    }

    fn drive_session(&mut self, boat: usize, session: SessionId) {
        while let Some(action) = self.next_action(boat, session) {
            self.session_action(boat, session, action, true);
        }
        self.after_drive(boat, session);
    }

    fn drive_without_writing(&mut self, boat: usize, session: SessionId) {
        while let Some(action) = self.next_action(boat, session) {
            let writes = !matches!(
                action,
                Action::Transmit(Outgoing::Encoded(_) | Outgoing::Notice(_))
            );
            self.session_action(boat, session, action, writes);
        }
        self.after_drive(boat, session);
    }

    fn next_action(&mut self, boat: usize, session: SessionId) -> Option<Action> {
        self.boats[boat]
            .sessions
            .get_mut(&session)?
            .session
            .poll_action()
    }

    fn after_drive(&mut self, boat: usize, id: SessionId) {
        let life = self.boats[boat].life;
        let Some(entry) = self.boats[boat].sessions.get_mut(&id) else {
            return;
        };
        if entry.session.is_settled() {
            self.boats[boat].sessions.remove(&id);
            return;
        }
        let Some(at) = entry.session.poll_timeout() else {
            return;
        };
        if entry.timer.is_none_or(|timer| at < timer) {
            entry.timer = Some(at);
            let at = at.max(self.now + Duration::from_millis(1));
            self.at(
                at,
                Event::Boat(BoatEvent::Timer {
                    boat,
                    life,
                    session: id,
                }),
            );
        }
    }

    fn session_action(&mut self, boat: usize, id: SessionId, action: Action, write: bool) {
        match action {
            Action::Refresh(_) | Action::Subscribe(_) | Action::Watch(_) => {}
            Action::Transmit(outgoing) => {
                let weight = outgoing.weight();
                if write && let Some(connection) = self.wire.session_connection(boat, id) {
                    let frame = match outgoing {
                        Outgoing::Frame(frame) => frame,
                        Outgoing::Encoded(bytes) | Outgoing::Notice(bytes) => decode(bytes),
                    };
                    self.send_down(connection, frame);
                }
                let (life, session) = (self.boats[boat].life, id);
                self.after(
                    Duration::from_millis(weight as u64 / LINK_BYTES_PER_MILLI),
                    Event::Boat(BoatEvent::Written {
                        boat,
                        life,
                        session,
                        weight,
                    }),
                );
            }
            Action::Resolve { token, outcome } => {
                let is_acknowledged = outcome == protocol::session::Outcome::Done;
                if let Some(session) = self.boats[boat].session(id).filter(|_| is_acknowledged) {
                    self.witness.record_push_ack(token, session);
                }
                let hop = self.hop();
                let outcome = CarrierEvent::Outcome {
                    life: token.source,
                    number: token.number,
                    outcome,
                };
                self.after(hop, Event::Carrier(outcome));
            }
            Action::Close(refusal) => {
                self.judge.check_session_close(&self.plan, &refusal);
                if let Some(connection) = self.wire.session_connection(boat, id) {
                    self.end_in_order(connection, refusal);
                }
            }
            Action::Count(_) => {}
            Action::Admit(hello) => self.call(boat, id, Call::Admit(hello)),
            Action::Submit(batch) => {
                let sends = batch.into_iter().map(|submit| submit.send).collect();
                self.call(boat, id, Call::Submit(sends));
            }
            Action::Receipts(ack) => self.call(boat, id, Call::Receipts(ack)),
            Action::FetchMail { cursor, limit } => {
                self.call(boat, id, Call::FetchMail { cursor, limit })
            }
            Action::RemoveMail { ids } => self.call(boat, id, Call::RemoveMail(ids)),
            Action::Sync(request) => self.call(boat, id, Call::Sync(request)),
            Action::Leave => self.call(boat, id, Call::Leave),
        }
    }

    fn handle_push(&mut self, boat: usize, life: BoatLife, source: u32, push: Push) {
        let (now, session) = (self.now, push.session);
        let token = Token::of(source, push.token);
        if self.boats[boat].silent_until > now {
            return;
        }
        if !self.boats[boat].is_up || self.boats[boat].life() != life {
            return self.answer_push(token, None);
        }
        let is_known = self.boats[boat].sessions.contains_key(&session);
        if !is_known {
            return self.answer_push(token, Some(protocol::session::Outcome::NoSession));
        }
        if self.sabotage == Some(Sabotage::AckAfterWrite)
            && self.boats[boat]
                .session(session)
                .is_some_and(Session::is_open)
        {
            if let Some(connection) = self.wire.session_connection(boat, session) {
                let frame = decode(push.frame.clone());
                self.send_down(connection, frame);
            }
            let life = self.boats[boat].life;
            let delay = self.up_to(Duration::from_millis(80));
            return self.after(
                delay,
                Event::Boat(BoatEvent::LatePush {
                    boat,
                    life,
                    source,
                    push,
                }),
            );
        }
        self.with_session(boat, session, |s| s.push(source, push, now), true);
    }

    fn answer_push(&mut self, token: Option<Token>, outcome: Option<protocol::session::Outcome>) {
        let Some(token) = token else { return };
        let hop = self.hop();
        let event = match outcome {
            Some(outcome) => CarrierEvent::Outcome {
                life: token.source,
                number: token.number,
                outcome,
            },
            None => CarrierEvent::Unreachable {
                life: token.source,
                number: token.number,
            },
        };
        self.after(hop, Event::Carrier(event));
    }

    fn start_sweep(&mut self, boat: usize) {
        if !self.plan.sweeps {
            return;
        }
        let life = self.boats[boat].life;
        let wait = SWEEP_INTERVAL / 2 + self.up_to(SWEEP_INTERVAL / 2);
        self.after(wait, Event::Boat(BoatEvent::Sweep { boat, life }));
    }

    fn sweep(&mut self, boat: usize, life: u64) {
        if self.boats[boat].life != life || self.boats[boat].sessions.is_empty() {
            return;
        }
        let open_sessions: Vec<SessionId> = self.boats[boat]
            .sessions()
            .filter(|s| s.is_open())
            .map(Session::id)
            .collect();
        for session in open_sessions {
            self.call(boat, session, Call::Reassert);
        }
        self.start_sweep(boat);
    }
}
