//! Pins, as stations list them.

use std::collections::BTreeSet;

use protocol::UserId;
use protocol::frame::{SyncAnswer, SyncQuery};
use tests::app::ChatMessage;
use tests::model::Model;

use crate::reading::OpenQuestion;
use crate::world::World;

impl World {
    /// Checks that stations list the pins of the log, for each user who may read them.
    pub(crate) fn judge_pins(&mut self, model: &Model) -> Result<(), String> {
        let users: BTreeSet<UserId> = self.devices.iter().map(|device| device.user).collect();
        for (&conversation, talk) in &model.talks {
            for &user in &users {
                let Some(mut expected) = talk.user_pins(conversation, user) else {
                    continue;
                };
                // The server does not hide: devices do.
                let view = talk.view();
                expected
                    .iter_mut()
                    .for_each(|message| message.clone_from(&view[message.seq.0 as usize - 1]));
                let query = SyncQuery::Pins {
                    conversation,
                    before: None,
                    limit: 0,
                };
                let answer = self.read_rest(user, &query, &mut OpenQuestion::new(self.now));
                let Ok(SyncAnswer::Pins(page)) = answer else {
                    return Err(format!("{user} is told of pins: {answer:?}"));
                };
                let pins = page.messages.iter().map(|placed| {
                    let marks = page.marks.get(&placed.position.seq).cloned();
                    ChatMessage::of(placed, marks)
                });
                let pins: Vec<ChatMessage> = pins.collect();
                if pins != expected {
                    return Err(format!(
                        "{user} is told of pins {pins:?} of {conversation}, the log says {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
