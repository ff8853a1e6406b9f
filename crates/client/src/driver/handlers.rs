//! Handlers that an application adds to the client, one for each message type of its own (S0-48).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::core::ShownMessage;

type Handler = Arc<dyn Fn(&ShownMessage) + Send + Sync>;

/// Handlers by `sub_msg_type`. A message whose type has a handler goes there, in its turn among the
/// events; all others go to the reader of the events.
#[derive(Clone, Default)]
pub struct Handlers(BTreeMap<i32, Handler>);

impl Handlers {
    /// Registers a handler, in place of an earlier one of that type. Once it returns, the
    /// application has the message.
    #[must_use]
    pub fn on(
        mut self,
        sub_kind: i32,
        handler: impl Fn(&ShownMessage) + Send + Sync + 'static,
    ) -> Handlers {
        self.0.insert(sub_kind, Arc::new(handler));
        self
    }

    /// Passes a message to its handler. False: none is registered.
    pub(super) fn handle(&self, message: &ShownMessage) -> bool {
        let handler = self.0.get(&message.placed.message.content.sub_kind);
        if let Some(handler) = handler {
            handler(message);
        }
        handler.is_some()
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
