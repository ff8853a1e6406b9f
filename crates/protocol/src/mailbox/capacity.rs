//! Limits of one user's sessions on a platform.

use crate::Platform;

/// Most sessions of one platform. Each message goes to all of them, and a step on a user's mailbox
/// reads them all.
pub const CAPACITY_MAX: u8 = 64;

/// Capacity per platform: one session, and 16 for bots, unless the station's settings differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCapacity {
    /// Indexed by platform number, counted from 1.
    per_platform: [u8; Platform::ALL.len()],
}

/// Handling of a login on a platform full of other devices' sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// End the oldest sessions: a person is at the device that signed in last.
    Displace,
    /// Refuse the login: a program runs where it was started, and nobody is there to restart a
    /// displaced one.
    Refuse,
}

impl SessionCapacity {
    /// Sets the capacity of a platform; `None` if `sessions` is not in 1..=[`CAPACITY_MAX`].
    #[must_use]
    pub fn with(mut self, platform: Platform, sessions: u32) -> Option<SessionCapacity> {
        let sessions = u8::try_from(sessions).ok()?;
        if !(1..=CAPACITY_MAX).contains(&sessions) {
            return None;
        }
        self.per_platform[index(platform)] = sessions;
        Some(self)
    }

    pub fn of(&self, platform: Platform) -> usize {
        usize::from(self.per_platform[index(platform)])
    }

    pub const fn overflow(platform: Platform) -> Overflow {
        match platform {
            Platform::Bot => Overflow::Refuse,
            _ => Overflow::Displace,
        }
    }
}

impl Default for SessionCapacity {
    fn default() -> Self {
        let mut per_platform = [1; Platform::ALL.len()];
        per_platform[index(Platform::Bot)] = 16;
        SessionCapacity { per_platform }
    }
}

const fn index(platform: Platform) -> usize {
    platform.number() as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_a_platform_and_sixteen_bots() {
        let capacity = SessionCapacity::default();
        let each = Platform::ALL.map(|platform| capacity.of(platform));
        assert_eq!(each, [1, 1, 1, 1, 1, 1, 16]);
        assert_eq!(each.iter().sum::<usize>(), 22);
    }

    #[test]
    fn a_capacity_has_bounds() {
        let with = |sessions| SessionCapacity::default().with(Platform::Web, sessions);
        assert_eq!([with(0), with(65), with(u32::MAX)], [None; 3]);
        for sessions in [1, 64] {
            let capacity = with(sessions).expect("within its bounds");
            assert_eq!(capacity.of(Platform::Web), sessions as usize);
            assert_eq!(capacity.of(Platform::Ios), 1);
        }
    }

    #[test]
    fn bots_alone_are_refused() {
        let refusing_platforms = Platform::ALL.into_iter();
        let refusing_platforms = refusing_platforms
            .filter(|platform| SessionCapacity::overflow(*platform) == Overflow::Refuse);
        assert_eq!(refusing_platforms.collect::<Vec<_>>(), [Platform::Bot]);
    }
}
