//! Questions to the station, and their answers, which wait for room in the outgoing stream.

use std::collections::VecDeque;

use super::{Action, Bound, Outgoing, Phase, Session, rate_limited};
use crate::frame::{ServerFrame, SyncRequest};
use crate::{Refusal, Timestamp};

/// Questions of one session that stations work on at a time. Bounds the memory of a client that
/// reads slowly: so many answers, each of the largest size, may come while it reads one.
const ASKED_MAX: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Not asked yet: earlier answers wait for room.
    queue: VecDeque<SyncRequest>,
    /// Number of questions that a station works on.
    asked_count: usize,
    /// Answers for which there is no room yet.
    answers: VecDeque<Outgoing>,
}

impl Questions {
    fn len(&self) -> usize {
        self.queue.len() + self.asked_count + self.answers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes back the questions that were not asked yet.
    pub(super) fn take_waiting(&mut self) -> VecDeque<SyncRequest> {
        std::mem::take(&mut self.queue)
    }

    /// Weight of the answers that wait for room.
    pub(super) fn weight(&self) -> usize {
        self.answers.iter().map(Outgoing::weight).sum()
    }
}

impl Session {
    pub(super) fn handle_sync(&mut self, request: SyncRequest, now: Timestamp) {
        let max = self.limits.questions_max;
        let questions = self.questions.get_or_insert_default();
        let refusal = match &self.phase {
            Phase::Draining(farewell) => farewell.refusal.clone(),
            _ if questions.len() >= usize::from(max) => {
                self.count(Bound::Questions);
                rate_limited(format!("{max} queries are waiting for their answers"))
            }
            _ => return questions.queue.push_back(request),
        };
        let request = Some(request.request);
        self.transmit(ServerFrame::Error { request, refusal }, now);
    }

    /// Next question for the station. Held back while the answers to earlier ones wait for the
    /// client to read.
    pub(super) fn next_question(&mut self) -> Option<Action> {
        if !self.has_room() {
            return None;
        }
        let questions = self.questions.as_mut()?;
        if questions.asked_count >= ASKED_MAX || !questions.answers.is_empty() {
            return None;
        }
        let request = questions.queue.pop_front()?;
        questions.asked_count += 1;
        Some(Action::Sync(request))
    }

    /// Takes the answer to a `Sync`: a page, or the reason why there is none.
    pub fn handle_answer(
        &mut self,
        request: u32,
        answer: Result<Outgoing, Refusal>,
        now: Timestamp,
    ) {
        // Closed meanwhile: nobody reads the answer.
        let Some(questions) = &mut self.questions else {
            return;
        };
        questions.asked_count = questions.asked_count.saturating_sub(1);
        questions
            .answers
            .push_back(answer.unwrap_or_else(|refusal| {
                Outgoing::Frame(ServerFrame::Error {
                    request: Some(request),
                    refusal,
                })
            }));
        self.transmit_answers(now);
    }

    /// Writes as many answers as there is room for.
    pub(super) fn transmit_answers(&mut self, now: Timestamp) {
        while self.has_room()
            && let Some(questions) = &mut self.questions
            && let Some(answer) = questions.answers.pop_front()
        {
            self.transmit_with_room(answer, now);
        }
    }
}
