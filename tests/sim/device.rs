//! Devices: the real client core, what it has saved, and the application that shares its fate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use client::core::{
    Action, CatchUp, Change, Core, Limits, Saved, SendStatus, Settings, Shown, State,
};
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::message::Content;
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Platform, Recipient, Refusal, SendId, Seq,
    Timestamp, UserId,
};
use rand::Rng;
use tests::app::App;
use tests::screen::Screen;

use crate::deeds::{Ask, Deed};
use crate::wire::Connection;
use crate::world::{Event, World};

pub(crate) struct Device {
    pub(crate) user: UserId,
    pub(crate) platform: Platform,
    pub(crate) name: DeviceId,
    /// Counts its starts.
    pub(crate) life: u32,
    core: Option<Core>,
    pub(crate) saved: Saved,
    pub(crate) app: App,
    /// How far its user has ever read on it.
    pub(crate) read: BTreeMap<ConversationId, Seq>,
    pub(crate) last_ask: Option<Ask>,
    /// What the application put in, by send: kept by the application itself.
    pub(crate) sent: BTreeMap<SendId, SendStatus>,
    /// Sends in the order in which they were made, per receiver.
    pub(crate) order: Vec<(UserId, SendId)>,
    /// Those of its sends that change something.
    pub(crate) asked: BTreeSet<SendId>,
    timer: Option<Timestamp>,
    /// It never comes back.
    is_gone: bool,
    away_until: Timestamp,
    mute_until: Timestamp,
    /// What lies in its socket while it is mute.
    unread: VecDeque<ServerFrame>,
}

#[derive(Debug)]
pub(crate) enum DeviceEvent {
    Start {
        device: usize,
    },
    Timer {
        device: usize,
        life: u32,
    },
    Stored {
        device: usize,
        life: u32,
        batch: u64,
        changes: Vec<Change>,
    },
    Connecting {
        device: usize,
        life: u32,
    },
    Send {
        device: usize,
        to: UserId,
        number: usize,
    },
    Do {
        device: usize,
        deed: Deed,
        number: usize,
    },
    Hear {
        device: usize,
    },
}

impl Device {
    pub(crate) fn screen(&self) -> Screen<'_> {
        Screen {
            name: self.name.as_str(),
            user: self.user,
            app: &self.app,
            is_listed: true,
        }
    }

    pub(crate) fn new(user: UserId, platform: Platform, name: DeviceId) -> Device {
        Device {
            user,
            platform,
            name,
            life: 0,
            core: None,
            saved: Saved::default(),
            app: App::default(),
            read: BTreeMap::new(),
            last_ask: None,
            sent: BTreeMap::new(),
            order: Vec::new(),
            asked: BTreeSet::new(),
            timer: None,
            is_gone: false,
            away_until: Timestamp::ZERO,
            mute_until: Timestamp::ZERO,
            unread: VecDeque::new(),
        }
    }

    /// Ended for good: another device of the same platform signed in.
    pub(crate) fn is_displaced(&self) -> bool {
        self.core.as_ref().is_some_and(
            |core| matches!(core.state(), State::Closed(why) if why.code == Code::Displaced),
        )
    }

    /// Whether it may say so: it has stored the message, or its user has read so far.
    pub(crate) fn has(&self, receipt: &Receipt) -> bool {
        let kept = self.saved.conversations.get(&receipt.conversation);
        let shown = self.app.said(receipt.conversation);
        let read = self.read.get(&receipt.conversation).copied();
        kept.is_some_and(|kept| kept.cursor.seq >= receipt.seq)
            || shown.iter().any(|said| said.id == receipt.id)
            || receipt.kind == ReceiptKind::Read && read >= Some(receipt.seq)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    pub(crate) fn is_running(&self) -> bool {
        self.core.is_some()
    }

    /// Its sends that were accepted, and whose place it does not know.
    pub(crate) fn unplaced(&self) -> impl DoubleEndedIterator<Item = (ConversationId, MessageId)> {
        self.order.iter().filter_map(|(to, send_id)| {
            let SendStatus::Accepted { id } = self.sent.get(send_id)? else {
                return None;
            };
            Some((ConversationId::private(self.user, *to)?, *id))
        })
    }

    pub(crate) fn state(&self) -> Option<&State> {
        self.core.as_ref().map(Core::state)
    }
}

impl World {
    pub(crate) fn device_event(&mut self, event: DeviceEvent) {
        let now = self.now;
        match event {
            DeviceEvent::Start { device } => self.start_device(device),
            DeviceEvent::Timer { device, life } => {
                if self.devices[device].life == life {
                    self.devices[device].timer = None;
                    self.with_core(device, |core| core.handle_timeout(now));
                }
            }
            DeviceEvent::Stored {
                device,
                life,
                batch,
                changes,
            } => {
                if self.devices[device].life == life {
                    for change in changes {
                        self.devices[device].saved.apply(change);
                    }
                    self.with_core(device, |core| core.handle_stored(batch, now));
                }
            }
            DeviceEvent::Connecting { device, life } => {
                if self.devices[device].life == life {
                    self.connect_device(device);
                }
            }
            DeviceEvent::Send { device, to, number } => self.send_from(device, to, number),
            DeviceEvent::Do {
                device,
                deed,
                number,
            } => self.do_deed(device, deed, number),
            DeviceEvent::Hear { device } => {
                while let Some(frame) = self.devices[device].unread.pop_front() {
                    self.hear(device, frame);
                }
            }
        }
    }

    fn start_device(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if device.is_gone {
            return;
        }
        device.life += 1;
        device.timer = None;
        let settings = Settings {
            token: device.user.to_string(),
            renews_token: false,
            platform: device.platform,
            device: device.name.clone(),
            acks: true,
            catch_up: CatchUp::Everything,
            limits: Limits::default(),
        };
        // What was not in the outbox when the device died was never sent: the application shares its fate.
        let kept: BTreeSet<SendId> = device
            .saved
            .outbox
            .values()
            .map(|row| row.send_id)
            .collect();
        device.sent.retain(|id, status| {
            kept.contains(id) || !matches!(status, SendStatus::Pending | SendStatus::Failed(_))
        });
        for row in device.saved.outbox.values() {
            device.sent.insert(row.send_id, SendStatus::Pending);
        }
        let sent = &device.sent;
        device
            .order
            .retain(|(_, send_id)| sent.contains_key(send_id));
        let mut core = Core::new(settings, device.saved.clone());
        core.start();
        device.core = Some(core);
        device.app.restart(&device.saved);
        self.drive_device(index);
    }

    pub(crate) fn crash_device(&mut self, device: usize) {
        if self.devices[device].core.is_none() {
            return;
        }
        self.devices[device].core = None;
        self.devices[device].life += 1;
        if let Some(connection) = self.wire.of_device(device) {
            self.cut(
                connection,
                Refusal::new(Code::Unavailable, "the device is gone"),
            );
        }
        let wait = self.up_to(Duration::from_secs(3));
        self.after(wait, Event::Device(DeviceEvent::Start { device }));
    }

    pub(crate) fn lose_device(&mut self, device: usize) {
        self.devices[device].is_gone = true;
        self.crash_device(device);
    }

    pub(crate) fn leave_network(&mut self, device: usize, lasting: Duration) {
        self.devices[device].away_until = self.now + lasting;
        self.cut_device(device);
    }

    pub(crate) fn cut_device(&mut self, device: usize) {
        if let Some(connection) = self.wire.of_device(device) {
            self.cut(
                connection,
                Refusal::new(Code::Unavailable, "the connection broke"),
            );
        }
    }

    pub(crate) fn mute_device(&mut self, device: usize, lasting: Duration) {
        self.devices[device].mute_until = self.now + lasting;
    }

    pub(crate) fn connection_ended_at_device(&mut self, connection: &Connection, why: Refusal) {
        let (now, jitter) = (self.now, self.rng.random());
        let index = connection.device;
        self.devices[index].unread.clear();
        if self.devices[index].life == connection.device_life {
            self.with_core(index, |core| core.handle_disconnected(why, now, jitter));
        }
    }

    pub(crate) fn frame_at_device(&mut self, device: usize, frame: ServerFrame) {
        let here = &mut self.devices[device];
        if here.mute_until > self.now || !here.unread.is_empty() {
            here.unread.push_back(frame);
            let until = here.mute_until;
            return self.at(until, Event::Device(DeviceEvent::Hear { device }));
        }
        self.hear(device, frame);
    }

    fn hear(&mut self, device: usize, frame: ServerFrame) {
        let now = self.now;
        self.judge_receipts(&frame);
        self.with_core(device, |core| core.handle_frame(frame, now));
    }

    fn send_from(&mut self, index: usize, to: UserId, number: usize) {
        let now = self.now;
        if self.devices[index].is_gone {
            return;
        }
        if self.devices[index].core.is_none() {
            let again = DeviceEvent::Send {
                device: index,
                to,
                number,
            };
            return self.after(Duration::from_secs(4), Event::Device(again));
        }
        let send_id = SendId::from_bytes((number as u128 + 1).to_be_bytes());
        let content = Content::text(format!("message {number}"));
        let device = &mut self.devices[index];
        device.sent.insert(send_id, SendStatus::Pending);
        device.order.push((to, send_id));
        self.with_core(index, |core| {
            core.send(send_id, Recipient::User(to), content, now)
                .expect("room in the outbox");
        });
    }

    /// Sends what may be accepted and come to nothing. What is refused for good is given up, not tried again.
    pub(crate) fn send_what_may_fail(
        &mut self,
        index: usize,
        send_id: SendId,
        to: Recipient,
        content: Content,
    ) {
        let now = self.now;
        let device = &mut self.devices[index];
        device.sent.insert(send_id, SendStatus::Pending);
        device.asked.insert(send_id);
        self.with_core(index, |core| {
            core.send(send_id, to, content, now)
                .expect("room in the outbox");
        });
    }

    pub(crate) fn read_on_device(
        &mut self,
        index: usize,
        conversation: ConversationId,
        seq: Seq,
        id: MessageId,
    ) {
        let now = self.now;
        self.with_core(index, |core| core.read(conversation, seq, id, now));
    }

    fn with_core(&mut self, device: usize, what: impl FnOnce(&mut Core)) {
        if let Some(core) = &mut self.devices[device].core {
            what(core);
            self.drive_device(device);
        }
    }

    fn drive_device(&mut self, index: usize) {
        while let Some(action) = self.devices[index]
            .core
            .as_mut()
            .and_then(Core::poll_action)
        {
            self.device_action(index, action);
        }
        let device = &mut self.devices[index];
        let Some(at) = device.core.as_ref().and_then(Core::poll_timeout) else {
            return;
        };
        if device.timer.is_none_or(|timer| at < timer) {
            device.timer = Some(at);
            let life = device.life;
            let at = at.max(self.now + Duration::from_millis(1));
            self.at(
                at,
                Event::Device(DeviceEvent::Timer {
                    device: index,
                    life,
                }),
            );
        }
    }

    fn device_action(&mut self, index: usize, action: Action) {
        let life = self.devices[index].life;
        self.trace(|| format!("  device {index}: {action:?}"));
        match action {
            // Tokens of these worlds last.
            Action::FetchToken => {}
            Action::Connect => {
                let hop = self.hop();
                self.after(
                    hop,
                    Event::Device(DeviceEvent::Connecting {
                        device: index,
                        life,
                    }),
                );
            }
            Action::Disconnect(why) => {
                if let Some(connection) = self.wire.of_device(index) {
                    self.cut(connection, why);
                }
            }
            Action::Transmit(frame) => self.transmit(index, frame),
            Action::Store { batch, changes } => {
                let hop = self.hop();
                let stored = DeviceEvent::Stored {
                    device: index,
                    life,
                    batch,
                    changes,
                };
                self.after(hop, Event::Device(stored));
            }
            Action::Show(shown) => self.show(index, shown),
            Action::Status { send_id, status } => self.status(index, send_id, status),
            Action::Reset(reset) => {
                self.judge.found(format!(
                    "{} was told to reset: {reset:?}",
                    self.devices[index].name
                ));
            }
            Action::Gap {
                number,
                conversation,
                from,
                to,
            } => {
                let wrong = self.devices[index].app.skip(conversation, from, to);
                self.judge_shown(index, conversation, wrong);
                if let Some(number) = number {
                    let now = self.now;
                    self.with_core(index, |core| core.handle_taken(number, now));
                }
            }
            Action::Changed {
                number,
                conversation,
                changed,
            } => {
                let wrong = self.devices[index].app.change(conversation, changed);
                self.judge_shown(index, conversation, wrong);
                let now = self.now;
                self.with_core(index, |core| core.handle_taken(number, now));
            }
            Action::Hidden {
                number,
                conversation,
                seqs,
            } => {
                self.devices[index].app.hide(conversation, seqs);
                let now = self.now;
                self.with_core(index, |core| core.handle_taken(number, now));
            }
            Action::Receipt(_)
            | Action::Older { .. }
            | Action::Asked { .. }
            | Action::State(_)
            | Action::Listed(_) => {}
        }
    }

    fn transmit(&mut self, device: usize, frame: ClientFrame) {
        if let Some(connection) = self.wire.of_device(device) {
            self.send_up(connection, frame);
        }
    }

    fn show(&mut self, index: usize, shown: Shown) {
        let now = self.now;
        self.trace(|| format!("device {index} shows {:?}", shown.placed.position));
        let (number, conversation) = (shown.number, shown.placed.conversation);
        let wrong = self.devices[index].app.show(shown);
        self.judge_shown(index, conversation, wrong);
        self.with_core(index, |core| core.handle_taken(number, now));
    }

    fn judge_shown(&mut self, index: usize, conversation: ConversationId, wrong: Option<String>) {
        if let Some(wrong) = wrong {
            let name = &self.devices[index].name;
            self.judge
                .found(format!("{name} {wrong}, in {conversation}"));
        }
    }

    fn status(&mut self, index: usize, send_id: SendId, status: SendStatus) {
        let device = &mut self.devices[index];
        let before = device.sent.insert(send_id, status.clone());
        let is_change = device.asked.contains(&send_id);
        let failed = |s: &SendStatus| matches!(s, SendStatus::Failed(_));
        // Only a change can be accepted and come to nothing.
        if is_change && matches!(&status, SendStatus::Failed(why) if !why.code.retryable()) {
            let now = self.now;
            return self.with_core(index, |core| _ = core.give_up(send_id, now));
        }
        if let Some(before) = before
            && before.rank() > status.rank()
            && !failed(&before)
        {
            self.judge.found(format!(
                "the status of {send_id} went back: {before:?}, {status:?}"
            ));
        }
        if failed(&status) {
            // The sender taps "try again".
            let now = self.now;
            self.with_core(index, |core| {
                core.retry(send_id, now);
            });
        }
    }

    fn connect_device(&mut self, index: usize) {
        let (now, jitter) = (self.now, self.rng.random());
        let up: Vec<usize> = self
            .boats
            .iter()
            .filter(|boat| boat.up)
            .map(|boat| boat.index)
            .collect();
        let away = self.devices[index].away_until > now;
        if away || up.is_empty() {
            let why = Refusal::new(Code::Unavailable, "no way to a boat");
            return self.with_core(index, |core| core.handle_disconnected(why, now, jitter));
        }
        let boat = up[self.rng.random_range(0..up.len())];
        let connection = self.open_connection(index, boat);
        let session = self.wire.get(connection).expect("just opened").session;
        self.open_session(boat, session);
        self.with_core(index, |core| core.handle_connected(now));
    }

    /// Devices that must end with everything: those whose platform was not taken by another one. Who has a
    /// platform alone is displaced by nobody, in whatever order its sign-ins arrive.
    pub(crate) fn standing_devices(&self) -> BTreeSet<usize> {
        let is_alone = |index: usize| {
            let place = |device: &Device| (device.user, device.platform);
            let here = place(&self.devices[index]);
            let there = self.devices.iter().filter(|device| place(device) == here);
            there.count() == 1
        };
        (0..self.devices.len())
            .filter(|index| !self.devices[*index].is_gone)
            .filter(|index| !self.devices[*index].is_displaced() || is_alone(*index))
            .collect()
    }
}
