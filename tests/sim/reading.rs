//! Questions of devices, answered by `protocol::reading`: each fact is read at a moment of its own.

use bytes::Bytes;
use protocol::cache::CacheKey;
use protocol::frame::{ServerFrame, SyncAnswer, SyncQuery};
use protocol::mailbox::MailCursor;
use protocol::reading::{
    self, Fact, Fill, LatestMessages, Need, NoAnswer, ReadFacts, ReadOutcome, ReadQuestion,
    ReadRules,
};
use protocol::session::{Page, PageItem};
use protocol::{Placed, Refusal, Timestamp, UserId};
use rand::Rng;

use crate::cache::FillTokens;
use crate::plan::Sabotage;
use crate::station::{LIST_MARGIN, StationCall};
use crate::world::World;

const RULES: ReadRules = ReadRules {
    page_max: 100,
    page_bytes_max: 1 << 20,
    list_margin: LIST_MARGIN,
};

/// A question on its way to an answer.
#[derive(Debug)]
pub(crate) struct OpenQuestion {
    started_at: Timestamp,
    facts: ReadFacts,
    tokens: FillTokens,
    /// Answer of the machine, until it goes out.
    answer: Option<Result<SyncAnswer, Refusal>>,
    fills: Vec<Fill>,
}

impl OpenQuestion {
    pub(crate) fn new(started_at: Timestamp) -> OpenQuestion {
        OpenQuestion {
            started_at,
            facts: ReadFacts::default(),
            tokens: FillTokens::new(),
            answer: None,
            fills: Vec::new(),
        }
    }

    pub(crate) fn has_fills(&self) -> bool {
        let is_cacheable = |fill: &Fill| !matches!(fill, Fill::Timeline(..));
        self.fills.iter().any(is_cacheable)
    }
}

impl World {
    /// Reads one fact for a question.
    pub(crate) fn read_fact(&mut self, user: UserId, query: &SyncQuery, open: &mut OpenQuestion) {
        if open.answer.is_some() {
            return;
        }
        let question = ReadQuestion {
            user,
            query,
            started_at: open.started_at,
        };
        let ReadOutcome { answer, fills } = reading::answer(&question, &open.facts, &RULES);
        open.fills = fills;
        match answer {
            Ok(answer) => open.answer = Some(Ok(answer)),
            Err(NoAnswer::Refused(refusal)) => open.answer = Some(Err(refusal)),
            Err(NoAnswer::Stale) => {
                open.facts = ReadFacts::without_user_entry(user);
                open.tokens.remove(&CacheKey::User(user));
            }
            Err(NoAnswer::Missing(mut needs)) => {
                // Stations ask side by side: any one may be the next that is read.
                let need = needs.swap_remove(self.dice.random_range(0..needs.len()));
                let fact = self.fact(user, &need, &mut open.tokens);
                open.facts.add(need, fact);
            }
        }
    }

    /// Reads what is still missing, now.
    pub(crate) fn read_rest(
        &mut self,
        user: UserId,
        query: &SyncQuery,
        open: &mut OpenQuestion,
    ) -> Result<SyncAnswer, Refusal> {
        loop {
            match open.answer.take() {
                Some(Ok(SyncAnswer::List(mut page))) => {
                    if self.sabotage == Some(Sabotage::CopiesOfNow) {
                        page.version = self.now;
                    }
                    return Ok(SyncAnswer::List(page));
                }
                Some(answer) => return answer,
                None => self.read_fact(user, query, open),
            }
        }
    }

    pub(crate) fn fill_cache(&mut self, user: UserId, open: OpenQuestion) {
        self.fill(user, open.fills, &open.tokens);
    }

    /// Page of waiting mail, each message with its changes: a device without the conversation
    /// cannot ask for them.
    pub(crate) fn mail_page(
        &mut self,
        open: &StationCall,
        cursor: Option<MailCursor>,
        limit: u32,
    ) -> Page {
        let Some(user) = open.user else {
            return Page::default();
        };
        let Some(mailbox) = self.disk.mailboxes.get(&user) else {
            return Page::default();
        };
        let stores = &self.disk;
        let page = mailbox.page(
            open.platform,
            cursor,
            limit as usize,
            stores.policies(),
            &stores.bodies,
            self.now,
        );
        let mails = page.mails.into_iter().map(|mail| PageItem {
            id: mail.id,
            frame: self.with_changes(user, mail.body),
        });
        Page {
            mails: mails.collect(),
            next: page.next,
        }
    }

    fn with_changes(&mut self, user: UserId, mail: Bytes) -> Bytes {
        let frame = api::codec::decode_server(mail.clone(), usize::MAX);
        let ServerFrame::Message(message) = frame.expect("our own encoding") else {
            return mail;
        };
        let (mut messages, mut open) = ([message], OpenQuestion::new(self.now));
        loop {
            let (started_at, facts) = (open.started_at, &open.facts);
            let run = reading::apply_changes(&mut messages, user, started_at, facts, &RULES);
            let ReadOutcome { answer, fills } = run;
            match answer {
                Ok(answer) => {
                    self.fill(user, fills, &open.tokens);
                    let [message]: [Placed; 1] = messages;
                    return if answer.is_empty() {
                        mail
                    } else {
                        api::codec::encode_message(&message)
                    };
                }
                Err(NoAnswer::Missing(needs)) => {
                    for need in needs {
                        let fact = self.fact(user, &need, &mut open.tokens);
                        open.facts.add(need, fact);
                    }
                }
                Err(other) => panic!("mail is not refused: {other:?}"),
            }
        }
    }

    /// Answer to a need, as of now.
    fn fact(&mut self, user: UserId, need: &Need, tokens: &mut FillTokens) -> Fact {
        let mut fact = match need {
            Need::UserEntry(user) => {
                let (token, entry) = self.user_entry(*user);
                tokens.insert(CacheKey::User(*user), token);
                Fact::UserEntry(entry)
            }
            Need::GroupEntries(groups) => {
                let entries = groups.iter().map(|group| {
                    let (token, entry) = self.group_entry(*group);
                    tokens.insert(CacheKey::Group(*group), token);
                    entry
                });
                Fact::GroupEntries(entries.collect())
            }
            Need::Unchanged(user) => {
                let owner = CacheKey::User(*user);
                let (token, _) = self.user_entry(*user);
                Fact::Unchanged(tokens.get(&owner) == Some(&token))
            }
            // The cache beside history may know nothing.
            Need::Latest(needs) if self.dice.random() => {
                Fact::Latest(vec![LatestMessages::default(); needs.len()])
            }
            need => self.disk.fact(user, need),
        };
        self.plant_in_fact(&mut fact);
        fact
    }

    fn plant_in_fact(&self, fact: &mut Fact) {
        match (self.sabotage, fact) {
            (Some(Sabotage::PagesAsSent), Fact::Overlays(overlays)) => {
                overlays
                    .iter_mut()
                    .for_each(|each| *each = Default::default());
            }
            (Some(Sabotage::PagesAsSent), Fact::OverlayRanges(ranges)) => {
                ranges.iter_mut().for_each(|range| range.clear());
            }
            (Some(Sabotage::RecallCounted), Fact::Recalled(ranges)) => {
                ranges.iter_mut().for_each(|range| range.clear());
            }
            (Some(Sabotage::LateReadAll), Fact::GroupEntries(entries)) => {
                entries.iter_mut().for_each(|entry| *entry = None);
            }
            (Some(Sabotage::LateReadAll), Fact::Members(members)) => {
                let infos = members.iter_mut().flatten().map(|(info, _)| info);
                infos.for_each(|info| info.settings.open_history = true);
            }
            _ => {}
        }
    }
}
