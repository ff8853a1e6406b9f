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
        static HOOK_INSTALLATION: Once = Once::new();
        HOOK_INSTALLATION.call_once(|| {
            let previous_hook = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let is_shown = COLLECTED.with_borrow_mut(|panic_texts| {
                    let Some(panic_texts) = panic_texts else {
                        return true;
                    };
                    panic_texts.texts.push(info.to_string());
                    panic_texts.is_shown
                });
                if is_shown {
                    previous_hook(info);
                }
            }));
        });
        let texts = Vec::new();
        COLLECTED.set(Some(PanicTexts { texts, is_shown }));
        Panics(())
    }

    /// Texts of the panics so far; collects no more.
    pub fn take(self) -> Vec<String> {
        let texts = COLLECTED.take();
        texts.map_or_else(Vec::new, |texts| texts.texts)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        COLLECTED.set(None);
    }
}
