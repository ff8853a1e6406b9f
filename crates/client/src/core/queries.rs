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
        after_seq: Seq,
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
    queued_ids: BTreeSet<ConversationId>,
    /// Conversations to check again later.
    delayed_checks: BTreeSet<(Timestamp, ConversationId)>,
}

/// List difference under way.
#[derive(Debug)]
pub(super) struct List {
    /// Version of the last complete list.
    pub(super) version: Timestamp,
    pub(super) phase: ListPhase,
    /// Smallest version of the pages so far.
    pub(super) min_version: Option<Timestamp>,
    pub(super) cursor: Option<ConversationId>,
    pub(super) failures: u32,
    /// Begin anew once this difference is complete.
    must_restart: bool,
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
                min_version: None,
                cursor: None,
                failures: 0,
                must_restart: false,
            },
            queue: VecDeque::new(),
            queued_ids: BTreeSet::new(),
            delayed_checks: BTreeSet::new(),
        }
    }

    /// Requests a comparison with the server's list: now, or once the current one is complete.
    pub(super) fn list_again(&mut self) {
        if self.list.phase == ListPhase::Done {
            self.list.phase = ListPhase::Due(Timestamp::ZERO);
            self.list.min_version = None;
            self.list.cursor = None;
        } else {
            self.list.must_restart = true;
        }
    }

    /// Completes a comparison after its last page. Returns the version that it brings.
    pub(super) fn list_complete(&mut self) -> Option<Timestamp> {
        let version = self.list.min_version.take();
        self.list.phase = ListPhase::Done;
        self.list.cursor = None;
        self.list.failures = 0;
        if let Some(version) = version {
            self.list.version = version;
        }
        if std::mem::take(&mut self.list.must_restart) {
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

    /// Whether no conversation is being checked or waits for it.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.delayed_checks.is_empty() && self.fetches() == 0
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
        if self.queued_ids.insert(conversation) {
            self.queue.push_back(conversation);
        }
    }

    pub(super) fn look_later(&mut self, conversation: ConversationId, at: Timestamp) {
        self.delayed_checks.insert((at, conversation));
    }

    /// Queues the conversations whose time has come.
    pub(super) fn wake(&mut self, now: Timestamp) {
        while let Some(&(at, conversation)) = self.delayed_checks.first()
            && at <= now
        {
            self.delayed_checks.pop_first();
            self.look_at(conversation);
        }
    }

    pub(super) fn next(&mut self) -> Option<ConversationId> {
        let conversation = self.queue.pop_front()?;
        self.queued_ids.remove(&conversation);
        Some(conversation)
    }

    pub(super) fn ask(
        &mut self,
        question: Query,
        query: SyncQuery,
        deadline: Timestamp,
        out: &mut Out,
    ) -> u32 {
        let request = self.number();
        self.open.insert(request, (question, deadline));
        out.transmit(ClientFrame::Sync(SyncRequest { request, query }));
        request
    }

    pub(super) fn ask_status(&mut self, ids: Vec<MessageId>, deadline: Timestamp, out: &mut Out) {
        if !ids.is_empty() {
            self.ask(Query::Status, SyncQuery::Status { ids }, deadline, out);
        }
    }

    pub(super) fn older(
        &mut self,
        conversation: ConversationId,
        before_seq: Option<Seq>,
        limit: u32,
        live: bool,
        deadline: Timestamp,
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
            range: HistoryRange::Backward { before: before_seq },
            limit,
        };
        self.ask(Query::Older, query, deadline, out)
    }

    pub(super) fn asked(
        &mut self,
        query: SyncQuery,
        live: bool,
        deadline: Timestamp,
        out: &mut Out,
    ) -> u32 {
        if live {
            return self.ask(Query::Asked, query, deadline, out);
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
            .filter(|(_, (_, deadline))| *deadline <= now)
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
        let next_check = self.delayed_checks.first().map(|(at, _)| *at);
        (self.open.values().map(|(_, deadline)| *deadline))
            .chain(list)
            .chain(next_check)
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
        self.queued_ids.clear();
        self.delayed_checks.clear();
        self.list.phase = ListPhase::Done;
        self.list.must_restart = false;
        self.list.min_version = None;
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
