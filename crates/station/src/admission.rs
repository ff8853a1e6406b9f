//! Sessions: admission, displacement, and where users are connected (S1-59, S1-60).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::{
    Admission, Connect, Kickout, OnlineSession, OnlineUser, Reassert, ReassertOutcome, Reasserted,
};
use backend::clock::Clock;
use backend::devices::{DeviceSeen, DeviceStore};
use backend::groups::GroupStore;
use backend::mailbox::MailboxStore;
use protocol::access::Caller;
use protocol::mailbox::{
    ConnectRequest, HeldSession, NewSession, Overflow, ReassertAnswer, SessionCapacity,
};
use protocol::presence::{SessionEntry, SessionKey};
use protocol::ticket::{Renewal, SignIn};
use protocol::{Code, GroupId, Refusal, Timestamp, UserId};
use tokio::time::{Instant, timeout_at};

use crate::auth::Authenticator;
use crate::boat_clients::BoatClients;
use crate::deadline::{in_time, unavailable, within};
use crate::kickout::{KickoutQueue, KickoutRequest};
use crate::limits::Limits;
use crate::metrics::AdmissionMetrics;
use crate::revocations::RevocationDoor;
use crate::tickets::{TicketDoor, name_of};
use crate::workers::WorkQueue;

/// Time for the devices' store, whose answer changes nothing: a slow one must not delay sign-ins.
const SEEN_WITHIN: Duration = Duration::from_millis(500);

/// Verdict on a session before the mailbox is asked.
enum Verdict {
    Ended(ReassertOutcome),
    /// Asserted, with the sign-in that its ticket proves.
    Asserted(Option<SignIn>),
}

/// Outcome of a late session without an entry. A session that comes back by itself must not throw
/// out a later sign-in.
fn without_entry(
    sign_in: &SignIn,
    login: Option<u64>,
    others: &[SessionEntry],
    capacity: &SessionCapacity,
) -> ReassertOutcome {
    let rivals = (others.iter()).filter(|other| {
        other.platform == sign_in.platform && login.is_none_or(|login| other.login > login)
    });
    let is_displaced = SessionCapacity::overflow(sign_in.platform) == Overflow::Displace
        && rivals.count() >= capacity.of(sign_in.platform);
    match is_displaced {
        true => ReassertOutcome::Answer(ReassertAnswer::Displaced),
        false => ReassertOutcome::Unproved,
    }
}

/// True if the session lives, as far as the mailbox says.
fn goes_on(outcome: &ReassertOutcome) -> bool {
    matches!(
        outcome,
        ReassertOutcome::Answer(ReassertAnswer::Known { .. } | ReassertAnswer::Restored { .. })
            | ReassertOutcome::Unavailable
    )
}

/// Admits and dismisses sessions.
pub(crate) struct Admissions {
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    /// Capacity, as the mailbox has it.
    pub(crate) capacity: SessionCapacity,
    pub(crate) devices: Arc<dyn DeviceStore>,
    pub(crate) groups: Arc<dyn GroupStore>,
    pub(crate) boats: Arc<BoatClients>,
    pub(crate) kicks: KickoutQueue,
    pub(crate) ended: WorkQueue<KickoutRequest>,
    pub(crate) revocations: Arc<RevocationDoor>,
    pub(crate) tickets: Arc<TicketDoor>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cluster: u64,
    pub(crate) deadline: Duration,
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
                self.metrics.connected.increment(1);
                self.metrics.resumed.increment(u64::from(is_resumed));
            }
            Err(refusal) => self.metrics.refused(refusal.code),
        }
        answer
    }

    async fn admit(&self, connect: Connect, boat: Option<&Caller>) -> Result<Admission, Refusal> {
        let now = self.clock.now();
        let sign_in = self.prove(&connect, now).await?;
        let user = sign_in.user;
        self.limits.sign_in(user, connect.platform)?;
        self.boats.hear(&connect.life);
        let ticket = self.tickets.sign(&sign_in, name_of(boat));
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
            denied: self.boats.denied(),
            now,
        };
        let seen = DeviceSeen {
            user,
            platform: connect.platform,
            device: connect.device,
            at: now,
        };
        let (registered, remembered) = tokio::join!(
            within(self.deadline, self.mailbox.connect(request)),
            within(SEEN_WITHIN, self.devices.seen(seen)),
        );
        if remembered.is_err() {
            // Nothing is lost: a platform that is not remembered is owed nothing, and syncs.
            metrics::counter!("station_devices_forgotten_total").increment(1);
        }
        let registered = match registered {
            Ok(Ok(registered)) => registered,
            Ok(Err(too_many)) => return Err(self.limits.sessions(too_many)),
            // T-R1: a mailbox that is away keeps nobody out. The boat registers the session when
            // the mailbox is back.
            Err(_) => {
                self.metrics.degraded.increment(1);
                return Ok(Admission {
                    user,
                    login: 0,
                    marker: connect.marker.unwrap_or_default(),
                    recovered: false,
                    mail_waits: false,
                    cluster: self.cluster,
                    server_time: now,
                    expires_at: sign_in.ends_at,
                    degraded: true,
                    issued_at: Some(sign_in.issued_at),
                    ticket,
                });
            }
        };
        if !registered.displaced.is_empty() {
            let count = registered.displaced.len() as u64;
            self.metrics.displaced.increment(count);
            self.ended
                .offer(KickoutRequest::displaced(user, registered.displaced));
        }
        if !registered.replaced.is_empty() {
            let count = registered.replaced.len() as u64;
            self.metrics.replaced.increment(count);
            self.ended
                .offer(KickoutRequest::replaced(user, registered.replaced));
        }
        Ok(Admission {
            user,
            login: registered.login,
            marker: registered.marker,
            recovered: connect
                .marker
                .is_none_or(|marker| marker == registered.marker),
            mail_waits: registered.mail_waits,
            cluster: self.cluster,
            server_time: now,
            expires_at: sign_in.ends_at,
            degraded: false,
            issued_at: Some(sign_in.issued_at),
            ticket,
        })
    }

    /// Removes exactly these registrations. Returns the indices of those to be tried again.
    pub(crate) async fn disconnect(
        &self,
        sessions: Vec<SessionKey>,
    ) -> Result<Vec<usize>, Refusal> {
        let answers = in_time(self.deadline, self.mailbox.disconnect(sessions)).await?;
        let mut unanswered = Vec::new();
        for (place, answer) in answers.into_iter().enumerate() {
            let Err(error) = answer else {
                continue;
            };
            // An unreadable entry stays unreadable: the next push to it finds out.
            if error.kind != backend::Kind::Corrupt {
                unanswered.push(place);
            }
            unavailable(error);
        }
        Ok(unanswered)
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
                self.boats.hear(&session.key.life);
            }
        }
        let (mut judged, mut late) = (Vec::with_capacity(sessions.len()), Vec::new());
        for (place, session) in sessions.into_iter().enumerate() {
            let verdict = match self.tickets.renew(&session, boat) {
                Err(_) => Verdict::Ended(ReassertOutcome::Unproved),
                Ok(Renewal::Unproved) => self.unless_revoked(&session, session.issued_at, None),
                Ok(Renewal::Proved(sign_in)) => self.unless_revoked_since(&session, sign_in),
                Ok(Renewal::Late(sign_in)) => {
                    late.push((place, session, sign_in));
                    continue;
                }
            };
            judged.push((place, session, verdict));
        }
        // A boat waits for the answer. Late tickets cost one more question, which delays nobody
        // else.
        let until = Instant::now() + self.deadline;
        let (mut answers, late) = tokio::join!(
            self.assert(judged, boat, until),
            self.assert_late(late, boat, until),
        );
        answers.extend(late);
        answers.sort_unstable_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Asserts the sessions whose verdict says so. Returns an answer for each, with its index.
    async fn assert(
        &self,
        judged: Vec<(usize, Reassert, Verdict)>,
        boat: Option<&Caller>,
        until: Instant,
    ) -> Vec<(usize, Reasserted)> {
        let (mut answers, mut asserted) = (Vec::with_capacity(judged.len()), Vec::new());
        let mut entries = Vec::with_capacity(judged.len());
        for (place, session, verdict) in judged {
            match verdict {
                Verdict::Ended(outcome) => answers.push((place, outcome.into())),
                Verdict::Asserted(proof) => {
                    asserted.push((place, proof));
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
        if asserted.is_empty() {
            return answers;
        }
        let denied = self.boats.denied();
        let asked = self.mailbox.reassert(entries, denied, self.clock.now());
        let outcomes = timeout_at(until, asked).await.unwrap_or_default();
        let mut outcomes = (outcomes.into_iter())
            .map(|answer| answer.map_or(ReassertOutcome::Unavailable, ReassertOutcome::Answer));
        for (place, proof) in asserted {
            let outcome = outcomes.next().unwrap_or(ReassertOutcome::Unavailable);
            // A mailbox that is away keeps nobody from sending (T-R1).
            let ticket = proof
                .filter(|_| goes_on(&outcome))
                .and_then(|sign_in| self.tickets.sign(&sign_in, name_of(boat)));
            answers.push((place, Reasserted { outcome, ticket }));
        }
        answers
    }

    /// Asserts sessions with an expired ticket, if the mailbox still has them; also those of ended
    /// lives, as their boat may have begun another one meanwhile.
    async fn assert_late(
        &self,
        late: Vec<(usize, Reassert, SignIn)>,
        boat: Option<&Caller>,
        until: Instant,
    ) -> Vec<(usize, Reasserted)> {
        if late.is_empty() {
            return Vec::new();
        }
        let users: BTreeSet<UserId> = late.iter().map(|(_, _, of)| of.user).collect();
        let users: Vec<UserId> = users.into_iter().collect();
        let asked = self.mailbox.sessions(&users, self.boats.denied());
        let entries = timeout_at(until, asked).await;
        let entries = entries.unwrap_or_default();
        let present: BTreeMap<UserId, Vec<SessionEntry>> = (users.into_iter().zip(entries))
            .filter_map(|(user, entries)| Some((user, entries.ok()?)))
            .collect();
        let judge = |(place, session, sign_in): (usize, Reassert, SignIn)| {
            let verdict = match present.get(&sign_in.user) {
                None => Verdict::Ended(ReassertOutcome::Unavailable),
                Some(entries) if entries.iter().any(|of| of.session == sign_in.session) => {
                    self.unless_revoked_since(&session, sign_in)
                }
                Some(entries) => Verdict::Ended(without_entry(
                    &sign_in,
                    session.login,
                    entries,
                    &self.capacity,
                )),
            };
            (place, session, verdict)
        };
        self.assert(late.into_iter().map(judge).collect(), boat, until)
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
        match self.revocations.refuses(session.key.user, issued_at) {
            true => Verdict::Ended(ReassertOutcome::Revoked),
            false => Verdict::Asserted(proof),
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

    /// Connected members of a group, among the `limit` members after `after`, and the last of these
    /// if there are more. The relation is stored nowhere: it is the group's members, joined with
    /// their sessions.
    pub(crate) async fn online_members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<(Vec<OnlineUser>, Option<UserId>), Refusal> {
        let present = self.groups.present(group, after, limit);
        let present = within(self.deadline, present).await?;
        let members: Vec<UserId> = present.into_iter().map(|(user, _)| user).collect();
        let next = members.last().copied().filter(|_| members.len() == limit);
        let mut online = self.online(members).await?;
        online.retain(|user| user.sessions.as_ref().is_none_or(|own| !own.is_empty()));
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
        let kick = KickoutRequest {
            user: kickout.user,
            sessions,
            refusal: Refusal::new(Code::KickedOut, kickout.text),
        };
        self.kicks.publish(kick).await?;
        Ok(count)
    }

    /// One answer per user, in order.
    async fn sessions(
        &self,
        users: &[UserId],
    ) -> Result<Vec<Result<Vec<SessionEntry>, Refusal>>, Refusal> {
        let denied = self.boats.denied();
        let asked = self.mailbox.sessions(users, denied);
        let answers = crate::deadline::in_time(self.deadline, asked).await?;
        let living = |answer: backend::Result<Vec<SessionEntry>>| {
            let mut entries = answer.map_err(crate::deadline::unavailable)?;
            entries.retain(|entry| !self.boats.is_over(&entry.life));
            self.metrics.looked_up(!entries.is_empty());
            Ok(entries)
        };
        Ok(answers.into_iter().map(living).collect())
    }
}
