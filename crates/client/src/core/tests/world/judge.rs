//! Invariants at the end.

use super::*;

impl World {
    pub(super) fn judge(&self) {
        for end in &self.ends {
            let mine = |conversation: &&ConversationId| conversation.peer_of(end.user).is_some();
            for conversation in self.server.logs.keys().filter(mine) {
                let log = &self.server.logs[conversation];
                let shown = end.shown.get(conversation).map_or(&[][..], Vec::as_slice);
                assert_eq!(
                    ids_shown(shown),
                    ids(log),
                    "{} shows {conversation}",
                    end.device
                );
                let kept = end.saved.conversations[conversation];
                assert_eq!(kept.cursor.seq.0, log.len() as u64);
                assert_eq!(kept.rev, self.server.rev(*conversation));
                let edges = end.saved.loaded[conversation].edges();
                assert_eq!(edges, [], "{} has everything", end.device);
                self.judge_changes(end, *conversation);
                self.judge_row(end, *conversation);
            }
            for conversation in end.shown.keys() {
                assert!(self.server.logs.contains_key(conversation));
            }
            self.judge_sends(end);
        }
        let accepted: usize = self.server.logs.values().map(Vec::len).sum();
        let sent: usize = self.ends.iter().map(|end| end.sent.len()).sum();
        assert_eq!(accepted, sent, "each send is one message");
    }

    /// Checks that each message has the server's content and marks.
    fn judge_changes(&self, end: &End, conversation: ConversationId) {
        let changes = end
            .changed
            .get(&conversation)
            .map_or(&[][..], Vec::as_slice);
        let revs: Vec<u64> = changes.iter().map(|changed| changed.rev).collect();
        let dense = revs.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        assert!(dense, "{} was told {revs:?}", end.device);
        for (placed, marks) in &end.shown[&conversation] {
            let (mut content, mut marks) = (
                placed.message.content.clone(),
                marks.clone().unwrap_or_default(),
            );
            let of_it = changes
                .iter()
                .filter(|changed| changed.seq == placed.position.seq);
            for changed in of_it {
                marks.apply(&changed.asked);
                changed.asked.change.apply_to(&mut content);
            }
            let log = &self.server.logs[&conversation];
            let (now, wanted) = self.server.now(&log[placed.position.seq.0 as usize - 1]);
            let (device, seq) = (&end.device, placed.position.seq);
            let (mut wanted, mut said) = (wanted.unwrap_or_default(), now.message.content);
            if self.server.is_hidden(end.user, conversation, seq) {
                said = said.emptied();
                wanted.hidden = true;
            }
            let is_hidden = |all: &BTreeMap<ConversationId, BTreeSet<Seq>>| {
                all.get(&conversation).is_some_and(|all| all.contains(&seq))
            };
            if is_hidden(&end.hidden) {
                content = content.emptied();
                marks.hidden = true;
            }
            assert_eq!(content, said, "{device} at {seq}");
            assert_eq!(marks, wanted, "{device} at {seq}");
            assert_eq!(is_hidden(&end.saved.hidden), is_hidden(&end.hidden));
        }
    }

    /// Checks that the conversation list agrees with a count.
    fn judge_row(&self, end: &End, conversation: ConversationId) {
        let saved = self.server.summary(end.user, conversation);
        let mut told = saved.clone();
        if let Some(newest) = &mut told.newest
            && (self.server).is_hidden(end.user, conversation, newest.position.seq)
        {
            newest.message.content = newest.message.content.emptied();
            let marks = end.list[&conversation].marks.as_ref();
            assert!(marks.is_some_and(|marks| marks.hidden));
        }
        let rows = [(&end.list, told), (&end.saved.list, saved)];
        for (rows, wanted) in rows {
            let row = &rows[&conversation];
            let row = Summary {
                version: wanted.version,
                marks: wanted.marks.clone(),
                hidden: wanted.hidden,
                ..row.clone()
            };
            assert_eq!(row, wanted, "the list of {}", end.device);
        }
    }

    /// Checks that each send appears once, in the order of sending.
    pub(super) fn judge_sends(&self, end: &End) {
        for (conversation, log) in &self.server.logs {
            let arrived: Vec<SendId> = (log.iter())
                .filter(|placed| placed.message.device == end.device)
                .map(|placed| placed.message.send_id)
                .collect();
            let sent: Vec<SendId> = (end.sent.iter())
                .filter(|(_, to)| match to {
                    Recipient::User(to) => conversation.peer_of(end.user) == Some(*to),
                    Recipient::Group(_) => false,
                })
                .map(|(send_id, _)| *send_id)
                .collect();
            assert_eq!(arrived, sent, "{} in {conversation}", end.device);
        }
    }

    /// Fingerprint of everything shown and sent.
    pub(in crate::core::tests) fn trace(&self) -> (Timestamp, u64, usize, Vec<Vec<MessageId>>) {
        let shown = self
            .ends
            .iter()
            .flat_map(|end| end.shown.values().map(|shown| ids_shown(shown)));
        (self.now, self.steps, self.server.repeats, shown.collect())
    }
}
