//! Pinned messages of a conversation.

use std::collections::BTreeMap;

use super::access::ReadAccess;
use super::pages::shown_size;
use super::rules::hole;
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
        before: Option<Seq>,
        limit: u32,
    ) -> NeedResult<PinPage> {
        let ReadAccess { floor, head, .. } = self.access(conversation, |_| false)?;
        let limit = page_limit(limit, self.rules.page_max.min(PINS_MAX));
        let pins = self.ask.pins(Slice {
            of: conversation,
            after: before.unwrap_or(Seq(u64::MAX)),
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
                None => return Err(hole(conversation).into()),
            };
            let mut placed = row.placed.clone();
            let shown = overlay.show(&mut placed).unwrap_or_default();
            if shown.pinned.is_some() {
                marks.insert(placed.position.seq, shown);
                messages.push(placed);
            }
        }
        let last = readable.last().map(|(seq, _)| *seq);
        let mut next = last.filter(|_| is_full && !is_cut);
        let sizes = messages.iter().map(|placed| shown_size(placed, &marks));
        let fit = fitting(sizes, self.rules.page_bytes_max);
        if fit < messages.len() {
            for placed in messages.drain(fit..) {
                marks.remove(&placed.position.seq);
            }
            next = messages.last().map(|placed| placed.position.seq);
        }
        Ok(PinPage {
            messages,
            marks,
            next,
            rev: head.rev,
        })
    }
}
