//! Queries to the server: those not answered yet, and those to send next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::frame::{ClientFrame, HistoryRange, SyncQuery, SyncRequest};
use protocol::{Code, ConversationId, MessageId, Refusal, Seq, Timestamp};

use super::{Action, Out};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Query {
    List,
    /// Messages upward from `after`.
    Fetch {
        conversation: ConversationId,
        after: Seq,
    },
    /// The newest few messages.
    Newest {
        conversation: ConversationId,
    },
    /// End of the conversation: we seem to be ahead.
    End {
        conversation: ConversationId,
        ours: Seq,
    },
    Status,
    /// Changes upward from `after`.
    Changes {
        conversation: ConversationId,
        after: u64,
    },
    /// Row of the conversation in the list.
    Row {
        conversation: ConversationId,
    },
    /// Hidden messages, upward from the last hiding handed to the application.
    Hidden {
        conversation: ConversationId,
        after: u64,
    },
    /// Older messages for the application.
    Older,
    /// Query of the application that changes nothing here.
    Asked,
}

#[derive(Debug)]
pub(super) struct QueryQueue {
    last: u32,
    open: BTreeMap<u32, (Query, Timestamp)>,
    pub(super) list: List,
    /// Conversations to check, each once.
    queue: VecDeque<ConversationId>,
    queued: BTreeSet<ConversationId>,
    /// Conversations to check again later.
    later: BTreeSet<(Timestamp, ConversationId)>,
}

/// List difference under way.
#[derive(Debug)]
pub(super) struct List {
    /// Version of the last complete list.
    pub(super) version: Timestamp,
    pub(super) phase: ListPhase,
    /// Smallest version of the pages so far.
    pub(super) coming: Option<Timestamp>,
    pub(super) after: Option<ConversationId>,
    pub(super) failures: u32,
    /// Begin anew once this difference is complete.
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListPhase {
    Due(Timestamp),
    Asked,
    Done,
}

impl QueryQueue {
    pub(super) fn new(version: Timestamp) -> QueryQueue {
        QueryQueue {
            last: 0,
            open: BTreeMap::new(),
            list: List {
                version,
                phase: ListPhase::Done,
                coming: None,
                after: None,
                failures: 0,
                again: false,
            },
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            later: BTreeSet::new(),
        }
    }

    /// Requests a comparison with the server's list: now, or once the current one is complete.
    pub(super) fn list_again(&mut self) {
        if self.list.phase == ListPhase::Done {
            self.list.phase = ListPhase::Due(Timestamp::ZERO);
            self.list.coming = None;
            self.list.after = None;
        } else {
            self.list.again = true;
        }
    }

    /// Completes a comparison after its last page. Returns the version that it brings.
    pub(super) fn list_complete(&mut self) -> Option<Timestamp> {
        let version = self.list.coming.take();
        self.list.phase = ListPhase::Done;
        self.list.after = None;
        self.list.failures = 0;
        if let Some(version) = version {
            self.list.version = version;
        }
        if std::mem::take(&mut self.list.again) {
            self.list_again();
        }
        version
    }

    pub(super) fn list_is_done(&self) -> bool {
        self.list.phase == ListPhase::Done
    }

    pub(super) fn list_is_due(&self, now: Timestamp) -> bool {
        matches!(self.list.phase, ListPhase::Due(at) if at <= now)
    }

    /// True if no conversation is being checked or waits for it.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.later.is_empty() && self.fetches() == 0
    }

    pub(super) fn fetches(&self) -> usize {
        let is_fetch = |question: &Query| {
            matches!(
                question,
                Query::Fetch { .. }
                    | Query::Newest { .. }
                    | Query::End { .. }
                    | Query::Changes { .. }
                    | Query::Row { .. }
                    | Query::Hidden { .. }
            )
        };
        self.open.values().filter(|(q, _)| is_fetch(q)).count()
    }

    pub(super) fn look_at(&mut self, conversation: ConversationId) {
        if self.queued.insert(conversation) {
            self.queue.push_back(conversation);
        }
    }

    pub(super) fn look_later(&mut self, conversation: ConversationId, at: Timestamp) {
        self.later.insert((at, conversation));
    }

    /// Queues the conversations whose time has come.
    pub(super) fn wake(&mut self, now: Timestamp) {
        while let Some(&(at, conversation)) = self.later.first()
            && at <= now
        {
            self.later.pop_first();
            self.look_at(conversation);
        }
    }

    pub(super) fn next(&mut self) -> Option<ConversationId> {
        let conversation = self.queue.pop_front()?;
        self.queued.remove(&conversation);
        Some(conversation)
    }

    pub(super) fn ask(
        &mut self,
        question: Query,
        query: SyncQuery,
        until: Timestamp,
        out: &mut Out,
    ) -> u32 {
        let request = self.number();
        self.open.insert(request, (question, until));
        out.transmit(ClientFrame::Sync(SyncRequest { request, query }));
        request
    }

    pub(super) fn ask_status(&mut self, ids: Vec<MessageId>, until: Timestamp, out: &mut Out) {
        if !ids.is_empty() {
            self.ask(Query::Status, SyncQuery::Status { ids }, until, out);
        }
    }

    pub(super) fn older(
        &mut self,
        conversation: ConversationId,
        before: Option<Seq>,
        limit: u32,
        live: bool,
        until: Timestamp,
        out: &mut Out,
    ) -> u32 {
        if !live {
            let request = self.number();
            out.push(Action::Older {
                request,
                answer: Err(not_connected()),
            });
            return request;
        }
        let query = SyncQuery::History {
            conversation,
            range: HistoryRange::Backward { before },
            limit,
        };
        self.ask(Query::Older, query, until, out)
    }

    pub(super) fn asked(
        &mut self,
        query: SyncQuery,
        live: bool,
        until: Timestamp,
        out: &mut Out,
    ) -> u32 {
        if live {
            return self.ask(Query::Asked, query, until, out);
        }
        let request = self.number();
        out.push(Action::Asked {
            request,
            answer: Err(not_connected()),
        });
        request
    }

    pub(super) fn answered(&mut self, request: u32) -> Option<Query> {
        self.open.remove(&request).map(|(question, _)| question)
    }

    pub(super) fn overdue(&mut self, now: Timestamp) -> Vec<(u32, Query)> {
        let overdue: Vec<(u32, Query)> = (self.open.iter())
            .filter(|(_, (_, until))| *until <= now)
            .map(|(&request, &(question, _))| (request, question))
            .collect();
        for (request, _) in &overdue {
            self.open.remove(request);
        }
        overdue
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let list = match self.list.phase {
            ListPhase::Due(at) => Some(at),
            ListPhase::Asked | ListPhase::Done => None,
        };
        let later = self.later.first().map(|(at, _)| *at);
        (self.open.values().map(|(_, until)| *until))
            .chain(list)
            .chain(later)
            .min()
    }

    /// Drops all queries: no answer will come, and the next welcome begins with the list.
    pub(super) fn disconnected(&mut self, out: &mut Out) {
        for (request, (question, _)) in std::mem::take(&mut self.open) {
            match question {
                Query::Older => out.push(Action::Older {
                    request,
                    answer: Err(not_connected()),
                }),
                Query::Asked => out.push(Action::Asked {
                    request,
                    answer: Err(not_connected()),
                }),
                _ => {}
            }
        }
        self.queue.clear();
        self.queued.clear();
        self.later.clear();
        self.list.phase = ListPhase::Done;
        self.list.again = false;
        self.list.coming = None;
        self.list.failures = 0;
    }

    fn number(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }
}

fn not_connected() -> Refusal {
    Refusal::new(Code::Unavailable, "not connected")
}
