//! The client's address behind a balancer: PROXY protocol version 2 on a socket, `X-Forwarded-For`
//! in a request. Mandatory from trusted networks, never read from others: no guessing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use thiserror::Error;

/// Longest accepted header, TLVs included.
pub const HEADER_BYTES_MAX: usize = 536;

/// Deadline of a whole header.
pub const HEADER_DEADLINE: std::time::Duration = std::time::Duration::from_secs(2);

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const VERSION_1: &[u8] = b"PROXY ";
/// Signature, version and command, family and transport, length of the rest.
const FIXED_BYTES: usize = 16;

/// Networks trusted to report client addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedNetworks(Vec<IpNet>);

impl TrustedNetworks {
    pub fn new(networks: Vec<IpNet>) -> TrustedNetworks {
        TrustedNetworks(networks)
    }

    /// IPv4 in IPv6 counts as the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// The state of a header after some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// At least this many bytes are missing.
    More(usize),
    Whole {
        /// Bytes of the header itself; the client's follow.
        bytes: usize,
        /// `None` if the balancer speaks for itself: the socket's address holds.
        source: Option<SocketAddr>,
    },
}

/// Reason why an address is unknown, as a line for the operator of the balancer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    #[error(
        "PROXY protocol version 1 is not supported: set the load balancer to version 2 (haproxy: send-proxy-v2)"
    )]
    VersionOne,
    #[error(
        "no PROXY header: every connection from a trusted network must begin with one of version \
         2; turn it on at the load balancer, or remove its address from boat.proxy.networks"
    )]
    NoHeader,
    #[error("PROXY protocol version {0}: only 2 is supported")]
    Version(u8),
    #[error("PROXY command {0}: only 0 (LOCAL) and 1 (PROXY) are supported")]
    Command(u8),
    #[error("PROXY header for a Unix socket: clients come by TCP")]
    Unix,
    #[error(
        "PROXY header of family and transport {0:#04x}: only TCP over IPv4 (0x11) and IPv6 (0x21) and unspecified (0x00) are read"
    )]
    Family(u8),
    #[error(
        "a PROXY header of {0} bytes: at most {HEADER_BYTES_MAX} are supported; make the load balancer add less"
    )]
    TooLong(usize),
    #[error("a PROXY header of {0} bytes, too short for its addresses")]
    TooShort(usize),
    #[error(
        "no X-Forwarded-For from a trusted network: make the load balancer set it, or remove its \
         address from boat.proxy.networks or station.http.proxy_networks"
    )]
    NoForwardedFor,
    #[error("X-Forwarded-For from a trusted network has {0:?}, which is not an address")]
    BadForwardedFor(String),
}

/// Reads a version 2 header at the front of `bytes`. Reports an error as early as possible.
pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    let prefix_len = bytes.len().min(SIGNATURE.len());
    if bytes[..prefix_len] != SIGNATURE[..prefix_len] {
        return no_signature(bytes);
    }
    if let Some(&byte) = bytes.get(12)
        && byte >> 4 != 2
    {
        return Err(HeaderError::Version(byte >> 4));
    }
    let Some(fixed_header) = bytes.first_chunk::<FIXED_BYTES>() else {
        return Ok(Header::More(FIXED_BYTES - bytes.len()));
    };
    let [.., command, family, high, low] = *fixed_header;
    let rest = usize::from(u16::from_be_bytes([high, low]));
    let whole = FIXED_BYTES + rest;
    if whole > HEADER_BYTES_MAX {
        return Err(HeaderError::TooLong(whole));
    }
    let addresses = match (command & 0x0f, family) {
        // The balancer speaks for itself, whatever the family.
        (0, _) | (1, 0x00 | 0x01) => 0,
        (1, 0x11) => 12,
        (1, 0x21) => 36,
        (1, 0x31 | 0x32) => return Err(HeaderError::Unix),
        (1, other) => return Err(HeaderError::Family(other)),
        (other, _) => return Err(HeaderError::Command(other)),
    };
    if rest < addresses {
        return Err(HeaderError::TooShort(rest));
    }
    let Some(body) = bytes.get(FIXED_BYTES..whole) else {
        return Ok(Header::More(whole - bytes.len()));
    };
    let source = match addresses {
        12 => parse_source(body, |octets| IpAddr::V4(Ipv4Addr::from(octets))),
        36 => parse_source(body, |octets| IpAddr::V6(Ipv6Addr::from(octets))),
        _ => None,
    };
    Ok(Header::Whole {
        bytes: whole,
        source,
    })
}

/// Reports version 1 by an error of its own, and waits for a few more bytes to recognise it.
fn no_signature(bytes: &[u8]) -> Result<Header, HeaderError> {
    let prefix_len = bytes.len().min(VERSION_1.len());
    if bytes[..prefix_len] != VERSION_1[..prefix_len] {
        Err(HeaderError::NoHeader)
    } else if prefix_len < VERSION_1.len() {
        Ok(Header::More(VERSION_1.len() - prefix_len))
    } else {
        Err(HeaderError::VersionOne)
    }
}

/// Source address, destination address, source port, destination port.
fn parse_source<const N: usize>(body: &[u8], ip: fn([u8; N]) -> IpAddr) -> Option<SocketAddr> {
    let octets = *body.first_chunk::<N>()?;
    let port = *body.get(2 * N..)?.first_chunk::<2>()?;
    let ip = ip(octets).to_canonical();
    Some(SocketAddr::new(ip, u16::from_be_bytes(port)))
}

/// Client address from the values of `X-Forwarded-For`, in the order of the request: the rightmost
/// one outside the trusted networks, since anybody may have written the ones left of it; if all are
/// inside, the leftmost. A peer outside is the client itself, whatever its header contains.
pub fn forwarded_for<'a>(
    peer: IpAddr,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    networks: &TrustedNetworks,
) -> Result<IpAddr, HeaderError> {
    let peer = peer.to_canonical();
    if !networks.contains(peer) {
        return Ok(peer);
    }
    let mut last = None;
    for part in values.rev().flat_map(|value| value.rsplit(|b| *b == b',')) {
        let address = parse_hop(part)?;
        if !networks.contains(address) {
            return Ok(address);
        }
        last = Some(address);
    }
    last.ok_or(HeaderError::NoForwardedFor)
}

/// Address in one hop's entry, with or without a port.
fn parse_hop(part: &[u8]) -> Result<IpAddr, HeaderError> {
    let text = std::str::from_utf8(part).ok().map(str::trim);
    let ip = text.and_then(|text| {
        let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
        text.parse::<IpAddr>().ok().or_else(with_port)
    });
    let bad_entry = || {
        let excerpt = part.get(..64).unwrap_or(part);
        HeaderError::BadForwardedFor(String::from_utf8_lossy(excerpt).trim().to_owned())
    };
    ip.map(|ip| ip.to_canonical()).ok_or_else(bad_entry)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const PROXY: u8 = 0x21;
    const LOCAL: u8 = 0x20;

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).expect("short");
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(length.to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn encode(source: SocketAddr, tlvs: &[u8]) -> Vec<u8> {
        let ports = |body: &mut Vec<u8>| {
            body.extend(source.port().to_be_bytes());
            body.extend(443_u16.to_be_bytes());
        };
        let mut body = Vec::new();
        let family = match source.ip() {
            IpAddr::V4(ip) => {
                body.extend(ip.octets());
                body.extend([192, 0, 2, 9]);
                0x11
            }
            IpAddr::V6(ip) => {
                body.extend(ip.octets());
                body.extend([9; 16]);
                0x21
            }
        };
        ports(&mut body);
        body.extend(tlvs);
        header(PROXY, family, &body)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_numbers_are_those_of_the_design() {
        assert_eq!(HEADER_BYTES_MAX, 536);
        assert_eq!(HEADER_DEADLINE.as_secs(), 2);
    }

    // The example of the specification: 127.0.0.1:56324 to 127.0.0.1:443.
    #[test]
    fn bytes_on_the_wire_are_the_specifications() {
        let bytes = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c\
            \x7f\x00\x00\x01\x7f\x00\x00\x01\xdc\x04\x01\xbbGET /";
        let source = Some(address("127.0.0.1:56324"));
        assert_eq!(parse(bytes), Ok(Header::Whole { bytes: 28, source }));
    }

    #[test]
    fn a_balancer_that_speaks_for_itself_names_nobody() {
        let without_source = |bytes| {
            Ok(Header::Whole {
                bytes,
                source: None,
            })
        };
        assert_eq!(parse(&header(LOCAL, 0x00, &[])), without_source(16));
        assert_eq!(parse(&header(LOCAL, 0x31, &[7; 20])), without_source(36));
        assert_eq!(parse(&header(PROXY, 0x00, &[7; 4])), without_source(20));
        assert_eq!(parse(&header(PROXY, 0x01, &[])), without_source(16));
    }

    #[test]
    fn an_ipv4_address_in_ipv6_is_that_address() {
        let bytes = encode(address("[::ffff:198.51.100.7]:9"), &[]);
        let source = Some(address("198.51.100.7:9"));
        assert_eq!(parse(&bytes), Ok(Header::Whole { bytes: 52, source }));
    }

    #[test]
    fn the_longest_header_is_read_and_no_longer_one() {
        let room = HEADER_BYTES_MAX - FIXED_BYTES - 12;
        let source = address("198.51.100.7:9");
        let longest = encode(source, &vec![4; room]);
        assert_eq!(longest.len(), 536);
        assert!(matches!(
            parse(&longest),
            Ok(Header::Whole { bytes: 536, .. })
        ));
        let longer = encode(source, &vec![4; room + 1]);
        assert_eq!(
            parse(&longer[..FIXED_BYTES]),
            Err(HeaderError::TooLong(537))
        );
    }

    #[test]
    fn refusals_say_what_to_do() {
        let parse_error = |bytes: &[u8]| parse(bytes).expect_err("refused");
        assert_eq!(parse_error(b"PROXY TCP4 1.1.1.1"), HeaderError::VersionOne);
        assert_eq!(parse(b"PRO"), Ok(Header::More(3)));
        assert_eq!(parse_error(b"PRI * HTTP/2.0"), HeaderError::NoHeader);
        assert_eq!(parse_error(b"GET / HTTP/1.1"), HeaderError::NoHeader);
        assert_eq!(parse_error(b"\x16\x03\x01"), HeaderError::NoHeader);
        assert_eq!(
            parse_error(&header(0x31, 0x11, &[])),
            HeaderError::Version(3)
        );
        assert_eq!(
            parse_error(&header(0x22, 0x11, &[])),
            HeaderError::Command(2)
        );
        let unix = header(PROXY, 0x31, &[0; 216]);
        assert_eq!(parse_error(&unix), HeaderError::Unix);
        for family in [0x02, 0x10, 0x12, 0x20, 0x22, 0x41, 0xff] {
            let bytes = header(PROXY, family, &[0; 36]);
            assert_eq!(parse_error(&bytes), HeaderError::Family(family));
        }
        let short = header(PROXY, 0x11, &[0; 11]);
        assert_eq!(parse_error(&short), HeaderError::TooShort(11));
        assert!(
            parse_error(b"PROXY TCP4")
                .to_string()
                .contains("send-proxy-v2")
        );
    }

    fn trusted_networks(networks: &[&str]) -> TrustedNetworks {
        let networks = networks.iter().map(|text| text.parse().expect("a network"));
        TrustedNetworks::new(networks.collect())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn forwarded(peer: &str, values: &[&str]) -> Result<IpAddr, HeaderError> {
        let networks = trusted_networks(&["10.0.0.0/8", "fd00::/8"]);
        forwarded_for(ip(peer), values.iter().map(|v| v.as_bytes()), &networks)
    }

    #[test]
    fn the_rightmost_address_outside_is_the_clients() {
        let client = Ok(ip("203.0.113.9"));
        assert_eq!(forwarded("10.0.0.1", &["203.0.113.9"]), client);
        assert_eq!(forwarded("::ffff:10.0.0.1", &["203.0.113.9"]), client);
        let spoofed_values = ["198.51.100.1, 203.0.113.9", "10.0.0.2,fd00::1"];
        assert_eq!(forwarded("10.0.0.1", &spoofed_values), client);
        let nonsense_left_of_it = ["<script>, 203.0.113.9"];
        assert_eq!(forwarded("10.0.0.1", &nonsense_left_of_it), client);
        assert_eq!(forwarded("10.0.0.1", &["203.0.113.9:5000"]), client);
        let six = Ok(ip("2001:db8::1"));
        assert_eq!(forwarded("fd00::9", &["[2001:db8::1]:5000"]), six);
        assert_eq!(forwarded("fd00::9", &["::ffff:203.0.113.9"]), client);
        let inside = ["10.0.0.3, 10.0.0.2"];
        assert_eq!(forwarded("10.0.0.1", &inside), Ok(ip("10.0.0.3")));
    }

    #[test]
    fn a_stranger_is_who_it_is_whatever_it_says() {
        for values in [&[][..], &["10.0.0.9"], &["no address"]] {
            assert_eq!(forwarded("203.0.113.1", values), Ok(ip("203.0.113.1")));
        }
        let no_networks = TrustedNetworks::default();
        let values = [b"203.0.113.9".as_slice()];
        let peer = ip("10.0.0.1");
        assert_eq!(
            forwarded_for(peer, values.into_iter(), &no_networks),
            Ok(peer)
        );
    }

    #[test]
    fn a_trusted_network_must_say_and_say_well() {
        let bad = |text: &str| Err(HeaderError::BadForwardedFor(text.into()));
        assert_eq!(forwarded("10.0.0.1", &[]), Err(HeaderError::NoForwardedFor));
        assert_eq!(forwarded("10.0.0.1", &[""]), bad(""));
        assert_eq!(forwarded("10.0.0.1", &["203.0.113.9,"]), bad(""));
        assert_eq!(
            forwarded("10.0.0.1", &["203.0.113.9, unknown"]),
            bad("unknown")
        );
        assert_eq!(forwarded("10.0.0.1", &["203.0.113.9", "x"]), bad("x"));
        let long = "x".repeat(1000);
        assert_eq!(forwarded("10.0.0.1", &[&long]), bad(&long[..64]));
    }

    fn some_source() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            any::<[u8; 4]>().prop_map(IpAddr::from),
            any::<[u8; 16]>().prop_map(IpAddr::from),
        ];
        (ip, any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
    }

    proptest! {
        #[test]
        fn a_header_comes_back_and_every_prefix_asks_for_more(
            source in some_source(),
            tlvs in vec(any::<u8>(), 0..300),
            trailing in vec(any::<u8>(), 0..40),
        ) {
            let mut bytes = encode(source, &tlvs);
            let whole = bytes.len();
            for end in 0..whole {
                let Ok(Header::More(more)) = parse(&bytes[..end]) else {
                    return Err(TestCaseError::fail(format!("{end} of {whole}")));
                };
                prop_assert!(more > 0 && end + more <= whole);
            }
            bytes.extend(trailing);
            let source = SocketAddr::new(source.ip().to_canonical(), source.port());
            let expected = Header::Whole { bytes: whole, source: Some(source) };
            prop_assert_eq!(parse(&bytes), Ok(expected));
        }

        #[test]
        fn no_bytes_break_it(
            prefix_len in 0..=SIGNATURE.len(),
            bytes in vec(any::<u8>(), 0..600),
            command in prop_oneof![Just(PROXY), Just(LOCAL), any::<u8>()],
        ) {
            let _ = parse(&bytes);
            let mut input = SIGNATURE[..prefix_len].to_vec();
            if prefix_len == SIGNATURE.len() {
                input.push(command);
            }
            input.extend(&bytes);
            match parse(&input) {
                Ok(Header::Whole { bytes, .. }) => {
                    prop_assert!(bytes <= input.len() && bytes <= HEADER_BYTES_MAX);
                }
                Ok(Header::More(more)) => {
                    prop_assert!(input.len() + more <= HEADER_BYTES_MAX);
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        #[test]
        fn a_header_says_an_address_that_was_in_it_or_nothing(
            values in vec("[0-9a-f.:, x]{0,40}", 0..4),
        ) {
            let networks = trusted_networks(&["10.0.0.0/8"]);
            let bytes = values.iter().map(String::as_bytes);
            if let Ok(address) = forwarded_for(ip("10.0.0.1"), bytes, &networks) {
                let parse_part = |part: &str| {
                    let part = part.trim();
                    let with_port = part.parse::<SocketAddr>().map(|it| it.ip());
                    part.parse().or(with_port).ok().map(|ip: IpAddr| ip.to_canonical())
                };
                let mut parts = values.iter().flat_map(|value| value.split(','));
                prop_assert!(parts.any(|part| parse_part(part) == Some(address)));
            }
        }
    }
}
