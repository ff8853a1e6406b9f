//! Budget of retries: a share of all requests, so that a cluster in trouble does not get twice the
//! requests for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use scylla::policies::retry::{
    DefaultRetryPolicy, RequestInfo, RetryDecision, RetryPolicy, RetrySession,
};
use scylla::policies::speculative_execution::{Context, SpeculativeExecutionPolicy};

/// Price of a retry; a request earns a percentage of it.
const RETRY_COST: i64 = 100;
/// Limit of savings: a quiet hour pays for this many retries at once.
const MAX_BALANCE: i64 = 100 * RETRY_COST;
/// Retries of one request, at most.
const RETRIES_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct Budget {
    balance: AtomicI64,
    credit: i64,
}

impl Budget {
    pub(super) fn new(percent: u8) -> Arc<Budget> {
        let credit = i64::from(percent);
        Arc::new(Budget {
            balance: AtomicI64::new(if credit > 0 { 10 * RETRY_COST } else { 0 }),
            credit,
        })
    }

    /// Credits a request.
    pub(super) fn earn(&self) {
        let more = |balance: i64| Some((balance + self.credit).min(MAX_BALANCE));
        _ = self
            .balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Charges a retry; false if the savings do not cover it.
    pub(super) fn spend(&self) -> bool {
        let less = |balance: i64| (balance >= RETRY_COST).then_some(balance - RETRY_COST);
        let outcome = self
            .balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        outcome.is_ok()
    }

    fn can_spend(&self) -> bool {
        self.balance.load(Ordering::Relaxed) >= RETRY_COST
    }
}

/// Retry rules of the driver, within the budget.
#[derive(Debug)]
pub(super) struct BudgetedRetry(pub(super) Arc<Budget>);

struct Session {
    budget: Arc<Budget>,
    rules: Box<dyn RetrySession>,
    remaining_retries: usize,
}

impl RetryPolicy for BudgetedRetry {
    fn new_session(&self) -> Box<dyn RetrySession> {
        Box::new(Session {
            budget: self.0.clone(),
            rules: DefaultRetryPolicy::new().new_session(),
            remaining_retries: RETRIES_MAX,
        })
    }
}

impl RetrySession for Session {
    fn decide_should_retry(&mut self, request: RequestInfo<'_>) -> RetryDecision {
        let decision = self.rules.decide_should_retry(request);
        match decision {
            RetryDecision::RetrySameTarget(_) | RetryDecision::RetryNextTarget(_) => {
                if self.remaining_retries == 0 || !self.budget.spend() {
                    return RetryDecision::DontRetry;
                }
                self.remaining_retries -= 1;
                decision
            }
            // "Ignore" would report an unwritten row as written.
            _ => RetryDecision::DontRetry,
        }
    }

    fn reset(&mut self) {
        self.rules.reset();
        self.remaining_retries = RETRIES_MAX;
    }
}

/// Sends a request to a second node if the first is slow. The code that times the request charges
/// the budget: the driver does not report a second attempt.
#[derive(Debug)]
pub(super) struct BudgetedSpeculation {
    pub(super) budget: Arc<Budget>,
    pub(super) delay: Duration,
}

impl SpeculativeExecutionPolicy for BudgetedSpeculation {
    fn max_retry_count(&self, _: &Context) -> usize {
        usize::from(self.budget.can_spend())
    }

    fn retry_interval(&self, _: &Context) -> Duration {
        self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_share_of_requests() {
        let budget = Budget::new(10);
        while budget.spend() {}
        assert!(!budget.can_spend());
        let mut retry_count = 0;
        for _ in 0..10_000 {
            budget.earn();
            retry_count += usize::from(budget.spend());
        }
        assert_eq!(retry_count, 1_000);
    }

    #[test]
    fn a_quiet_time_is_not_saved_for_ever_and_nothing_earns_nothing() {
        let budget = Budget::new(100);
        for _ in 0..10_000 {
            budget.earn();
        }
        assert_eq!((0..).take_while(|_| budget.spend()).count(), 100);
        let empty_budget = Budget::new(0);
        empty_budget.earn();
        assert!(!empty_budget.spend());
    }
}
