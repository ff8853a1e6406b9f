//! Events for the application, in a bounded queue.

use tokio::sync::{mpsc, watch};

use super::Handlers;
use crate::core::Event;

/// Events other than messages that may wait; beyond, statuses, receipts and states are dropped:
/// tickets and [`Client::state`](super::Client::state) still show statuses and states.
const EVENTS_MAX: usize = 1024;

/// Capacity that only messages, gaps and resets may use.
const EVENTS_RESERVED: usize = 256;

/// Events of a client, taken one by one. While nobody takes them, messages are neither stored as
/// received nor acknowledged, and stay with the server; to drop this is never to take any.
#[derive(Debug)]
pub struct Events {
    queue: mpsc::Receiver<QueuedEvent>,
    handlers: Handlers,
    taken_sender: watch::Sender<EventCursor>,
    /// Last numbered event handed out.
    last: Option<EventCursor>,
}

/// Last event the application is done with, and the core it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventCursor {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

#[derive(Debug)]
struct QueuedEvent {
    epoch: u64,
    event: Event,
}

/// Engine's end of the queue.
#[derive(Debug)]
pub(super) struct EventFeed {
    /// `None`: nothing more comes.
    queue: Option<mpsc::Sender<QueuedEvent>>,
    messages_max: usize,
    pub(super) taken_receiver: watch::Receiver<EventCursor>,
}

pub(super) fn channel(messages_max: usize, handlers: Handlers) -> (EventFeed, Events) {
    let (sender, queue) = mpsc::channel(messages_max + EVENTS_RESERVED + EVENTS_MAX);
    let (taken_sender, taken_receiver) = watch::channel(EventCursor::default());
    let feed = EventFeed {
        queue: Some(sender),
        messages_max,
        taken_receiver,
    };
    let events = Events {
        queue,
        handlers,
        taken_sender,
        last: None,
    };
    (feed, events)
}

impl Events {
    /// Returns the next event; `None` once the client has ended. The call says that the application
    /// has the events before it, which are then stored and acknowledged. Messages with a handler go
    /// to it instead.
    ///
    /// Cancel safe: an event is handed out or stays in the queue.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            self.taken();
            let QueuedEvent { epoch, event } = self.queue.recv().await?;
            if let Some(number) = event.number() {
                self.last = Some(EventCursor { epoch, number });
            }
            match &event {
                Event::Message(message) if self.handlers.handle(message) => {}
                _ => return Some(event),
            }
        }
    }

    /// Notes that the application has all events so far. For the last one, before closing.
    pub fn taken(&mut self) {
        if let Some(last) = self.last.take() {
            self.taken_sender.send_replace(last);
        }
    }
}

impl EventFeed {
    pub(super) fn push(&mut self, epoch: u64, event: Event) {
        let Some(queue) = &self.queue else {
            return;
        };
        let free = queue.capacity();
        let needed_room = match &event {
            _ if event.number().is_some() => 0,
            Event::Gap { .. } | Event::Reset(_) => self.messages_max,
            _ => self.messages_max + EVENTS_RESERVED,
        };
        if free <= needed_room {
            tracing::debug!(
                ?event,
                "event dropped: the application is not reading its events"
            );
            return;
        }
        // An error means that the application has dropped its end.
        let _ = queue.try_send(QueuedEvent { epoch, event });
    }

    /// Ends the queue; events in it can still be taken.
    pub(super) fn end(&mut self) {
        self.queue = None;
    }
}
