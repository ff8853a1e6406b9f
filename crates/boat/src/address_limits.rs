//! Rate limits per client address at this boat.

use std::net::IpAddr;
use std::time::Duration;

use backend::rate_limit::{AddressKey, AddressWarnings, RateLimit};
use protocol::{Code, Refusal};

use crate::Config;

pub(crate) struct AddressLimits {
    arrivals: RateLimit<AddressKey>,
    arrival_warnings: AddressWarnings,
    sign_in_failures: RateLimit<AddressKey>,
    sign_in_warnings: AddressWarnings,
}

impl AddressLimits {
    pub(crate) fn new(config: &Config) -> AddressLimits {
        let bounds = config.address_bounds();
        AddressLimits {
            arrivals: RateLimit::new("arrivals_per_address", bounds.arrivals),
            arrival_warnings: AddressWarnings::new("boat.arrivals_per_address"),
            sign_in_failures: RateLimit::new(
                "sign_in_failures_per_address",
                bounds.sign_in_failures,
            ),
            sign_in_warnings: AddressWarnings::new("boat.sign_in_failures_per_address"),
        }
    }

    /// True if the address may open one more connection now.
    pub(crate) fn may_arrive(&self, address: IpAddr) -> bool {
        let may = self.arrivals.check(address.into()).is_ok();
        if !may {
            self.arrival_warnings.warn(address);
        }
        may
    }

    /// Refuses an address whose sign-ins have failed too often, without asking a station.
    pub(crate) fn check_sign_in(&self, address: IpAddr) -> Result<(), Refusal> {
        self.sign_in_failures.look(address.into()).map_err(|wait| {
            self.sign_in_warnings.warn(address);
            let text = "too many sign-ins from your address have failed; wait";
            Refusal::new(Code::RateLimited, text).retry_after(wait.max(Duration::from_secs(1)))
        })
    }

    /// Counts a sign-in that a station refused through the client's fault.
    pub(crate) fn sign_in_failed(&self, address: IpAddr, refusal: &Refusal) {
        if refusal.code == Code::Unauthenticated {
            let _ = self.sign_in_failures.check(address.into());
        }
    }
}
