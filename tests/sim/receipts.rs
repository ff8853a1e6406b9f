//! Receipts: recorded in registers that only grow, then sent to senders and to the reader's other
//! devices.

use protocol::frame::{Ack, ServerFrame};
use protocol::message_row::{MessageRow, Owner};
use protocol::presence::BoatLife;
use protocol::reading::not_a_member;
use protocol::receipt::{Receipt, ReceiptFacts, ReceiptMoves, ReceiptNeeds, ReceiptNotice};
use protocol::{ConversationId, SessionId, UserId};

use crate::boat::Notice;
use crate::effects::Effect;
use crate::station::{Reply, StationCall};
use crate::world::World;

impl World {
    pub(crate) fn receipts_step(&mut self, open: &mut StationCall, step: u8, ack: &Ack) -> bool {
        let Some(by) = open.user else { return false };
        let now = self.station_wall(open.station);
        match step {
            0 => {
                let mut moves = ReceiptMoves::default();
                let answer = moves.judge(by, ack, &self.receipt_facts(by, ack), now);
                open.register_move = Some(self.begin_register_move(by, now));
                let mut new = Vec::new();
                for status in &moves.statuses {
                    let old_status = self.disk.statuses.get(&(status.owner, status.id));
                    let mut register = old_status.copied().unwrap_or_default();
                    new.push(register.tell(status.kind, status.at));
                    self.apply(Effect::Status {
                        owner: status.owner,
                        id: status.id,
                        kind: status.kind,
                        at: status.at,
                    });
                }
                for ((owner, conversation), seq) in &moves.read {
                    self.apply(Effect::Read {
                        owner: *owner,
                        conversation: *conversation,
                        seq: *seq,
                        at: now,
                    });
                }
                open.moves = Some((moves, new, answer));
                true
            }
            1 => {
                let reads = open.moves.iter().flat_map(|(moves, ..)| &moves.read);
                let reads: Vec<_> = reads
                    .map(|((_, conversation), seq)| (*conversation, *seq))
                    .collect();
                if let Some(register_move) = open.register_move.take()
                    && !reads.is_empty()
                {
                    self.moved(register_move, &reads);
                }
                true
            }
            _ => {
                let Some((moves, new, answer)) = open.moves.take() else {
                    return false;
                };
                self.reply_if_it_arrives(open, Reply::Receipts(Ok(answer)));
                let new: Vec<_> = new.into_iter().map(Some).collect();
                for ReceiptNotice { to, receipt } in moves.notices(&new, |_| false).recorded {
                    self.send_receipt(to, receipt);
                }
                false
            }
        }
    }

    fn receipt_facts(&self, by: UserId, ack: &Ack) -> ReceiptFacts {
        let mut needs = ReceiptNeeds::default();
        needs.add(by, ack);
        let mut facts = ReceiptFacts::default();
        for key in needs.places {
            let row = self.disk.rows.get(&(Owner::User(key.0), key.1));
            let place = row.and_then(MessageRow::place);
            facts.places.extend(place.map(|place| (key, place)));
        }
        for (group, seqs) in needs.messages {
            let rows = self.disk.group_rows(group);
            let ids = seqs.into_iter().filter_map(|seq| {
                let row = rows.get(&seq)?;
                Some(((group, seq), row.id()))
            });
            facts.messages.extend(ids);
        }
        for (group, user) in needs.members {
            let conversation = ConversationId::Group(group);
            let role = self
                .conversation_group(conversation)
                .and_then(|group| group.role(user));
            if role.is_none() {
                facts.refusals.insert((group, user), not_a_member());
            }
        }
        facts
    }

    fn send_receipt(&mut self, to: UserId, receipt: Receipt) {
        let frame = api::codec::encode_server(&ServerFrame::Receipts(vec![receipt]));
        let sessions: Vec<(SessionId, BoatLife)> = self
            .disk
            .mailboxes
            .get(&to)
            .into_iter()
            .flat_map(|mailbox| {
                mailbox
                    .live(&self.carrier.denied_boats)
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .map(|entry| (entry.session, entry.life))
            .collect();
        for (session, life) in sessions {
            self.notify(life, session, Notice::Frame(frame.clone()));
        }
    }
}
