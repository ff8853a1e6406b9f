//! Batches, outcomes and notices of a boat.

use std::num::NonZeroU32;

use protocol::drain::BoatState;
use protocol::{Refusal, SessionId, session};

use super::{by_value, field, invalid, life, list, present};
use crate::boat::{
    DeliverBatch, DrainCommand, DrainOrder, DrainProgress, Notice, NoticeBatch, NoticeKind, Outcome,
};
use crate::v1;
use crate::v1::drain_request::Order as WireOrder;
use crate::v1::drain_response::State as WireState;
use crate::v1::outcome::Kind;

impl TryFrom<v1::DeliverBatch> for DeliverBatch {
    type Error = Refusal;

    fn try_from(wire: v1::DeliverBatch) -> Result<Self, Refusal> {
        Ok(DeliverBatch {
            life: life(wire.life)?,
            pushes: list("deliveries", wire.deliveries, usize::MAX)?,
            notices: list("notices", wire.notices, usize::MAX)?,
        })
    }
}

impl From<&DeliverBatch> for v1::DeliverBatch {
    fn from(batch: &DeliverBatch) -> Self {
        v1::DeliverBatch {
            life: Some((&batch.life).into()),
            deliveries: batch.pushes.iter().map(v1::Delivery::from).collect(),
            notices: batch.notices.iter().map(v1::Notice::from).collect(),
        }
    }
}

impl TryFrom<v1::Outcome> for Outcome {
    type Error = Refusal;

    fn try_from(wire: v1::Outcome) -> Result<Self, Refusal> {
        let kind = match Kind::try_from(wire.kind) {
            Ok(Kind::Done) => session::Outcome::Done,
            Ok(Kind::NoAck) => session::Outcome::NoAck,
            Ok(Kind::NoSession) => session::Outcome::NoSession,
            Ok(Kind::Full) => session::Outcome::Full,
            Ok(Kind::Unspecified) | Err(_) => {
                return Err(invalid(format!("outcome {} is unknown", wire.kind)));
            }
        };
        Ok(Outcome {
            token: wire.token,
            kind,
        })
    }
}

impl From<Outcome> for v1::Outcome {
    fn from(outcome: Outcome) -> Self {
        let kind = match outcome.kind {
            session::Outcome::Done => Kind::Done,
            session::Outcome::NoAck => Kind::NoAck,
            session::Outcome::NoSession => Kind::NoSession,
            session::Outcome::Full => Kind::Full,
        };
        v1::Outcome {
            token: outcome.token,
            kind: kind.into(),
        }
    }
}

impl TryFrom<v1::Notice> for Notice {
    type Error = Refusal;

    fn try_from(wire: v1::Notice) -> Result<Self, Refusal> {
        let kind = match present("notice (frame, hint, close)", wire.notice)? {
            v1::notice::Notice::Frame(frame) => NoticeKind::Frame(frame),
            v1::notice::Notice::Hint(_) => NoticeKind::Hint,
            v1::notice::Notice::Resync(_) => NoticeKind::Resync,
            v1::notice::Notice::Close(refusal) => NoticeKind::Close(refusal.try_into()?),
        };
        Ok(Notice {
            session: field("notice.session", SessionId::new(wire.session))?,
            kind,
        })
    }
}

impl From<&Notice> for v1::Notice {
    fn from(notice: &Notice) -> Self {
        let kind = match &notice.kind {
            NoticeKind::Frame(frame) => v1::notice::Notice::Frame(frame.clone()),
            NoticeKind::Hint => v1::notice::Notice::Hint(true),
            NoticeKind::Resync => v1::notice::Notice::Resync(true),
            NoticeKind::Close(refusal) => v1::notice::Notice::Close(refusal.into()),
        };
        v1::Notice {
            session: notice.session.get(),
            notice: Some(kind),
        }
    }
}

impl TryFrom<v1::NoticeRequest> for NoticeBatch {
    type Error = Refusal;

    fn try_from(wire: v1::NoticeRequest) -> Result<Self, Refusal> {
        Ok(NoticeBatch {
            life: life(wire.life)?,
            notices: list("notices", wire.notices, usize::MAX)?,
        })
    }
}

impl From<&NoticeBatch> for v1::NoticeRequest {
    fn from(batch: &NoticeBatch) -> Self {
        v1::NoticeRequest {
            life: Some((&batch.life).into()),
            notices: batch.notices.iter().map(v1::Notice::from).collect(),
        }
    }
}

by_value! {
    DeliverBatch => v1::DeliverBatch,
    DrainCommand => v1::DrainRequest,
    Notice => v1::Notice,
    NoticeBatch => v1::NoticeRequest,
}

impl TryFrom<v1::DrainRequest> for DrainCommand {
    type Error = Refusal;

    fn try_from(wire: v1::DrainRequest) -> Result<Self, Refusal> {
        let order = match WireOrder::try_from(wire.order) {
            Ok(WireOrder::Unspecified) => None,
            Ok(WireOrder::Drain) => Some(DrainOrder::Drain {
                pace: NonZeroU32::new(wire.pace),
            }),
            Ok(WireOrder::Cancel) => Some(DrainOrder::Cancel),
            Err(_) => {
                return Err(invalid(format!("drain.order: no order is {}", wire.order)));
            }
        };
        Ok(DrainCommand {
            life: life(wire.life)?,
            order,
        })
    }
}

impl From<&DrainCommand> for v1::DrainRequest {
    fn from(command: &DrainCommand) -> Self {
        let (order, pace) = match command.order {
            None => (WireOrder::Unspecified, None),
            Some(DrainOrder::Drain { pace }) => (WireOrder::Drain, pace),
            Some(DrainOrder::Cancel) => (WireOrder::Cancel, None),
        };
        v1::DrainRequest {
            life: Some((&command.life).into()),
            order: order.into(),
            pace: pace.map_or(0, NonZeroU32::get),
        }
    }
}

impl TryFrom<v1::DrainResponse> for DrainProgress {
    type Error = Refusal;

    fn try_from(wire: v1::DrainResponse) -> Result<Self, Refusal> {
        let state = match wire.state() {
            WireState::Unspecified => BoatState::Unknown,
            WireState::Open => BoatState::Open,
            WireState::Tight => BoatState::Tight,
            WireState::Draining => BoatState::Draining,
        };
        Ok(DrainProgress {
            state,
            connections: wire.connections,
            waits: wire.waits,
        })
    }
}

impl From<DrainProgress> for v1::DrainResponse {
    fn from(progress: DrainProgress) -> Self {
        let state = match progress.state {
            BoatState::Unknown => WireState::Unspecified,
            BoatState::Open => WireState::Open,
            BoatState::Tight => WireState::Tight,
            BoatState::Draining => WireState::Draining,
        };
        v1::DrainResponse {
            state: state.into(),
            connections: progress.connections,
            waits: progress.waits,
        }
    }
}
