//! Devices: the real client core, and faults of devices and networks.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use client::core::{Change, Core};
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::message::Content;
use protocol::{Code, DeviceId, Platform, Refusal, SendId, Timestamp, UserId};
use rand::Rng;
use tests::actions::UserAction;
use tests::core_device::{CoreDevice, Io};

use crate::wire::Connection;
use crate::world::{Event, World};

pub(crate) struct Device {
    core: CoreDevice,
    timer: Option<Timestamp>,
    /// True for a device that never comes back.
    is_gone: bool,
    away_until: Timestamp,
    mute_until: Timestamp,
    /// Frames in the socket while the device is mute.
    unread: VecDeque<ServerFrame>,
}

impl Deref for Device {
    type Target = CoreDevice;

    fn deref(&self) -> &CoreDevice {
        &self.core
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut CoreDevice {
        &mut self.core
    }
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
        action: UserAction,
        number: usize,
    },
    Hear {
        device: usize,
    },
}

/// Send id of a planned send.
pub(crate) fn send_id(number: usize) -> SendId {
    SendId::from_bytes((number as u128 + 1).to_be_bytes())
}

impl Device {
    pub(crate) fn new(user: UserId, platform: Platform, name: DeviceId) -> Device {
        Device {
            core: CoreDevice::new(user, platform, name),
            timer: None,
            is_gone: false,
            away_until: Timestamp::ZERO,
            mute_until: Timestamp::ZERO,
            unread: VecDeque::new(),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
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
                if self.devices[device].life == life && self.devices[device].is_running() {
                    self.devices[device].stored(batch, changes, now);
                    self.drive_device(device);
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
                action,
                number,
            } => self.act(device, action, number),
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
        device.timer = None;
        let token = device.user.to_string();
        device.start(token);
        self.drive_device(index);
    }

    pub(crate) fn crash_device(&mut self, device: usize) {
        if !self.devices[device].crash() {
            return;
        }
        if let Some(connection) = self.wire.device_connection(device) {
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

    pub(crate) fn leave_network(&mut self, device: usize, duration: Duration) {
        self.devices[device].away_until = self.now + duration;
        self.cut_device(device);
    }

    pub(crate) fn cut_device(&mut self, device: usize) {
        if let Some(connection) = self.wire.device_connection(device) {
            self.cut(
                connection,
                Refusal::new(Code::Unavailable, "the connection broke"),
            );
        }
    }

    pub(crate) fn mute_device(&mut self, device: usize, duration: Duration) {
        self.devices[device].mute_until = self.now + duration;
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
        let receiver = &mut self.devices[device];
        if receiver.mute_until > self.now || !receiver.unread.is_empty() {
            receiver.unread.push_back(frame);
            let muted_until = receiver.mute_until;
            return self.at(muted_until, Event::Device(DeviceEvent::Hear { device }));
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
        if !self.devices[index].is_running() {
            let retry = DeviceEvent::Send {
                device: index,
                to,
                number,
            };
            return self.after(Duration::from_secs(4), Event::Device(retry));
        }
        let content = Content::text(format!("message {number}"));
        self.devices[index].send(send_id(number), to, content, now);
        self.drive_device(index);
    }

    fn act(&mut self, index: usize, action: UserAction, number: usize) {
        if self.devices[index].is_gone() {
            return;
        }
        if !self.devices[index].is_running() {
            let retry = DeviceEvent::Do {
                device: index,
                action,
                number,
            };
            return self.after(Duration::from_secs(4), Event::Device(retry));
        }
        let now = self.now;
        self.devices[index].perform(action, number, now);
        self.drive_device(index);
    }

    fn with_core(&mut self, device: usize, tell: impl FnOnce(&mut Core)) {
        if self.devices[device].is_running() {
            self.devices[device].with(tell);
            self.drive_device(device);
        }
    }

    fn drive_device(&mut self, index: usize) {
        let (now, is_traced) = (self.now, self.is_traced());
        let show = |action: &_| {
            if is_traced {
                println!("  device {index}: {action:?}");
            }
        };
        while let Some(io) = self.devices[index].poll(now, show) {
            self.device_io(index, io);
        }
        while let Some(finding) = self.devices[index].finding() {
            self.judge.record_finding(finding);
        }
        let device = &mut self.devices[index];
        let Some(at) = device.poll_timeout() else {
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

    fn device_io(&mut self, index: usize, io: Io) {
        let life = self.devices[index].life;
        match io {
            // Tokens never expire in these worlds.
            Io::FetchToken => {}
            Io::Connect => {
                let hop = self.hop();
                self.after(
                    hop,
                    Event::Device(DeviceEvent::Connecting {
                        device: index,
                        life,
                    }),
                );
            }
            Io::Disconnect(why) => {
                if let Some(connection) = self.wire.device_connection(index) {
                    self.cut(connection, why);
                }
            }
            Io::Transmit(frame) => self.transmit(index, frame),
            Io::Store { batch, changes } => {
                let hop = self.hop();
                let event = DeviceEvent::Stored {
                    device: index,
                    life,
                    batch,
                    changes,
                };
                self.after(hop, Event::Device(event));
            }
        }
    }

    fn transmit(&mut self, device: usize, frame: ClientFrame) {
        if let Some(connection) = self.wire.device_connection(device) {
            self.send_up(connection, frame);
        }
    }

    fn connect_device(&mut self, index: usize) {
        let (now, jitter) = (self.now, self.rng.random());
        let running_boats: Vec<usize> = self
            .boats
            .iter()
            .filter(|boat| boat.is_up)
            .map(|boat| boat.index)
            .collect();
        let is_away = self.devices[index].away_until > now;
        if is_away || running_boats.is_empty() {
            let why = Refusal::new(Code::Unavailable, "no way to a boat");
            return self.with_core(index, |core| core.handle_disconnected(why, now, jitter));
        }
        let boat = running_boats[self.rng.random_range(0..running_boats.len())];
        let connection = self.open_connection(index, boat);
        let session = self.wire.get(connection).expect("just opened").session;
        self.open_session(boat, session);
        self.with_core(index, |core| core.handle_connected(now));
    }

    /// Devices that must end with the whole history: not lost, and not displaced by another device.
    /// A device alone on its platform counts in any case: only its own sign-ins, in whatever order
    /// they arrive, could displace it.
    pub(crate) fn standing_devices(&self) -> BTreeSet<usize> {
        let is_alone = |index: usize| {
            let place = |device: &Device| (device.user, device.platform);
            let own_place = place(&self.devices[index]);
            let rivals = self
                .devices
                .iter()
                .filter(|device| place(device) == own_place);
            rivals.count() == 1
        };
        (0..self.devices.len())
            .filter(|index| !self.devices[*index].is_gone)
            .filter(|index| !self.devices[*index].is_displaced() || is_alone(*index))
            .collect()
    }
}
