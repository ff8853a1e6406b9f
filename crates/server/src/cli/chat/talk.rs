//! State of a chat as any front end shows it: one conversation is open, the others form a list.

use anyhow::{Context, Error, Result, bail};
use client::core::{ConnectionState, Origin, SendStatus, ShownMessage};
use client::{Client, ConversationList, Event, Events};
use protocol::change::{ChangeKind, MessageChange, MessageMarks, OrderedChange, Reaction};
use protocol::frame::Summary;
use protocol::message::Content;
use protocol::{ConversationId, GroupId, MessageId, Placed, Recipient, SendId, Seq, UserId};
use tokio::sync::watch;

use crate::cli::terminal::visible;

/// Past messages loaded at a time.
const PAST: u32 = 50;

pub(super) struct Talk {
    client: Client,
    events: Events,
    list: watch::Receiver<ConversationList>,
    pub(super) me: UserId,
    peer: Recipient,
    conversation: ConversationId,
    pub(super) messages: Vec<ChatLine>,
    /// Whether older messages can be loaded.
    pub(super) has_more: bool,
    pub(super) state: ConnectionState,
}

/// One message of the conversation.
pub(super) struct ChatLine {
    pub(super) send_id: SendId,
    pub(super) is_mine: bool,
    pub(super) from: UserId,
    text: String,
    marks: MessageMarks,
    /// Delivery status; own messages only.
    pub(super) status: Option<SendStatus>,
    /// Position and id; `None` until the message has them.
    pub(super) place: Option<(Seq, MessageId)>,
}

/// Change to be shown.
pub(super) enum News {
    /// A message, at this index of the conversation.
    Message(usize),
    /// Text or marks of the message at this index.
    Changed(usize),
    /// Messages at these indices are no longer visible.
    Hidden(Vec<usize>),
    /// Status of the own message at this index.
    Status(usize),
    State,
    /// The conversation list.
    List,
    Nothing,
}

/// Command or text of an input line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatCommand {
    Say(String),
    /// Recalls the user's own last message.
    Recall,
    /// Replaces the text of the user's own last message.
    Edit(String),
    /// Hides the last visible message, for this user.
    Hide,
    /// Reacts to the other side's last message.
    React(Reaction),
    /// Pins the last visible message, for everybody.
    Pin,
    /// Takes the last pin off, of the messages shown here.
    Unpin,
    /// Shows the pinned messages.
    Pins,
    /// Removes this conversation, or all, from the list.
    Clear,
    ClearAll,
    /// Loads older messages.
    More,
    List,
    Open(Recipient),
    /// Not a command, or an incomplete one; the text says why.
    Unknown(String),
}

/// Summary of the commands.
pub(super) const HELP: &str = "/more  /list  /open USER or g:GROUP  /recall  /edit TEXT  /react EMOJI  /hide  /pin  /unpin  /pins  /clear  /clear-all  (// begins a text with /)";

impl ChatCommand {
    pub(super) fn of(line: &str) -> ChatCommand {
        if let Some(text) = line.strip_prefix("//") {
            return ChatCommand::Say(format!("/{text}"));
        }
        let Some(command) = line.strip_prefix('/') else {
            return ChatCommand::Say(line.to_owned());
        };
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("recall", "") => ChatCommand::Recall,
            ("hide", "") => ChatCommand::Hide,
            ("pin", "") => ChatCommand::Pin,
            ("unpin", "") => ChatCommand::Unpin,
            ("pins", "") => ChatCommand::Pins,
            ("clear", "") => ChatCommand::Clear,
            ("clear-all", "") => ChatCommand::ClearAll,
            ("more", "") => ChatCommand::More,
            ("list", "") => ChatCommand::List,
            ("edit", text) if !text.is_empty() => ChatCommand::Edit(text.to_owned()),
            ("react", reaction) => match reaction.parse() {
                Ok(reaction) => ChatCommand::React(reaction),
                Err(reason) => ChatCommand::Unknown(reason),
            },
            ("open", whom) => match parse_recipient(whom) {
                Ok(whom) => ChatCommand::Open(whom),
                Err(reason) => ChatCommand::Unknown(format!("/open USER or g:GROUP: {reason}")),
            },
            _ => ChatCommand::Unknown(format!("/{command}: try {HELP}")),
        }
    }
}

impl ChatLine {
    fn of(placed_message: &Placed, marks: Option<MessageMarks>, me: UserId) -> ChatLine {
        let message = &placed_message.message;
        ChatLine {
            send_id: message.send_id,
            is_mine: message.from == me,
            from: message.from,
            text: String::from_utf8_lossy(&message.content.data).into_owned(),
            marks: marks.unwrap_or_default(),
            status: None,
            place: Some((placed_message.position.seq, message.id)),
        }
    }

    fn id(&self) -> Option<MessageId> {
        self.place.map(|(_, id)| id)
    }

    /// Text as a reader sees it, in one line: others write it.
    pub(super) fn text(&self) -> String {
        if self.marks.hidden {
            return "(hidden)".to_owned();
        }
        if self.marks.recalled.is_some() {
            return "(recalled)".to_owned();
        }
        let edited_mark = if self.marks.edited.is_some() {
            " (edited)"
        } else {
            ""
        };
        let pinned_mark = if self.marks.pinned.is_some() {
            " (pinned)"
        } else {
            ""
        };
        let reactions = self.marks.reactions.iter();
        let reactions: String = reactions
            .map(|(reaction, users)| format!("  {reaction} {}", users.len()))
            .collect();
        visible(&format!(
            "{}{edited_mark}{pinned_mark}{reactions}",
            self.text
        ))
        .into_owned()
    }
}

impl Talk {
    pub(super) fn new(client: Client, events: Events, me: UserId, with: Recipient) -> Result<Talk> {
        Ok(Talk {
            list: client.conversations(),
            client,
            events,
            me,
            peer: with,
            conversation: between(me, with)?,
            messages: Vec::new(),
            has_more: true,
            state: ConnectionState::Idle,
        })
    }

    /// Carries out an input line. Returns a text to show, if any.
    pub(super) async fn run(&mut self, command: ChatCommand) -> Result<Option<String>> {
        match command {
            ChatCommand::Say(text) => self.say(text).await?,
            ChatCommand::Recall
            | ChatCommand::Edit(_)
            | ChatCommand::React(_)
            | ChatCommand::Hide
            | ChatCommand::Pin
            | ChatCommand::Unpin => {
                return self.change(command).await;
            }
            ChatCommand::Pins => return self.pins().await.map(Some),
            ChatCommand::Clear => {
                if let Err(reason) = self.client.clear(self.peer).await {
                    return Ok(Some(reason.to_string()));
                }
            }
            ChatCommand::ClearAll => {
                let results = self.client.clear_all(self.me).await;
                let error = results.into_iter().find_map(Result::err);
                return Ok(error.map(|reason| reason.to_string()));
            }
            ChatCommand::More => {
                return Ok(self.more().await.err().map(|reason| reason.to_string()));
            }
            ChatCommand::List => return Ok(Some(self.list().join("\n"))),
            ChatCommand::Open(peer) => return self.open(peer).await,
            ChatCommand::Unknown(reason) => return Ok(Some(reason)),
        }
        Ok(None)
    }

    async fn say(&mut self, text: String) -> Result<()> {
        let content = Content::text(text.clone());
        let ticket = self.client.send(self.peer, content).await?;
        self.messages.push(ChatLine {
            send_id: ticket.send_id(),
            is_mine: true,
            from: self.me,
            text,
            marks: MessageMarks::default(),
            status: Some(ticket.status()),
            place: None,
        });
        Ok(())
    }

    async fn change(&mut self, command: ChatCommand) -> Result<Option<String>> {
        let is_meant = |line: &ChatLine| match command {
            ChatCommand::Hide => true,
            ChatCommand::Pin => line.marks.recalled.is_none() && line.id().is_some(),
            ChatCommand::Unpin => line.marks.pinned.is_some(),
            ChatCommand::React(_) => !line.is_mine && line.marks.recalled.is_none(),
            _ => line.is_mine && line.marks.recalled.is_none(),
        };
        let mut of_them = self.messages.iter().rev();
        let last = of_them.find(|line| !line.marks.hidden && is_meant(line));
        let Some(subject) = last.and_then(ChatLine::id) else {
            return Ok(Some("no such message here".to_owned()));
        };
        let (kind, text) = match command {
            ChatCommand::Edit(text) => (ChangeKind::Edit, text),
            ChatCommand::Hide => (ChangeKind::Hide, String::new()),
            ChatCommand::React(reaction) => {
                (ChangeKind::React { reaction, on: true }, String::new())
            }
            ChatCommand::Pin => (ChangeKind::Pin { on: true }, String::new()),
            ChatCommand::Unpin => (ChangeKind::Pin { on: false }, String::new()),
            _ => (ChangeKind::Recall, String::new()),
        };
        let content = Content::text(text);
        self.client
            .change(self.peer, subject, kind, content)
            .await?;
        Ok(None)
    }

    /// Pinned messages, newest first, a line each.
    async fn pins(&self) -> Result<String> {
        let (mut lines, mut cursor) = (Vec::new(), None);
        loop {
            let mut page = match self.client.pins(self.conversation, cursor).await {
                Ok(page) => page,
                Err(reason) => return Ok(reason.to_string()),
            };
            for placed_message in &page.messages {
                let marks = page.marks.remove(&placed_message.position.seq);
                let line = ChatLine::of(placed_message, marks, self.me);
                lines.push(format!("{}: {}", line.from, line.text()));
            }
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if lines.is_empty() {
            Ok("nothing is pinned here".to_owned())
        } else {
            Ok(lines.join("\n"))
        }
    }

    /// Loads messages older than the first one here.
    pub(super) async fn more(&mut self) -> Result<()> {
        let first = self.messages.iter().find_map(|line| line.place);
        let cursor = first.map(|(seq, _)| seq);
        let page = self
            .client
            .load_older(self.conversation, cursor, PAST)
            .await?;
        self.has_more = page.more;
        let mut marks = page.marks;
        let known_ids: Vec<_> = self.messages.iter().filter_map(ChatLine::id).collect();
        let new = page
            .messages
            .iter()
            .filter(|placed_message| !known_ids.contains(&placed_message.message.id));
        let mut older: Vec<ChatLine> = new
            .map(|placed_message| {
                ChatLine::of(
                    placed_message,
                    marks.remove(&placed_message.position.seq),
                    self.me,
                )
            })
            .collect();
        older.reverse();
        self.messages.splice(0..0, older);
        Ok(())
    }

    /// Name of the other side, for display.
    pub(super) fn peer_name(&self) -> String {
        match self.peer {
            Recipient::User(peer) => peer.to_string(),
            Recipient::Group(_) => self.conversation.to_string(),
        }
    }

    async fn open(&mut self, with: Recipient) -> Result<Option<String>> {
        let conversation = match between(self.me, with) {
            Ok(conversation) => conversation,
            Err(reason) => return Ok(Some(reason.to_string())),
        };
        (self.peer, self.conversation) = (with, conversation);
        self.messages.clear();
        self.has_more = true;
        if let Err(reason) = self.more().await {
            return Ok(Some(reason.to_string()));
        }
        if let Some((seq, id)) = self.messages.last().and_then(|line| line.place) {
            self.client.read(conversation, seq, id).await?;
        }
        Ok(Some(format!("with {}", self.peer_name())))
    }

    /// Waits for the next change. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<News> {
        tokio::select! {
            biased;
            event = self.events.next() => self.heard(event).await,
            changed = self.list.changed() => match changed {
                Ok(()) => Ok(News::List),
                Err(_) => bail!("the client ended"),
            },
        }
    }

    async fn heard(&mut self, event: Option<Event>) -> Result<News> {
        match event {
            Some(Event::Message(shown)) if shown.placed.conversation == self.conversation => {
                Ok(self.apply_message(shown).await)
            }
            Some(Event::Changed {
                conversation,
                change: changed,
                ..
            }) if conversation == self.conversation => Ok(self.changed(&changed)),
            Some(Event::Hidden {
                conversation, seqs, ..
            }) if conversation == self.conversation => Ok(self.apply_hidden(&seqs)),
            Some(Event::Status { send_id, status }) => {
                let index = self
                    .messages
                    .iter()
                    .rposition(|line| line.send_id == send_id);
                if let Some(index) = index {
                    self.messages[index].status = Some(status);
                }
                Ok(index.map_or(News::Nothing, News::Status))
            }
            Some(Event::State(state)) => {
                if let ConnectionState::Closed(reason) = &state {
                    bail!("connection lost: {reason}");
                }
                self.state = state;
                Ok(News::State)
            }
            Some(
                Event::Message(_)
                | Event::Changed { .. }
                | Event::Hidden { .. }
                | Event::Receipt(_)
                | Event::Gap { .. }
                | Event::Reset(_),
            ) => Ok(News::Nothing),
            None => bail!("the client ended"),
        }
    }

    /// Number of own sends without an outcome yet.
    pub(super) fn under_way(&self) -> usize {
        let waits = |s: &SendStatus| matches!(s, SendStatus::Pending);
        self.messages
            .iter()
            .filter(|line| line.status.as_ref().is_some_and(waits))
            .count()
    }

    /// Rows of the conversation list: newest first, each with its unread count and last message.
    pub(super) fn list(&self) -> Vec<String> {
        let list = self.list.borrow();
        let mut rows: Vec<&Summary> = (list.values()).filter(|row| row.is_on_list()).collect();
        let at = |row: &Summary| {
            row.newest
                .as_ref()
                .map(|placed_message| placed_message.message.accepted_at)
        };
        rows.sort_by_key(|row| std::cmp::Reverse(at(row)));
        rows.into_iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &Summary) -> String {
        let peer_name = match row.conversation.peer_of(self.me) {
            Some(peer) => peer.to_string(),
            None => row.conversation.to_string(),
        };
        let unread = match row.unread {
            0 => String::new(),
            unread => format!(" ({unread})"),
        };
        let newest = row.newest.as_ref();
        let newest_text = newest
            .map(|placed_message| ChatLine::of(placed_message, row.marks.clone(), self.me).text());
        format!("{peer_name}{unread}  {}", newest_text.unwrap_or_default())
    }

    fn changed(&mut self, ordered_change: &OrderedChange) -> News {
        let change = &ordered_change.asked;
        let mut messages = self.messages.iter();
        let Some(index) = messages.position(|line| line.id() == Some(change.subject)) else {
            return News::Nothing;
        };
        let line = &mut self.messages[index];
        line.marks.apply(change);
        if let MessageChange::Edit(content) = &change.change {
            line.text = String::from_utf8_lossy(&content.data).into_owned();
        }
        News::Changed(index)
    }

    fn apply_hidden(&mut self, seqs: &[Seq]) -> News {
        let mut indexes = Vec::new();
        for (index, line) in self.messages.iter_mut().enumerate() {
            if line.place.is_some_and(|(seq, _)| seqs.contains(&seq)) {
                line.text.clear();
                line.marks.hidden = true;
                indexes.push(index);
            }
        }
        News::Hidden(indexes)
    }

    async fn apply_message(&mut self, shown_message: ShownMessage) -> News {
        let message = &shown_message.placed.message;
        let place = Some((shown_message.placed.position.seq, message.id));
        if shown_message.origin == Origin::OwnHere
            && let Some(index) = self
                .messages
                .iter()
                .rposition(|s| s.send_id == message.send_id)
        {
            self.messages[index].place = place;
            return News::Status(index);
        }
        if self
            .messages
            .iter()
            .any(|line| line.id() == Some(message.id))
        {
            // The message was loaded as an older one meanwhile.
            return News::Nothing;
        }
        let line = ChatLine::of(&shown_message.placed, shown_message.marks, self.me);
        let is_mine = line.is_mine;
        self.messages.push(line);
        if !is_mine {
            // A message in the open conversation counts as read.
            let (seq, id) = (
                shown_message.placed.position.seq,
                shown_message.placed.message.id,
            );
            let _ = self.client.read(self.conversation, seq, id).await;
        }
        News::Message(self.messages.len() - 1)
    }
}

fn between(me: UserId, with: Recipient) -> Result<ConversationId> {
    let conversation = match with {
        Recipient::User(peer) => ConversationId::private(me, peer),
        Recipient::Group(group) => Some(ConversationId::Group(group)),
    };
    conversation.with_context(|| format!("you are user {me}: name another user to chat with"))
}

/// Parses a user number, or a group as the list names it.
fn parse_recipient(name: &str) -> Result<Recipient> {
    Ok(match name.strip_prefix("g:") {
        Some(group) => Recipient::Group(group.parse::<GroupId>().map_err(Error::msg)?),
        None => Recipient::User(name.parse::<UserId>().map_err(Error::msg)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_a_command() {
        let say = |text: &str| ChatCommand::Say(text.to_owned());
        assert_eq!(ChatCommand::of("hello /more"), say("hello /more"));
        assert_eq!(ChatCommand::of("//etc"), say("/etc"));
        assert_eq!(ChatCommand::of("/recall"), ChatCommand::Recall);
        assert_eq!(ChatCommand::of("/hide"), ChatCommand::Hide);
        assert_eq!(ChatCommand::of("/pin"), ChatCommand::Pin);
        assert_eq!(ChatCommand::of("/unpin"), ChatCommand::Unpin);
        assert_eq!(ChatCommand::of("/pins"), ChatCommand::Pins);
        assert_eq!(ChatCommand::of("/clear"), ChatCommand::Clear);
        assert_eq!(ChatCommand::of("/clear-all"), ChatCommand::ClearAll);
        assert_eq!(
            ChatCommand::of("/edit  good evening"),
            ChatCommand::Edit("good evening".to_owned())
        );
        assert_eq!(
            ChatCommand::of("/open 7"),
            ChatCommand::Open(Recipient::User(UserId::new(7).expect("positive")))
        );
        let group = Recipient::Group(GroupId::new(7).expect("positive"));
        assert_eq!(ChatCommand::of("/open g:7"), ChatCommand::Open(group));
        let thumb = "👍".parse().expect("short");
        assert_eq!(ChatCommand::of("/react 👍"), ChatCommand::React(thumb));
        for bad in ["/edit", "/react", "/open me", "/what", "/recall it", "/"] {
            assert!(
                matches!(ChatCommand::of(bad), ChatCommand::Unknown(_)),
                "{bad}"
            );
        }
    }
}
