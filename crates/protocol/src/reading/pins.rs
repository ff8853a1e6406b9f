//! Pinned messages of a conversation.

use std::collections::BTreeMap;

use super::access::ReadAccess;
use super::pages::shown_size;
use super::rules::hole;
use super::{Needing, Reading, Slice, fitting, page_limit};
use crate::frame::PinPage;
use crate::message_row::Owner;
use crate::{ConversationId, Placed, Seq};

impl Reading<'_> {
    /// Pins by the places of their messages, for users who may read these. A page may have fewer
    /// messages than pins, and more pages behind it: recalled messages stay in the list of pins, and
    /// are left out here.
    pub(super) fn pins(
        &self,
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
    ) -> Needing<PinPage> {
        let ReadAccess { floor, .. } = self.access(conversation, |_| false)?;
        let limit = page_limit(limit, self.rules.page_max);
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
        for (row, overlay) in rows.iter().zip(overlays) {
            let row = row.as_ref().ok_or_else(|| hole(conversation))?;
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
        })
    }
}
