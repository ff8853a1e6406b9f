//! PROXY header as it arrives: each prefix asks for more until it is whole, and another parser
//! finds the same addresses. The same bytes also serve as values of `X-Forwarded-For`.
#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use ppp::v2;
use protocol::proxy::{HEADER_BYTES_MAX, Header, TrustedNetworks, forwarded_for, parse};

/// Source address by the library, which refuses some headers that name no address.
fn by_library(bytes: &[u8]) -> Option<SocketAddr> {
    let header = v2::Header::try_from(bytes).ok()?;
    if header.command == v2::Command::Local {
        return None;
    }
    let (ip, port): (IpAddr, u16) = match header.addresses {
        v2::Addresses::IPv4(addresses) => (addresses.source_address.into(), addresses.source_port),
        v2::Addresses::IPv6(addresses) => (addresses.source_address.into(), addresses.source_port),
        v2::Addresses::Unix(_) | v2::Addresses::Unspecified => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Ok(Header::Whole { bytes, source }) => {
            assert!(bytes <= data.len() && bytes <= HEADER_BYTES_MAX);
            assert!(matches!(parse(&data[..bytes - 1]), Ok(Header::More(1))));
            assert_eq!(source, by_library(&data[..bytes]));
        }
        Ok(Header::More(more)) => assert!(more > 0 && data.len() + more <= HEADER_BYTES_MAX),
        Err(_) => assert!(parse(&[data, b"more".as_slice()].concat()).is_err()),
    }
    let trusted = TrustedNetworks::new(vec!["10.0.0.0/8".parse().expect("a network")]);
    let peer = IpAddr::from([10, 0, 0, 1]);
    let _ = forwarded_for(peer, data.split(|byte| *byte == b'\n'), &trusted);
});
