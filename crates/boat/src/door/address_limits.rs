//! Rate limits per client address at this boat.

use std::net::IpAddr;
use std::time::Duration;

use backend::rate_limit::AddressLimit;
use protocol::{Code, Refusal};

use crate::Config;

pub(crate) struct AddressLimits {
    arrivals: AddressLimit,
    sign_in_failures: AddressLimit,
}

impl AddressLimits {
    pub(crate) fn new(config: &Config) -> AddressLimits {
        let bounds = config.address_bounds();
        AddressLimits {
            arrivals: AddressLimit::new(
                "arrivals_per_address",
                "boat.arrivals_per_address",
                bounds.arrivals,
            ),
            sign_in_failures: AddressLimit::new(
                "sign_in_failures_per_address",
                "boat.sign_in_failures_per_address",
                bounds.sign_in_failures,
            ),
        }
    }

    /// Whether the address may open one more connection now.
    pub(crate) fn may_arrive(&self, address: IpAddr) -> bool {
        self.arrivals.check(address).is_ok()
    }

    /// Refuses an address whose sign-ins have failed too often, without asking a station.
    pub(crate) fn check_sign_in(&self, address: IpAddr) -> Result<(), Refusal> {
        self.sign_in_failures.look(address).map_err(|wait| {
            let text = "too many sign-ins from your address have failed; wait";
            Refusal::new(Code::RateLimited, text).retry_after(wait.max(Duration::from_secs(1)))
        })
    }

    /// Counts a sign-in that a station refused through the client's fault.
    pub(crate) fn record_sign_in_failure(&self, address: IpAddr, refusal: &Refusal) {
        if refusal.code == Code::Unauthenticated {
            self.sign_in_failures.count(address);
        }
    }
}
