//! Devices: the real client core, what it has saved, and the application that shares its fate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use client::core::{
    Action, CatchUp, Change, Core, Limits, Saved, SendStatus, Settings, Shown, State,
};
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::message::Content;
use protocol::{
    Code, ConversationId, DeviceId, MessageId, Platform, Recipient, Refusal, SendId, Seq,
    Timestamp, UserId,
};
use rand::Rng;

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
    /// What the application shows, with the position of each.
    pub(crate) shown: BTreeMap<ConversationId, Vec<(Seq, MessageId, SendId)>>,
    /// What the application put in, by send: kept by the application itself.
    pub(crate) sent: BTreeMap<SendId, SendStatus>,
    /// Sends in the order in which they were made, per receiver.
    pub(crate) order: Vec<(UserId, SendId)>,
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
    Hear {
        device: usize,
    },
}

impl Device {
    pub(crate) fn new(user: UserId, platform: Platform, name: DeviceId) -> Device {
        Device {
            user,
            platform,
            name,
            life: 0,
            core: None,
            saved: Saved::default(),
            shown: BTreeMap::new(),
            sent: BTreeMap::new(),
            order: Vec::new(),
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
        // The application shares the store's fate: it shows what the store says it has taken.
        let saved = &device.saved;
        device.shown.retain(|conversation, shown| {
            let cursor = saved
                .conversations
                .get(conversation)
                .map_or(Seq::ZERO, |k| k.cursor.seq);
            shown.retain(|(seq, ..)| *seq <= cursor);
            true
        });
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
                conversation,
                from,
                to,
            } => {
                let name = &self.devices[index].name;
                self.judge.found(format!(
                    "{name} has a gap in {conversation}: {from} to {to}"
                ));
            }
            Action::Changed { number, .. } => {
                self.judge.found(format!(
                    "{} was told of a change, and nobody changes anything here",
                    self.devices[index].name
                ));
                let now = self.now;
                if let Some(core) = &mut self.devices[index].core {
                    core.handle_taken(number, now);
                }
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
        let device = &mut self.devices[index];
        let message = &shown.placed.message;
        let list = device.shown.entry(shown.placed.conversation).or_default();
        let entry = (shown.placed.position.seq, message.id, message.send_id);
        let expected = list.last().map_or(Seq(1), |(seq, ..)| seq.next());
        if entry.0 != expected {
            let name = &device.name;
            let conversation = shown.placed.conversation;
            self.judge.found(format!(
                "{name} shows {} of {conversation} where {expected} is next",
                entry.0
            ));
        }
        list.push(entry);
        self.with_core(index, |core| core.handle_taken(shown.number, now));
    }

    fn status(&mut self, index: usize, send_id: SendId, status: SendStatus) {
        let device = &mut self.devices[index];
        let before = device.sent.insert(send_id, status.clone());
        let failed = |s: &SendStatus| matches!(s, SendStatus::Failed(_));
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
