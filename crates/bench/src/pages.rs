//! Cost of a history page in a small and in a large conversation: the two in turn, in one store.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use backend::messages::MessageStore;
use clap::Args;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Version};
use protocol::id::snowflake;
use protocol::message::Content;
use protocol::message_row::{MessageRow, Owner};
use protocol::{
    ConversationId, DeviceId, Message, MessageId, Options, Placed, Position, Recipient, SendId,
    Seq, UserId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use server::cli::{Output, whole};
use server::compose::{Environment, messages};
use server::settings::Settings;
use server::{errln, outln};
use tokio::time::Instant;

use super::report::median;
use super::{BODY_BYTES, COUNTS, ROUNDS};

/// Messages of one page.
const PAGE: usize = 100;
/// Time between two messages: a million of them fill a year.
const APART: Duration = Duration::from_millis(31_536);
/// Messages written at a time.
const MAX_CONCURRENT_WRITES: u64 = 200;

#[derive(Clone, Debug, Args)]
pub(super) struct Pages {
    /// Messages of the small conversation.
    #[arg(long, default_value_t = 1000, value_parser = whole::<u64>(COUNTS))]
    small: u64,
    /// Messages of the large conversation.
    #[arg(long, default_value_t = 1_000_000, value_parser = whole::<u64>(COUNTS))]
    large: u64,
    /// Pages of each kind and conversation.
    #[arg(long, default_value_t = 1000, value_parser = whole::<usize>(ROUNDS))]
    rounds: usize,
    /// Size of a message's body.
    #[arg(long, default_value_t = 100, value_parser = whole::<usize>(BODY_BYTES))]
    bytes: usize,
    /// Use the store of the settings instead of an embedded one (run `schema apply` before).
    #[arg(long)]
    real: bool,
}

/// Two users with this many messages.
struct Talk {
    users: [UserId; 2],
    conversation: ConversationId,
    messages: u64,
    first: MessageId,
}

/// Kind of page.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Newest page of the conversation.
    Newest,
    /// Page forward from a random place in it.
    Anywhere,
    /// Newest page of all that the user has, by id.
    OfUser,
}

/// Medians, in microseconds.
#[derive(Debug, Serialize)]
struct PageMedians {
    page: Kind,
    small: f64,
    large: f64,
    ratio: f64,
}

impl Pages {
    pub(super) async fn run(
        self,
        settings: &Settings,
        data: &Path,
        output: Output,
    ) -> Result<ExitCode> {
        ensure!(
            self.small.min(self.large) >= 2 * PAGE as u64,
            "a conversation of fewer than {} messages has no page in its middle",
            2 * PAGE
        );
        let store = if self.real {
            messages(settings).await?
        } else {
            Environment::on_disk(
                data,
                &settings.embedded,
                settings.station.sessions.capacity(),
            )?
            .backends
            .messages
        };
        let mut chance = StdRng::from_os_rng();
        let small = Talk::new(&mut chance, self.small)?;
        let large = Talk::new(&mut chance, self.large)?;
        for talk in [&small, &large] {
            let start = Instant::now();
            talk.fill(&*store, self.bytes).await?;
            errln!(
                "{} messages written in {:.0?}",
                talk.messages,
                start.elapsed()
            );
        }
        let mut all = Vec::new();
        for page in [Kind::Newest, Kind::Anywhere, Kind::OfUser] {
            let (mut of_small, mut of_large) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                of_small.push(small.page(&store, page, &mut chance).await?);
                of_large.push(large.page(&store, page, &mut chance).await?);
            }
            let (small, large) = (median(&of_small), median(&of_large));
            let ratio = large / small;
            all.push(PageMedians {
                page,
                small,
                large,
                ratio,
            });
        }
        match output {
            Output::Json => outln!("{}", serde_json::json!({ "items": all }))?,
            Output::Table => {
                for PageMedians {
                    page,
                    small,
                    large,
                    ratio,
                } in &all
                {
                    outln!(
                        "{page:?}: {small:.0} µs of {}, {large:.0} µs of {}: ratio {ratio:.2}",
                        self.small,
                        self.large
                    )?;
                }
            }
        }
        Ok(if all.iter().all(|medians| medians.ratio < 1.5) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

impl Talk {
    /// A conversation of new users: a real store keeps the messages of earlier runs.
    fn new(chance: &mut StdRng, messages: u64) -> Result<Talk> {
        let number = chance.random_range(1 << 40..1 << 50);
        let users = [UserId::new(number)?, UserId::new(number + 1)?];
        let first = snowflake::EPOCH + Duration::from_secs(86_400);
        Ok(Talk {
            users,
            conversation: ConversationId::private(users[0], users[1]).context("two users")?,
            messages,
            first: MessageId::floor_of(first),
        })
    }

    fn id(&self, seq: u64) -> MessageId {
        let at = self.first.timestamp() + APART * u32::try_from(seq).unwrap_or(u32::MAX);
        MessageId::floor_of(at)
    }

    async fn fill(&self, store: &dyn MessageStore, bytes: usize) -> Result<()> {
        let mut next = 1;
        while next <= self.messages {
            let end = (next + MAX_CONCURRENT_WRITES).min(self.messages + 1);
            let rows = (next..end).filter_map(|seq| self.rows(seq, bytes));
            store.save(rows.flatten().collect()).await?;
            next = end;
        }
        Ok(())
    }

    fn rows(&self, seq: u64, bytes: usize) -> Option<[MessageRow; 2]> {
        let id = self.id(seq);
        let mut send_id = [0; 16];
        send_id[..8].copy_from_slice(&self.users[0].get().to_be_bytes());
        send_id[8..].copy_from_slice(&seq.to_be_bytes());
        let placed_message = Placed {
            conversation: self.conversation,
            position: Position {
                seq: Seq(seq),
                prev: (seq > 1).then(|| self.id(seq - 1)),
            },
            message: Message {
                id,
                from: self.users[0],
                to: Recipient::User(self.users[1]),
                accepted_at: id.timestamp(),
                device: DeviceId::new("bench").ok()?,
                send_id: SendId::from_bytes(send_id),
                options: Options::CHAT,
                content: Content::text("x".repeat(bytes)),
            },
        };
        let version = Version {
            epoch: 0,
            offset: seq,
        };
        MessageRow::private_pair(&placed_message, seq, version)
    }

    /// Time of one page, in microseconds.
    async fn page(
        &self,
        store: &Arc<dyn MessageStore>,
        kind: Kind,
        chance: &mut StdRng,
    ) -> Result<f64> {
        let owner = Owner::User(self.users[1]);
        let start = Instant::now();
        let rows = match kind {
            Kind::OfUser => {
                let range = IdRange::default();
                store.find(owner, range, Order::Backward, PAGE).await?
            }
            Kind::Newest | Kind::Anywhere => {
                let range = match kind {
                    Kind::Anywhere => HistoryRange::Forward {
                        after: Seq(chance.random_range(0..=self.messages - PAGE as u64)),
                    },
                    _ => HistoryRange::Backward { before: None },
                };
                store.page(owner, self.conversation, range, PAGE).await?
            }
        };
        if rows.len() != PAGE {
            bail!("a page of {} instead of {PAGE}", rows.len());
        }
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}
