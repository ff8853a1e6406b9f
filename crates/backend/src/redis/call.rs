//! A request to Redis, before its server is chosen.

use std::fmt::Display;

use bytes::Bytes;
use redis::Cmd;

use super::scripts::{ScriptName, Scripts};
use super::slots;

/// A command or a script, with keys and arguments. All keys are in one slot.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) slot: u16,
    kind: CallKind,
    keys: Vec<String>,
    args: Vec<Bytes>,
}

#[derive(Clone, Copy, Debug)]
enum CallKind {
    Script(ScriptName),
    Command(&'static str),
}

impl Call {
    /// A script on keys of a bucket of users.
    pub(crate) fn script(bucket: u16, name: ScriptName) -> Call {
        Call::new(slots::for_bucket(bucket), CallKind::Script(name))
    }

    /// A command on keys of a bucket of users.
    pub(crate) fn command(bucket: u16, name: &'static str) -> Call {
        Call::new(slots::for_bucket(bucket), CallKind::Command(name))
    }

    pub(crate) fn script_in(slot: u16, name: ScriptName) -> Call {
        Call::new(slot, CallKind::Script(name))
    }

    #[cfg(test)]
    pub(crate) fn command_in(slot: u16, name: &'static str) -> Call {
        Call::new(slot, CallKind::Command(name))
    }

    fn new(slot: u16, kind: CallKind) -> Call {
        Call {
            slot,
            kind,
            keys: Vec::new(),
            args: Vec::new(),
        }
    }

    pub(crate) fn key(mut self, key: String) -> Call {
        debug_assert_eq!(
            slots::for_key(&key),
            self.slot,
            "{key} is on another server"
        );
        self.keys.push(key);
        self
    }

    pub(crate) fn arg(self, arg: impl Display) -> Call {
        self.bytes(arg.to_string())
    }

    pub(crate) fn bytes(mut self, arg: impl Into<Bytes>) -> Call {
        self.args.push(arg.into());
        self
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Approximate size on the wire.
    pub(crate) fn size(&self) -> usize {
        let keys = self.keys.iter().map(String::len);
        let args = self.args.iter().map(Bytes::len);
        keys.chain(args).map(|len| len + 8).sum::<usize>() + 64
    }

    /// Builds the command for a master with this replid.
    pub(crate) fn command_for(&self, scripts: &Scripts, replid: &str) -> Cmd {
        let mut cmd = Cmd::with_capacity(self.keys.len() + self.args.len() + 4, self.size());
        match self.kind {
            CallKind::Script(name) => {
                cmd.arg("EVALSHA").arg(scripts.hash(name));
                cmd.arg(self.keys.len());
            }
            CallKind::Command(name) => {
                cmd.arg(name);
            }
        }
        for key in &self.keys {
            cmd.arg(key);
        }
        for arg in &self.args {
            cmd.arg(arg.as_ref());
        }
        if let CallKind::Script(name) = self.kind
            && name.wants_replid()
        {
            cmd.arg(replid);
        }
        cmd
    }
}
