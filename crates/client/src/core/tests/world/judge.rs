//! Invariants at the end.

use super::*;

impl World {
    pub(super) fn judge(&self) {
        for end in &self.ends {
            let mine = |conversation: &&ConversationId| conversation.peer_of(end.user).is_some();
            for conversation in self.server.logs.keys().filter(mine) {
                let log = &self.server.logs[conversation];
                let shown_messages = end
                    .shown_messages
                    .get(conversation)
                    .map_or(&[][..], Vec::as_slice);
                assert_eq!(
                    ids_shown(shown_messages),
                    ids(log),
                    "{} shows {conversation}",
                    end.device
                );
                let progress = end.snapshot.conversations[conversation];
                assert_eq!(progress.cursor.seq.0, log.len() as u64);
                assert_eq!(progress.rev, self.server.rev(*conversation));
                let edges = end.snapshot.loaded_ranges[conversation].edges();
                assert_eq!(edges, [], "{} has everything", end.device);
                self.judge_changes(end, *conversation);
                self.judge_row(end, *conversation);
            }
            for conversation in end.shown_messages.keys() {
                assert!(self.server.logs.contains_key(conversation));
            }
            self.judge_sends(end);
        }
        let accepted_count: usize = self.server.logs.values().map(Vec::len).sum();
        let sent_count: usize = self.ends.iter().map(|end| end.durable_sends.len()).sum();
        assert_eq!(accepted_count, sent_count, "each send is one message");
    }

    /// Checks that each message has the server's content and marks.
    fn judge_changes(&self, end: &End, conversation: ConversationId) {
        let changes = end
            .changes
            .get(&conversation)
            .map_or(&[][..], Vec::as_slice);
        let revs: Vec<u64> = changes.iter().map(|change| change.rev).collect();
        let dense = revs.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        assert!(dense, "{} was told {revs:?}", end.device);
        for (placed, marks) in &end.shown_messages[&conversation] {
            let (mut content, mut marks) = (
                placed.message.content.clone(),
                marks.clone().unwrap_or_default(),
            );
            let of_it = changes
                .iter()
                .filter(|change| change.seq == placed.position.seq);
            for change in of_it {
                marks.apply(&change.asked);
                change.asked.change.apply_to(&mut content);
            }
            let log = &self.server.logs[&conversation];
            let (now, expected_marks) = self.server.now(&log[placed.position.seq.0 as usize - 1]);
            let (device, seq) = (&end.device, placed.position.seq);
            let (mut expected_marks, mut expected_content) =
                (expected_marks.unwrap_or_default(), now.message.content);
            if self.server.is_hidden(end.user, conversation, seq) {
                expected_content = expected_content.emptied();
                expected_marks.hidden = true;
            }
            let is_hidden = |all: &BTreeMap<ConversationId, BTreeSet<Seq>>| {
                all.get(&conversation).is_some_and(|all| all.contains(&seq))
            };
            if is_hidden(&end.hidden_seqs) {
                content = content.emptied();
                marks.hidden = true;
            }
            assert_eq!(content, expected_content, "{device} at {seq}");
            assert_eq!(marks, expected_marks, "{device} at {seq}");
            assert_eq!(
                is_hidden(&end.snapshot.hidden_seqs),
                is_hidden(&end.hidden_seqs)
            );
        }
    }

    /// Checks that the conversation list agrees with a count.
    fn judge_row(&self, end: &End, conversation: ConversationId) {
        let stored_row = self.server.summary(end.user, conversation);
        let mut shown_row = stored_row.clone();
        if let Some(newest) = &mut shown_row.newest
            && (self.server).is_hidden(end.user, conversation, newest.position.seq)
        {
            newest.message.content = newest.message.content.emptied();
            let marks = end.list[&conversation].marks.as_ref();
            assert!(marks.is_some_and(|marks| marks.hidden));
        }
        let rows = [(&end.list, shown_row), (&end.snapshot.list, stored_row)];
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
            let arrived_ids: Vec<SendId> = (log.iter())
                .filter(|entry| entry.message.device == end.device)
                .map(|entry| entry.message.send_id)
                .collect();
            let sent_ids: Vec<SendId> = (end.durable_sends.iter())
                .filter(|(_, to)| match to {
                    Recipient::User(to) => conversation.peer_of(end.user) == Some(*to),
                    Recipient::Group(_) => false,
                })
                .map(|(send_id, _)| *send_id)
                .collect();
            assert_eq!(arrived_ids, sent_ids, "{} in {conversation}", end.device);
        }
    }

    /// Fingerprint of everything shown and sent.
    pub(in crate::core::tests) fn trace(&self) -> (Timestamp, u64, usize, Vec<Vec<MessageId>>) {
        let shown_ids = self.ends.iter().flat_map(|end| {
            end.shown_messages
                .values()
                .map(|messages| ids_shown(messages))
        });
        (
            self.now,
            self.steps,
            self.server.repeats,
            shown_ids.collect(),
        )
    }
}
