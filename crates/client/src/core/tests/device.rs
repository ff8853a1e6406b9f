//! One core driven by a test: the test advances the time and completes the stores.

use std::time::Duration;

use std::collections::BTreeMap;

use protocol::change::OrderedChange;
use protocol::frame::{
    Accepted, ClientFrame, HistoryPage, ListPage, Send, ServerFrame, Summary, SyncAnswer, SyncPage,
    SyncQuery, Welcome,
};
use protocol::message::Content;
use protocol::{
    Code, ConversationId, DeviceId, Message, MessageId, Options, Placed, Platform, Position,
    Recipient, Refusal, SendId, Seq, SessionId, Timestamp, UserId,
};

use super::world::START;
use crate::core::{
    Action, CatchUp, Change, ConnectionState, Core, Event, Limits, SendStatus, Settings,
    ShownMessage, Snapshot,
};

pub(super) fn is_history(query: &SyncQuery) -> bool {
    matches!(query, SyncQuery::History { .. })
}

pub(super) fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

pub(super) fn id(number: u64) -> MessageId {
    MessageId::new(number as i64).expect("positive")
}

pub(super) fn send_id(number: u8) -> SendId {
    SendId::from_bytes([number; 16])
}

pub(super) fn to(number: i64) -> Recipient {
    Recipient::User(user(number))
}

/// Conversation of user 1, who is always us, with this peer.
pub(super) fn with(peer: i64) -> ConversationId {
    ConversationId::private(user(1), user(peer)).expect("two users")
}

/// Message at `seq` of the conversation with 2, sent by 2. Its id is 100 + seq.
pub(super) fn message(seq: u64) -> Placed {
    private_message(2, 2, "far", seq)
}

pub(super) fn private_message(peer: i64, from: i64, device: &str, seq: u64) -> Placed {
    let base = peer as u64 * 50;
    let receiver = if from == 1 { peer } else { 1 };
    Placed {
        conversation: with(peer),
        position: Position {
            seq: Seq(seq),
            prev: (seq > 1).then(|| id(base + seq - 1)),
        },
        message: Message {
            id: id(base + seq),
            from: user(from),
            to: to(receiver),
            accepted_at: START,
            device: DeviceId::new(device).expect("short"),
            send_id: SendId::from_bytes([
                peer as u8, seq as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
            ]),
            options: Options::CHAT,
            content: Content::text(format!("message {seq}")),
        },
    }
}

pub(super) fn summary(peer: i64, seq: u64) -> Summary {
    Summary {
        conversation: with(peer),
        seq: Seq(seq),
        incoming: seq,
        rev: 0,
        read_seq: Seq::ZERO,
        cleared_seq: Seq::ZERO,
        arranged: Default::default(),
        hidden: 0,
        role: None,
        is_large: false,
        unread: seq,
        version: START,
        newest: None,
        marks: None,
    }
}

pub(super) const SERVER_AHEAD: Duration = Duration::from_secs(1000);

fn welcome(cluster: u64, send_window: u32) -> Welcome {
    Welcome {
        session: SessionId::new(1).expect("positive"),
        user: user(1),
        server_time: START,
        heartbeat: Duration::from_secs(30),
        frame_bytes_max: 64 * 1024,
        send_window,
        cluster,
        marker: 5,
        recovered: true,
        expires_at: None,
    }
}

pub(super) struct Device {
    pub(super) core: Core,
    pub(super) snapshot: Snapshot,
    pub(super) now: Timestamp,
    /// The store confirms at once.
    pub(super) stores: bool,
    /// The application takes at once.
    pub(super) takes: bool,
    pub(super) waiting_store: Option<(u64, Vec<Change>)>,
    pub(super) sent_frames: Vec<ClientFrame>,
    pub(super) shown_messages: Vec<ShownMessage>,
    pub(super) changes: Vec<(ConversationId, OrderedChange)>,
    pub(super) hidden_messages: Vec<(ConversationId, Seq)>,
    pub(super) rows: Vec<Summary>,
    pub(super) statuses: Vec<(SendId, SendStatus)>,
    /// Gaps, resets and other actions.
    pub(super) actions: Vec<Action>,
    pub(super) connects: usize,
}

impl Device {
    pub(super) fn new() -> Device {
        Device::with(CatchUp::Everything, Limits::default(), Snapshot::default())
    }

    pub(super) fn with(catch_up: CatchUp, limits: Limits, snapshot: Snapshot) -> Device {
        let settings = Settings {
            token: "token".into(),
            renews_token: false,
            platform: Platform::Ios,
            device: DeviceId::new("here").expect("short"),
            acks: true,
            catch_up,
            limits,
        };
        Device::with_settings(settings, snapshot)
    }

    pub(super) fn with_settings(settings: Settings, snapshot: Snapshot) -> Device {
        let mut device = Device {
            core: Core::new(settings, snapshot.clone()),
            snapshot,
            now: START,
            stores: true,
            takes: true,
            waiting_store: None,
            sent_frames: Vec::new(),
            shown_messages: Vec::new(),
            changes: Vec::new(),
            hidden_messages: Vec::new(),
            rows: Vec::new(),
            statuses: Vec::new(),
            actions: Vec::new(),
            connects: 0,
        };
        device.core.start();
        device.drain();
        device
    }

    /// Device whose driver has new tokens.
    pub(super) fn renewing(token: &str) -> Device {
        let settings = Settings {
            token: token.into(),
            renews_token: true,
            platform: Platform::Ios,
            device: DeviceId::new("here").expect("short"),
            acks: true,
            catch_up: CatchUp::Everything,
            limits: Limits::default(),
        };
        Device::with_settings(settings, Snapshot::default())
    }

    /// Device that is connected, welcomed and has got an empty list.
    pub(super) fn ready() -> Device {
        let mut device = Device::new();
        device.sign_in();
        device.list(Vec::new());
        device
    }

    /// Kills the process; another one starts from what is stored.
    pub(super) fn crash(&mut self) {
        let fresh = Device::with(
            CatchUp::Everything,
            Limits::default(),
            self.snapshot.clone(),
        );
        *self = Device {
            now: self.now,
            ..fresh
        };
    }

    pub(super) fn sign_in(&mut self) {
        self.sign_in_to(7, 8);
    }

    pub(super) fn sign_in_to(&mut self, cluster: u64, send_window: u32) {
        self.core.handle_connected(self.now);
        self.drain();
        self.hear(ServerFrame::Welcome(Welcome {
            server_time: self.now,
            ..welcome(cluster, send_window)
        }));
    }

    /// Welcomes a hello that is sent already.
    pub(super) fn sign_in_again(&mut self) {
        let server_time = self.now;
        self.hear(ServerFrame::Welcome(Welcome {
            server_time,
            ..welcome(7, 8)
        }));
    }

    /// Connects, and welcomes to a session whose token lasts for `life`.
    pub(super) fn sign_in_for(&mut self, session: i64, life: Duration) {
        self.core.handle_connected(self.now);
        self.drain();
        self.hear(ServerFrame::Welcome(Welcome {
            session: SessionId::new(session).expect("positive"),
            // The server has a clock of its own.
            server_time: self.now + SERVER_AHEAD,
            expires_at: Some(self.now + SERVER_AHEAD + life),
            ..welcome(7, 8)
        }));
    }

    pub(super) fn lose(&mut self, jitter: u64) {
        let why = Refusal::new(Code::Unavailable, "lost");
        self.core.handle_disconnected(why, self.now, jitter);
        self.drain();
    }

    /// Loses the connection and is back at once.
    pub(super) fn reconnect(&mut self) {
        self.lose(0);
        self.wait(0);
        self.sign_in();
    }

    /// Lets time pass, timer by timer.
    pub(super) fn wait(&mut self, millis: u64) {
        let deadline = self.now + Duration::from_millis(millis);
        while let Some(at) = self.core.poll_timeout().filter(|at| *at <= deadline) {
            self.now = self.now.max(at);
            self.core.handle_timeout(self.now);
            self.drain();
        }
        self.now = deadline;
    }

    /// As `wait`, with a server that answers.
    pub(super) fn wait_live(&mut self, millis: u64) {
        let mut remaining = millis;
        while remaining > 0 {
            let step = remaining.min(10_000);
            self.wait(step);
            let server_time = self.now;
            let nonce = 0;
            self.hear(ServerFrame::Pong { nonce, server_time });
            remaining -= step;
        }
    }

    /// Answers for `seconds` that the conversation ends at `last`, before the device's own end.
    pub(super) fn stay_behind(&mut self, last: u64, seconds: u64) {
        for second in 0..=seconds {
            if self.find_question(is_history).is_some() {
                let refusal = Refusal::new(Code::Reset, "you are ahead");
                let request = Some(self.question(is_history));
                self.hear(ServerFrame::Error { request, refusal });
                let request = self.question(is_history);
                self.take_sent();
                self.history(request, vec![message(last)], last);
            }
            if second < seconds {
                self.wait_live(1_000);
            }
        }
    }

    pub(super) fn hear(&mut self, frame: ServerFrame) {
        self.core.handle_frame(frame, self.now);
        self.drain();
    }

    pub(super) fn push(&mut self, entry: Placed) {
        self.hear(ServerFrame::Message(entry));
    }

    pub(super) fn send(&mut self, to: Recipient, number: u8) {
        let content = Content::text(format!("send {number}"));
        let outcome = self.core.send(send_id(number), to, content, self.now);
        outcome.expect("room in the outbox");
        self.drain();
    }

    pub(super) fn accept(&mut self, number: u8) {
        self.hear(ServerFrame::Accepted(Accepted {
            send_id: send_id(number),
            id: id(number.into()),
            accepted_at: self.now,
        }));
    }

    pub(super) fn refuse(&mut self, number: u8, code: Code) {
        self.hear(ServerFrame::Refused {
            send_id: send_id(number),
            refusal: Refusal::new(code, "no"),
        });
    }

    /// Answers the open list query.
    pub(super) fn list(&mut self, conversations: Vec<Summary>) {
        let request = self.question(|query| matches!(query, SyncQuery::List { .. }));
        self.answer(
            request,
            SyncAnswer::List(ListPage {
                conversations,
                version: self.now,
                more: false,
            }),
        );
    }

    pub(super) fn answer(&mut self, request: u32, answer: SyncAnswer) {
        self.hear(ServerFrame::Page(SyncPage { request, answer }));
    }

    /// Answers the query for the row that no list named.
    pub(super) fn row(&mut self, row: Option<Summary>) {
        let request = self.question(|query| matches!(query, SyncQuery::Row { .. }));
        self.answer(request, SyncAnswer::Row(row.map(Box::new)));
    }

    pub(super) fn history(&mut self, request: u32, messages: Vec<Placed>, last: u64) {
        let page = HistoryPage {
            conversation: with(2),
            messages,
            marks: BTreeMap::new(),
            statuses: BTreeMap::new(),
            rev: 0,
            last_seq: Seq(last),
            more: false,
        };
        self.answer(request, SyncAnswer::History(page));
    }

    /// Request number of the last query of this kind.
    pub(super) fn question(&self, is_it: impl Fn(&SyncQuery) -> bool) -> u32 {
        self.find_question(is_it).expect("it was asked")
    }

    /// The same, if there was one since `take_sent`.
    pub(super) fn find_question(&self, is_it: impl Fn(&SyncQuery) -> bool) -> Option<u32> {
        let questions = self
            .sent_frames
            .iter()
            .rev()
            .filter_map(|frame| match frame {
                ClientFrame::Sync(request) => Some(request),
                _ => None,
            });
        let mut matches = questions.filter(|request| is_it(&request.query));
        Some(matches.next()?.request)
    }

    /// Frames transmitted since the last call.
    pub(super) fn take_sent(&mut self) -> Vec<ClientFrame> {
        std::mem::take(&mut self.sent_frames)
    }

    pub(super) fn take_sends(&mut self) -> Vec<Send> {
        (self.take_sent().into_iter())
            .filter_map(|frame| match frame {
                ClientFrame::Send(send) => Some(send),
                _ => None,
            })
            .collect()
    }

    /// Positions acknowledged as received since the last look at any frames.
    pub(super) fn take_acked(&mut self) -> Vec<u64> {
        (self.take_sent().into_iter())
            .filter_map(|frame| match frame {
                ClientFrame::Ack(ack) => Some(ack.items),
                _ => None,
            })
            .flatten()
            .map(|item| item.seq.0)
            .collect()
    }

    pub(super) fn take_shown(&mut self) -> Vec<u64> {
        (self.shown_messages.drain(..))
            .map(|message| message.placed.position.seq.0)
            .collect()
    }

    pub(super) fn send_status(&self, number: u8) -> Option<&SendStatus> {
        let mut of_it = (self.statuses.iter().rev()).filter(|(id, _)| *id == send_id(number));
        of_it.next().map(|(_, status)| status)
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.core.state() == ConnectionState::Ready
    }

    /// Completes the store that waits.
    pub(super) fn store(&mut self) {
        let (batch, changes) = self.waiting_store.take().expect("a store waits");
        changes
            .into_iter()
            .for_each(|change| self.snapshot.apply(change));
        self.core.handle_stored(batch, self.now);
        self.drain();
    }

    pub(super) fn drain(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect => self.connects += 1,
                Action::Transmit(frame) => self.sent_frames.push(frame),
                Action::Store { batch, changes } => {
                    self.waiting_store = Some((batch, changes));
                    if self.stores {
                        self.store();
                    }
                }
                Action::Event(event) => self.hear_event(event),
                Action::Disconnect(why) => {
                    self.actions.push(Action::Disconnect(why.clone()));
                    self.core.handle_disconnected(why, self.now, 0);
                }
                Action::Listed(row) => self.rows.push(*row),
                action @ (Action::FetchToken | Action::Asked { .. } | Action::Older { .. }) => {
                    self.actions.push(action);
                }
            }
        }
    }

    fn hear_event(&mut self, event: Event) {
        let number = event.number();
        match event {
            Event::Message(message) => self.shown_messages.push(message),
            Event::Status { send_id, status } => self.statuses.push((send_id, status)),
            Event::State(_) => {}
            Event::Changed {
                conversation,
                change: changed,
                ..
            } => self.changes.push((conversation, changed)),
            Event::Hidden {
                conversation, seqs, ..
            } => {
                let hidden_ids = seqs.iter().map(|seq| (conversation, *seq));
                self.hidden_messages.extend(hidden_ids);
            }
            Event::Gap { .. } | Event::Receipt(_) | Event::Reset(_) => {
                self.actions.push(Action::Event(event));
            }
        }
        if let Some(number) = number.filter(|_| self.takes) {
            self.core.handle_taken(number, self.now);
        }
    }
}
