use std::error::Error as StdError;
use std::fmt;

use protocol::settings::Problems;

/// Kind of a failure: the caller's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part unreachable or too slow; the operation may have been done. Every operation may be
    /// repeated.
    Unavailable,
    /// Refused because of the present state: a fence, a later writer, an impossible value.
    Conflict,
    /// Stored data cannot be read.
    Corrupt,
}

/// Failure of something outside the process. The vendor's error is the source, never the type.
#[derive(Debug, thiserror::Error)]
#[error("{seam}: {kind}")]
pub struct Error {
    pub seam: &'static str,
    pub kind: Kind,
    #[source]
    pub source: Box<dyn StdError + Send + Sync>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(
        seam: &'static str,
        kind: Kind,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error {
            seam,
            kind,
            source: source.into(),
        }
    }

    pub fn unavailable(
        seam: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error::new(seam, Kind::Unavailable, source)
    }

    pub fn conflict(
        seam: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error::new(seam, Kind::Conflict, source)
    }

    /// `Conflict` if a section of the settings has problems.
    pub(crate) fn settings(seam: &'static str, problems: &Problems) -> Result<()> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::conflict(seam, problems.to_string()))
        }
    }

    pub fn corrupt(
        seam: &'static str,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Error {
        Error::new(seam, Kind::Corrupt, source)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Unavailable => "unavailable",
            Kind::Conflict => "refused",
            Kind::Corrupt => "corrupt",
        })
    }
}
