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
                    let said = talk.run(ChatCommand::of(&line?)).await?;
                    if let Some(text) = said {
                        out!("{text}\n")?;
                    }
                }
                None => open = false,
            },
        }
    }
    let settled = async {
        while talk.under_way() > 0 {
            let news = talk.next().await?;
            show(&talk, news, &mut complaints)?;
        }
        anyhow::Ok(())
    };
    timeout(LINGER, settled).await??;
    Ok(())
}

fn show(talk: &Talk, news: News, complaints: &mut Complaints) -> Result<()> {
    match news {
        News::Message(index) => {
            let said = &talk.messages[index];
            outln!("{}: {}", said.from, said.text())?;
        }
        News::Changed(index) => {
            let said = &talk.messages[index];
            outln!("[changed] {}: {}", said.from, said.text())?;
        }
        News::Hidden(indexes) => {
            for said in indexes.into_iter().map(|index| &talk.messages[index]) {
                outln!("[changed] {}: {}", said.from, said.text())?;
            }
        }
        News::Status(index) => {
            let said = &talk.messages[index];
            if let Some(status) = &said.status {
                outln!("[{}] {}", word(status), said.text())?;
            }
        }
        News::State => complaints.hear(&talk.state),
        News::List | News::Nothing => {}
    }
    Ok(())
}
