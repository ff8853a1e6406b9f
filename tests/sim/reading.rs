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
use crate::station::{MARGIN, StationCall};
use crate::world::World;

const RULES: ReadRules = ReadRules {
    page_max: 100,
    page_bytes_max: 1 << 20,
    list_margin: MARGIN,
};

/// A question on its way to an answer.
#[derive(Debug)]
pub(crate) struct OpenQuestion {
    began: Timestamp,
    facts: ReadFacts,
    tokens: FillTokens,
    /// Answer of the machine, until it goes out.
    answer: Option<Result<SyncAnswer, Refusal>>,
    fills: Vec<Fill>,
}

impl OpenQuestion {
    pub(crate) fn new(began: Timestamp) -> OpenQuestion {
        OpenQuestion {
            began,
            facts: ReadFacts::default(),
            tokens: FillTokens::new(),
            answer: None,
            fills: Vec::new(),
        }
    }

    pub(crate) fn has_fills(&self) -> bool {
        let is_kept = |fill: &Fill| !matches!(fill, Fill::Timeline(..));
        self.fills.iter().any(is_kept)
    }
}

impl World {
    /// Reads one fact for a question.
    pub(crate) fn read_fact(&mut self, user: UserId, query: &SyncQuery, asked: &mut OpenQuestion) {
        if asked.answer.is_some() {
            return;
        }
        let question = ReadQuestion {
            user,
            query,
            started_at: asked.began,
        };
        let ReadOutcome { answer, fills } = reading::answer(&question, &asked.facts, &RULES);
        asked.fills = fills;
        match answer {
            Ok(answer) => asked.answer = Some(Ok(answer)),
            Err(NoAnswer::Refused(refusal)) => asked.answer = Some(Err(refusal)),
            Err(NoAnswer::Stale) => {
                asked.facts = ReadFacts::without_user_entry(user);
                asked.tokens.remove(&CacheKey::User(user));
            }
            Err(NoAnswer::Missing(mut needs)) => {
                // Stations ask side by side: any one may be the next that is read.
                let need = needs.swap_remove(self.dice.random_range(0..needs.len()));
                let fact = self.fact(user, &need, &mut asked.tokens);
                asked.facts.add(need, fact);
            }
        }
    }

    /// Reads what is still missing, now.
    pub(crate) fn read_rest(
        &mut self,
        user: UserId,
        query: &SyncQuery,
        asked: &mut OpenQuestion,
    ) -> Result<SyncAnswer, Refusal> {
        loop {
            match asked.answer.take() {
                Some(Ok(SyncAnswer::List(mut page))) => {
                    if self.sabotage == Some(Sabotage::CopiesOfNow) {
                        page.version = self.now;
                    }
                    return Ok(SyncAnswer::List(page));
                }
                Some(answer) => return answer,
                None => self.read_fact(user, query, asked),
            }
        }
    }

    pub(crate) fn fill_asked(&mut self, user: UserId, asked: OpenQuestion) {
        self.fill(user, asked.fills, &asked.tokens);
    }

    /// Page of waiting mail, each message with its changes: a device without the conversation
    /// cannot ask for them.
    pub(crate) fn mail_page(
        &mut self,
        open: &StationCall,
        after: Option<MailCursor>,
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
            after,
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
        let ServerFrame::Message(placed) = frame.expect("our own encoding") else {
            return mail;
        };
        let (mut messages, mut asked) = ([placed], OpenQuestion::new(self.now));
        loop {
            let (began, facts) = (asked.began, &asked.facts);
            let run = reading::apply_changes(&mut messages, user, began, facts, &RULES);
            let ReadOutcome { answer, fills } = run;
            match answer {
                Ok(answer) => {
                    self.fill(user, fills, &asked.tokens);
                    let [placed]: [Placed; 1] = messages;
                    return if answer.is_empty() {
                        mail
                    } else {
                        api::codec::encode_message(&placed)
                    };
                }
                Err(NoAnswer::Missing(needs)) => {
                    for need in needs {
                        let fact = self.fact(user, &need, &mut asked.tokens);
                        asked.facts.add(need, fact);
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
                let (token, entry) = self.user_copy(*user);
                tokens.insert(CacheKey::User(*user), token);
                Fact::UserEntry(entry)
            }
            Need::GroupEntries(groups) => {
                let entries = groups.iter().map(|group| {
                    let (token, entry) = self.group_copy(*group);
                    tokens.insert(CacheKey::Group(*group), token);
                    entry
                });
                Fact::GroupEntries(entries.collect())
            }
            Need::Unchanged(user) => {
                let owner = CacheKey::User(*user);
                let (token, _) = self.user_copy(*user);
                Fact::Unchanged(tokens.get(&owner) == Some(&token))
            }
            // The cache beside history may know nothing.
            Need::Latest(asked) if self.dice.random() => {
                Fact::Latest(vec![LatestMessages::default(); asked.len()])
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
                let settings = members.iter_mut().flatten().map(|(settings, _)| settings);
                settings.for_each(|settings| settings.open_history = true);
            }
            _ => {}
        }
    }
}
