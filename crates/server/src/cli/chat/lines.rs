//! Chat for scripts: lines in, lines out.

use std::io::BufRead;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::talk::{ChatCommand, News, Talk};
use crate::cli::connection::Complaints;
use crate::cli::send::word;
use crate::cli::terminal::{out, outln};

/// Wait for answers after the end of the input.
const LINGER: Duration = Duration::from_secs(10);

pub(super) async fn run(mut talk: Talk) -> Result<()> {
    let (feed, mut lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if feed.blocking_send(line).is_err() {
                break;
            }
        }
    });
    let mut complaints = Complaints::default();
    let mut open = true;
    while open {
        tokio::select! {
            biased;
            news = talk.next() => show(&talk, news?, &mut complaints)?,
            line = lines.recv() => match line {
                Some(line) => {
                    let reply = talk.run(ChatCommand::of(&line?)).await?;
                    if let Some(text) = reply {
                        out!("{text}\n")?;
                    }
                }
                None => open = false,
            },
        }
    }
    let settle = async {
        while talk.under_way() > 0 {
            let news = talk.next().await?;
            show(&talk, news, &mut complaints)?;
        }
        anyhow::Ok(())
    };
    timeout(LINGER, settle).await??;
    Ok(())
}

fn show(talk: &Talk, news: News, complaints: &mut Complaints) -> Result<()> {
    match news {
        News::Message(index) => {
            let line = &talk.messages[index];
            outln!("{}: {}", line.from, line.text())?;
        }
        News::Changed(index) => {
            let line = &talk.messages[index];
            outln!("[changed] {}: {}", line.from, line.text())?;
        }
        News::Hidden(indexes) => {
            for line in indexes.into_iter().map(|index| &talk.messages[index]) {
                outln!("[changed] {}: {}", line.from, line.text())?;
            }
        }
        News::Status(index) => {
            let line = &talk.messages[index];
            if let Some(status) = &line.status {
                outln!("[{}] {}", word(status), line.text())?;
            }
        }
        News::State => complaints.hear(&talk.state),
        News::List | News::Nothing => {}
    }
    Ok(())
}
