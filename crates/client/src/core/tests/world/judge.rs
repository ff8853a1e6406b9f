//! What must be so at the end.

use super::*;

impl World {
    pub(super) fn judge(&self) {
        for end in &self.ends {
            let mine = |conversation: &&ConversationId| conversation.peer_of(end.user).is_some();
            for conversation in self.server.logs.keys().filter(mine) {
                let log = &self.server.logs[conversation];
                let shown = end.shown.get(conversation).map_or(&[][..], Vec::as_slice);
                assert_eq!(ids(shown), ids(log), "{} shows {conversation}", end.device);
                let kept = end.saved.conversations[conversation];
                assert_eq!(kept.cursor.seq.0, log.len() as u64);
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

    /// Each once, in the order in which it was sent.
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

    /// A fingerprint of everything that was shown and said.
    pub(in crate::core::tests) fn trace(&self) -> (Timestamp, u64, usize, Vec<Vec<MessageId>>) {
        let shown = self
            .ends
            .iter()
            .flat_map(|end| end.shown.values().map(|shown| ids(shown)));
        (self.now, self.steps, self.server.repeats, shown.collect())
    }
}
