//! Seams behind a hook: faults, delays, counts and ends of a process between two effects, for
//! tests. The program has no hook, so a bare seam costs nothing.

mod faults;
mod names;

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use protocol::ConversationId;

pub use self::faults::{Calls, Fault, Faults};
pub(crate) use self::names::Names;
use crate::mailbox::ServerId;
use crate::queue::{NewRecord, Record};
use crate::{Error, Result};

/// A call of a seam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Name in errors: `mailbox`, `messages` …
    pub seam: &'static str,
    /// The method's name.
    pub name: &'static str,
    /// False: a read.
    pub has_effect: bool,
    /// Users, groups, messages or partitions of the call, in the order of its items; empty if it
    /// concerns none.
    pub subjects: Vec<u64>,
    /// Topic of a call of the log, without the tier; writer of ledger entries; kind of owner of
    /// saved messages; else empty.
    pub kind: &'static str,
    /// True: items fail singly.
    pub by_item: bool,
}

/// The fate of one item of a call whose items fail singly.
#[derive(Debug)]
pub enum Fate {
    Pass,
    Fail(Error),
    /// Not done, while the others are; the call is never answered.
    Hang,
}

impl Op {
    /// A read without subjects.
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

/// Code around each call of a seam. A call to hang or delay waits in here.
#[async_trait]
pub trait Hook: Send + Sync {
    /// # Errors
    /// The error of the call, which is then not made.
    async fn before(&self, _: &Op) -> Result<()> {
        Ok(())
    }

    /// Decides the fate of an item of a call whose items fail singly.
    fn item(&self, _: &Op, _subject: u64) -> Fate {
        Fate::Pass
    }

    /// Decides the fate of a published record.
    fn publish(&self, _: &NewRecord) -> Fate {
        Fate::Pass
    }

    /// False: this call of the log hides the record, as if it had never existed.
    fn shows(&self, _: &Op, _: &Record) -> bool {
        true
    }

    /// Runs after the call was answered; `_success_count` of its items had an effect or were read.
    ///
    /// # Errors
    /// The answer in place of the right one: the call is done, and no caller knows.
    async fn after(&self, _: &Op, _success_count: usize) -> Result<()> {
        Ok(())
    }

    /// Resolves when brokers consider the process gone: its consumers leave their groups and get no
    /// further answer.
    async fn ended(&self) {
        pending().await
    }

    /// Server of a user's mailbox, in place of the mailbox's own answer.
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

    /// Makes a call that is done as a whole or not at all.
    pub(crate) async fn whole<V>(
        &self,
        op: Op,
        call: impl Future<Output = Result<V>> + Send,
    ) -> Result<V> {
        self.whole_if(op, |_| true, call).await
    }

    /// As `whole`. `shows`: true if the answer tells of an effect.
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

    /// Makes a call whose items fail singly: items that pass go to `call`, in order. `shows`: true
    /// if an answer tells of an effect.
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
            to_call => call(to_call).await,
        };
        let outcome = answers.iter().flatten().filter(|answer| shows(answer));
        let outcome = self.hook.after(&op, outcome.count()).await;
        match outcome {
            Ok(()) => merge(fates, answers).await,
            Err(error) => failures(&error, count),
        }
    }
}

/// Filters the items whose fate is to pass.
pub(crate) fn sort<I>(fates: &[Fate], items: Vec<I>) -> Vec<I> {
    let passes = |(fate, item)| matches!(fate, &Fate::Pass).then_some(item);
    fates.iter().zip(items).filter_map(passes).collect()
}

/// Merges answers into the order of all items: `answers` belong to those that passed.
pub(crate) async fn merge<V>(fates: Vec<Fate>, answers: Vec<Result<V>>) -> Vec<Result<V>> {
    if fates.iter().any(|fate| matches!(fate, Fate::Hang)) {
        return pending().await;
    }
    let mut answers = answers.into_iter();
    let results = fates.into_iter().map_while(|fate| match fate {
        Fate::Fail(error) => Some(Err(error)),
        Fate::Pass | Fate::Hang => answers.next(),
    });
    results.collect()
}

/// Repeats a failure for each item.
pub(crate) fn failures<V>(error: &Error, count: usize) -> Vec<Result<V>> {
    let copy = || Error::new(error.seam, error.kind, error.source.to_string());
    (0..count).map(|_| Err(copy())).collect()
}

/// Puts a trait behind a hook; calls have a line each:
///
/// * `plain f(a: A) -> V;` bypasses the hook.
/// * `by_hook f(user: U) -> V;` asks the hook, then the trait.
/// * `read f(a: A) => V;`, `write f(a: A) => V;` answer `Result<V>`: `of` names the subjects, `as`
///   the kind.
/// * `each read f(items: Vec<I>, a: A) => V;`, `each write …` answer `Vec<Result<V>>`: `by` names
///   the subject of an item. `&[I]` in place of `Vec<I>` if the trait borrows.
///
/// `if` tests whether an answer tells of an effect. Kinds follow the name of the seam:
/// `as "ledger" of ["fetched"]`.
macro_rules! hooked {
    ($trait:ident as $seam:literal $(of [$($kind:literal),*])?: $($lines:tt)*) => {
        $crate::hook::hooked! { @munch $trait $seam [] {} $($lines)* }

        pub(crate) const NAMES: $crate::hook::Names = $crate::hook::Names {
            seam: $seam,
            calls: CALLS,
            kinds: &[$($($kind),*)?],
        };
    };
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }) => {
        const CALLS: &[&str] = &[$(stringify!($call)),*];

        #[async_trait::async_trait]
        impl $trait for $crate::hook::Hooked<dyn $trait> {
            $($done)*
        }

        /// For contracts, which also hold behind a hook.
        #[cfg(test)]
        pub(crate) fn behind_a_hook(
            inner: std::sync::Arc<dyn $trait>,
        ) -> std::sync::Arc<$crate::hook::Hooked<dyn $trait>> {
            $crate::hook::Hooked::new(inner, &$crate::hook::tests::passing())
        }
    };
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }
        plain $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam [$($call)*] {
            $($done)*
            fn $name(&self, $($arg: $ty),*) -> $ret {
                self.inner.$name($($arg),*)
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }
        by_hook $name:ident($user:ident: $ty:ty) -> $ret:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam [$($call)*] {
            $($done)*
            fn $name(&self, $user: $ty) -> $ret {
                let by_hook = self.hook.$name($user.get().unsigned_abs());
                by_hook.unwrap_or_else(|| self.inner.$name($user))
            }
        } $($lines)* }
    };
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }
        $kind:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) $(of $subjects:expr)? $(, as $kind_of:expr)? $(, if $shows:expr)?
        => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam [$($call)* $name] {
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
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }
        each $kind:ident $name:ident($items:ident: Vec<$item:ty> $(, $arg:ident: $ty:ty)* $(,)?)
        by $subject:expr $(, if $shows:expr)? => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam [$($call)* $name] {
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
    (@munch $trait:ident $seam:literal [$($call:ident)*] { $($done:tt)* }
        each $kind:ident $name:ident($items:ident: &[$item:ty] $(, $arg:ident: $ty:ty)* $(,)?)
        by $subject:expr $(, if $shows:expr)? => $ok:ty; $($lines:tt)*
    ) => {
        $crate::hook::hooked! { @munch $trait $seam [$($call)* $name] {
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

/// Subjects of an operation: numbers of the protocol, which are positive.
pub(crate) fn subjects(numbers: impl IntoIterator<Item = i64>) -> Vec<u64> {
    numbers.into_iter().map(i64::unsigned_abs).collect()
}

/// Group of a conversation, or the lower of its users.
pub(crate) fn number(conversation: &ConversationId) -> i64 {
    match *conversation {
        ConversationId::Private { low: user, .. } | ConversationId::System(user) => user.get(),
        ConversationId::Group(group) => group.get(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Hook that passes every call after a yield, at which a caller may drop it.
    struct YieldHook;

    #[async_trait]
    impl Hook for YieldHook {
        async fn before(&self, _: &Op) -> Result<()> {
            yield_now().await;
            Ok(())
        }

        async fn after(&self, _: &Op, _success_count: usize) -> Result<()> {
            yield_now().await;
            Ok(())
        }
    }

    pub(crate) fn passing() -> Arc<dyn Hook> {
        Arc::new(YieldHook)
    }
}
