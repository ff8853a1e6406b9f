//! Requests of one call, some of which are made anew because they met sessions of ended boats.

use protocol::presence::BoatLife;

use super::SEAM;
use crate::{Error, Result};

/// How often a request is made.
const ROUNDS: usize = 3;

pub(super) struct Meetings<A> {
    answers: Vec<Option<Result<A>>>,
    /// The ended lives that each request has met so far.
    met: Vec<Vec<BoatLife>>,
    open: Vec<usize>,
    rounds: usize,
}

impl<A> Meetings<A> {
    /// None of the requests has been made.
    pub(super) fn of(requests: usize) -> Meetings<A> {
        Meetings {
            answers: (0..requests).map(|_| None).collect(),
            met: vec![Vec::new(); requests],
            open: (0..requests).collect(),
            rounds: 0,
        }
    }

    /// The requests to be made now; `None` at the end.
    pub(super) fn round(&mut self) -> Option<Vec<usize>> {
        if self.open.is_empty() || self.rounds == ROUNDS {
            return None;
        }
        self.rounds += 1;
        Some(std::mem::take(&mut self.open))
    }

    /// What the request is to name.
    pub(super) fn met(&self, request: usize) -> &[BoatLife] {
        &self.met[request]
    }

    pub(super) fn again(&mut self, request: usize, met: impl IntoIterator<Item = BoatLife>) {
        self.met[request].extend(met);
        self.open.push(request);
    }

    pub(super) fn answer(&mut self, request: usize, answer: Result<A>) {
        self.answers[request] = Some(answer);
    }

    /// One answer a request, in order.
    pub(super) fn answers(self) -> Vec<Result<A>> {
        let ended = || Error::unavailable(SEAM, "sessions of ended boats came again and again");
        let answers = self.answers.into_iter();
        answers
            .map(|answer| answer.unwrap_or_else(|| Err(ended())))
            .collect()
    }
}
