//! Routes a session's orders for the stations into their lanes.

use std::sync::Arc;

use api::station::{Disconnect, MailAck, MailPageRequest, ReceiptItem, RefreshToken, SyncCall};
use protocol::presence::SessionKey;
use protocol::session::{Action, Session, Submit};
use protocol::ticket::Ticket;
use protocol::{SessionId, Timestamp, UserId};

use super::ConnectionDriver;
use crate::uplink::station_queues::{Receipt, Submission, refuse_receipt, refuse_submission};

/// Proof of a sign-in, for calls that follow it.
pub(super) struct SessionProof {
    pub(super) ticket: Option<Ticket>,
    /// Issue time of the token.
    pub(super) issued_at: Option<Timestamp>,
}

impl ConnectionDriver {
    pub(super) fn tell_station(
        &mut self,
        action: Action,
        user: UserId,
        session: &mut Session,
        proof: SessionProof,
    ) {
        let SessionProof { ticket, issued_at } = proof;
        let (boat, connection) = (&self.boat, &self.connection);
        let (id, platform) = (session.id(), session.platform());
        let lane = boat.lanes.get(boat.stations.session_lane(id));
        match action {
            Action::Submit(items) => self.submit(items, session, ticket),
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
                    refuse_receipt(session, boat);
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
                boat.fetch_mail(connection, request);
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
                    boat.metrics.lane_overflows.increment(1);
                }
            }
            Action::Sync(request) => {
                let call = SyncCall {
                    user,
                    session: id,
                    request,
                    ticket,
                };
                boat.fetch_page(connection, call);
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
                boat.refresh(connection, refresh);
            }
            Action::Leave => self.disconnect(user, id, ticket),
            Action::Transmit(_)
            | Action::Admit(_)
            | Action::Resolve { .. }
            | Action::Count(_)
            | Action::Close(_) => {}
        }
    }

    fn submit(&self, mut items: Vec<Submit>, session: &mut Session, ticket: Option<Ticket>) {
        items.iter_mut().for_each(|item| item.ticket = ticket);
        let submission = Submission {
            connection: Arc::clone(&self.connection),
            items,
        };
        let lane = self.boat.stations.session_lane(session.id());
        let lane = self.boat.lanes.get(lane);
        if let Err(back) = lane.sends.push(submission) {
            refuse_submission(session, &self.boat, back.items.len());
        }
    }

    fn disconnect(&self, user: UserId, session: SessionId, ticket: Option<Ticket>) {
        let boat = &self.boat;
        boat.session_ended();
        let leave = boat.life().map(|life| Disconnect {
            key: SessionKey {
                user,
                session,
                life,
            },
            ticket,
        });
        let lane = boat.lanes.get(boat.stations.session_lane(session));
        if leave.is_some_and(|leave| lane.leaves.push(leave).is_err()) {
            boat.metrics.lane_overflows.increment(1);
        }
    }
}
