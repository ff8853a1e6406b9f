//! Answers to devices that come back. `protocol::reading` decides; here its sources are asked, from
//! the nearest on: memory of this process, caches, the stores of record.

mod fetch;
mod group_timeline;
mod list_cache;
pub(crate) mod mail;
pub(crate) mod page_cache;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::SyncCall;
use backend::Backends;
use backend::cache::FillToken;
use backend::clock::Clock;
use futures_util::future::{FutureExt, try_join_all};
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use protocol::cache::CacheKey;
use protocol::frame::{SyncPage, SyncQuery};
use protocol::reading::{self, Fill, NoAnswer, ReadFacts, ReadOutcome, ReadQuestion, ReadRules};
use protocol::{Code, ConversationId, Placed, Refusal, Seq, UserId};

use self::group_timeline::GroupTimeline;
pub(crate) use self::list_cache::ListCache;
use self::page_cache::PageCache;
use crate::config::Config;
use crate::limits::Limits;

/// Calls of one kind at the same time, of those that ask about one thing each.
const MAX_CONCURRENT_READS: usize = 16;

/// Time to read the newest messages of a group from the timeline. Then history is read.
const TIMELINE_DEADLINE: Duration = Duration::from_millis(200);

/// Tokens to fill the entries that a question looked up.
type FillTokens = Mutex<BTreeMap<CacheKey, FillToken>>;

/// Answers questions of devices.
pub(crate) struct Reader {
    backends: Backends,
    /// Time for a store.
    deadline: Duration,
    /// Timeout for the lookup that explains a refusal.
    door_deadline: Duration,
    limits: Arc<Limits>,
    list_cache: ListCache,
    pages: PageCache,
    timeline: GroupTimeline,
    rules: ReadRules,
}

impl Reader {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        limits: Arc<Limits>,
        list_cache: ListCache,
    ) -> Reader {
        Reader {
            backends: backends.clone(),
            deadline: config.store_deadline,
            door_deadline: config.members_deadline,
            limits,
            list_cache,
            pages: PageCache::new(&config.pages, config.page_bytes_max),
            timeline: GroupTimeline {
                timeline: backends.timeline.clone(),
                deadline: TIMELINE_DEADLINE,
                bytes_max: config.page_bytes_max,
            },
            rules: ReadRules {
                page_max: config.page_max,
                page_bytes_max: config.page_bytes_max,
                list_margin: config.list_margin,
            },
        }
    }

    pub(crate) async fn answer(&self, call: SyncCall) -> Result<SyncPage, Refusal> {
        let user = call.user;
        self.limits.question(user)?;
        // One permit for the list of pins and the messages in it, which are read one after the other.
        let reads_pins = matches!(call.request.query, SyncQuery::Pins { .. });
        let _permit = reads_pins.then(|| self.limits.read(user)).transpose()?;
        let question = ReadQuestion {
            user,
            query: &call.request.query,
            started_at: self.clock().now(),
        };
        let decide = |facts: &ReadFacts| reading::answer(&question, facts, &self.rules);
        let answer = self.decide(user, decide).await?;
        Ok(SyncPage {
            request: call.request.request,
            answer,
        })
    }

    /// Applies changes to messages of any conversations. Returns the places of those that changed.
    pub(crate) async fn apply_changes(
        &self,
        user: UserId,
        messages: &mut [Placed],
    ) -> Result<BTreeSet<(ConversationId, Seq)>, Refusal> {
        let now = self.clock().now();
        self.decide(user, |facts| {
            reading::apply_changes(messages, user, now, facts, &self.rules)
        })
        .await
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.backends.clock
    }

    async fn decide<T>(
        &self,
        user: UserId,
        mut decide: impl FnMut(&ReadFacts) -> ReadOutcome<T> + Send,
    ) -> Result<T, Refusal> {
        let (mut facts, tokens) = (ReadFacts::default(), FillTokens::default());
        loop {
            let ReadOutcome { answer, fills } = decide(&facts);
            let needs = match answer {
                Err(NoAnswer::Missing(needs)) if !needs.is_empty() => needs,
                Err(NoAnswer::Stale) => {
                    facts = ReadFacts::without_user_entry(user);
                    tokens.lock().remove(&CacheKey::User(user));
                    continue;
                }
                outcome => {
                    self.fill(user, fills, tokens.into_inner()).await;
                    return outcome.map_err(|error| match error {
                        NoAnswer::Refused(refusal) => refusal,
                        NoAnswer::Missing(_) | NoAnswer::Stale => unfinished_question(),
                    });
                }
            };
            let requests = needs
                .iter()
                .map(|need| self.fetch(user, need, &tokens).boxed());
            match try_join_all(requests).await {
                Ok(answers) => {
                    for (need, fact) in needs.into_iter().zip(answers) {
                        facts.add(need, fact);
                    }
                }
                Err(refusal) => {
                    self.fill(user, fills, tokens.into_inner()).await;
                    return Err(refusal);
                }
            }
        }
    }

    /// Fills caches, each entry with the token from before it was read.
    async fn fill(
        &self,
        user: UserId,
        fills: Vec<Fill>,
        mut tokens: BTreeMap<CacheKey, FillToken>,
    ) {
        let (mut user_fill, mut groups, mut latest) = (None, Vec::new(), Vec::new());
        for fill in fills {
            match fill {
                Fill::User(entry) => {
                    let token = tokens.remove(&CacheKey::User(user));
                    user_fill = token.map(|token| (token, entry));
                }
                Fill::Group(group, entry) => {
                    let token = tokens.remove(&CacheKey::Group(group));
                    groups.extend(token.map(|token| (group, token, entry)));
                }
                Fill::Timeline(group, messages, head) => latest.push((group, messages, head)),
            }
        }
        let user_fill = async {
            if let Some((token, entry)) = user_fill {
                self.list_cache.store_user(user, token, &entry).await;
            }
        };
        let latest = latest
            .into_iter()
            .map(|(group, messages, head)| async move {
                self.timeline.store_newest(group, &messages, &head).await;
            });
        let latest: Vec<_> = latest.collect();
        let latest = stream::iter(latest)
            .buffer_unordered(MAX_CONCURRENT_READS)
            .collect::<()>();
        tokio::join!(user_fill, self.list_cache.store_groups(groups), latest);
    }
}

fn unfinished_question() -> Refusal {
    let text = "bug in this server: a query ended without an answer";
    Refusal::new(Code::Unavailable, text)
}
