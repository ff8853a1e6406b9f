//! Connections of `send`, `listen`, `chat` and `group` to a boat, and the place of a device's
//! state.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use backend::tls;
use clap::Args;
use client::core::ConnectionState;
use client::driver::Address;
use client::store::{self, Durability};
use client::{ClientConfig, EdgeConfig, Event, Events, TokenSource};
use protocol::{Code, DeviceId, Platform, Refusal, UserId};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use super::edges::EdgeList;
use super::terminal::errln;
use super::token;
use crate::settings::Settings;

/// Boat of `packetboat all` on this machine.
const URL: &str = "ws://127.0.0.1:9000";

/// User, and boat to connect to.
#[derive(Clone, Debug, Args)]
pub struct SignIn {
    /// User to sign in as.
    #[arg(long)]
    pub(super) user: UserId,
    /// Boat: wss://host/ws or tls://host:port; without TLS ws://host:port or tcp://host:port.
    /// Default: ws://127.0.0.1:9000, or with --edges only the listed boats.
    #[arg(long, env = "PACKETBOAT_URL")]
    url: Option<String>,
    /// A station's list of boats, https://host/v1/edges: the client picks one with room, of my zone
    /// first. The list is cached for a day; --url is used if no list is known, and if every listed
    /// boat fails.
    #[arg(long, value_name = "URL")]
    edges: Option<Url>,
    /// My zone, as boats name theirs.
    #[arg(long, requires = "edges")]
    zone: Option<String>,
    #[command(flatten)]
    trust: Trust,
    /// Token. Default: one signed with the development key, renewed before it expires.
    #[arg(
        long,
        env = "PACKETBOAT_TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file"
    )]
    token: Option<SecretString>,
    /// File with the token, read again before the present one expires.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// Token source that reads a file, which somebody else keeps fresh.
struct TokenFile(PathBuf);

#[async_trait]
impl TokenSource for TokenFile {
    async fn token(&self) -> std::result::Result<String, Refusal> {
        let text = tokio::fs::read_to_string(&self.0).await;
        let text = text.map_err(|error| {
            let text = format!("--token-file {}: {error}", self.0.display());
            Refusal::new(Code::Unavailable, text)
        })?;
        Ok(text.trim().to_owned())
    }
}

/// Token source that signs with a secret of the settings.
struct OwnTokens {
    config: Option<PathBuf>,
    user: UserId,
    platform: Platform,
}

impl OwnTokens {
    fn sign(&self) -> Result<String> {
        let settings = Settings::load(self.config.as_deref())?;
        token::sign_own(&settings, self.user, Some(self.platform), None)
    }
}

#[async_trait]
impl TokenSource for OwnTokens {
    async fn token(&self) -> std::result::Result<String, Refusal> {
        let token = self.sign();
        token.map_err(|error| Refusal::new(Code::Unavailable, format!("{error:#}")))
    }
}

/// Trusted roots, if the address asks for TLS.
#[derive(Clone, Debug, Args)]
pub struct Trust {
    /// File of PEM certificates that sign those of the boats. Default: those the operating system
    /// trusts.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

impl Trust {
    /// TLS settings for `url`; `None` for an address without TLS.
    pub fn of(&self, url: &str) -> Result<Option<Arc<rustls::ClientConfig>>> {
        let address: Address = url.parse()?;
        self.where_secure(&address, address.is_secure())
    }

    fn where_secure(
        &self,
        address: &impl Display,
        is_secure: bool,
    ) -> Result<Option<Arc<rustls::ClientConfig>>> {
        match (&self.ca_file, is_secure) {
            (None, false) => Ok(None),
            (Some(_), false) => bail!(
                "--ca-file needs TLS, and {address} has none: use wss://, tls:// or https://, or leave it out"
            ),
            // The client sets the protocols itself.
            (Some(file), true) => {
                let config = tls::client_config(Some(file), &[]);
                Ok(Some(config.context("reading --ca-file")?))
            }
            (None, true) => {
                let config = tls::client_config(None, &[]);
                Ok(Some(config.context(
                    "reading the root certificates of the operating system; use --ca-file FILE for others",
                )?))
            }
        }
    }
}

/// Reasons for a missing connection, each printed once in a row, for a user at a terminal.
#[derive(Debug, Default)]
pub(super) struct Complaints(Option<String>);

impl Complaints {
    pub(super) fn hear(&mut self, state: &ConnectionState) {
        if let Some(cause) = self.news(state) {
            errln!("packetboat: not connected, retrying: {cause}");
        }
    }

    fn news(&mut self, state: &ConnectionState) -> Option<&str> {
        match state {
            ConnectionState::Reconnecting { why: reason, .. }
                if self.0.as_ref() != Some(&reason.text) =>
            {
                return Some(self.0.insert(reason.text.clone()));
            }
            ConnectionState::Syncing | ConnectionState::Ready => self.0 = None,
            ConnectionState::Idle
            | ConnectionState::Connecting
            | ConnectionState::Reconnecting { .. }
            | ConnectionState::Closed(_) => {}
        }
        None
    }
}

/// Drains incoming events and prints only the reasons for a missing connection.
pub(super) async fn attend(mut events: Events) {
    let mut complaints = Complaints::default();
    while let Some(event) = events.next().await {
        if let Event::State(state) = event {
            complaints.hear(&state);
        }
    }
}

impl SignIn {
    /// A client of this user, with a token and, unless that was given as text, a source of further
    /// ones.
    pub(super) fn client(
        &self,
        config: Option<&Path>,
        platform: Platform,
        device: DeviceId,
    ) -> Result<ClientConfig> {
        let (token, source): (String, Option<Arc<dyn TokenSource>>) =
            match (&self.token, &self.token_file) {
                (Some(token), _) => (token.expose_secret().to_owned(), None),
                (None, Some(file)) => {
                    let text = std::fs::read_to_string(file);
                    let text =
                        text.with_context(|| format!("reading --token-file {}", file.display()))?;
                    let source = Arc::new(TokenFile(file.clone()));
                    (text.trim().to_owned(), Some(source))
                }
                (None, None) => {
                    let own = OwnTokens {
                        config: config.map(Path::to_owned),
                        user: self.user,
                        platform,
                    };
                    (own.sign()?, Some(Arc::new(own)))
                }
            };
        let url = match (&self.url, &self.edges) {
            (Some(url), _) => url,
            (None, Some(_)) => "",
            (None, None) => URL,
        };
        let mut client = ClientConfig::new(url, token, platform, device);
        client.token_source = source;
        client.tls = match &self.edges {
            // Boats may use TLS even if the list does not.
            Some(edges) if edges.scheme() == "http" && self.trust.ca_file.is_none() => {
                self.trust.where_secure(edges, true).unwrap_or_default()
            }
            Some(edges) => self.trust.where_secure(edges, true)?,
            None => self.trust.of(url)?,
        };
        client.edges = match &self.edges {
            Some(edges) => Some(EdgeConfig {
                source: Arc::new(EdgeList::new(edges.clone(), client.tls.clone())?),
                zone: self.zone.clone(),
                tls_only: edges.scheme() == "https",
            }),
            None => None,
        };
        Ok(client)
    }
}

/// Device with a stable identity across runs.
#[derive(Clone, Debug, Args)]
pub struct Device {
    #[command(flatten)]
    pub(super) sign_in: SignIn,
    /// Platform to sign in on; a second sign-in there ends the first.
    #[arg(long, default_value = "desktop")]
    platform: Platform,
    /// Name of this device: its position in each conversation is stored under it.
    #[arg(long, default_value = "terminal")]
    device: DeviceId,
    /// Folder of device state. Default: packetboat/ in the user's state directory.
    #[arg(long, env = "PACKETBOAT_STATE", value_name = "DIR")]
    state: Option<PathBuf>,
}

impl Device {
    pub(super) fn config(&self, config: Option<&Path>) -> Result<ClientConfig> {
        let dir = self.state.clone().unwrap_or_else(default_state_dir);
        std::fs::create_dir_all(&dir).with_context(|| {
            format!(
                "creating {} for the device's state (--state)",
                dir.display()
            )
        })?;
        let file = format!(
            "{}-{}-{}.sqlite",
            self.sign_in.user,
            self.platform,
            file_name(&self.device)
        );
        let mut settings = (self.sign_in).client(config, self.platform, self.device.clone())?;
        settings.state = store::StorePath::Path(dir.join(file));
        settings.durability = Durability::Disk;
        Ok(settings)
    }
}

/// Encodes a device name as part of a file name.
fn file_name(device: &DeviceId) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    device
        .as_str()
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

/// Returns `$XDG_STATE_HOME/packetboat`, `~/.local/state/packetboat`, or `.packetboat` here.
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

#[cfg(test)]
mod tests {
    use protocol::{Code, Refusal, Timestamp};

    use super::*;

    #[test]
    fn a_file_of_signers_is_for_addresses_with_tls() {
        let trust = |file: Option<&str>| Trust {
            ca_file: file.map(PathBuf::from),
        };
        for url in ["ws://127.0.0.1:9000", "tcp://127.0.0.1:9001"] {
            assert!(trust(None).of(url).expect("no TLS").is_none());
            let error = trust(Some("ca.pem")).of(url).expect_err("no TLS");
            assert!(error.to_string().contains("--ca-file"), "{error}");
        }
        for url in ["wss://boat.example/ws", "tls://boat.example:9001"] {
            let error = trust(Some("none.pem")).of(url).expect_err("no file");
            let text = format!("{error:#}");
            assert!(
                text.contains("--ca-file") && text.contains("none.pem"),
                "{text}"
            );
        }
        assert!(trust(None).of("https://boat.example").is_err());
    }

    #[test]
    fn a_cause_is_said_once_in_a_row() {
        let reconnecting_after = |text: &str| ConnectionState::Reconnecting {
            retry_at: Timestamp::ZERO,
            why: Refusal::new(Code::Unavailable, text),
        };
        let mut complaints = Complaints::default();
        assert_eq!(complaints.news(&ConnectionState::Connecting), None);
        assert_eq!(complaints.news(&reconnecting_after("a")), Some("a"));
        assert_eq!(complaints.news(&ConnectionState::Connecting), None);
        assert_eq!(complaints.news(&reconnecting_after("a")), None);
        assert_eq!(complaints.news(&reconnecting_after("b")), Some("b"));
        assert_eq!(complaints.news(&ConnectionState::Ready), None);
        assert_eq!(complaints.news(&reconnecting_after("b")), Some("b"));
    }
}
