//! How `send`, `listen` and `chat` reach a boat, and where a device keeps its state.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use client::ClientConfig;
use client::store::{Durability, State};
use protocol::{DeviceId, Platform, UserId};
use secrecy::{ExposeSecret, SecretString};

use super::token;
use crate::settings::Settings;

/// Who I am, and where to.
#[derive(Clone, Debug, Args)]
pub struct SignIn {
    /// Who I am.
    #[arg(long)]
    pub(super) user: UserId,
    /// A boat: ws://host:port or tcp://host:port.
    #[arg(long, env = "PACKETBOAT_URL", default_value = "ws://127.0.0.1:9000")]
    pub(super) url: String,
    /// Default: one signed with the development key.
    #[arg(long, env = "PACKETBOAT_TOKEN", hide_env_values = true)]
    token: Option<SecretString>,
}

impl SignIn {
    pub(super) fn token(&self, config: Option<&Path>, platform: Platform) -> Result<String> {
        match &self.token {
            Some(token) => Ok(token.expose_secret().to_owned()),
            None => {
                let settings = Settings::load(config)?;
                token::sign(&settings, self.user, Some(platform), None, token::OWN)
            }
        }
    }
}

/// A device that stays what it is from run to run.
#[derive(Clone, Debug, Args)]
pub struct Device {
    #[command(flatten)]
    pub(super) sign_in: SignIn,
    /// On which platform I am present; a second sign-in there ends the first.
    #[arg(long, default_value = "desktop")]
    platform: Platform,
    /// The name of this device: its place in each conversation is kept under it.
    #[arg(long, default_value = "terminal")]
    device: DeviceId,
    /// Where devices keep their state. Default: packetboat/ in the user's state directory.
    #[arg(long, env = "PACKETBOAT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

impl Device {
    pub(super) fn config(&self, config: Option<&Path>) -> Result<ClientConfig> {
        let dir = self.state.clone().unwrap_or_else(default_state_dir);
        std::fs::create_dir_all(&dir).with_context(|| {
            format!("making {} for the device's state (--state)", dir.display())
        })?;
        let file = format!(
            "{}-{}-{}.sqlite",
            self.sign_in.user,
            self.platform,
            file_name(&self.device)
        );
        let token = self.sign_in.token(config, self.platform)?;
        let url = &self.sign_in.url;
        let mut settings = ClientConfig::new(url, token, self.platform, self.device.clone());
        settings.state = State::Path(dir.join(file));
        settings.durability = Durability::Disk;
        Ok(settings)
    }
}

/// A device name as part of a file name.
fn file_name(device: &DeviceId) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    device
        .as_str()
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

/// `$XDG_STATE_HOME/packetboat`, or `~/.local/state/packetboat`, or `.packetboat` here.
fn default_state_dir() -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .map_or_else(
            || PathBuf::from(".packetboat"),
            |dir| dir.join("packetboat"),
        )
}
