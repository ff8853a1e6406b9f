//! Routes a session's orders for the stations into calls and lanes.

use std::sync::Arc;
use std::time::Duration;

use api::station::{Disconnect, MailAck, MailPageRequest, ReceiptItem, RefreshToken, SyncCall};
use protocol::presence::SessionKey;
use protocol::session::{Action, Session, Submit};
use protocol::ticket::Ticket;
use protocol::{Code, Refusal, SessionId, Timestamp, UserId};

use super::Uplink;
use super::station_queues::{Receipt, StationQueue, Submission};
use crate::connection::{Connection, ConnectionState};

impl Uplink {
    /// Carries out an action that needs a station. The caller holds the connection's state.
    pub(crate) fn carry_out(
        self: &Arc<Self>,
        action: Action,
        connection: &Arc<Connection>,
        state: &mut ConnectionState,
        now: Timestamp,
    ) {
        // All of these follow an admission, which named the user.
        let Some(user) = state.session.user() else {
            return;
        };
        self.urgent.renew_if_due(connection, state, now);
        let (ticket, issued_at) = (state.ticket, state.issued_at());
        let session = &mut state.session;
        let (id, platform) = (session.id(), session.platform());
        let lane = self.lane(id);
        match action {
            Action::Submit(items) => self.submit(items, connection, session, ticket),
            Action::Receipts(ack) => {
                let receipt = Receipt {
                    connection: Arc::clone(connection),
                    item: ReceiptItem {
                        user,
                        session: id,
                        ack,
                        ticket,
                    },
                };
                if lane.receipts.push(receipt).is_err() {
                    self.metrics.lane_overflows.increment(1);
                    session.handle_receipts(Err(overflow()), self.connections.now());
                }
            }
            Action::FetchMail {
                cursor: after,
                limit,
            } => {
                let request = MailPageRequest {
                    user,
                    platform,
                    cursor: after,
                    limit,
                    session: Some(id),
                    ticket,
                };
                self.fetch_mail(connection, request);
            }
            Action::RemoveMail { ids } => {
                let ack = MailAck {
                    user,
                    platform,
                    session: id,
                    ids,
                    ticket,
                };
                if lane.mail_acks.push(ack).is_err() {
                    self.metrics.lane_overflows.increment(1);
                }
            }
            Action::Sync(request) => {
                let call = SyncCall {
                    user,
                    session: id,
                    request,
                    ticket,
                };
                self.fetch_page(connection, call);
            }
            Action::Refresh(refresh) => {
                let Some(device) = session.device().cloned() else {
                    return;
                };
                let refresh = RefreshToken {
                    user,
                    session: id,
                    platform,
                    device,
                    token: refresh.token,
                    issued_at,
                    ticket,
                };
                self.refresh(connection, refresh);
            }
            Action::Leave => self.disconnect(user, id, ticket),
            Action::Transmit(_)
            | Action::Admit(_)
            | Action::Resolve { .. }
            | Action::Subscribe(_)
            | Action::Watch(_)
            | Action::Count(_)
            | Action::Close(_) => {}
        }
    }

    fn submit(
        &self,
        mut items: Vec<Submit>,
        connection: &Arc<Connection>,
        session: &mut Session,
        ticket: Option<Ticket>,
    ) {
        items.iter_mut().for_each(|item| item.ticket = ticket);
        let submission = Submission {
            connection: Arc::clone(connection),
            items,
        };
        if let Err(rejected) = self.lane(session.id()).sends.push(submission) {
            let count = rejected.items.len();
            self.metrics.lane_overflows.increment(count as u64);
            session.handle_submitted(vec![Err(overflow()); count], self.connections.now());
        }
    }

    fn disconnect(&self, user: UserId, session: SessionId, ticket: Option<Ticket>) {
        self.connections.record_session_end();
        let leave = self.status.life().map(|life| Disconnect {
            key: SessionKey {
                user,
                session,
                life,
            },
            ticket,
        });
        let lane = self.lane(session);
        if leave.is_some_and(|leave| lane.leaves.push(leave).is_err()) {
            self.metrics.lane_overflows.increment(1);
        }
    }

    /// Lane of a session's calls.
    fn lane(&self, session: SessionId) -> &StationQueue {
        self.queues.get(self.stations.session_lane(session))
    }
}

fn overflow() -> Refusal {
    let text = "too many requests are waiting for stations; try again later";
    Refusal::new(Code::Unavailable, text).retry_after(Duration::from_secs(1))
}
