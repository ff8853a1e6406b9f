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
    with: Recipient,
    conversation: ConversationId,
    pub(super) messages: Vec<ChatLine>,
    /// True if older messages can be loaded.
    pub(super) has_more: bool,
    pub(super) state: ConnectionState,
}

/// One message of the conversation.
pub(super) struct ChatLine {
    pub(super) send_id: SendId,
    pub(super) mine: bool,
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
                Err(why) => ChatCommand::Unknown(why),
            },
            ("open", whom) => match named(whom) {
                Ok(whom) => ChatCommand::Open(whom),
                Err(why) => ChatCommand::Unknown(format!("/open USER or g:GROUP: {why}")),
            },
            _ => ChatCommand::Unknown(format!("/{command}: try {HELP}")),
        }
    }
}

impl ChatLine {
    fn of(placed: &Placed, marks: Option<MessageMarks>, me: UserId) -> ChatLine {
        let message = &placed.message;
        ChatLine {
            send_id: message.send_id,
            mine: message.from == me,
            from: message.from,
            text: String::from_utf8_lossy(&message.content.data).into_owned(),
            marks: marks.unwrap_or_default(),
            status: None,
            place: Some((placed.position.seq, message.id)),
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
        let edited = if self.marks.edited.is_some() {
            " (edited)"
        } else {
            ""
        };
        let pinned = if self.marks.pinned.is_some() {
            " (pinned)"
        } else {
            ""
        };
        let reactions = self.marks.reactions.iter();
        let reactions: String = reactions
            .map(|(reaction, users)| format!("  {reaction} {}", users.len()))
            .collect();
        visible(&format!("{}{edited}{pinned}{reactions}", self.text)).into_owned()
    }
}

impl Talk {
    pub(super) fn new(client: Client, events: Events, me: UserId, with: Recipient) -> Result<Talk> {
        Ok(Talk {
            list: client.conversations(),
            client,
            events,
            me,
            with,
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
                if let Err(why) = self.client.clear(self.with).await {
                    return Ok(Some(why.to_string()));
                }
            }
            ChatCommand::ClearAll => {
                let cleared = self.client.clear_all(self.me).await;
                let failed = cleared.into_iter().find_map(Result::err);
                return Ok(failed.map(|why| why.to_string()));
            }
            ChatCommand::More => return Ok(self.more().await.err().map(|why| why.to_string())),
            ChatCommand::List => return Ok(Some(self.list().join("\n"))),
            ChatCommand::Open(peer) => return self.open(peer).await,
            ChatCommand::Unknown(why) => return Ok(Some(why)),
        }
        Ok(None)
    }

    async fn say(&mut self, text: String) -> Result<()> {
        let content = Content::text(text.clone());
        let ticket = self.client.send(self.with, content).await?;
        self.messages.push(ChatLine {
            send_id: ticket.send_id(),
            mine: true,
            from: self.me,
            text,
            marks: MessageMarks::default(),
            status: Some(ticket.status()),
            place: None,
        });
        Ok(())
    }

    async fn change(&mut self, command: ChatCommand) -> Result<Option<String>> {
        let is_meant = |said: &ChatLine| match command {
            ChatCommand::Hide => true,
            ChatCommand::Pin => said.marks.recalled.is_none() && said.id().is_some(),
            ChatCommand::Unpin => said.marks.pinned.is_some(),
            ChatCommand::React(_) => !said.mine && said.marks.recalled.is_none(),
            _ => said.mine && said.marks.recalled.is_none(),
        };
        let mut of_them = self.messages.iter().rev();
        let last = of_them.find(|said| !said.marks.hidden && is_meant(said));
        let Some(subject) = last.and_then(ChatLine::id) else {
            return Ok(Some("there is no such message here".to_owned()));
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
            .change(self.with, subject, kind, content)
            .await?;
        Ok(None)
    }

    /// Pinned messages, newest first, a line each.
    async fn pins(&self) -> Result<String> {
        let (mut lines, mut before) = (Vec::new(), None);
        loop {
            let mut page = match self.client.pins(self.conversation, before).await {
                Ok(page) => page,
                Err(why) => return Ok(why.to_string()),
            };
            for placed in &page.messages {
                let marks = page.marks.remove(&placed.position.seq);
                let said = ChatLine::of(placed, marks, self.me);
                lines.push(format!("{}: {}", said.from, said.text()));
            }
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        match lines.is_empty() {
            true => Ok("nothing is pinned here".to_owned()),
            false => Ok(lines.join("\n")),
        }
    }

    /// Loads messages older than the first one here.
    pub(super) async fn more(&mut self) -> Result<()> {
        let first = self.messages.iter().find_map(|said| said.place);
        let before = first.map(|(seq, _)| seq);
        let page = self
            .client
            .load_older(self.conversation, before, PAST)
            .await?;
        self.has_more = page.more;
        let mut marks = page.marks;
        let known: Vec<_> = self.messages.iter().filter_map(ChatLine::id).collect();
        let new = page
            .messages
            .iter()
            .filter(|placed| !known.contains(&placed.message.id));
        let mut older: Vec<ChatLine> = new
            .map(|placed| ChatLine::of(placed, marks.remove(&placed.position.seq), self.me))
            .collect();
        older.reverse();
        self.messages.splice(0..0, older);
        Ok(())
    }

    /// Name of the other side, for display.
    pub(super) fn whom(&self) -> String {
        match self.with {
            Recipient::User(peer) => peer.to_string(),
            Recipient::Group(_) => self.conversation.to_string(),
        }
    }

    async fn open(&mut self, with: Recipient) -> Result<Option<String>> {
        let conversation = match between(self.me, with) {
            Ok(conversation) => conversation,
            Err(why) => return Ok(Some(why.to_string())),
        };
        (self.with, self.conversation) = (with, conversation);
        self.messages.clear();
        self.has_more = true;
        if let Err(why) = self.more().await {
            return Ok(Some(why.to_string()));
        }
        if let Some((seq, id)) = self.messages.last().and_then(|said| said.place) {
            self.client.read(conversation, seq, id).await?;
        }
        Ok(Some(format!("with {}", self.whom())))
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
                Ok(self.shown(shown).await)
            }
            Some(Event::Changed {
                conversation,
                changed,
                ..
            }) if conversation == self.conversation => Ok(self.changed(&changed)),
            Some(Event::Hidden {
                conversation, seqs, ..
            }) if conversation == self.conversation => Ok(self.hidden(&seqs)),
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
                if let ConnectionState::Closed(why) = &state {
                    bail!("the connection ended: {why}");
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
            .filter(|said| said.status.as_ref().is_some_and(waits))
            .count()
    }

    /// Rows of the conversation list: newest first, each with its unread count and last message.
    pub(super) fn list(&self) -> Vec<String> {
        let list = self.list.borrow();
        let mut rows: Vec<&Summary> = (list.values()).filter(|row| row.is_on_list()).collect();
        let at = |row: &Summary| row.newest.as_ref().map(|placed| placed.message.accepted_at);
        rows.sort_by_key(|row| std::cmp::Reverse(at(row)));
        rows.into_iter().map(|row| self.line(row)).collect()
    }

    fn line(&self, row: &Summary) -> String {
        let who = match row.conversation.peer_of(self.me) {
            Some(peer) => peer.to_string(),
            None => row.conversation.to_string(),
        };
        let unread = match row.unread {
            0 => String::new(),
            unread => format!(" ({unread})"),
        };
        let newest = row.newest.as_ref();
        let said = newest.map(|placed| ChatLine::of(placed, row.marks.clone(), self.me).text());
        format!("{who}{unread}  {}", said.unwrap_or_default())
    }

    fn changed(&mut self, changed: &OrderedChange) -> News {
        let asked = &changed.asked;
        let mut messages = self.messages.iter();
        let Some(index) = messages.position(|said| said.id() == Some(asked.subject)) else {
            return News::Nothing;
        };
        let said = &mut self.messages[index];
        said.marks.apply(asked);
        if let MessageChange::Edit(content) = &asked.change {
            said.text = String::from_utf8_lossy(&content.data).into_owned();
        }
        News::Changed(index)
    }

    fn hidden(&mut self, seqs: &[Seq]) -> News {
        let mut hidden = Vec::new();
        for (index, said) in self.messages.iter_mut().enumerate() {
            if said.place.is_some_and(|(seq, _)| seqs.contains(&seq)) {
                said.text.clear();
                said.marks.hidden = true;
                hidden.push(index);
            }
        }
        News::Hidden(hidden)
    }

    async fn shown(&mut self, shown: ShownMessage) -> News {
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
        if self
            .messages
            .iter()
            .any(|said| said.id() == Some(message.id))
        {
            // The message was loaded as an older one meanwhile.
            return News::Nothing;
        }
        let said = ChatLine::of(&shown.placed, shown.marks, self.me);
        let mine = said.mine;
        self.messages.push(said);
        if !mine {
            // A message in the open conversation counts as read.
            let (seq, id) = (shown.placed.position.seq, shown.placed.message.id);
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
    conversation.with_context(|| format!("a chat needs somebody else: {me} is yourself"))
}

/// Parses a user number, or a group as the list names it.
fn named(whom: &str) -> Result<Recipient> {
    Ok(match whom.strip_prefix("g:") {
        Some(group) => Recipient::Group(group.parse::<GroupId>().map_err(Error::msg)?),
        None => Recipient::User(whom.parse::<UserId>().map_err(Error::msg)?),
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
