//! Bytes of a WebSocket client: the same events however they are cut. The first bytes set the cuts.
#![no_main]

use boat::stack::websocket::{Event, Reader, Rules, Violation};
use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

const CUTS: usize = 4;

fn read(parts: &[&[u8]], rules: &Rules) -> (Vec<Event>, Option<Violation>) {
    let (mut reader, mut input, mut events) = (Reader::default(), BytesMut::new(), Vec::new());
    for part in parts {
        input.extend_from_slice(part);
        loop {
            match reader.next(&mut input, rules) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(violation) => return (events, Some(violation)),
            }
        }
    }
    (events, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((cuts, bytes)) = data.split_first_chunk::<CUTS>() else {
        return;
    };
    let rules = Rules {
        message_bytes_max: 1024,
        takes_text: cuts[0] % 2 == 0,
    };
    let mut places = cuts.map(|cut| usize::from(cut) * bytes.len() / 256);
    places.sort_unstable();
    let (mut parts, mut rest, mut begin) = (Vec::new(), bytes, 0);
    for place in places {
        let (part, behind) = rest.split_at(place - begin);
        parts.push(part);
        (rest, begin) = (behind, place);
    }
    parts.push(rest);
    let whole = read(&[bytes], &rules);
    assert_eq!(read(&parts, &rules), whole);
    for event in whole.0 {
        let size = match event {
            Event::Binary(payload) => payload.len(),
            Event::Text(payload) => {
                assert!(std::str::from_utf8(&payload).is_ok());
                payload.len()
            }
            Event::Ping(_) | Event::Pong | Event::Close(_) => 0,
        };
        assert!(size <= rules.message_bytes_max);
    }
});
