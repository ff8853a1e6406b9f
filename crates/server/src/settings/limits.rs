//! Limits on one client, user or conversation, and the page that lists them.

use std::fmt::Write as _;

use protocol::Code;

use super::schema::sections;

/// One limit, with its settings and consequences.
struct Limit {
    /// Label of the limit in `limits_total`.
    label: &'static str,
    description: &'static str,
    /// Paths of settings, whose defaults the page shows.
    settings: &'static [&'static str],
    /// Code of a refusal. None: a client beyond the limit waits.
    code: Option<Code>,
    place: &'static str,
}

const fn boat(
    label: &'static str,
    description: &'static str,
    settings: &'static [&'static str],
    code: Code,
) -> Limit {
    Limit {
        label,
        description,
        settings,
        code: Some(code),
        place: "boat",
    }
}

/// A limit of the boat that slows clients and refuses none.
const fn boat_pace(
    label: &'static str,
    description: &'static str,
    settings: &'static [&'static str],
) -> Limit {
    Limit {
        label,
        description,
        settings,
        code: None,
        place: "boat",
    }
}

const fn station(
    label: &'static str,
    description: &'static str,
    settings: &'static [&'static str],
    code: Code,
) -> Limit {
    Limit {
        place: "station",
        ..boat(label, description, settings, code)
    }
}

#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    boat("connections", "connections", &["boat.connections_max"], Code::Full),
    boat("connections_per_address", "connections from one address, 1,024 or 10,240", &["boat.connections_per_address_max"], Code::RateLimited),
    boat_pace("arrivals", "new connections in a second: 2,000 for each core, 5,000 at most; the rest waits in the kernel", &[]),
    boat("arrivals_per_address", "new connections from one address, 20 or 200 in a second and ten times as many after a rest; further ones are dropped before anything is said", &["boat.arrivals_per_address"], Code::RateLimited),
    boat("sign_in_failures_per_address", "failed sign-ins from one address, 10 or 100 in a minute and three times as many after a rest", &["boat.sign_in_failures_per_address"], Code::RateLimited),
    boat("sign_in_calls", "sign-ins in flight to stations, 256", &[], Code::Unavailable),
    boat("resume_calls", "resumptions in flight to stations, 256", &[], Code::Unavailable),
    boat("calls", "questions in flight to stations, 1,024, and as many pages of mailboxes beside them", &[], Code::Unavailable),
    boat_pace("arriving", "clients that arrive and are not admitted yet; further ones wait in the kernel", &["boat.arriving_max", "boat.arrival_timeout"]),
    boat("arriving_silent", "silent clients that arrive: a sixteenth of the places for a network (/48 of IPv6); the oldest gives way to the next; when all places are taken, one that has been silent for 2 s gives way", &["boat.arriving_max"], Code::HandshakeTimeout),
    boat("memory", "memory of the process; the sessions with the most waiting bytes are closed, and newcomers get `full`", &["boat.memory_max"], Code::Slow),
    boat("session_frames", "frames of a session, 2,000 in a second", &[], Code::RateLimited),
    boat_pace("session_bytes", "bytes from a session in a second, and four times as many after a rest; reading pauses", &["boat.read_bytes_per_second"]),
    boat("frame_bytes", "bytes of a frame; the first one, a hello, has 12 KiB at most", &["boat.session.frame_bytes_max"], Code::TooLarge),
    boat("body_bytes", "bytes of a body: 4 KiB less than a frame, and at most what the station accepts", &["boat.session.frame_bytes_max", "station.body_bytes_max"], Code::TooLarge),
    boat("session_questions", "unanswered questions of a session, 8", &[], Code::RateLimited),
    boat("session_outgoing_bytes", "bytes waiting for a client to read them: four times a frame", &["boat.session.frame_bytes_max"], Code::Slow),
    station("user_sign_ins", "sign-ins of a user in a minute, and two thirds of that at once after a rest", &["station.user_sign_ins_per_minute"], Code::RateLimited),
    station("user_sessions", "sessions of a user: 16 bots, beyond which a sign-in is refused; one on another platform unless set otherwise, beyond which the oldest ends", &["station.sessions.per_platform"], Code::TooManySessions),
    station("user_sends", "sends of a user's devices in a second, ten times as many after a rest", &["station.user_sends_per_second"], Code::RateLimited),
    station("bot_sends", "sends of a user's bots in a second, five times as many after a rest", &["station.bot_sends_per_second"], Code::RateLimited),
    station("private_sends", "sends to a conversation of two users in a second, eight times as many after a rest", &["station.private_sends_per_second"], Code::RateLimited),
    station("group_sends", "sends to a group in a second, ten times as many after a rest", &["station.group_sends_per_second"], Code::RateLimited),
    station("user_questions", "questions of a user in a second, four times as many after a rest", &["station.user_questions_per_second"], Code::RateLimited),
    station("user_history_reads", "pages that a user reads from history in a second, five times as many after a rest", &["station.user_history_reads_per_second"], Code::RateLimited),
    station("edges_per_address", "requests for addresses of boats from one address, 10 or 100 in a second and twice as many after a rest; answered 429", &[], Code::RateLimited),
    station("http_connections_per_address", "connections for such requests from one address, 64 or 640; further ones are closed", &[], Code::RateLimited),
    station("history_reads", "pages being read from history at a time, 512", &[], Code::Unavailable),
];

const PAGE_HEAD: &str = "# Limits

<!-- Written by the program from its table: make settings -->

Each limit has a code that clients get ([what each asks of them](../protocol.md)), and a label in `limits_total`: it
counts refusals, and waits where there is no code. Of the limits on an address the first number is for addresses that
are the clients' own: on loopback, or where a balancer names them (`boat.proxy`, `station.http.proxy_networks`);
elsewhere many clients may share one, and it is ten times that. The first refusal of an address in a minute is a line of
the log with the limit, and `packetboat doctor` names the busiest addresses of a boat. Arrivals that wait for a hello
are counted when one more waits for its place among them.

A station counts for itself: with several, a user reaches at worst as many times its rate as there are stations, or as
it has sessions, if these are fewer. Of a conversation's rate each of three stations or more takes twice its share,
together double at most, and one send at once each. Sessions that return after their store was away are not counted
again. Load tests raise the rows that they would meet, as [the load generator](../benchmarks.md) does for the servers
that it starts. Its `bench steady`, which meets a running installation, stays below `user_sends_per_second` a pair, or
that installation's settings are raised:

```
PACKETBOAT_STATION__USER_SENDS_PER_SECOND=1000000
PACKETBOAT_STATION__PRIVATE_SENDS_PER_SECOND=1000000
```

| limit | setting and default | code | where | `limits_total` |
| --- | --- | --- | --- | --- |
";

/// Writes the reference page, in Markdown.
pub fn limits_page() -> String {
    let mut page = String::from(PAGE_HEAD);
    let sections = sections();
    for limit in LIMITS {
        let mut settings: Vec<String> = (limit.settings.iter())
            .map(|path| {
                let key = sections.iter().find_map(|section| {
                    let name = path.strip_prefix(&section.path)?.strip_prefix('.')?;
                    section.keys.iter().find(|key| key.name == name)
                });
                let default = match key.map(|key| key.default.as_ref()) {
                    Some(Some(default)) => default.to_string(),
                    Some(None) => "unset".to_owned(),
                    None => "no such setting".to_owned(),
                };
                format!("`{path}` {default}")
            })
            .collect();
        if settings.is_empty() {
            settings.push("fixed".to_owned());
        }
        let code = limit.code.map(|code| format!("`{}`", code.name()));
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | `{}` |",
            limit.description,
            settings.join(", "),
            code.unwrap_or_else(|| "–".to_owned()),
            limit.place,
            limit.label,
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_limit_has_settings_that_there_are() {
        let page = limits_page();
        assert!(!page.contains("no such setting"), "{page}");
        let lines = page.lines().filter(|line| line.starts_with("| "));
        assert_eq!(lines.count(), LIMITS.len() + 2);
    }

    /// `make settings` writes the page anew.
    #[test]
    fn the_page_of_limits_is_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/limits.md");
        if std::env::var_os("PACKETBOAT_TEST_WRITE").is_some() {
            std::fs::write(&path, limits_page()).expect("written");
        }
        let contents = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            contents == limits_page(),
            "docs/operations/limits.md is old: make settings"
        );
    }
}
