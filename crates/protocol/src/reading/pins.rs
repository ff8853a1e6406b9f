//! Pinned messages of a conversation.

use std::collections::BTreeMap;

use super::access::ReadAccess;
use super::pages::shown_size;
use super::rules::hole_refusal;
use super::{NeedResult, Reading, Slice, fitting, page_limit};
use crate::frame::PinPage;
use crate::message_row::Owner;
use crate::{ConversationId, Placed, Seq};

/// Maximum number of pins of a page: each costs a row and the changes of a message.
pub const PINS_MAX: usize = 20;

impl Reading<'_> {
    /// Pins by the places of their messages, for users who may read these. A page may have fewer
    /// messages than pins, and more pages behind it: a recalled message that is still in the list of
    /// pins is left out here, and so is one behind the head that has no row yet. Changes up to the
    /// rev of the head are included, since the head is read first; of later ones, some may be.
    pub(super) fn pins(
        &self,
        conversation: ConversationId,
        cursor: Option<Seq>,
        limit: u32,
    ) -> NeedResult<PinPage> {
        let ReadAccess { floor, head, .. } = self.access(conversation, |_| false)?;
        let limit = page_limit(limit, self.rules.page_max.min(PINS_MAX));
        let pins = self.ask.pins(Slice {
            owner: conversation,
            cursor: cursor.unwrap_or(Seq(u64::MAX)),
            limit,
        })?;
        let is_full = pins.len() >= limit;
        let readable = pins.iter().take_while(|(seq, _)| *seq > floor);
        let readable: Vec<_> = readable.copied().collect();
        let is_cut = readable.len() < pins.len();
        let owner = Owner::of(conversation, self.user);
        let (keys, places): (Vec<_>, Vec<_>) = (readable.iter())
            .map(|(seq, id)| ((owner, *id), (conversation, *seq)))
            .unzip();
        let (rows, overlays) = (self.ask.rows(keys), self.ask.overlays(places));
        let (rows, overlays) = (rows?, overlays?);
        let (mut messages, mut marks): (Vec<Placed>, _) = (Vec::new(), BTreeMap::new());
        for ((seq, _), (row, overlay)) in readable.iter().zip(rows.iter().zip(overlays)) {
            let row = match row {
                Some(row) => row,
                None if *seq > head.seq => continue,
                None => return Err(hole_refusal(conversation).into()),
            };
            let mut message = row.placed.clone();
            let message_marks = overlay.show(&mut message).unwrap_or_default();
            if message_marks.pinned.is_some() {
                marks.insert(message.position.seq, message_marks);
                messages.push(message);
            }
        }
        let last = readable.last().map(|(seq, _)| *seq);
        let mut next = last.filter(|_| is_full && !is_cut);
        let sizes = messages.iter().map(|message| shown_size(message, &marks));
        let fit = fitting(sizes, self.rules.page_bytes_max);
        if fit < messages.len() {
            for message in messages.drain(fit..) {
                marks.remove(&message.position.seq);
            }
            next = messages.last().map(|message| message.position.seq);
        }
        Ok(PinPage {
            messages,
            marks,
            next,
            rev: head.rev,
        })
    }
}
