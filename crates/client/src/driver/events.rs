//! What the application hears of, in a queue with bounds.

use protocol::change::Changed;
use protocol::receipt::Receipt;
use protocol::{ConversationId, SendId, Seq};
use tokio::sync::{mpsc, watch};

use super::Handlers;
use crate::core::{Reset, SendStatus, Shown, State};

/// Something the application may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message, once, in the order of its conversation. The user's own come, too: see its `origin`.
    Message(Shown),
    /// A message that was shown before was recalled, edited, or somebody reacted to it. Each once, in their order.
    Changed {
        number: u64,
        conversation: ConversationId,
        changed: Changed,
    },
    /// The user hid these messages, on whichever device: what they say is to be seen no more.
    Hidden {
        number: u64,
        conversation: ConversationId,
        seqs: Vec<Seq>,
    },
    /// A send of this device has come further. Its ticket knows as well.
    Status {
        send_id: SendId,
        status: SendStatus,
    },
    /// A receipt for an own message that this device does not follow.
    Receipt(Receipt),
    /// Messages from `from` to `to` will not be shown by themselves; `load_older` may have them.
    /// As a message, it is told again after an end until it was taken; without a number once only.
    Gap {
        number: Option<u64>,
        conversation: ConversationId,
        from: Seq,
        to: Seq,
    },
    /// What this device has kept and what the server says belong to different histories.
    Reset(Reset),
    State(State),
}

/// How many events other than messages wait; beyond, statuses, receipts and states are left out:
/// tickets and [`Client::state`](super::Client::state) have them, too.
const EVENTS_MAX: usize = 1024;

/// Room that only messages, gaps and resets use.
const EVENTS_RESERVED: usize = 256;

/// The events of a client, to be taken one by one. While nobody takes them, messages are neither stored
/// as received nor acknowledged, and stay with the server; dropping it means never to take any.
#[derive(Debug)]
pub struct Events {
    queue: mpsc::Receiver<Queued>,
    handlers: Handlers,
    taken: watch::Sender<Taken>,
    /// The last message that was handed out.
    last: Option<Taken>,
}

/// Up to which message of which core the application is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

#[derive(Debug)]
struct Queued {
    epoch: u64,
    event: Event,
}

/// The engine's end of the queue.
#[derive(Debug)]
pub(super) struct Feed {
    /// `None`: nothing more comes.
    queue: Option<mpsc::Sender<Queued>>,
    messages_max: usize,
    pub(super) taken: watch::Receiver<Taken>,
}

pub(super) fn channel(messages_max: usize, handlers: Handlers) -> (Feed, Events) {
    let (sender, queue) = mpsc::channel(messages_max + EVENTS_RESERVED + EVENTS_MAX);
    let (taken_sender, taken) = watch::channel(Taken::default());
    let feed = Feed {
        queue: Some(sender),
        messages_max,
        taken,
    };
    let events = Events {
        queue,
        handlers,
        taken: taken_sender,
        last: None,
    };
    (feed, events)
}

impl Event {
    /// Of what the application is to take.
    fn number(&self) -> Option<u64> {
        match self {
            Event::Message(shown) => Some(shown.number),
            Event::Changed { number, .. } | Event::Hidden { number, .. } => Some(*number),
            Event::Gap { number, .. } => *number,
            Event::Status { .. } | Event::Receipt(_) | Event::Reset(_) | Event::State(_) => None,
        }
    }
}

impl Events {
    /// The next event; `None` when the client has ended. Asking for it says that the application has
    /// what it got before: that is then stored and acknowledged. Messages that have a handler go to it meanwhile.
    ///
    /// Cancel safe: an event is handed out or stays in the queue.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            self.taken();
            let Queued { epoch, event } = self.queue.recv().await?;
            if let Some(number) = event.number() {
                self.last = Some(Taken { epoch, number });
            }
            match &event {
                Event::Message(shown) if self.handlers.handle(shown) => {}
                _ => return Some(event),
            }
        }
    }

    /// The application has all messages that it got so far. For the last one, before closing.
    pub fn taken(&mut self) {
        if let Some(last) = self.last.take() {
            self.taken.send_replace(last);
        }
    }
}

impl Feed {
    pub(super) fn push(&mut self, epoch: u64, event: Event) {
        let Some(queue) = &self.queue else {
            return;
        };
        let free = queue.capacity();
        let needed = match &event {
            _ if event.number().is_some() => 0,
            Event::Gap { .. } | Event::Reset(_) => self.messages_max,
            _ => self.messages_max + EVENTS_RESERVED,
        };
        if free <= needed {
            tracing::debug!(?event, "left out: the application does not take its events");
            return;
        }
        // An error means that the application has dropped its end.
        let _ = queue.try_send(Queued { epoch, event });
    }

    /// Nothing more comes: what is in the queue can still be taken.
    pub(super) fn end(&mut self) {
        self.queue = None;
    }
}
