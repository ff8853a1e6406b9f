//! Identities of services: a role and a name, read from the one URI in a certificate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest name of a service in a certificate, in bytes.
const NAME_MAX: usize = 128;
/// Longest URI that is read, in bytes: the limit of a SPIFFE ID (SPIFFE-ID, 2.4).
const URI_MAX: usize = 2048;

/// Kind of a caller, and with it the calls that it may make.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Boat,
    Station,
    Carrier,
    Horn,
    /// Back ends of the business, which are not part of the suite.
    Backend,
    Desk,
}

impl Role {
    pub const ALL: [Role; 6] = [
        Role::Boat,
        Role::Station,
        Role::Carrier,
        Role::Horn,
        Role::Backend,
        Role::Desk,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Role::Boat => "boat",
            Role::Station => "station",
            Role::Carrier => "carrier",
            Role::Horn => "horn",
            Role::Backend => "backend",
            Role::Desk => "desk",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A service that has proved its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub role: Role,
    /// Unset if one certificate serves all services of the role.
    pub name: Option<Arc<str>>,
}

impl Caller {
    pub fn new(role: Role, name: &str) -> Caller {
        Caller {
            role,
            name: Some(name.into()),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} {name}", self.role),
            None => write!(f, "{}", self.role),
        }
    }
}

/// Reason why a certificate identifies no service here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("it has {0} URIs instead of exactly one")]
    Uris(usize),
    #[error("its URI {0:?} matches no role here")]
    Role(String),
}

/// URI patterns and the roles they stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(Vec<(Role, String)>);

impl Roles {
    /// Builds `spiffe://DOMAIN/packetboat/ROLE/*` for each role, or the pattern that `own` has for
    /// it. The last segment of a pattern may be `*`, for the service's name.
    pub fn new(domain: &str, own: &BTreeMap<Role, String>) -> Roles {
        let pattern = |role: Role| match own.get(&role) {
            Some(pattern) => pattern.clone(),
            None => format!("spiffe://{domain}/packetboat/{role}/*"),
        };
        Roles(Role::ALL.map(|role| (role, pattern(role))).into())
    }

    /// The service behind a certificate with these URIs.
    ///
    /// # Errors
    /// Not exactly one URI, or one of no role.
    pub fn caller(&self, uris: &[&str]) -> Result<Caller, IdentityError> {
        let [uri] = uris else {
            return Err(IdentityError::Uris(uris.len()));
        };
        let found = self.0.iter().find_map(|(role, pattern)| {
            let name = name_in(pattern, uri)?;
            Some(Caller { role: *role, name })
        });
        found.ok_or_else(|| IdentityError::Role(uri.chars().take(NAME_MAX).collect()))
    }

    /// Two roles that one URI would match; such a URI identifies neither.
    pub fn ambiguity(&self) -> Option<(Role, Role)> {
        self.0
            .iter()
            .enumerate()
            .find_map(|(index, (role, pattern))| {
                let same = |(_, other): &&(Role, String)| overlap(pattern, other);
                let (other, _) = self.0[index + 1..].iter().find(same)?;
                Some((*role, *other))
            })
    }
}

/// True for a URI whose path has only whole segments, none of them `*` but the last.
pub fn is_pattern(pattern: &str) -> bool {
    let Some((_, path)) = pattern.split_once("://") else {
        return false;
    };
    let stem = path.strip_suffix("/*").unwrap_or(path);
    let is_whole = |segment: &str| !segment.is_empty() && !segment.contains('*');
    pattern.len() <= URI_MAX && path.contains('/') && stem.split('/').all(is_whole)
}

/// The name in `uri`, if the pattern has one; `None` if `uri` does not match the pattern.
fn name_in(pattern: &str, uri: &str) -> Option<Option<Arc<str>>> {
    if uri.len() > URI_MAX {
        return None;
    }
    let Some(stem) = pattern.strip_suffix('*') else {
        return (uri == pattern).then_some(None);
    };
    let name = uri.strip_prefix(stem)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain);
    is_name.then(|| Some(name.into()))
}

fn overlap(one: &str, other: &str) -> bool {
    let meets = |pattern: &str, uri: &str| match uri.strip_suffix('*') {
        Some(stem) => pattern.strip_suffix('*') == Some(stem),
        None => name_in(pattern, uri).is_some(),
    };
    meets(one, other) || meets(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles() -> Roles {
        Roles::new("example.org", &BTreeMap::new())
    }

    #[test]
    fn one_uri_says_role_and_name() {
        for role in Role::ALL {
            let uri = format!("spiffe://example.org/packetboat/{role}/{role}-1.a_b");
            let caller = roles().caller(&[&uri]).expect(&uri);
            assert_eq!(caller, Caller::new(role, &format!("{role}-1.a_b")));
        }
    }

    #[test]
    fn other_uris_are_nobodys() {
        let long = format!("spiffe://example.org/packetboat/boat/{}", "b".repeat(129));
        for uri in [
            "",
            "boat",
            "spiffe://example.com/packetboat/boat/boat-1",
            "SPIFFE://example.org/packetboat/boat/boat-1",
            "spiffe://example.org.evil/packetboat/boat/boat-1",
            "spiffe://example.org/packetboat/boat",
            "spiffe://example.org/packetboat/boat/",
            "spiffe://example.org/packetboat/boat/a/b",
            "spiffe://example.org/packetboat/boat/../station/a",
            "spiffe://example.org/packetboat/boat/a%2Fb",
            "spiffe://example.org/packetboat/boat/ü",
            "spiffe://example.org/packetboat/boat/*",
            "spiffe://example.org/packetboat/captain/a",
            "https://example.org/packetboat/boat/a",
            &long,
        ] {
            assert!(roles().caller(&[uri]).is_err(), "{uri}");
        }
        let longest = &long[..long.len() - 1];
        assert!(roles().caller(&[longest]).is_ok());
    }

    #[test]
    fn two_uris_are_nobodys_and_so_is_none() {
        let boat = "spiffe://example.org/packetboat/boat/a";
        assert_eq!(roles().caller(&[]), Err(IdentityError::Uris(0)));
        assert_eq!(roles().caller(&[boat, boat]), Err(IdentityError::Uris(2)));
    }

    #[test]
    fn a_role_may_have_a_pattern_of_its_own() {
        let account = "spiffe://cluster.local/ns/packetboat/sa/packetboat-boat";
        let patterns = BTreeMap::from([(Role::Boat, account.to_owned())]);
        let roles = Roles::new("example.org", &patterns);
        let caller = roles.caller(&[account]).expect("a boat");
        assert_eq!((caller.role, caller.name), (Role::Boat, None));
        assert!(
            roles
                .caller(&["spiffe://example.org/packetboat/boat/a"])
                .is_err()
        );
        let station = roles.caller(&["spiffe://example.org/packetboat/station/a"]);
        assert_eq!(station, Ok(Caller::new(Role::Station, "a")));
        assert_eq!(roles.ambiguity(), None);
    }

    #[test]
    fn no_uri_has_two_roles() {
        let ambiguity = |boat: &str, station: &str| {
            let patterns = [
                (Role::Boat, boat.to_owned()),
                (Role::Station, station.to_owned()),
            ];
            Roles::new("a", &BTreeMap::from(patterns)).ambiguity()
        };
        let ambiguous = Some((Role::Boat, Role::Station));
        assert_eq!(ambiguity("spiffe://a/b", "spiffe://a/b"), ambiguous);
        assert_eq!(ambiguity("spiffe://a/*", "spiffe://a/b"), ambiguous);
        assert_eq!(ambiguity("spiffe://a/b", "spiffe://a/*"), ambiguous);
        assert_eq!(ambiguity("spiffe://a/*", "spiffe://a/*"), ambiguous);
        assert_eq!(ambiguity("spiffe://a/b/*", "spiffe://a/*"), None);
        assert_eq!(ambiguity("spiffe://a/b", "spiffe://a/c"), None);
    }

    #[test]
    fn patterns_are_uris_with_one_star_at_the_end() {
        for valid in ["spiffe://a/b", "spiffe://a/b/*", "spiffe://a/*"] {
            assert!(is_pattern(valid), "{valid}");
        }
        for invalid in [
            "",
            "*",
            "spiffe://a",
            "spiffe://a/",
            "spiffe://*/b",
            "spiffe://a/*/b",
            "a/b",
        ] {
            assert!(!is_pattern(invalid), "{invalid}");
        }
    }
}
