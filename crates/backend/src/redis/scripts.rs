//! The scripts, and calls of them.

use redis::{Cmd, Script};

/// One of the seams' `lua/*.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    RouteOrStore,
    Connect,
    Reassert,
    Disconnect,
    Page,
    Ack,
    Trim,
    Find,
    Received,
    DedupeDone,
    TimelinePush,
    TimelineLatest,
    TimelineCount,
    TimelineForget,
    CacheFind,
    CacheKeep,
    CacheForget,
}

/// All scripts, ready to be loaded.
pub(crate) struct Scripts {
    by_name: [Script; Name::ALL.len()],
}

impl Name {
    pub(crate) const ALL: [Name; 17] = [
        Name::RouteOrStore,
        Name::Connect,
        Name::Reassert,
        Name::Disconnect,
        Name::Page,
        Name::Ack,
        Name::Trim,
        Name::Find,
        Name::Received,
        Name::DedupeDone,
        Name::TimelinePush,
        Name::TimelineLatest,
        Name::TimelineCount,
        Name::TimelineForget,
        Name::CacheFind,
        Name::CacheKeep,
        Name::CacheForget,
    ];

    /// The parts it stands on, and itself.
    const fn sources(self) -> (&'static [&'static str], &'static str) {
        const SESSIONS: &str = include_str!("../mailbox/redis/lua/sessions.lua");
        const LOGINS: &str = include_str!("../mailbox/redis/lua/logins.lua");
        const BODIES: &str = include_str!("../mailbox/redis/lua/bodies.lua");
        const TIMELINE: &str = include_str!("../timeline/redis/lua/timeline.lua");
        match self {
            Name::RouteOrStore => (
                &[SESSIONS, BODIES],
                include_str!("../mailbox/redis/lua/route_or_store.lua"),
            ),
            Name::Connect => (
                &[SESSIONS, LOGINS],
                include_str!("../mailbox/redis/lua/connect.lua"),
            ),
            Name::Reassert => (
                &[SESSIONS, LOGINS],
                include_str!("../mailbox/redis/lua/reassert.lua"),
            ),
            Name::Disconnect => (
                &[SESSIONS],
                include_str!("../mailbox/redis/lua/disconnect.lua"),
            ),
            Name::Page => (&[BODIES], include_str!("../mailbox/redis/lua/page.lua")),
            Name::Ack => (&[BODIES], include_str!("../mailbox/redis/lua/ack.lua")),
            Name::Trim => (&[BODIES], include_str!("../mailbox/redis/lua/trim.lua")),
            Name::Find => (&[], include_str!("../mailbox/redis/lua/find.lua")),
            Name::Received => (&[], include_str!("../mailbox/redis/lua/received.lua")),
            Name::DedupeDone => (&[], include_str!("../mailbox/redis/lua/dedupe_done.lua")),
            Name::TimelinePush => (&[TIMELINE], include_str!("../timeline/redis/lua/push.lua")),
            Name::TimelineLatest => (
                &[TIMELINE],
                include_str!("../timeline/redis/lua/latest.lua"),
            ),
            Name::TimelineCount => (&[TIMELINE], include_str!("../timeline/redis/lua/count.lua")),
            Name::TimelineForget => (
                &[TIMELINE],
                include_str!("../timeline/redis/lua/forget.lua"),
            ),
            Name::CacheFind => (&[], include_str!("../cache/redis/lua/find.lua")),
            Name::CacheKeep => (&[], include_str!("../cache/redis/lua/keep.lua")),
            Name::CacheForget => (&[], include_str!("../cache/redis/lua/forget.lua")),
        }
    }

    /// Its last argument is the replid of the master that runs it.
    pub(crate) fn wants_replid(self) -> bool {
        matches!(
            self,
            Name::Connect | Name::Reassert | Name::CacheFind | Name::CacheKeep
        )
    }

    /// The line that begins with `#!` must stay the first.
    fn text(self) -> String {
        let (parts, own) = self.sources();
        let (flags, rest) = match own.split_once('\n') {
            Some((first, rest)) if first.starts_with("#!") => (first, rest),
            _ => ("", own),
        };
        let mut text = String::new();
        if !flags.is_empty() {
            text.push_str(flags);
            text.push('\n');
        }
        parts.iter().for_each(|part| text.push_str(part));
        text.push_str(rest);
        text
    }
}

impl Scripts {
    pub(crate) fn new() -> Scripts {
        Scripts {
            by_name: Name::ALL.map(|name| Script::new(&name.text())),
        }
    }

    pub(crate) fn hash(&self, name: Name) -> &str {
        self.by_name[name as usize].get_hash()
    }

    /// Makes a server know all of them.
    pub(crate) fn load(&self) -> impl Iterator<Item = Cmd> {
        Name::ALL.into_iter().map(|name| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(name.text());
            load
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_is_found_by_its_name() {
        let scripts = Scripts::new();
        for name in Name::ALL {
            assert_eq!(scripts.hash(name), Script::new(&name.text()).get_hash());
        }
    }

    #[test]
    fn what_runs_when_memory_is_full_says_so() {
        for name in Name::ALL {
            let may_run = name.text().starts_with("#!lua flags=allow-oom\n");
            let stores = [
                Name::RouteOrStore,
                Name::Received,
                Name::TimelinePush,
                Name::CacheFind,
                Name::CacheKeep,
            ];
            let stores = stores.contains(&name);
            assert_eq!(may_run, !stores, "{name:?}");
        }
    }

    #[test]
    fn no_script_names_a_key_that_was_not_given() {
        // proves S1-03, S1 Pitfall G: what is built bears the tag of the first key, so that it lies beside it
        for name in Name::ALL {
            let text = name.text();
            assert!(!text.contains("'msg"), "{name:?}");
            let built = text.matches("'om:'").count();
            let tagged = text.matches("return TAG .. 'om:'").count();
            assert_eq!(tagged, built, "{name:?}");
            let text = text.replace("redis.pcall(", "redis.call(");
            for call in text.split("redis.call(").skip(1) {
                let key = call.split([',', ')']).nth(1).unwrap_or_default().trim();
                let is_given = key.starts_with("KEYS[")
                    || [
                        "key",
                        "waiting",
                        "mark",
                        "store.waiting",
                        "names[i]",
                        "unpack(names",
                    ]
                    .contains(&key)
                    || key == "body_key(id";
                assert!(is_given, "{name:?} calls redis with {key:?}");
            }
        }
    }
}
