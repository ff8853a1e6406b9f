//! Repeats of a call at another station, when the first one may have carried it out without
//! answering.

use api::v1;

pub(super) trait Again: Clone {
    /// Returns the request to repeat; `None` if only the first answer would say what was done.
    fn repeat_request(&self) -> Option<Self> {
        Some(self.clone())
    }
}

/// The first station may have published the message without leaving a key that the second one
/// finds. So the repeat counts as a client's resend, and the writer of the conversation looks for
/// the message.
impl Again for v1::SendBatchRequest {
    fn repeat_request(&self) -> Option<Self> {
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

/// Not repeated: a session that the first station registered anew would be known to the second, and
/// its client would not be told to sync. The sweep asks again, and tells the sessions in doubt.
impl Again for v1::ReassertRequest {
    fn repeat_request(&self) -> Option<Self> {
        None
    }
}

// Repeating these changes nothing.
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
        let repeat = request.repeat_request().expect("it may be made again");
        assert_eq!(repeat.items, [item(1), item(3)]);
    }

    #[test]
    fn assertions_are_left_to_the_sweep() {
        assert_eq!(v1::ReassertRequest::default().repeat_request(), None);
    }
}
