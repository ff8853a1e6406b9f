//! Panics of a world's tasks, which the runtime would hide.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    static COLLECTED: RefCell<Option<PanicTexts>> = const { RefCell::new(None) };
}

struct PanicTexts {
    texts: Vec<String>,
    is_shown: bool,
}

/// Panics of this thread, collected until they are taken or this is dropped.
#[derive(Debug)]
pub struct Panics(());

impl Panics {
    /// Collects from here on, on this thread: a runtime of one thread runs everything here.
    /// `is_shown`: they are also printed, as they would be without a collector.
    pub fn collect(is_shown: bool) -> Panics {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let is_shown = COLLECTED.with_borrow_mut(|collected| {
                    let Some(collected) = collected else {
                        return true;
                    };
                    collected.texts.push(info.to_string());
                    collected.is_shown
                });
                if is_shown {
                    before(info);
                }
            }));
        });
        let texts = Vec::new();
        COLLECTED.set(Some(PanicTexts { texts, is_shown }));
        Panics(())
    }

    /// Texts of the panics so far; collects no more.
    pub fn take(self) -> Vec<String> {
        let collected = COLLECTED.take();
        collected.map_or_else(Vec::new, |collected| collected.texts)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        COLLECTED.set(None);
    }
}
