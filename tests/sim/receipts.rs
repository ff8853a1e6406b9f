//! Receipts: recorded in registers that only grow, then told to the senders and to the reader's other devices.

use protocol::frame::{Ack, AckItem, Acked, ServerFrame};
use protocol::presence::BoatLife;
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{Code, ConversationId, Refusal, SessionId, UserId};

use crate::boat::Notice;
use crate::effects::Effect;
use crate::station::{Open, Reply};
use crate::world::World;

impl World {
    pub(crate) fn receipts_step(&mut self, open: &mut Open, step: u8, ack: &Ack) -> bool {
        let Some(by) = open.user else { return false };
        let found: Vec<Option<UserId>> = ack
            .items
            .iter()
            .map(|item| {
                if let ConversationId::Group(group) = item.conversation {
                    // Nobody is told of it but the reader.
                    let row = self.disk.group_rows.get(&(group, item.id))?;
                    let is_in = self.readable_after(by, item.conversation).is_ok();
                    return (is_in && row.seq == item.seq).then_some(by);
                }
                let row = self.disk.rows.get(&(by, item.id))?;
                let fits = row.seq == item.seq && row.conversation() == Some(item.conversation);
                fits.then_some(row.peer)
            })
            .collect();
        let incoming = |world: &World, item: &AckItem| {
            let row = world.disk.rows.get(&(by, item.id));
            row.is_some_and(|row| row.direction == protocol::history::Direction::In)
        };
        match step {
            0 => {
                open.moved = Some(self.moves(by));
                for (item, sender) in ack.items.iter().zip(&found) {
                    let Some(owner) = *sender else { continue };
                    if incoming(self, item) {
                        let at = self.now;
                        self.apply(Effect::Status {
                            owner,
                            id: item.id,
                            kind: ack.kind,
                            at,
                        });
                    }
                    if ack.kind == ReceiptKind::Read {
                        let (conversation, seq, at) = (item.conversation, item.seq, self.now);
                        self.apply(Effect::Read {
                            owner: by,
                            conversation,
                            seq,
                            at,
                        });
                    }
                }
                true
            }
            1 => {
                let reads: Vec<_> = (ack.items.iter().zip(&found))
                    .filter(|(_, sender)| sender.is_some() && ack.kind == ReceiptKind::Read)
                    .map(|(item, _)| (item.conversation, item.seq))
                    .collect();
                if let Some(moved) = open.moved.take()
                    && !reads.is_empty()
                {
                    self.moved(moved, &reads);
                }
                true
            }
            _ => {
                let mut acked = Acked {
                    kind: ack.kind,
                    ids: Vec::new(),
                    refused: Vec::new(),
                };
                for (item, sender) in ack.items.iter().zip(&found) {
                    match sender {
                        Some(_) => acked.ids.push(item.id),
                        None => acked
                            .refused
                            .push((item.id, Refusal::new(Code::NotFound, "never sent to you"))),
                    }
                }
                self.reply_if_it_arrives(open, Reply::Receipts(Ok(acked)));
                for (item, sender) in ack.items.iter().zip(&found) {
                    if let Some(sender) = *sender
                        && incoming(self, item)
                    {
                        let receipt = self.receipt(by, ack.kind, item);
                        self.tell_of(sender, receipt);
                    }
                }
                self.mirror(by, ack);
                false
            }
        }
    }

    /// What is read on one device is read on all.
    fn mirror(&mut self, by: UserId, ack: &Ack) {
        if ack.kind != ReceiptKind::Read {
            return;
        }
        for item in &ack.items {
            let receipt = self.receipt(by, ack.kind, item);
            self.tell_of(by, receipt);
        }
    }

    fn receipt(&self, by: UserId, kind: ReceiptKind, item: &AckItem) -> Receipt {
        Receipt {
            kind,
            conversation: item.conversation,
            id: item.id,
            seq: item.seq,
            by,
            at: self.now,
        }
    }

    fn tell_of(&mut self, to: UserId, receipt: Receipt) {
        let frame = api::codec::encode_server(&ServerFrame::Receipts(vec![receipt]));
        let live: Vec<(SessionId, BoatLife)> = self
            .disk
            .mailboxes
            .get(&to)
            .into_iter()
            .flat_map(|mailbox| {
                mailbox
                    .live(&self.carrier.denied)
                    .cloned()
                    .collect::<Vec<_>>()
            })
            .map(|entry| (entry.session, entry.life))
            .collect();
        for (session, life) in live {
            self.notify(life, session, Notice::Frame(frame.clone()));
        }
    }
}
