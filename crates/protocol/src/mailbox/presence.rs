//! One user's presence: her sessions, and her devices' recent acknowledgements.

use super::{RecentAcks, RouteRequest, Sessions};
use crate::presence::SessionEntry;
use crate::{MessageId, Platform, Timestamp};

/// The half of a [`Mailbox`](super::Mailbox) that may live in memory: its loss costs duplicates,
/// never a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    pub sessions: Sessions,
    /// `None` for most users at any time.
    recent_acks: Option<Box<PlatformAcks>>,
}

/// Recent acknowledgements by platform.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PlatformAcks(Vec<(Platform, RecentAcks)>);

/// Destinations of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionPlacement {
    pub live: Vec<SessionEntry>,
    /// Platforms to store for. If empty, the other half has nothing to do.
    pub store_platforms: Vec<Platform>,
    pub acknowledged_platforms: Vec<Platform>,
}

impl Presence {
    /// Presence without sessions, whose login numbers continue from `last_login`.
    pub fn after_login(last_login: u64) -> Presence {
        Presence {
            sessions: Sessions::after_login(last_login),
            recent_acks: None,
        }
    }

    /// Decides a route: the message goes to all live sessions, and is stored for each platform that
    /// has no session or is forced, unless a device there has acknowledged it. The caller must
    /// store before any other step on this user.
    pub fn place(&mut self, request: &RouteRequest) -> SessionPlacement {
        self.sessions.forget_denied(&request.denied_boats);
        let mut placement = SessionPlacement {
            live: self.sessions.live(&request.denied_boats).cloned().collect(),
            store_platforms: Vec::new(),
            acknowledged_platforms: Vec::new(),
        };
        let Some(mail) = &request.mail else {
            return placement;
        };
        for &platform in &request.platforms {
            if self.has_acked(platform, mail.id, request.now) {
                placement.acknowledged_platforms.push(platform);
            } else if !self.sessions.on(platform) || request.forced_platforms.contains(&platform) {
                placement.store_platforms.push(platform);
            }
        }
        placement
    }

    pub fn remember_acked(&mut self, platform: Platform, ids: &[MessageId], now: Timestamp) {
        if ids.is_empty() {
            return;
        }
        let PlatformAcks(platforms) = self.recent_acks.get_or_insert_default().as_mut();
        let known_index = platforms.iter().position(|(p, _)| *p == platform);
        let index = known_index.unwrap_or_else(|| {
            platforms.push((platform, RecentAcks::default()));
            platforms.len() - 1
        });
        let recent_acks = &mut platforms[index].1;
        ids.iter().for_each(|&id| recent_acks.remember(id, now));
    }

    pub fn has_acked(&self, platform: Platform, id: MessageId, now: Timestamp) -> bool {
        let mut platforms = self.recent_acks.iter().flat_map(|acks| &acks.0);
        platforms.any(|(p, acks)| *p == platform && acks.contains(id, now))
    }

    /// Frees memory of expired acknowledgements.
    pub fn forget_old(&mut self, now: Timestamp) {
        let Some(acks) = &mut self.recent_acks else {
            return;
        };
        let platforms = &mut acks.0;
        platforms
            .iter_mut()
            .for_each(|(_, acks)| acks.forget_old(now));
        platforms.retain(|(_, acks)| !acks.is_empty());
        if platforms.is_empty() {
            self.recent_acks = None;
        }
    }

    /// Whether dropping it would lose nothing but the login number.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.recent_acks.is_none()
    }
}
