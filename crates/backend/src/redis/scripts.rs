//! The Lua scripts.

use redis::{Cmd, Script};

/// Name of a script in one of the seams' `lua/` folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptName {
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
    by_name: [Script; ScriptName::ALL.len()],
}

impl ScriptName {
    pub(crate) const ALL: [ScriptName; 17] = [
        ScriptName::RouteOrStore,
        ScriptName::Connect,
        ScriptName::Reassert,
        ScriptName::Disconnect,
        ScriptName::Page,
        ScriptName::Ack,
        ScriptName::Trim,
        ScriptName::Find,
        ScriptName::Received,
        ScriptName::DedupeDone,
        ScriptName::TimelinePush,
        ScriptName::TimelineLatest,
        ScriptName::TimelineCount,
        ScriptName::TimelineForget,
        ScriptName::CacheFind,
        ScriptName::CacheKeep,
        ScriptName::CacheForget,
    ];

    /// Shared parts that precede the script, and the script itself.
    const fn sources(self) -> (&'static [&'static str], &'static str) {
        const SESSIONS: &str = include_str!("../mailbox/redis/lua/sessions.lua");
        const LOGINS: &str = include_str!("../mailbox/redis/lua/logins.lua");
        const BODIES: &str = include_str!("../mailbox/redis/lua/bodies.lua");
        const TIMELINE: &str = include_str!("../timeline/redis/lua/timeline.lua");
        match self {
            ScriptName::RouteOrStore => (
                &[SESSIONS, BODIES],
                include_str!("../mailbox/redis/lua/route_or_store.lua"),
            ),
            ScriptName::Connect => (
                &[SESSIONS, LOGINS],
                include_str!("../mailbox/redis/lua/connect.lua"),
            ),
            ScriptName::Reassert => (
                &[SESSIONS, LOGINS],
                include_str!("../mailbox/redis/lua/reassert.lua"),
            ),
            ScriptName::Disconnect => (
                &[SESSIONS],
                include_str!("../mailbox/redis/lua/disconnect.lua"),
            ),
            ScriptName::Page => (&[BODIES], include_str!("../mailbox/redis/lua/page.lua")),
            ScriptName::Ack => (&[BODIES], include_str!("../mailbox/redis/lua/ack.lua")),
            ScriptName::Trim => (&[BODIES], include_str!("../mailbox/redis/lua/trim.lua")),
            ScriptName::Find => (&[], include_str!("../mailbox/redis/lua/find.lua")),
            ScriptName::Received => (&[], include_str!("../mailbox/redis/lua/received.lua")),
            ScriptName::DedupeDone => (&[], include_str!("../mailbox/redis/lua/dedupe_done.lua")),
            ScriptName::TimelinePush => {
                (&[TIMELINE], include_str!("../timeline/redis/lua/push.lua"))
            }
            ScriptName::TimelineLatest => (
                &[TIMELINE],
                include_str!("../timeline/redis/lua/latest.lua"),
            ),
            ScriptName::TimelineCount => {
                (&[TIMELINE], include_str!("../timeline/redis/lua/count.lua"))
            }
            ScriptName::TimelineForget => (
                &[TIMELINE],
                include_str!("../timeline/redis/lua/forget.lua"),
            ),
            ScriptName::CacheFind => (&[], include_str!("../cache/redis/lua/find.lua")),
            ScriptName::CacheKeep => (&[], include_str!("../cache/redis/lua/keep.lua")),
            ScriptName::CacheForget => (&[], include_str!("../cache/redis/lua/forget.lua")),
        }
    }

    /// Whether the script takes the replid of its master as the last argument.
    pub(crate) fn wants_replid(self) -> bool {
        matches!(
            self,
            ScriptName::Connect
                | ScriptName::Reassert
                | ScriptName::CacheFind
                | ScriptName::CacheKeep
        )
    }

    /// Full text of the script. A `#!` line must stay the first line.
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
            by_name: ScriptName::ALL.map(|name| Script::new(&name.text())),
        }
    }

    pub(crate) fn hash(&self, name: ScriptName) -> &str {
        self.by_name[name as usize].get_hash()
    }

    /// Commands that load all scripts into a server.
    pub(crate) fn load(&self) -> impl Iterator<Item = Cmd> {
        ScriptName::ALL.into_iter().map(|name| {
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
        for name in ScriptName::ALL {
            assert_eq!(scripts.hash(name), Script::new(&name.text()).get_hash());
        }
    }

    #[test]
    fn scripts_allowed_at_full_memory_are_flagged() {
        for name in ScriptName::ALL {
            let may_run = name.text().starts_with("#!lua flags=allow-oom\n");
            let stores = [
                ScriptName::RouteOrStore,
                ScriptName::Received,
                ScriptName::TimelinePush,
                ScriptName::CacheFind,
                ScriptName::CacheKeep,
            ];
            let stores = stores.contains(&name);
            assert_eq!(may_run, !stores, "{name:?}");
        }
    }

    #[test]
    fn no_script_names_a_key_that_was_not_given() {
        // proves S1-03, S1 Pitfall G: what is built bears the tag of the first key, so that it lies beside it
        for name in ScriptName::ALL {
            let text = name.text();
            assert!(!text.contains("'msg"), "{name:?}");
            let key_count = text.matches("'om:'").count();
            let tagged_count = text.matches("return TAG .. 'om:'").count();
            assert_eq!(tagged_count, key_count, "{name:?}");
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
