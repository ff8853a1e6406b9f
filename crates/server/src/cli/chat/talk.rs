//! The conversation as it is shown, whatever shows it.

use anyhow::{Result, bail};
use client::core::{Origin, SendStatus, Shown, State};
use client::{Client, Event, Events};
use protocol::message::Content;
use protocol::{ConversationId, MessageId, Recipient, SendId, Seq, UserId};

pub(super) struct Talk {
    client: Client,
    events: Events,
    pub(super) me: UserId,
    pub(super) peer: UserId,
    conversation: ConversationId,
    pub(super) messages: Vec<Said>,
    pub(super) state: State,
}

/// One message of the conversation.
pub(super) struct Said {
    pub(super) send_id: SendId,
    pub(super) mine: bool,
    pub(super) text: String,
    /// Of own messages.
    pub(super) status: Option<SendStatus>,
    /// `None` until it has its place.
    pub(super) place: Option<(Seq, MessageId)>,
}

/// What changed.
pub(super) enum News {
    /// A message, at this place of the list.
    Message(usize),
    /// The status of an own one.
    Status(usize),
    State,
    Nothing,
}

impl Talk {
    pub(super) fn new(client: Client, events: Events, me: UserId, peer: UserId) -> Result<Talk> {
        let Some(conversation) = ConversationId::private(me, peer) else {
            bail!("a chat needs somebody else: --to {peer} is yourself");
        };
        Ok(Talk {
            client,
            events,
            me,
            peer,
            conversation,
            messages: Vec::new(),
            state: State::Idle,
        })
    }

    pub(super) async fn say(&mut self, text: String) -> Result<()> {
        let ticket = self
            .client
            .send(Recipient::User(self.peer), Content::text(text.clone()))
            .await?;
        self.messages.push(Said {
            send_id: ticket.send_id(),
            mine: true,
            text,
            status: Some(ticket.status()),
            place: None,
        });
        Ok(())
    }

    /// Waits for news. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<News> {
        match self.events.next().await {
            Some(Event::Message(shown)) if shown.placed.conversation == self.conversation => {
                Ok(self.shown(&shown).await)
            }
            Some(Event::Status { send_id, status }) => {
                let index = self
                    .messages
                    .iter()
                    .rposition(|said| said.send_id == send_id);
                if let Some(index) = index {
                    self.messages[index].status = Some(status);
                }
                Ok(index.map_or(News::Nothing, News::Status))
            }
            Some(Event::State(state)) => {
                if let State::Closed(why) = &state {
                    bail!("the connection ended: {why}");
                }
                self.state = state;
                Ok(News::State)
            }
            Some(Event::Message(_) | Event::Receipt(_) | Event::Gap { .. } | Event::Reset(_)) => {
                Ok(News::Nothing)
            }
            None => bail!("the client ended"),
        }
    }

    /// Own sends that are still under way.
    pub(super) fn under_way(&self) -> usize {
        let waits = |s: &SendStatus| matches!(s, SendStatus::Pending);
        self.messages
            .iter()
            .filter(|said| said.status.as_ref().is_some_and(waits))
            .count()
    }

    async fn shown(&mut self, shown: &Shown) -> News {
        let message = &shown.placed.message;
        let place = Some((shown.placed.position.seq, message.id));
        if shown.origin == Origin::OwnHere
            && let Some(index) = self
                .messages
                .iter()
                .rposition(|s| s.send_id == message.send_id)
        {
            self.messages[index].place = place;
            return News::Status(index);
        }
        let mine = message.from == self.me;
        self.messages.push(Said {
            send_id: message.send_id,
            mine,
            text: String::from_utf8_lossy(&message.content.data).into_owned(),
            status: None,
            place,
        });
        if !mine {
            // Whoever has the conversation open sees what comes.
            let seq = shown.placed.position.seq;
            let _ = self.client.read(self.conversation, seq, message.id).await;
        }
        News::Message(self.messages.len() - 1)
    }
}
