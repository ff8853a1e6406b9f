//! Sessions: who may come in, who had to leave for it, and where users are (S1-59, S1-60).

use std::sync::Arc;
use std::time::Duration;

use api::station::{Admission, Connect, Kickout, OnlineSession, OnlineUser, Reassert, Reasserted};
use backend::clock::Clock;
use backend::devices::{DeviceStore, Seen};
use backend::groups::GroupStore;
use backend::mailbox::MailboxStore;
use protocol::mailbox::{ConnectRequest, NewSession};
use protocol::presence::{SessionEntry, SessionKey};
use protocol::{Code, GroupId, Refusal, UserId};

use crate::auth::Authenticator;
use crate::background::Background;
use crate::boats::Boats;
use crate::deadline::{in_time, unavailable, within};
use crate::kickout::{Kick, Kicks};
use crate::limits::Limits;
use crate::metrics::AdmissionMetrics;
use crate::revocations::RevocationDoor;

/// For the devices' store, whose answer changes nothing: where it is slow, sign-ins must not wait with it.
const SEEN_WITHIN: Duration = Duration::from_millis(500);

/// Admits and dismisses sessions.
pub(crate) struct Admissions {
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) mailbox: Arc<dyn MailboxStore>,
    pub(crate) devices: Arc<dyn DeviceStore>,
    pub(crate) groups: Arc<dyn GroupStore>,
    pub(crate) boats: Arc<Boats>,
    pub(crate) kicks: Kicks,
    pub(crate) ended: Background<Kick>,
    pub(crate) revocations: Arc<RevocationDoor>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) cluster: u64,
    pub(crate) deadline: Duration,
    pub(crate) metrics: AdmissionMetrics,
}

impl Admissions {
    /// Registers a session and tells the others of its platform to go. Repeating it changes nothing. Where the
    /// mailbox does not answer, the session is admitted all the same: it sends, and reads from history.
    pub(crate) async fn connect(&self, connect: Connect) -> Result<Admission, Refusal> {
        let answer = self.admit(connect).await;
        match &answer {
            Ok(_) => self.metrics.connected.increment(1),
            Err(refusal) => self.metrics.refused(refusal.code),
        }
        answer
    }

    async fn admit(&self, connect: Connect) -> Result<Admission, Refusal> {
        let now = self.clock.now();
        let identity = self.authenticator.authenticate(&connect.token, now).await?;
        identity.permits(connect.platform, &connect.device)?;
        let user = identity.user;
        self.revocations.check(user, identity.issued_at)?;
        self.limits.sign_in(user, connect.platform)?;
        self.boats.hear(&connect.life);
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
        let seen = Seen {
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
            // T-R1: nobody is kept out by a mailbox that is away. The boat registers the session when it is back.
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
                    expires_at: identity.expires_at,
                    degraded: true,
                    issued_at: Some(identity.issued_at),
                });
            }
        };
        if !registered.displaced.is_empty() {
            let count = registered.displaced.len() as u64;
            self.metrics.displaced.increment(count);
            self.ended
                .offer(Kick::displaced(user, registered.displaced));
        }
        if !registered.replaced.is_empty() {
            let count = registered.replaced.len() as u64;
            self.metrics.replaced.increment(count);
            self.ended.offer(Kick::replaced(user, registered.replaced));
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
            expires_at: identity.expires_at,
            degraded: false,
            issued_at: Some(identity.issued_at),
        })
    }

    /// Removes exactly these registrations. Answers the places of those that are to be tried again.
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
            // What cannot be read is not read the next time, either: whoever pushes there finds out.
            if error.kind != backend::Kind::Corrupt {
                unanswered.push(place);
            }
            unavailable(error);
        }
        Ok(unanswered)
    }

    /// A boat says again what it holds; one answer a session, in order.
    pub(crate) async fn reassert(&self, sessions: Vec<Reassert>) -> Vec<Reasserted> {
        // All are of one boat; seldom of two of its lives.
        for (index, session) in sessions.iter().enumerate() {
            if index == 0 || sessions[index - 1].key.life != session.key.life {
                self.boats.hear(&session.key.life);
            }
        }
        // A session whose token was revoked is not registered again.
        let revoked: Vec<bool> = (sessions.iter())
            .map(|session| {
                self.revocations
                    .refuses(session.key.user, session.issued_at)
            })
            .collect();
        let sessions = (sessions.into_iter().zip(&revoked))
            .filter(|(_, revoked)| !**revoked)
            .map(|(session, _)| {
                let user = session.key.user;
                let entry = NewSession {
                    key: session.key,
                    platform: session.platform,
                    device: session.device,
                };
                (user, entry)
            })
            .collect();
        let denied = self.boats.denied();
        let asked = self.mailbox.reassert(sessions, denied, self.clock.now());
        let answers = tokio::time::timeout(self.deadline, asked).await;
        let mut answers = (answers.unwrap_or_default().into_iter())
            .map(|answer| answer.map_or(Reasserted::Unavailable, Reasserted::Answer));
        let mut answer = |revoked| match revoked {
            true => Reasserted::Revoked,
            false => answers.next().unwrap_or(Reasserted::Unavailable),
        };
        revoked.into_iter().map(&mut answer).collect()
    }

    /// Where each of these users is connected, as far as it is known. Sessions of boats that are gone do not count.
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

    /// Which members of a group are connected, of the `limit` members behind `after`; and the last of these, where there
    /// are more. The relation is not kept anywhere: it is the group's members, and where each of them is.
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

    /// Ends the sessions that a user has now, all or those of one platform. Answered when the log has
    /// the task, with their number.
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
        let kick = Kick {
            user: kickout.user,
            sessions,
            refusal: Refusal::new(Code::KickedOut, kickout.text),
        };
        self.kicks.publish(kick).await?;
        Ok(count)
    }

    /// One answer a user, in order.
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
