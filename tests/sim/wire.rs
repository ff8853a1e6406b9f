//! Connections between devices and boats: frames keep their order, and are lost with the
//! connection.

use std::collections::BTreeMap;

use protocol::frame::{ClientFrame, ServerFrame};
use protocol::{Refusal, SessionId, Timestamp};

use crate::world::{Event, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) i64);

/// One connection; removed when it ends.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) device: usize,
    pub(crate) device_life: u32,
    pub(crate) boat: usize,
    pub(crate) boat_life: u64,
    pub(crate) session: SessionId,
    up_at: Timestamp,
    down_at: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Connections(BTreeMap<ConnectionId, Connection>);

#[derive(Debug)]
pub(crate) enum WireEvent {
    Up {
        connection: ConnectionId,
        frame: Box<ClientFrame>,
    },
    Down {
        connection: ConnectionId,
        frame: Box<ServerFrame>,
    },
    /// The end, after everything that was written before it.
    Ended {
        connection: ConnectionId,
        why: Refusal,
    },
}

impl Connections {
    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.0.get(&id)
    }

    pub(crate) fn session_connection(
        &self,
        boat: usize,
        session: SessionId,
    ) -> Option<ConnectionId> {
        let entry = self
            .0
            .iter()
            .find(|(_, c)| c.boat == boat && c.session == session);
        entry.map(|(id, _)| *id)
    }

    pub(crate) fn device_connection(&self, device: usize) -> Option<ConnectionId> {
        self.0
            .iter()
            .find(|(_, c)| c.device == device)
            .map(|(id, _)| *id)
    }

    pub(crate) fn boat_connections(&self, boat: usize) -> Vec<ConnectionId> {
        self.0
            .iter()
            .filter(|(_, c)| c.boat == boat)
            .map(|(id, _)| *id)
            .collect()
    }
}

impl World {
    pub(crate) fn open_connection(&mut self, device: usize, boat: usize) -> ConnectionId {
        let id = ConnectionId(self.next_serial());
        let session = SessionId::new(self.next_serial()).expect("positive");
        let connection = Connection {
            device,
            device_life: self.devices[device].life,
            boat,
            boat_life: self.boats[boat].life,
            session,
            up_at: self.now,
            down_at: self.now,
        };
        self.wire.0.insert(id, connection);
        id
    }

    pub(crate) fn send_up(&mut self, id: ConnectionId, frame: ClientFrame) {
        let hop = self.hop();
        let now = self.now;
        let Some(connection) = self.wire.0.get_mut(&id) else {
            return;
        };
        connection.up_at = connection.up_at.max(now + hop);
        let at = connection.up_at;
        self.at(
            at,
            Event::Wire(WireEvent::Up {
                connection: id,
                frame: Box::new(frame),
            }),
        );
    }

    pub(crate) fn send_down(&mut self, id: ConnectionId, frame: ServerFrame) {
        let hop = self.hop();
        let now = self.now;
        let Some(connection) = self.wire.0.get_mut(&id) else {
            return;
        };
        connection.down_at = connection.down_at.max(now + hop);
        let at = connection.down_at;
        self.at(
            at,
            Event::Wire(WireEvent::Down {
                connection: id,
                frame: Box::new(frame),
            }),
        );
    }

    /// Ends the connection in order: the device reads all that was written before.
    pub(crate) fn end_in_order(&mut self, id: ConnectionId, why: Refusal) {
        if let Some(connection) = self.wire.0.get(&id) {
            let at = connection.down_at;
            self.at(
                at,
                Event::Wire(WireEvent::Ended {
                    connection: id,
                    why,
                }),
            );
        }
    }

    /// Cuts the connection at once, with all frames in flight; each side learns of it.
    pub(crate) fn cut(&mut self, id: ConnectionId, why: Refusal) {
        let Some(connection) = self.wire.0.remove(&id) else {
            return;
        };
        self.connection_ended_at_boat(&connection);
        self.connection_ended_at_device(&connection, why);
    }

    pub(crate) fn wire_event(&mut self, event: WireEvent) {
        match event {
            WireEvent::Up { connection, frame } => {
                if let Some(open) = self.wire.get(connection) {
                    let (boat, session) = (open.boat, open.session);
                    self.frame_at_boat(boat, session, *frame);
                }
            }
            WireEvent::Down { connection, frame } => {
                if let Some(open) = self.wire.get(connection) {
                    let device = open.device;
                    self.frame_at_device(device, *frame);
                }
            }
            WireEvent::Ended { connection, why } => self.cut(connection, why),
        }
    }
}
