//! `packetboat token`: signs a token with a secret of the settings.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use backend::clock::{Clock, SystemClock};
use clap::Args;
use protocol::{DeviceId, Platform, UserId};

use station::auth::Signer;

use super::numbers::span;
use super::terminal::outln;
use crate::settings::Settings;

const DAY: Duration = Duration::from_secs(24 * 3600);
const THIRTY_DAYS: Duration = Duration::from_secs(30 * 24 * 3600);

/// Lifetime of a token.
#[derive(Clone, Copy, Debug)]
enum Lifetime {
    /// At most this long, and no longer than the issuer allows.
    AtMost(Duration),
    Exactly(Duration),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat token --user 1
  packetboat token --user 2 --platform ios --device phone-7 --for 1h")]
pub struct TokenArgs {
    /// User the token signs in.
    #[arg(long)]
    user: UserId,
    /// Valid on this platform only.
    #[arg(long)]
    platform: Option<Platform>,
    /// Valid on this device only.
    #[arg(long)]
    device: Option<DeviceId>,
    /// Validity. Default: as long as the issuer allows, at most 30 days.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    lifetime: Option<Duration>,
}

impl TokenArgs {
    pub(super) fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let settings = Settings::load(config)?;
        outln!(
            "{}",
            sign(
                &settings,
                self.user,
                self.platform,
                self.device.as_ref(),
                self.lifetime
                    .map_or(Lifetime::AtMost(THIRTY_DAYS), Lifetime::Exactly)
            )?
        )?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Signs a token that a command uses itself: for a day, unless its issuer allows less.
pub fn sign_own(
    settings: &Settings,
    user: UserId,
    platform: Option<Platform>,
    device: Option<&DeviceId>,
) -> Result<String> {
    sign(settings, user, platform, device, Lifetime::AtMost(DAY))
}

/// Signs a token for `user` with a secret of the settings.
fn sign(
    settings: &Settings,
    user: UserId,
    platform: Option<Platform>,
    device: Option<&DeviceId>,
    lifetime: Lifetime,
) -> Result<String> {
    let signer = Signer::open(&settings.station.auth)?;
    let lifetime = match (lifetime, signer.lifetime_max()) {
        (Lifetime::Exactly(lifetime), Some(max)) if lifetime > max => bail!(
            "a token valid for {} would be refused: station.auth.issuers has lifetime_max = {}",
            humantime::format_duration(lifetime),
            humantime::format_duration(max),
        ),
        (Lifetime::AtMost(lifetime), Some(max)) => lifetime.min(max),
        (Lifetime::AtMost(lifetime) | Lifetime::Exactly(lifetime), _) => lifetime,
    };
    let mut claims = signer.claims(user, SystemClock.now(), lifetime);
    if let Some(platform) = platform {
        claims = claims.for_platform(platform);
    }
    if let Some(device) = device {
        claims = claims.for_device(device);
    }
    Ok(signer.sign(&claims)?)
}
