//! Behaviour of boats and of the services behind them.

use super::*;

impl World {
    pub(super) fn step_wire(&mut self, index: usize) {
        let now = self.now;
        if self.wires[index]
            .session
            .poll_timeout()
            .is_some_and(|at| at <= now)
        {
            self.wires[index].session.handle_timeout(now);
            self.drain_session(index);
        }
        while (self.wires[index].up.front()).is_some_and(|(at, _)| *at <= now) {
            let (_, frame) = self.wires[index].up.pop_front().expect("it is there");
            self.wires[index].session.handle_frame(frame, now);
            self.drain_session(index);
        }
        while let Some(due_index) = self.wires[index]
            .answers
            .iter()
            .position(|(at, _)| *at <= now)
        {
            let (_, answer) = self.wires[index].answers.remove(due_index);
            self.answer(index, answer);
            self.drain_session(index);
        }
        while (self.wires[index].down.front()).is_some_and(|(at, _)| *at <= now) {
            let (_, down) = self.wires[index].down.pop_front().expect("it is there");
            let at = self.wires[index].end;
            match down {
                Down::Frame(frame) => {
                    self.ends[at].core.handle_frame(frame, now);
                    self.drain_end(at);
                }
                Down::End(why) => self.hang_up(at, why),
            }
        }
    }

    pub(super) fn drain_session(&mut self, index: usize) {
        while let Some(action) = self.wires[index].session.poll_action() {
            match action {
                session::Action::Transmit(outgoing) => {
                    let weight = outgoing.weight();
                    self.transmit_down(index, outgoing);
                    self.wires[index].session.handle_written(weight, self.now);
                }
                session::Action::Admit(hello) => {
                    self.later(index, 30, Answer::Admitted(hello.platform));
                }
                session::Action::Submit(batch) => {
                    let sends = batch.into_iter().map(|submit| submit.send).collect();
                    let trouble = match self.rng.random_range(0..2) {
                        _ if !self.chance(self.weather.refusals) => Trouble::None,
                        0 => Trouble::Refused,
                        _ => Trouble::Unknown,
                    };
                    let slow = if self.chance(5) { 9000 } else { 50 };
                    self.later(index, slow, Answer::Submitted(sends, trouble));
                }
                session::Action::Receipts(ack) => self.later(index, 30, Answer::Receipts(ack)),
                session::Action::FetchMail {
                    cursor: after,
                    limit,
                } => {
                    self.later(index, 30, Answer::Page(after, limit));
                }
                // Tokens of these clients do not expire.
                session::Action::Refresh(_)
                | session::Action::Subscribe(_)
                | session::Action::Watch(_) => {}
                session::Action::Sync(request) => {
                    let slow = if self.chance(3) { 15_000 } else { 50 };
                    self.later(index, slow, Answer::Sync(request));
                }
                session::Action::Resolve { token, outcome } => {
                    if outcome != Outcome::Done {
                        self.undelivered(index, token);
                    }
                }
                session::Action::RemoveMail { ids } => {
                    let end = &self.ends[self.wires[index].end];
                    let mail = self
                        .server
                        .mail
                        .entry((end.user, end.platform))
                        .or_default();
                    mail.retain(|id, _| !ids.contains(id));
                }
                session::Action::Close(why) => {
                    let when = self.soon(60);
                    let wire = &mut self.wires[index];
                    if !wire.silent && !wire.is_end_noticed {
                        let when = wire
                            .down
                            .back()
                            .map_or(when, |(previous, _)| when.max(*previous));
                        wire.down.push_back((when, Down::End(why)));
                    }
                }
                session::Action::Count(_) | session::Action::Leave => {}
            }
        }
    }

    pub(super) fn later(&mut self, index: usize, longest: u64, answer: Answer) {
        let when = self.soon(longest);
        self.wires[index].answers.push((when, answer));
    }

    pub(super) fn transmit_down(&mut self, index: usize, outgoing: Outgoing) {
        let frame = match outgoing {
            Outgoing::Frame(frame) => frame,
            Outgoing::Encoded(bytes) | Outgoing::Notice(bytes) => {
                decode_server(bytes, 1 << 20).expect("our own frame")
            }
        };
        let earliest = self.soon(60);
        let wire = &mut self.wires[index];
        if !wire.silent && !wire.is_end_noticed {
            let when = wire
                .down
                .back()
                .map_or(earliest, |(previous, _)| earliest.max(*previous));
            wire.down.push_back((when, Down::Frame(frame)));
        }
    }

    pub(super) fn answer(&mut self, index: usize, answer: Answer) {
        let now = self.now;
        let end = self.wires[index].end;
        let (me, device) = (self.ends[end].user, self.ends[end].device.clone());
        match answer {
            Answer::Admitted(platform) => self.admit(index, me, platform),
            Answer::Submitted(sends, trouble) => {
                let answers = self.submit(index, me, &device, sends, trouble);
                self.wires[index].session.handle_submitted(answers, now);
            }
            Answer::Receipts(ack) => {
                self.receive(end, &ack);
                let reply = Acked {
                    kind: ack.kind,
                    ids: ack.items.iter().map(|item| item.id).collect(),
                    refusals: Vec::new(),
                };
                self.wires[index].session.handle_receipts(Ok(reply), now);
            }
            Answer::Page(after_id, limit) => {
                let platform = self.ends[end].platform;
                let mail = self.server.mail.entry((me, platform)).or_default();
                let after_id = after_id.map(|cursor| cursor.id);
                let mut rest = mail
                    .iter()
                    .filter(|(id, _)| after_id.is_none_or(|after_id| **id > after_id));
                let page: Vec<&Placed> =
                    rest.by_ref().take(limit as usize).map(|(_, p)| p).collect();
                let next = rest.next().and_then(|_| page.last()).map(|last| {
                    protocol::mailbox::MailCursor {
                        accepted_at: last.message.accepted_at,
                        id: last.message.id,
                    }
                });
                let mails = page.iter().map(|entry| PageItem {
                    id: entry.message.id,
                    frame: encode_message(entry),
                });
                let page = Page {
                    mails: mails.collect(),
                    next,
                };
                self.wires[index].session.handle_page(Ok(page), now);
            }
            Answer::Sync(request) => {
                let answer = self.server.answer(me, request.query, now);
                let answer = answer.map(|answer| {
                    Outgoing::Frame(ServerFrame::Page(SyncPage {
                        request: request.request,
                        answer,
                    }))
                });
                self.wires[index]
                    .session
                    .handle_answer(request.request, answer, now);
            }
        }
    }

    pub(super) fn admit(&mut self, index: usize, me: UserId, platform: Platform) {
        for other in 0..self.wires.len() {
            let end = &self.ends[self.wires[other].end];
            if other != index && end.user == me && end.platform == platform {
                // The other session is the same device's: an old connection that was admitted late.
                let why = Refusal::new(Code::Reconnect, "replaced by another connection");
                self.wires[other].session.close(why, self.now);
                self.drain_session(other);
            }
        }
        let mail = self.server.mail.entry((me, platform)).or_default();
        let admission = Admission {
            user: me,
            marker: 1,
            recovered: true,
            mail_waits: !mail.is_empty(),
            cluster: 1,
            server_time: self.now,
            expires_at: Timestamp::MAX,
        };
        (self.wires[index].session).handle_admitted(Ok(admission), self.now);
    }

    pub(super) fn submit(
        &mut self,
        index: usize,
        me: UserId,
        device: &DeviceId,
        sends: Vec<Send>,
        trouble: Trouble,
    ) -> Vec<Result<protocol::frame::Accepted, Refusal>> {
        let end = self.wires[index].end;
        // From here on all sends to the same recipient fail, as in one produce batch.
        let fails_from = match trouble {
            Trouble::None => sends.len(),
            Trouble::Refused | Trouble::Unknown => self.rng.random_range(0..sends.len()),
        };
        let mut failing_receivers: Vec<Recipient> = Vec::new();
        let mut answers = Vec::new();
        for (place, send) in sends.into_iter().enumerate() {
            if place == fails_from {
                failing_receivers.push(send.to);
            }
            let fails = failing_receivers.contains(&send.to);
            let is_first = place == fails_from;
            if !fails || (trouble == Trouble::Unknown && is_first) {
                let (acceptance, result) = self.server.accept(me, device, &send, self.now);
                match result {
                    Some(SendResult::Placed(entry)) => self.deliver(index, end, &entry),
                    Some(change_result @ (SendResult::Changed(..) | SendResult::Hidden(..))) => {
                        self.next += 1;
                        let when = self.soon(200);
                        self.pushes.insert((when, self.next), (change_result, end));
                    }
                    Some(SendResult::Nothing) | None => {}
                }
                if !fails {
                    answers.push(Ok(acceptance));
                    continue;
                }
            }
            answers.push(Err(Refusal::new(
                Code::Unavailable,
                "the log did not answer",
            )));
        }
        answers
    }

    /// Echoes the position to the sending session, and schedules the push of the message.
    pub(super) fn deliver(&mut self, index: usize, end: usize, entry: &Placed) {
        let echo = ServerFrame::Placed(PlacedEcho {
            send_id: entry.message.send_id,
            id: entry.message.id,
            conversation: entry.conversation,
            position: entry.position,
        });
        if !self.chance(10) {
            self.wires[index]
                .session
                .notice(api::codec::encode_server(&echo), self.now);
        }
        self.next += 1;
        let when = self.soon(200);
        let result = SendResult::Placed(entry.clone());
        self.pushes.insert((when, self.next), (result, end));
    }

    /// Pushes a change to all sessions there; a client that misses it notices the gap, or syncs.
    pub(super) fn push_change(&mut self, conversation: ConversationId, change: OrderedChange) {
        let frame = ServerFrame::Changed {
            conversation,
            changed: change,
        };
        self.tell_all(&frame, |user| conversation.peer_of(user).is_some());
    }

    pub(super) fn push_list_event(&mut self, of: UserId, word: ListEvent) {
        self.tell_all(&ServerFrame::Listed(word), |user| user == of);
    }

    fn tell_all(&mut self, frame: &ServerFrame, is_receiver: impl Fn(UserId) -> bool) {
        let bytes = api::codec::encode_server(frame);
        for wire in 0..self.wires.len() {
            let user = self.ends[self.wires[wire].end].user;
            if !is_receiver(user) || !self.wires[wire].session.is_open() {
                continue;
            }
            if self.chance(10) {
                self.wires[wire].session.resync(self.now);
            } else {
                self.wires[wire].session.notice(bytes.clone(), self.now);
            }
            self.drain_session(wire);
        }
    }

    pub(super) fn push(&mut self, entry: &Placed, origin: usize) {
        let message = &entry.message;
        let Recipient::User(to) = message.to else {
            return;
        };
        for at in 0..self.ends.len() {
            let end = &self.ends[at];
            let is_other_own = end.user == message.from && at != origin;
            if end.user != to && !is_other_own {
                continue;
            }
            let key = (end.user, end.platform);
            let open: Vec<usize> = (0..self.wires.len())
                .filter(|wire| self.wires[*wire].end == at && self.wires[*wire].session.is_open())
                .collect();
            if open.is_empty() && end.user == to {
                self.server
                    .mail
                    .entry(key)
                    .or_default()
                    .insert(message.id, entry.clone());
            }
            for index in open {
                let session = &mut self.wires[index].session;
                let push = Push {
                    token: PushToken::from_number(message.id.get() as u64),
                    session: session.id(),
                    message: message.id,
                    frame: encode_message(entry),
                    needs_ack: true,
                    trace: None,
                };
                session.push(u32::from(is_other_own), push, self.now);
                self.drain_session(index);
            }
        }
    }

    /// Handles a failed push: the recipient's platform finds the message in the mailbox, the
    /// sender's other device syncs.
    pub(super) fn undelivered(&mut self, index: usize, token: Token) {
        let at = self.wires[index].end;
        if token.source == 1 {
            self.wires[index].session.resync(self.now);
            return;
        }
        let id = MessageId::new(token.number as i64).expect("positive");
        let entry = (self.server.logs.values().flatten())
            .find(|entry| entry.message.id == id)
            .cloned()
            .expect("it was placed");
        let key = (self.ends[at].user, self.ends[at].platform);
        self.server.mail.entry(key).or_default().insert(id, entry);
        for wire in 0..self.wires.len() {
            if self.wires[wire].end == at && wire != index {
                self.wires[wire].session.hint();
                self.drain_session(wire);
            }
        }
        self.wires[index].session.hint();
    }

    /// Tells the user's other devices of a read.
    fn read_everywhere(&mut self, item: &AckItem, by: UserId) {
        self.server.read(by, item.conversation, item.seq, self.now);
        let receipt = Receipt {
            kind: ReceiptKind::Read,
            conversation: item.conversation,
            id: item.id,
            seq: item.seq,
            by,
            at: self.now,
        };
        let bytes = api::codec::encode_server(&ServerFrame::Receipts(vec![receipt]));
        for wire in 0..self.wires.len() {
            let is_own = self.ends[self.wires[wire].end].user == by;
            if is_own && !self.chance(10) {
                self.wires[wire].session.notice(bytes.clone(), self.now);
                self.drain_session(wire);
            }
        }
    }

    /// Checks that the device has every message it acknowledges. // I8
    pub(super) fn receive(&mut self, at: usize, ack: &Ack) {
        for item in &ack.items {
            let progress = self.ends[at].snapshot.conversations.get(&item.conversation);
            let has = progress.is_some_and(|progress| progress.cursor.seq >= item.seq);
            assert!(
                has || ack.kind == ReceiptKind::Read,
                "acknowledged what is not stored"
            );
            let by = self.ends[at].user;
            if ack.kind == ReceiptKind::Read {
                self.read_everywhere(item, by);
            }
            let notice = self
                .server
                .receipt(ack.kind, item.conversation, item.seq, by, self.now);
            let Some((from, receipt)) = notice else {
                continue;
            };
            let bytes = api::codec::encode_server(&ServerFrame::Receipts(vec![receipt]));
            for wire in 0..self.wires.len() {
                if self.ends[self.wires[wire].end].user == from {
                    self.wires[wire].session.notice(bytes.clone(), self.now);
                    self.drain_session(wire);
                }
            }
        }
    }
}
