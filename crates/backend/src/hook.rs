//! Seams behind a hook: faults, delays, counts and ends of a process between two effects, for tests. The program has
//! none, so a bare seam costs nothing.

mod faults;

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use protocol::ConversationId;

pub use self::faults::{Calls, Fault, Faults};
use crate::mailbox::ServerId;
use crate::queue::{NewRecord, Record};
use crate::{Error, Result};

/// A call of a seam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// As errors name it: `mailbox`, `history` …
    pub seam: &'static str,
    /// The method's name.
    pub name: &'static str,
    /// False: a read.
    pub has_effect: bool,
    /// Users, groups, messages or partitions that it is about, in the order of its items; empty where it is about nobody.
    pub subjects: Vec<u64>,
    /// Topic of a call of the log, without the tier; writer of entries of the ledger; else empty.
    pub kind: &'static str,
    /// True: items fail singly.
    pub by_item: bool,
}

/// The fate of one item of a call whose items fail singly.
#[derive(Debug)]
pub enum Fate {
    Pass,
    Fail(Error),
    /// Not done; the others are, and the call is never answered.
    Hang,
}

impl Op {
    /// A read, about nobody.
    pub(crate) const fn new(seam: &'static str, name: &'static str) -> Op {
        Op {
            seam,
            name,
            has_effect: false,
            subjects: Vec::new(),
            kind: "",
            by_item: false,
        }
    }
}

/// Code around each call of a seam. A call that should hang or be slow waits in here.
#[async_trait]
pub trait Hook: Send + Sync {
    /// # Errors
    /// The call's, which is not made.
    async fn before(&self, _: &Op) -> Result<()> {
        Ok(())
    }

    /// For calls whose items fail singly.
    fn item(&self, _: &Op, _subject: u64) -> Fate {
        Fate::Pass
    }

    /// For what is published.
    fn publish(&self, _: &NewRecord) -> Fate {
        Fate::Pass
    }

    /// False: this call of the log does not show this record, as if it had never been there.
    fn shows(&self, _: &Op, _: &Record) -> bool {
        true
    }

    /// The call was answered, and so many of its items had an effect, or were read.
    ///
    /// # Errors
    /// The answer in place of the right one: it is done, and nobody knows.
    async fn after(&self, _: &Op, _done: usize) -> Result<()> {
        Ok(())
    }

    /// The server of a user's mailbox, where it is not the mailbox that says so.
    fn server(&self, _user: u64) -> Option<ServerId> {
        None
    }
}

/// A seam with a hook around each call.
pub struct Hooked<T: ?Sized> {
    pub(crate) inner: Arc<T>,
    pub(crate) hook: Arc<dyn Hook>,
}

impl<T: ?Sized> Hooked<T> {
    pub fn new(inner: Arc<T>, hook: &Arc<dyn Hook>) -> Arc<Hooked<T>> {
        Arc::new(Hooked {
            inner,
            hook: hook.clone(),
        })
    }

    /// A call that is done as a whole or not at all.
    pub(crate) async fn whole<V>(
        &self,
        op: Op,
        call: impl Future<Output = Result<V>> + Send,
    ) -> Result<V> {
        self.whole_if(op, |_| true, call).await
    }

    /// The same. `shows`: the answer tells of an effect.
    pub(crate) async fn whole_if<V>(
        &self,
        op: Op,
        shows: fn(&V) -> bool,
        call: impl Future<Output = Result<V>> + Send,
    ) -> Result<V> {
        self.hook.before(&op).await?;
        let answer = call.await?;
        self.hook.after(&op, usize::from(shows(&answer))).await?;
        Ok(answer)
    }

    /// A call whose items fail singly: those that pass are handed to `call`, in order. `shows`: the answer tells of an
    /// effect.
    pub(crate) async fn each<I, V, C>(
        &self,
        op: Op,
        items: Vec<I>,
        shows: fn(&V) -> bool,
        call: impl FnOnce(Vec<I>) -> C + Send,
    ) -> Vec<Result<V>>
    where
        I: Send,
        V: Send,
        C: Future<Output = Vec<Result<V>>> + Send,
    {
        let count = items.len();
        if let Err(error) = self.hook.before(&op).await {
            return failures(&error, count);
        }
        let fate = |subject: &u64| self.hook.item(&op, *subject);
        let fates: Vec<Fate> = op.subjects.iter().map(fate).collect();
        let answers = match sort(&fates, items) {
            none if none.is_empty() && count > 0 => Vec::new(),
            passed => call(passed).await,
        };
        let done = answers.iter().flatten().filter(|answer| shows(answer));
        let done = self.hook.after(&op, done.count()).await;
        match done {
            Ok(()) => merge(fates, answers).await,
            Err(error) => failures(&error, count),
        }
    }
}

/// Items apart by their fates: those that pass.
pub(crate) fn sort<I>(fates: &[Fate], items: Vec<I>) -> Vec<I> {
    let passes = |(fate, item)| matches!(fate, &Fate::Pass).then_some(item);
    fates.iter().zip(items).filter_map(passes).collect()
}

/// Answers in the order of the items, each of which has a fate: `answers` are of those that passed.
pub(crate) async fn merge<V>(fates: Vec<Fate>, answers: Vec<Result<V>>) -> Vec<Result<V>> {
    if fates.iter().any(|fate| matches!(fate, Fate::Hang)) {
        return pending().await;
    }
    let mut answers = answers.into_iter();
    let merged = fates.into_iter().map_while(|fate| match fate {
        Fate::Fail(error) => Some(Err(error)),
        Fate::Pass | Fate::Hang => answers.next(),
    });
    merged.collect()
}

/// The same failure for each item.
pub(crate) fn failures<V>(error: &Error, count: usize) -> Vec<Result<V>> {
    let copy = || Error::new(error.seam, error.kind, error.source.to_string());
    (0..count).map(|_| Err(copy())).collect()
}

/// The calls of a trait behind a hook, a line each:
///
/// * `plain f(a: A) -> V;` passes by.
/// * `by_hook f(user: U) -> V;` is the hook's to say.
/// * `read f(a: A) => V;`, `write f(a: A) => V;` answer `Result<V>`: `of` names the subjects, `as` the kind.
/// * `each read f(items: Vec<I>, a: A) => V;`, `each write …` answer `Vec<Result<V>>`: `by` names the subject of an item. `&[I]`
///   in place of `Vec<I>` where the trait borrows.
///
/// `if` says of an answer whether it tells of an effect.
macro_rules! hooked {
    ($trait:ident as $seam:literal: $($lines:tt)*) => {
        $crate::hook::hooked! { @munch $trait $seam {} $($lines)* }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }) => {
        #[async_trait::async_trait]
        impl $trait for $crate::hook::Hooked<dyn $trait> {
            $($done)*
        }

        /// For contracts, which hold behind a hook, too.
        #[cfg(test)]
        pub(crate) fn behind_a_hook(
            inner: std::sync::Arc<dyn $trait>,
        ) -> std::sync::Arc<$crate::hook::Hooked<dyn $trait>> {
            $crate::hook::Hooked::new(inner, &$crate::hook::tests::passing())
        }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }
        plain $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam {
            $($done)*
            fn $name(&self, $($arg: $ty),*) -> $ret {
                self.inner.$name($($arg),*)
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }
        by_hook $name:ident($user:ident: $ty:ty) -> $ret:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam {
            $($done)*
            fn $name(&self, $user: $ty) -> $ret {
                let by_hook = self.hook.$name($user.get().unsigned_abs());
                by_hook.unwrap_or_else(|| self.inner.$name($user))
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }
        $kind:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) $(of $subjects:expr)? $(, as $kind_of:expr)? $(, if $shows:expr)?
        => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam {
            $($done)*
            async fn $name(&self, $($arg: $ty),*) -> $crate::Result<$ok> {
                let op = $crate::hook::Op {
                    has_effect: $crate::hook::hooked!(@has_effect $kind),
                    $(subjects: $crate::hook::subjects($subjects),)?
                    $(kind: $kind_of,)?
                    ..$crate::hook::Op::new($seam, stringify!($name))
                };
                let shows: fn(&$ok) -> bool = $crate::hook::hooked!(@shows $($shows)?);
                self.whole_if(op, shows, self.inner.$name($($arg),*)).await
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }
        each $kind:ident $name:ident($items:ident: Vec<$item:ty> $(, $arg:ident: $ty:ty)* $(,)?)
        by $subject:expr $(, if $shows:expr)? => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam {
            $($done)*
            async fn $name(&self, $items: Vec<$item> $(, $arg: $ty)*) -> Vec<$crate::Result<$ok>> {
                let subject: fn(&$item) -> i64 = $subject;
                let op = $crate::hook::Op {
                    has_effect: $crate::hook::hooked!(@has_effect $kind),
                    subjects: $crate::hook::subjects($items.iter().map(subject)),
                    by_item: true,
                    ..$crate::hook::Op::new($seam, stringify!($name))
                };
                let shows: fn(&$ok) -> bool = $crate::hook::hooked!(@shows $($shows)?);
                let inner = &self.inner;
                self.each(op, $items, shows, move |items| inner.$name(items $(, $arg)*)).await
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal { $($done:tt)* }
        each $kind:ident $name:ident($items:ident: &[$item:ty] $(, $arg:ident: $ty:ty)* $(,)?)
        by $subject:expr $(, if $shows:expr)? => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam {
            $($done)*
            async fn $name(&self, $items: &[$item] $(, $arg: $ty)*) -> Vec<$crate::Result<$ok>> {
                let subject: fn(&$item) -> i64 = $subject;
                let op = $crate::hook::Op {
                    has_effect: $crate::hook::hooked!(@has_effect $kind),
                    subjects: $crate::hook::subjects($items.iter().map(subject)),
                    by_item: true,
                    ..$crate::hook::Op::new($seam, stringify!($name))
                };
                let shows: fn(&$ok) -> bool = $crate::hook::hooked!(@shows $($shows)?);
                let inner = &self.inner;
                let call = move |items: Vec<$item>| async move { inner.$name(&items $(, $arg)*).await };
                self.each(op, $items.to_vec(), shows, call).await
            }
        } $($lines)* }
    };
    (@has_effect read) => { false };
    (@has_effect write) => { true };
    (@shows) => { |_| true };
    (@shows $shows:expr) => { $shows };
}
pub(crate) use hooked;

/// Subjects are numbers of the protocol, which are positive.
pub(crate) fn subjects(numbers: impl IntoIterator<Item = i64>) -> Vec<u64> {
    numbers.into_iter().map(i64::unsigned_abs).collect()
}

/// A conversation's group, or the lower of its users.
pub(crate) fn number(conversation: &ConversationId) -> i64 {
    match *conversation {
        ConversationId::Private { low: user, .. } | ConversationId::System(user) => user.get(),
        ConversationId::Group(group) => group.get(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    struct Passing;

    impl Hook for Passing {}

    pub(crate) fn passing() -> Arc<dyn Hook> {
        Arc::new(Passing)
    }
}
