//! Requests of one call, some of them repeated because they met sessions of boats that may have
//! ended.

use protocol::presence::BoatLife;

use super::SEAM;
use crate::{Error, Result};

/// Maximum number of rounds, and so of attempts per request.
const ROUNDS: usize = 3;

pub(super) struct Reroutes<A> {
    answers: Vec<Option<Result<A>>>,
    /// Lives that each request has met so far.
    lives: Vec<Vec<BoatLife>>,
    open: Vec<usize>,
    rounds: usize,
}

impl<A> Reroutes<A> {
    /// Starts with all requests open.
    pub(super) fn of(requests: usize) -> Reroutes<A> {
        Reroutes {
            answers: (0..requests).map(|_| None).collect(),
            lives: vec![Vec::new(); requests],
            open: (0..requests).collect(),
            rounds: 0,
        }
    }

    /// Takes the requests of the next round; `None` at the end.
    pub(super) fn round(&mut self) -> Option<Vec<usize>> {
        if self.open.is_empty() || self.rounds == ROUNDS {
            return None;
        }
        self.rounds += 1;
        Some(std::mem::take(&mut self.open))
    }

    /// Lives that the request must name.
    pub(super) fn lives_to_name(&self, request: usize) -> &[BoatLife] {
        &self.lives[request]
    }

    pub(super) fn retry(&mut self, request: usize, lives: impl IntoIterator<Item = BoatLife>) {
        self.lives[request].extend(lives);
        self.open.push(request);
    }

    pub(super) fn answer(&mut self, request: usize, answer: Result<A>) {
        self.answers[request] = Some(answer);
    }

    /// One answer per request, in order.
    pub(super) fn answers(self) -> Vec<Result<A>> {
        let error =
            || Error::unavailable(SEAM, "gave up: sessions of ended boats kept coming back");
        let answers = self.answers.into_iter();
        answers
            .map(|answer| answer.unwrap_or_else(|| Err(error())))
            .collect()
    }
}
