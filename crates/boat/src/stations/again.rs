//! What is asked of another station, where the first one may have done it and could not say so.

use api::v1;

pub(super) trait Again: Clone {
    /// `None` where only the first answer would say what was done.
    fn again(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// The first station may have published it, without leaving a key that the second one finds: as when a
/// client sends again, its conversation's writer looks for it.
impl Again for v1::SendBatchRequest {
    fn again(&self) -> Option<Self> {
        let mut request = self.clone();
        for send in request
            .items
            .iter_mut()
            .filter_map(|item| item.send.as_mut())
        {
            send.attempt = send.attempt.max(1);
        }
        Some(request)
    }
}

/// Who was registered anew by the first station is known to the second one, and nobody would be told to
/// sync: the sweep asks again, and tells those who are in doubt.
impl Again for v1::ReassertRequest {
    fn again(&self) -> Option<Self> {
        None
    }
}

// What these do a second time changes nothing.
impl Again for v1::ConnectRequest {}
impl Again for v1::RefreshRequest {}
impl Again for v1::ResumeTicketsRequest {}
impl Again for v1::DisconnectRequest {}
impl Again for v1::ReceiptsRequest {}
impl Again for v1::MailPageRequest {}
impl Again for v1::MailAckRequest {}
impl Again for v1::SyncCall {}
impl Again for v1::OnlineRequest {}
impl Again for v1::RevokedRequest {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_marked_as_tried_before() {
        let item = |attempt| v1::SendItem {
            send: Some(v1::Send {
                attempt,
                ..v1::Send::default()
            }),
            ..v1::SendItem::default()
        };
        let request = v1::SendBatchRequest {
            items: vec![item(0), item(3)],
            ..v1::SendBatchRequest::default()
        };
        let again = request.again().expect("it may be made again");
        assert_eq!(again.items, [item(1), item(3)]);
    }

    #[test]
    fn assertions_are_left_to_the_sweep() {
        assert_eq!(v1::ReassertRequest::default().again(), None);
    }
}
