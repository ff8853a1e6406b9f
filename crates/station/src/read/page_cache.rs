//! Pages in this process, above every other store. A message at a place of a conversation stays
//! there, so a page that was read once serves everybody who may read it; changes of its messages
//! are laid over it afterwards. A reader of a page that is just being read waits for it: however
//! many come back at once, the stores below are asked once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use metrics::Counter;
use moka::future::Cache;
use protocol::reading::{PageKey, fitting};
use protocol::{Code, ConversationId, Placed, Refusal, UserId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Weight of a message beside its content.
const MESSAGE_OVERHEAD: usize = 256;

/// Pages of history in memory. Beyond its bytes, the least frequently used pages of a kind are
/// dropped; 0 keeps none.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Age at which a page of a conversation of two users is dropped.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub private_keep_for: Duration,
    /// Maximum size of all pages of conversations of two users, in bytes.
    #[schemars(extend("zero" = true))]
    pub private_bytes_max: u64,
    /// Age at which a page of a group, which many members read, is dropped.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub group_keep_for: Duration,
    /// Maximum size of all pages of groups, in bytes.
    #[schemars(extend("zero" = true))]
    pub group_bytes_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            private_keep_for: Duration::from_secs(5 * 60),
            private_bytes_max: 32 << 20,
            group_keep_for: Duration::from_secs(30 * 60),
            group_bytes_max: 64 << 20,
        }
    }
}

/// Key of a page; each of two users has rows of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) owner: Option<UserId>,
    pub(crate) conversation: ConversationId,
    pub(crate) part: PageKey,
}

type Page = Arc<[Placed]>;

/// Caches pages.
pub(crate) struct PageCache {
    private: Cache<Key, Page>,
    group: Cache<Key, Page>,
    bytes_max: usize,
    hits: Counter,
    misses: Counter,
}

/// Answers that are not cached.
enum UncachedAnswer {
    Refused(Refusal),
    /// Some of its places could not be read, or not at once.
    Short(Page),
}

impl PageCache {
    /// Each page has at most `page_bytes_max` of content.
    pub(crate) fn new(config: &Config, page_bytes_max: usize) -> PageCache {
        PageCache {
            private: cache(config.private_keep_for, config.private_bytes_max),
            group: cache(config.group_keep_for, config.group_bytes_max),
            bytes_max: page_bytes_max,
            hits: metrics::counter!("station_pages_total", "from" => "memory"),
            misses: metrics::counter!("station_pages_total", "from" => "stores"),
        }
    }

    /// Returns the page at these places. If it is not cached, `read` answers all of them, or the
    /// first ones.
    pub(crate) async fn page<F>(&self, key: Key, read: impl Fn() -> F) -> Result<Page, Refusal>
    where
        F: Future<Output = Result<Vec<Placed>, Refusal>>,
    {
        let cache = match key.conversation {
            ConversationId::Group(_) => &self.group,
            ConversationId::Private { .. } | ConversationId::System(_) => &self.private,
        };
        loop {
            let has_read = AtomicBool::new(false);
            let fill = async {
                has_read.store(true, Ordering::Relaxed);
                let page = read().await.map_err(UncachedAnswer::Refused)?;
                // A message seen at another place for a moment must not be served for minutes.
                let is_at_start =
                    page.first().map(|placed| placed.position.seq) == Some(key.part.begin());
                let (read_count, page) = (page.len(), self.fit_page(page));
                if is_at_start && (read_count == key.part.count() || page.len() < read_count) {
                    Ok(Page::from(page))
                } else {
                    Err(UncachedAnswer::Short(page.into()))
                }
            };
            // Boxed, as the read is large and most pages are cached.
            match cache.entry(key).or_try_insert_with(Box::pin(fill)).await {
                Ok(entry) => {
                    if entry.is_fresh() {
                        self.misses.increment(1)
                    } else {
                        self.hits.increment(1)
                    }
                    return Ok(entry.into_value());
                }
                Err(answer) => match &*answer {
                    // Another reader's rate was used up: one of those who waited for it reads next.
                    UncachedAnswer::Refused(refusal)
                        if refusal.code == Code::RateLimited
                            && !has_read.load(Ordering::Relaxed) => {}
                    UncachedAnswer::Refused(refusal) => return Err(refusal.clone()),
                    UncachedAnswer::Short(page) => return Ok(page.clone()),
                },
            }
        }
    }

    fn fit_page(&self, mut page: Vec<Placed>) -> Vec<Placed> {
        let sizes = page.iter().map(|entry| entry.message.content.data.len());
        let fit = fitting(sizes, self.bytes_max);
        if fit < page.len() {
            page.truncate(fit);
            // A slice would keep alive the whole answer that it is part of.
            for entry in &mut page {
                let data = &mut entry.message.content.data;
                *data = Bytes::copy_from_slice(data);
            }
        }
        page
    }
}

fn cache(keep_for: Duration, bytes_max: u64) -> Cache<Key, Page> {
    let weight = |_: &Key, page: &Page| {
        let sizes = page.iter().map(|entry| entry.message.content.data.len());
        let weight = sizes.map(|size| size + MESSAGE_OVERHEAD).sum::<usize>();
        u32::try_from(weight).unwrap_or(u32::MAX)
    };
    Cache::builder()
        .time_to_live(keep_for)
        .max_capacity(bytes_max)
        .weigher(weight)
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;
    use protocol::frame::HistoryRange;
    use protocol::message::Content;
    use protocol::{DeviceId, Message, MessageId, Options, Position, Recipient, SendId, Seq};
    use tokio::sync::Notify;

    use super::*;

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn key(owner: i64, cursor: u64, count: usize) -> Key {
        let range = HistoryRange::Forward { after: Seq(cursor) };
        Key {
            owner: Some(user(owner)),
            conversation: ConversationId::private(user(1), user(2)).expect("two"),
            part: PageKey::of(range, Seq(1000), count).expect("places"),
        }
    }

    fn messages(key: Key, count: usize) -> Vec<Placed> {
        let entry = |seq: u64| Placed {
            conversation: key.conversation,
            position: Position {
                seq: Seq(seq),
                prev: None,
            },
            message: Message {
                id: MessageId::new(seq as i64).expect("positive"),
                from: user(1),
                to: Recipient::User(user(2)),
                accepted_at: protocol::Timestamp::ZERO,
                device: DeviceId::new("phone").expect("short"),
                send_id: SendId::from_bytes([1; 16]),
                options: Options::CHAT,
                content: Content::text("ten bytes."),
            },
        };
        (key.part.first.0..).map(entry).take(count).collect()
    }

    fn pages() -> PageCache {
        PageCache::new(&Config::default(), 1000)
    }

    // proves S2-20 in part, S2-21 in part, S2-25: a page is read once for each of its users.
    #[tokio::test]
    async fn a_page_is_read_once() {
        let (pages, reads) = (pages(), AtomicUsize::new(0));
        let read = async |key: Key| {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok(messages(key, 10))
        };
        for (owner, cursor, reads_so_far) in [(1, 5, 1), (1, 5, 1), (2, 5, 2), (1, 6, 3), (2, 5, 3)]
        {
            let key = key(owner, cursor, 10);
            let page = pages.page(key, || read(key)).await.expect("a page");
            assert_eq!(*page, messages(key, 10));
            assert_eq!(reads.load(Ordering::Relaxed), reads_so_far);
        }
    }

    // proves S2-21: from 5 to 30 minutes, a time for each kind of conversation.
    #[tokio::test]
    async fn pages_of_each_kind_end_after_a_time_of_their_own() {
        let minutes = |pages: &PageCache| {
            let ends = [&pages.private, &pages.group].map(|cache| cache.policy().time_to_live());
            ends.map(|end| end.expect("an end").as_secs() / 60)
        };
        assert_eq!(minutes(&pages()), [5, 30]);

        let private_key = key(1, 0, 10);
        let group_key = Key {
            owner: None,
            conversation: ConversationId::Group(protocol::GroupId::new(7).expect("positive")),
            ..private_key
        };
        for (private, group) in [(0, 3600), (3600, 0)] {
            let config = Config {
                private_keep_for: Duration::from_secs(private),
                group_keep_for: Duration::from_secs(group),
                ..Config::default()
            };
            let pages = PageCache::new(&config, 1000);
            for (key, keep_for) in [(private_key, private), (group_key, group)] {
                let reads = AtomicUsize::new(0);
                for _ in 0..3 {
                    let page = pages.page(key, || async {
                        reads.fetch_add(1, Ordering::Relaxed);
                        Ok(messages(key, 10))
                    });
                    assert_eq!(page.await.expect("a page").len(), 10);
                }
                let expected_reads = if keep_for == 0 { 3 } else { 1 };
                assert_eq!(reads.into_inner(), expected_reads, "kept for {keep_for} s");
            }
        }
    }

    #[tokio::test]
    async fn concurrent_readers_share_one_read() {
        let (pages, reads, go) = (pages(), AtomicUsize::new(0), Notify::new());
        let key = key(1, 0, 10);
        let read = async || {
            reads.fetch_add(1, Ordering::Relaxed);
            go.notified().await;
            Ok(messages(key, 10))
        };
        let all = join_all((0..100).map(|_| pages.page(key, &read)));
        let (all, ()) = tokio::join!(all, async {
            tokio::task::yield_now().await;
            go.notify_one();
        });
        assert!(
            all.iter()
                .all(|page| page.as_ref().is_ok_and(|page| page.len() == 10))
        );
        assert_eq!(reads.into_inner(), 1);
    }

    /// The first caller hangs up in the middle of the read.
    #[tokio::test]
    async fn a_reader_that_goes_leaves_the_read_to_the_next() {
        let pages = pages();
        let key = key(1, 0, 10);
        let abandoned_read = pages.page(key, std::future::pending);
        let next = pages.page(key, || async { Ok(messages(key, 10)) });
        let (mut abandoned_read, mut next) = (Box::pin(abandoned_read), Box::pin(next));
        assert!(futures_util::poll!(&mut abandoned_read).is_pending());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(abandoned_read);
        assert_eq!(next.await.expect("a page").len(), 10);
    }

    /// The first one reads too much; a reader who waited for its page has a rate of their own.
    #[tokio::test]
    async fn the_rate_of_one_reader_holds_back_no_other() {
        let (pages, go) = (pages(), Notify::new());
        let key = key(1, 0, 10);
        let refusal = pages.page(key, || async {
            go.notified().await;
            Err(Refusal::new(Code::RateLimited, "you read too much"))
        });
        let other_reads = (0..3).map(|_| pages.page(key, || async { Ok(messages(key, 10)) }));
        let (refusal, other_reads, ()) = tokio::join!(refusal, join_all(other_reads), async {
            tokio::task::yield_now().await;
            go.notify_one();
        });
        assert_eq!(refusal.expect_err("refused").code, Code::RateLimited);
        for page in other_reads {
            assert_eq!(page.expect("a page").len(), 10);
        }
    }

    /// Many waited for a reader that was refused: one of them reads for all.
    #[tokio::test]
    async fn readers_behind_a_refused_one_read_once() {
        let (pages, reads, go) = (pages(), AtomicUsize::new(0), Notify::new());
        let key = key(1, 0, 10);
        let refusal = pages.page(key, || async {
            go.notified().await;
            Err(Refusal::new(Code::RateLimited, "you read too much"))
        });
        let read = async || {
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(messages(key, 10))
        };
        let other_reads = join_all((0..100).map(|_| pages.page(key, &read)));
        let (refusal, other_reads, ()) = tokio::join!(refusal, other_reads, async {
            tokio::task::yield_now().await;
            go.notify_one();
        });
        assert!(refusal.is_err());
        assert!(other_reads.iter().all(Result::is_ok));
        assert_eq!(reads.into_inner(), 1);
    }

    #[tokio::test]
    async fn partial_page_is_answered_but_not_cached() {
        let pages = pages();
        let key = key(1, 0, 10);
        let short = pages.page(key, || async { Ok(messages(key, 3)) }).await;
        assert_eq!(short.expect("three").len(), 3);
        let outage = Refusal::new(Code::Unavailable, "the store is away");
        let refusal = pages.page(key, || async { Err(outage.clone()) }).await;
        assert_eq!(refusal.expect_err("refused").code, Code::Unavailable);
        let mut shifted_page = messages(key, 11);
        shifted_page.remove(0);
        let shifted_page = pages.page(key, || async { Ok(shifted_page.clone()) }).await;
        assert_eq!(shifted_page.expect("ten of them").len(), 10);
        let whole = pages.page(key, || async { Ok(messages(key, 10)) }).await;
        assert_eq!(whole.expect("all").len(), 10);
        let cached_page = pages.page(key, || async { panic!("it is kept") }).await;
        assert_eq!(cached_page.expect("all").len(), 10);
    }

    #[tokio::test]
    async fn a_page_ends_at_its_bytes_and_is_kept_so() {
        let pages = PageCache::new(&Config::default(), 45);
        let key = key(1, 0, 10);
        let cut = pages.page(key, || async { Ok(messages(key, 10)) }).await;
        assert_eq!(cut.expect("four").len(), 4);
        let cached_page = pages.page(key, || async { panic!("it is kept") }).await;
        assert_eq!(cached_page.expect("four").len(), 4);
    }

    #[tokio::test]
    async fn zero_capacity_disables_the_cache() {
        let config = Config {
            private_bytes_max: 0,
            ..Config::default()
        };
        let (pages, reads) = (PageCache::new(&config, 1000), AtomicUsize::new(0));
        let key = key(1, 0, 10);
        for _ in 0..3 {
            let page = pages.page(key, || async {
                reads.fetch_add(1, Ordering::Relaxed);
                Ok(messages(key, 10))
            });
            assert_eq!(page.await.expect("a page").len(), 10);
            pages.private.run_pending_tasks().await;
        }
        assert_eq!(reads.into_inner(), 3);
    }
}
