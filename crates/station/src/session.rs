//! Sessions: admission, displacement, and where users are connected (S1-59, S1-60).

mod config;
mod kickout;
mod renewal;
mod revocations;
pub mod tickets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::{
    Admission, Connect, Kickout, OnlineSession, OnlineUser, Reassert, ReassertOutcome, Reasserted,
};
use backend::Backends;
use backend::devices::DeviceSeen;
use protocol::access::Caller;
use protocol::mailbox::{
    ConnectRequest, HeldSession, NewSession, Overflow, ReassertAnswer, SessionCapacity,
};
use protocol::presence::{SessionEntry, SessionKey};
use protocol::ticket::{Renewal, SignIn};
use protocol::{Code, GroupId, Refusal, Timestamp, UserId};
use tokio::time::{Instant, timeout_at};

pub(crate) use self::config::Config;
pub(crate) use self::kickout::KickoutQueue;
use self::kickout::KickoutRequest;
pub(crate) use self::revocations::RevocationDoor;
use self::tickets::{TicketDoor, boat_name};
use crate::auth::Authenticator;
use crate::boat_clients::BoatClients;
use crate::limits::Limits;
use crate::metrics::AdmissionMetrics;
use crate::stores::{in_time, unavailable, within};

/// Time for the devices' store, whose answer changes nothing: a slow one must not delay sign-ins.
const DEVICE_SEEN_TIMEOUT: Duration = Duration::from_millis(500);

/// Verdict on a session before the mailbox is asked.
enum Verdict {
    Ended(ReassertOutcome),
    /// Asserted, with the sign-in that its ticket proves.
    Asserted(Option<SignIn>),
}

/// Outcome of a session with an expired ticket that the mailbox no longer has. A session that its
/// boat brings back must not displace a later sign-in.
fn late_outcome(
    sign_in: &SignIn,
    login: Option<u64>,
    entries: &[SessionEntry],
    capacity: &SessionCapacity,
) -> ReassertOutcome {
    let rivals = (entries.iter()).filter(|other| {
        other.platform == sign_in.platform && login.is_none_or(|login| other.login > login)
    });
    let is_displaced = SessionCapacity::overflow(sign_in.platform) == Overflow::Displace
        && rivals.count() >= capacity.of(sign_in.platform);
    if is_displaced {
        ReassertOutcome::Answer(ReassertAnswer::Displaced)
    } else {
        ReassertOutcome::Unproved
    }
}

/// Whether the session lives, as far as the mailbox says.
fn is_alive(outcome: &ReassertOutcome) -> bool {
    matches!(
        outcome,
        ReassertOutcome::Answer(ReassertAnswer::Known { .. } | ReassertAnswer::Restored { .. })
            | ReassertOutcome::Unavailable
    )
}

/// Admits and dismisses sessions.
pub(crate) struct Admissions {
    pub(crate) backends: Backends,
    pub(crate) deadline: Duration,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) tickets: Arc<TicketDoor>,
    pub(crate) revocations: Arc<RevocationDoor>,
    pub(crate) limits: Arc<Limits>,
    /// Capacity, as the mailbox has it.
    pub(crate) capacity: SessionCapacity,
    pub(crate) boats: Arc<BoatClients>,
    pub(crate) kickouts: KickoutQueue,
    pub(crate) cluster: u64,
    pub(crate) metrics: AdmissionMetrics,
}

impl Admissions {
    /// Registers a session, and kicks out the sessions whose place it takes. A repeat changes
    /// nothing. If the mailbox does not answer, the session is admitted all the same: it sends, and
    /// reads from history.
    pub(crate) async fn connect(
        &self,
        connect: Connect,
        boat: Option<&Caller>,
    ) -> Result<Admission, Refusal> {
        let is_resumed = connect.resume.is_some();
        let answer = self.admit(connect, boat).await;
        match &answer {
            Ok(_) => {
                self.metrics.connected_total.increment(1);
                self.metrics.resumed_total.increment(u64::from(is_resumed));
            }
            Err(refusal) => self.metrics.record_refusal(refusal.code),
        }
        answer
    }

    async fn admit(&self, connect: Connect, boat: Option<&Caller>) -> Result<Admission, Refusal> {
        let now = self.backends.clock.now();
        let sign_in = self.prove(&connect, now).await?;
        let user = sign_in.user;
        self.limits.sign_in(user, connect.platform)?;
        self.boats.note_contact(&connect.life);
        let ticket = self.tickets.sign(&sign_in, boat_name(boat));
        let request = ConnectRequest {
            user,
            entry: NewSession {
                key: SessionKey {
                    user,
                    session: connect.session,
                    life: connect.life,
                },
                platform: connect.platform,
                device: connect.device.clone(),
            },
            denied_boats: self.boats.denied(),
            now,
        };
        let device_seen = DeviceSeen {
            user,
            platform: connect.platform,
            device: connect.device,
            at: now,
        };
        let (registration, device_write) = tokio::join!(
            within(self.deadline, self.backends.mailbox.connect(request)),
            within(DEVICE_SEEN_TIMEOUT, self.backends.devices.seen(device_seen)),
        );
        if device_write.is_err() {
            // Nothing is lost: a platform that is not remembered is owed nothing, and syncs.
            metrics::counter!("station_devices_forgotten_total").increment(1);
        }
        let registration = match registration {
            Ok(Ok(registration)) => registration,
            Ok(Err(too_many)) => return Err(self.limits.sessions(too_many)),
            // T-R1: a mailbox that is away keeps nobody out. The boat registers the session when
            // the mailbox is back.
            Err(_) => {
                self.metrics.degraded_total.increment(1);
                return Ok(Admission {
                    user,
                    login: 0,
                    marker: connect.marker.unwrap_or_default(),
                    is_recovered: false,
                    mail_waits: false,
                    cluster: self.cluster,
                    server_time: now,
                    expires_at: sign_in.ends_at,
                    is_degraded: true,
                    issued_at: Some(sign_in.issued_at),
                    ticket,
                });
            }
        };
        if !registration.displaced_sessions.is_empty() {
            let count = registration.displaced_sessions.len() as u64;
            self.metrics.displaced_total.increment(count);
            self.kickouts.offer(KickoutRequest::displaced(
                user,
                registration.displaced_sessions,
            ));
        }
        if !registration.replaced_sessions.is_empty() {
            let count = registration.replaced_sessions.len() as u64;
            self.metrics.replaced_total.increment(count);
            self.kickouts.offer(KickoutRequest::replaced(
                user,
                registration.replaced_sessions,
            ));
        }
        Ok(Admission {
            user,
            login: registration.login,
            marker: registration.marker,
            is_recovered: connect
                .marker
                .is_none_or(|marker| marker == registration.marker),
            mail_waits: registration.mail_waits,
            cluster: self.cluster,
            server_time: now,
            expires_at: sign_in.ends_at,
            is_degraded: false,
            issued_at: Some(sign_in.issued_at),
            ticket,
        })
    }

    /// Removes exactly these registrations. Returns the indices of those to be tried again.
    pub(crate) async fn disconnect(
        &self,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<usize>, Refusal> {
        let request = self.backends.mailbox.disconnect(sessions);
        let answers = in_time(self.deadline, request).await?;
        let mut retry_indices = Vec::new();
        for (index, answer) in answers.into_iter().enumerate() {
            let Err(error) = answer else {
                continue;
            };
            // An unreadable entry stays unreadable: the next push to it finds out.
            if error.kind != backend::Kind::Corrupt {
                retry_indices.push(index);
            }
            unavailable(error);
        }
        Ok(retry_indices)
    }

    /// Takes a boat's assertions of the sessions it holds; returns one answer per session, in
    /// order. A ticket that proves nothing ends its session alone.
    pub(crate) async fn reassert(
        &self,
        sessions: Vec<Reassert>,
        boat: Option<&Caller>,
    ) -> Vec<Reasserted> {
        // All are of one boat, and seldom of two of its lives.
        for (index, session) in sessions.iter().enumerate() {
            if index == 0 || sessions[index - 1].key.life != session.key.life {
                self.boats.note_contact(&session.key.life);
            }
        }
        let (mut verdicts, mut late) = (Vec::with_capacity(sessions.len()), Vec::new());
        for (index, session) in sessions.into_iter().enumerate() {
            let verdict = match self.tickets.renew(&session, boat) {
                Err(_) => Verdict::Ended(ReassertOutcome::Unproved),
                Ok(Renewal::Unproved) => self.unless_revoked(&session, session.issued_at, None),
                Ok(Renewal::Proved(sign_in)) => self.unless_revoked_since(&session, sign_in),
                Ok(Renewal::Late(sign_in)) => {
                    late.push((index, session, sign_in));
                    continue;
                }
            };
            verdicts.push((index, session, verdict));
        }
        // A boat waits for the answer. Late tickets cost one more question, which delays nobody
        // else.
        let deadline = Instant::now() + self.deadline;
        let (mut answers, late) = tokio::join!(
            self.assert(verdicts, boat, deadline),
            self.assert_late(late, boat, deadline),
        );
        answers.extend(late);
        answers.sort_unstable_by_key(|(index, _)| *index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Asserts the sessions whose verdict says so. Returns an answer for each, with its index.
    async fn assert(
        &self,
        verdicts: Vec<(usize, Reassert, Verdict)>,
        boat: Option<&Caller>,
        deadline: Instant,
    ) -> Vec<(usize, Reasserted)> {
        let (mut answers, mut proofs) = (Vec::with_capacity(verdicts.len()), Vec::new());
        let mut entries = Vec::with_capacity(verdicts.len());
        for (index, session, verdict) in verdicts {
            match verdict {
                Verdict::Ended(outcome) => answers.push((index, outcome.into())),
                Verdict::Asserted(proof) => {
                    proofs.push((index, proof));
                    let (user, login) = (session.key.user, session.login);
                    let session = NewSession {
                        key: session.key,
                        platform: session.platform,
                        device: session.device,
                    };
                    entries.push((user, HeldSession { session, login }));
                }
            }
        }
        if proofs.is_empty() {
            return answers;
        }
        let denied_lives = self.boats.denied();
        let now = self.backends.clock.now();
        let request = self.backends.mailbox.reassert(entries, denied_lives, now);
        let outcomes = timeout_at(deadline, request).await.unwrap_or_default();
        let mut outcomes = (outcomes.into_iter())
            .map(|answer| answer.map_or(ReassertOutcome::Unavailable, ReassertOutcome::Answer));
        for (index, proof) in proofs {
            let outcome = outcomes.next().unwrap_or(ReassertOutcome::Unavailable);
            // A mailbox that is away keeps nobody from sending (T-R1).
            let ticket = proof
                .filter(|_| is_alive(&outcome))
                .and_then(|sign_in| self.tickets.sign(&sign_in, boat_name(boat)));
            answers.push((index, Reasserted { outcome, ticket }));
        }
        answers
    }

    /// Asserts sessions with an expired ticket, if the mailbox still has them; also those of ended
    /// lives, as their boat may have begun another one meanwhile.
    async fn assert_late(
        &self,
        late: Vec<(usize, Reassert, SignIn)>,
        boat: Option<&Caller>,
        deadline: Instant,
    ) -> Vec<(usize, Reasserted)> {
        if late.is_empty() {
            return Vec::new();
        }
        let users: BTreeSet<UserId> = late.iter().map(|(_, _, sign_in)| sign_in.user).collect();
        let users: Vec<UserId> = users.into_iter().collect();
        let request = self.backends.mailbox.sessions(&users, self.boats.denied());
        let entries = timeout_at(deadline, request).await;
        let entries = entries.unwrap_or_default();
        let entries_by_user: BTreeMap<UserId, Vec<SessionEntry>> = (users.into_iter().zip(entries))
            .filter_map(|(user, entries)| Some((user, entries.ok()?)))
            .collect();
        let judge = |(index, session, sign_in): (usize, Reassert, SignIn)| {
            let verdict = match entries_by_user.get(&sign_in.user) {
                None => Verdict::Ended(ReassertOutcome::Unavailable),
                Some(entries) if entries.iter().any(|entry| entry.session == sign_in.session) => {
                    self.unless_revoked_since(&session, sign_in)
                }
                Some(entries) => Verdict::Ended(late_outcome(
                    &sign_in,
                    session.login,
                    entries,
                    &self.capacity,
                )),
            };
            (index, session, verdict)
        };
        self.assert(late.into_iter().map(judge).collect(), boat, deadline)
            .await
    }

    fn unless_revoked_since(&self, session: &Reassert, sign_in: SignIn) -> Verdict {
        self.unless_revoked(session, Some(sign_in.issued_at), Some(sign_in))
    }

    fn unless_revoked(
        &self,
        session: &Reassert,
        issued_at: Option<Timestamp>,
        proof: Option<SignIn>,
    ) -> Verdict {
        if self.revocations.refuses(session.key.user, issued_at) {
            Verdict::Ended(ReassertOutcome::Revoked)
        } else {
            Verdict::Asserted(proof)
        }
    }

    /// Sessions of each of these users, as far as known. Sessions of boats that are gone do not
    /// count.
    pub(crate) async fn online(&self, users: Vec<UserId>) -> Result<Vec<OnlineUser>, Refusal> {
        let answers = self.sessions(&users).await?;
        let session = |entry: SessionEntry| OnlineSession {
            session: entry.session,
            platform: entry.platform,
            life: entry.life,
        };
        let online = |(user, entries): (UserId, Result<Vec<SessionEntry>, Refusal>)| OnlineUser {
            user,
            sessions: entries
                .ok()
                .map(|entries| entries.into_iter().map(session).collect()),
        };
        Ok(users.into_iter().zip(answers).map(online).collect())
    }

    /// Connected members of a group, among the `limit` members after `cursor`, and the last of
    /// these if there are more. The relation is stored nowhere: it is the group's members, joined
    /// with their sessions.
    pub(crate) async fn online_members(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<(Vec<OnlineUser>, Option<UserId>), Refusal> {
        let present = self.backends.groups.present(group, cursor, limit);
        let present = within(self.deadline, present).await?;
        let members: Vec<UserId> = present.into_iter().map(|(user, _)| user).collect();
        let next = members.last().copied().filter(|_| members.len() == limit);
        let mut online = self.online(members).await?;
        online.retain(|user| {
            user.sessions
                .as_ref()
                .is_none_or(|sessions| !sessions.is_empty())
        });
        Ok((online, next))
    }

    /// Ends the sessions that a user has now, all or those of one platform. Returns their number
    /// once the log has the task.
    pub(crate) async fn kick_out(&self, kickout: Kickout) -> Result<usize, Refusal> {
        let answers: Result<Vec<_>, Refusal> =
            self.sessions(&[kickout.user]).await?.into_iter().collect();
        let sessions: Vec<SessionKey> = (answers?.into_iter().flatten())
            .filter(|entry| kickout.platform.is_none_or(|only| only == entry.platform))
            .map(|entry| entry.into_key(kickout.user))
            .collect();
        let count = sessions.len();
        if count == 0 {
            return Ok(0);
        }
        let request = KickoutRequest {
            user: kickout.user,
            sessions,
            refusal: Refusal::new(Code::KickedOut, kickout.text),
        };
        self.kickouts.publish(request).await?;
        Ok(count)
    }

    /// One answer per user, in order.
    async fn sessions(
        &self,
        users: &[UserId],
    ) -> Result<Vec<Result<Vec<SessionEntry>, Refusal>>, Refusal> {
        let denied_lives = self.boats.denied();
        let request = self.backends.mailbox.sessions(users, denied_lives);
        let answers = in_time(self.deadline, request).await?;
        let retain_live = |answer: backend::Result<Vec<SessionEntry>>| {
            let mut entries = answer.map_err(unavailable)?;
            entries.retain(|entry| !self.boats.is_over(&entry.life));
            self.metrics.record_lookup(!entries.is_empty());
            Ok(entries)
        };
        Ok(answers.into_iter().map(retain_live).collect())
    }
}
