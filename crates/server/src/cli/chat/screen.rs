//! Full-screen chat: the conversation above, an input line below.

use anyhow::Result;
use client::core::{ConnectionState, SendStatus};
use crossterm::event::{Event as Input, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use futures_util::StreamExt;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Wrap};

use super::talk::{ChatCommand, ChatLine, HELP, Talk};
use crate::cli::terminal::visible;

/// Columns of the conversation list.
const LIST: u16 = 28;

pub(super) async fn run(talk: Talk) -> Result<()> {
    let mut terminal = ratatui::try_init()?;
    let result = Screen {
        talk,
        line: String::new(),
        output: HELP.to_owned(),
    }
    .run(&mut terminal)
    .await;
    ratatui::restore();
    result
}

struct Screen {
    talk: Talk,
    line: String,
    /// Output of the last command.
    output: String,
}

impl Screen {
    async fn run(&mut self, terminal: &mut ratatui::DefaultTerminal) -> Result<()> {
        let mut keys = EventStream::new();
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            tokio::select! {
                biased;
                // News may come without a pause.
                input = keys.next() => match input {
                    Some(input) => if !self.input(&input?).await? { return Ok(()) },
                    None => return Ok(()),
                },
                news = self.talk.next() => {
                    news?;
                }
            }
        }
    }

    /// Handles input. False: the user quits.
    async fn input(&mut self, input: &Input) -> Result<bool> {
        let Input::Key(key) = input else {
            return Ok(true);
        };
        if key.kind == KeyEventKind::Release {
            return Ok(true);
        }
        match key.code {
            KeyCode::Esc => return Ok(false),
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Ok(false);
            }
            KeyCode::Char(c) => self.line.push(c),
            KeyCode::PageUp => {
                let output = self.talk.run(ChatCommand::More).await?;
                self.output = output.unwrap_or_default();
            }
            KeyCode::Backspace => drop(self.line.pop()),
            KeyCode::Enter if !self.line.is_empty() => {
                let line = std::mem::take(&mut self.line);
                let output = self.talk.run(ChatCommand::of(&line)).await?;
                self.output = output.unwrap_or_default();
            }
            _ => {}
        }
        Ok(true)
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [above, below] =
            Layout::vertical([Constraint::Min(1), Constraint::Length(3)]).areas(frame.area());
        let [list, above] =
            Layout::horizontal([Constraint::Length(LIST), Constraint::Min(20)]).areas(above);
        let rows: Vec<Line<'_>> = self.talk.list().into_iter().map(Line::from).collect();
        let rows = Paragraph::new(rows).block(Block::bordered().title(" conversations "));
        frame.render_widget(rows, list);
        let title = format!(
            " {} with {}: {} ",
            self.talk.me,
            self.talk.peer_name(),
            state(&self.talk.state)
        );
        let room = usize::from(above.height.saturating_sub(2));
        let skip = self.talk.messages.len().saturating_sub(room);
        let mut lines: Vec<Line<'_>> = self.talk.messages[skip..].iter().map(said).collect();
        if skip == 0 && self.talk.has_more {
            let more = "PageUp loads older messages";
            lines.insert(0, Line::styled(more, Style::default().fg(Color::DarkGray)));
        }
        let messages = Paragraph::new(lines)
            .wrap(Wrap { trim: false })
            .block(Block::bordered().title(title));
        frame.render_widget(messages, above);
        let input = Paragraph::new(self.line.as_str()).block(Block::bordered().title(format!(
            " Enter sends, Esc leaves. {} ",
            visible(&self.output)
        )));
        frame.render_widget(input, below);
        let column = self
            .line
            .chars()
            .count()
            .min(usize::from(below.width.saturating_sub(3)));
        frame.set_cursor_position((below.x + 1 + column as u16, below.y + 1));
    }
}

fn said(line: &ChatLine) -> Line<'_> {
    let quiet = Style::default().fg(Color::DarkGray);
    if !line.is_mine {
        return Line::from(format!("{}: {}", line.from, line.text()));
    }
    let mark = match &line.status {
        None => Span::raw(""),
        Some(SendStatus::Pending) => Span::styled("  … sending", quiet),
        Some(SendStatus::Failed(reason)) => Span::styled(
            format!("  ✗ failed: {}", visible(&reason.text)),
            Style::default().fg(Color::Red),
        ),
        Some(SendStatus::Accepted { .. } | SendStatus::Placed { .. }) => {
            Span::styled("  ✓ sent", quiet)
        }
        Some(SendStatus::Delivered { .. }) => Span::styled("  ✓✓ delivered", quiet),
        Some(SendStatus::Read { .. }) => {
            Span::styled("  ✓✓ read", Style::default().fg(Color::Green))
        }
    };
    let text = Span::styled(line.text(), Style::default().add_modifier(Modifier::BOLD));
    Line::from(vec![Span::raw("› "), text, mark])
}

fn state(state: &ConnectionState) -> String {
    match state {
        ConnectionState::Idle | ConnectionState::Connecting => "connecting".into(),
        ConnectionState::Syncing => "catching up".into(),
        ConnectionState::Ready => "connected".into(),
        ConnectionState::Reconnecting { why: reason, .. } => {
            format!("reconnecting ({})", visible(&reason.text))
        }
        ConnectionState::Closed(reason) => format!("closed ({})", visible(&reason.text)),
    }
}
