//! `packetboat token`: a token signed with the development key.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use backend::clock::{Clock, SystemClock};
use clap::Args;
use protocol::{DeviceId, Platform, UserId};

use station::auth::{Claims, DevelopmentKey};

use crate::settings::Settings;

/// Tokens that a command signs for itself live this long.
pub(super) const OWN: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat token --user 1
  packetboat token --user 2 --platform ios --device phone-7 --for 1h")]
pub struct Token {
    /// Whom it signs in.
    #[arg(long)]
    user: UserId,
    /// Only on this platform.
    #[arg(long)]
    platform: Option<Platform>,
    /// Only on this device.
    #[arg(long)]
    device: Option<DeviceId>,
    /// How long it is valid.
    #[arg(long = "for", value_name = "TIME", default_value = "30days", value_parser = humantime::parse_duration)]
    lifetime: Duration,
}

impl Token {
    pub(super) fn run(self, config: Option<&Path>) -> Result<ExitCode> {
        let settings = Settings::load(config)?;
        println!(
            "{}",
            sign(
                &settings,
                self.user,
                self.platform,
                self.device.as_ref(),
                self.lifetime
            )?
        );
        Ok(ExitCode::SUCCESS)
    }
}

/// A token for `user`, signed with the key of the settings.
pub(super) fn sign(
    settings: &Settings,
    user: UserId,
    platform: Option<Platform>,
    device: Option<&DeviceId>,
    lifetime: Duration,
) -> Result<String> {
    let key = DevelopmentKey::open(&settings.station.auth)?;
    let mut claims = Claims::new(user, SystemClock.now(), lifetime);
    claims.iss.clone_from(&settings.station.auth.issuer);
    if let Some(platform) = platform {
        claims = claims.for_platform(platform);
    }
    if let Some(device) = device {
        claims = claims.for_device(device);
    }
    Ok(key.sign(&claims)?)
}
