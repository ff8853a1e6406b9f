//! Expected trace of each message at the end of a world, from acknowledgements of devices,
//! mailboxes and history, never from the ledger.

use std::collections::{BTreeMap, BTreeSet};

use protocol::history::Direction;
use protocol::ledger::trace::MessageLife;
use protocol::mailbox::MailLocation;
use protocol::message::Target;
use protocol::session::{Session, Token};
use protocol::{MessageId, UserId};

use crate::plan::Fault;
use crate::world::World;

/// Events as they happened, recorded by the services or not.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// Message of each push.
    pushes: BTreeMap<(u32, u64), MessageId>,
    /// Acknowledgements of devices that reached a boat.
    acknowledgements: BTreeSet<(MessageId, Target)>,
    /// Targets of each message when it was last given to the delivery machine.
    expected_targets: BTreeMap<MessageId, BTreeSet<Target>>,
    /// Messages whose records a store failed while they were written: they came again.
    pub(crate) failed_messages: BTreeSet<MessageId>,
}

impl Witness {
    pub(crate) fn record_push(&mut self, token: Token, id: MessageId) {
        self.pushes.insert((token.source, token.number), id);
    }

    /// The session's device has acknowledged the push.
    pub(crate) fn record_push_ack(&mut self, token: Token, session: &Session) {
        let id = self.pushes.get(&(token.source, token.number));
        if let (Some(&id), Some(user)) = (id, session.user()) {
            let platform = session.platform();
            self.record_ack(id, Target { user, platform });
        }
    }

    pub(crate) fn record_ack(&mut self, id: MessageId, target: Target) {
        self.acknowledgements.insert((id, target));
    }

    pub(crate) fn record_targets(&mut self, id: MessageId, targets: impl Iterator<Item = Target>) {
        self.expected_targets.insert(id, targets.collect());
    }
}

/// Numbers of correct verdicts, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) repeat_count: u64,
    pub(crate) placed_count: u64,
    pub(crate) delivered_count: u64,
    pub(crate) stored_count: u64,
    pub(crate) by_sync_count: u64,
    /// Acknowledged by a device; the service that heard it died before it wrote the ledger, and the
    /// mailbox knew.
    pub(crate) by_mailbox_count: u64,
    /// The same, but the mailbox did not know either; or stored for a platform that is owed nothing,
    /// by a carrier that died.
    pub(crate) untold_count: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.repeat_count += other.repeat_count;
        self.placed_count += other.placed_count;
        self.delivered_count += other.delivered_count;
        self.stored_count += other.stored_count;
        self.by_sync_count += other.by_sync_count;
        self.by_mailbox_count += other.by_mailbox_count;
        self.untold_count += other.untold_count;
    }
}

impl World {
    /// Compares the verdict of each accepted message, sentence by sentence.
    pub(crate) fn judge_traces(&self) -> Result<Tally, String> {
        let mut tally = Tally::default();
        for (id, first) in self.judge.accepted_messages() {
            let entries = self.disk.ledger.get(&id).cloned().unwrap_or_default();
            let life = MessageLife::of(id, &entries);
            let ask = |target| (target, self.whereabouts(id, target));
            let verdict = life.verdict(&life.stored_for().map(ask).collect());
            let (sentence, targets) = verdict.split_first().ok_or("a trace without a word")?;
            if id != first {
                let expected = format!("a duplicate of {first}, dropped");
                expect(id, sentence, *sentence == expected, &expected)?;
                tally.repeat_count += 1;
                continue;
            }
            let from = self.judge_place(id, sentence)?;
            tally.placed_count += 1;
            self.judge_targets(id, from, targets, &mut tally)?;
        }
        Ok(tally)
    }

    fn whereabouts(&self, id: MessageId, target: Target) -> MailLocation {
        let mailbox = self.disk.mailboxes.get(&target.user);
        mailbox.map_or(MailLocation::Absent, |mailbox| {
            mailbox.find(target.platform, id, self.disk.policies(), self.now)
        })
    }

    /// Whether the mailbox of the target, read page by page to its end, shows the message.
    fn is_waiting(&self, id: MessageId, target: Target) -> bool {
        let Some(mailbox) = self.disk.mailboxes.get(&target.user) else {
            return false;
        };
        let (policies, bodies) = (self.disk.policies(), &self.disk.bodies);
        let page = mailbox.page(
            target.platform,
            None,
            usize::MAX,
            policies,
            bodies,
            self.now,
        );
        page.bodiless.contains(&id) || page.mails.iter().any(|mail| mail.id == id)
    }

    /// Checks the position of the message; returns its sender.
    fn judge_place(&self, id: MessageId, sentence: &str) -> Result<UserId, String> {
        let mut rows = self.disk.rows.values();
        let row = rows
            .find(|row| row.id() == id && row.direction() == Some(Direction::Out))
            .ok_or_else(|| format!("{id} has no row"))?;
        let conversation = row.placed.conversation;
        let expected = format!("placed at {} in {conversation} after ", row.seq());
        let is_right = sentence.starts_with(&expected) && !sentence.contains("not settled");
        expect(id, sentence, is_right, &expected)?;
        Ok(row.author())
    }

    fn judge_targets(
        &self,
        id: MessageId,
        from: UserId,
        sentences: &[String],
        tally: &mut Tally,
    ) -> Result<(), String> {
        let none = BTreeSet::new();
        let expected_targets = self.witness.expected_targets.get(&id).unwrap_or(&none);
        let matching_target =
            |(message, target): &(MessageId, Target)| (*message == id).then_some(*target);
        let acked_targets: BTreeSet<_> = self
            .witness
            .acknowledgements
            .iter()
            .filter_map(matching_target)
            .collect();
        let mailbox_targets: BTreeSet<_> = self
            .disk
            .stored_mail
            .iter()
            .filter_map(matching_target)
            .collect();
        let mut other_sentences: Vec<&String> = sentences.iter().collect();
        let targets = expected_targets
            .iter()
            .chain(&acked_targets)
            .chain(&mailbox_targets);
        for target in targets.copied().collect::<BTreeSet<_>>() {
            let recipient = format!("{}/{}", target.user, target.platform);
            let at = other_sentences
                .iter()
                .position(|sentence| mentions(sentence, &recipient));
            let sentence = at.map_or("nothing", |at| other_sentences.swap_remove(at).as_str());
            let is_delivered = sentence.starts_with(&format!("delivered to {recipient} after "));
            let is_stored = sentence.starts_with(&format!("stored offline for {recipient} after "));
            let is_by_sync = sentence.starts_with(&format!("{recipient} gets it by sync"));
            // A sender's own other devices are owed nothing.
            let is_own = target.user == from;
            let is_by_sync =
                is_by_sync || is_own && sentence != "nothing" && sentence.contains("by sync");
            let claims_it_waits = is_stored && sentence.contains("not fetched yet");
            if acked_targets.contains(&target) {
                let may_be_untold = self.someone_died() || is_own;
                // Mail still waits if a boat died between the acknowledgement and its report. A
                // device that is connected would have fetched it again.
                let is_by_mailbox = is_stored && claims_it_waits == self.is_waiting(id, target);
                // A power cut loses the last acknowledgements, and may lose that a new user exists
                // at all. A platform that signed in behind the message is owed nothing, either:
                // only its live session got it.
                let is_unowed = is_own || !expected_targets.contains(&target);
                let is_forgotten = sentence == "nothing" && (is_unowed || self.machine_died());
                let otherwise = is_by_mailbox || is_by_sync || is_forgotten;
                let is_right = is_delivered || may_be_untold && otherwise;
                expect(id, sentence, is_right, &format!("delivered to {recipient}"))?;
                match (is_delivered, is_by_mailbox && !claims_it_waits) {
                    (true, _) => tally.delivered_count += 1,
                    (false, true) => tally.by_mailbox_count += 1,
                    (false, false) => tally.untold_count += 1,
                }
            } else if mailbox_targets.contains(&target) {
                let expected = format!("stored offline for {recipient}, not fetched yet");
                let is_right = if self.is_waiting(id, target) {
                    claims_it_waits
                } else {
                    is_stored && !claims_it_waits && self.mailbox_was_lost()
                };
                // Stored for a dead session of a platform that is owed nothing, by a carrier that
                // died before it wrote the ledger: the next one knows of neither.
                let is_forgotten = sentence == "nothing"
                    && !expected_targets.contains(&target)
                    && self.carrier_died();
                expect(id, sentence, is_right || is_forgotten, &expected)?;
                if is_forgotten {
                    tally.untold_count += 1
                } else {
                    tally.stored_count += 1
                }
            } else if !is_own {
                let expected = format!("{recipient} gets it by sync");
                expect(id, sentence, is_by_sync, &expected)?;
                tally.by_sync_count += 1;
            }
        }
        // No other sentence may claim that anybody has the message.
        match other_sentences
            .iter()
            .find(|sentence| !sentence.contains("by sync"))
        {
            Some(claim) => Err(format!(
                "the trace of {id} says {claim:?}, and nobody saw that"
            )),
            None => Ok(()),
        }
    }

    fn machine_died(&self) -> bool {
        let is_embedded = self.plan.is_embedded;
        let is_crash = |fault: &Fault| match fault {
            Fault::CrashAll => true,
            Fault::SetBack(_) => is_embedded,
            _ => false,
        };
        self.plan.faults.iter().any(|(_, fault)| is_crash(fault))
    }

    fn carrier_died(&self) -> bool {
        self.plan.faults.iter().any(|(_, fault)| {
            matches!(
                fault,
                Fault::CrashCarrier | Fault::CrashAll | Fault::Rebalance | Fault::SetBack(_)
            )
        })
    }

    fn mailbox_was_lost(&self) -> bool {
        let is_flush = |fault: &Fault| matches!(fault, Fault::FlushMailbox);
        self.plan.faults.iter().any(|(_, fault)| is_flush(fault))
    }

    /// Whether a service may have died with acknowledgements not passed on, or an answer was lost.
    fn someone_died(&self) -> bool {
        let is_crash = |fault: &Fault| match fault {
            Fault::CrashBoat(_) | Fault::CrashStation(_) => true,
            Fault::CrashCarrier | Fault::CrashAll | Fault::SetBack(_) => true,
            Fault::Rebalance => true,
            // Fetched mail is gone from the flushed store before its removal is asked for.
            Fault::FlushMailbox => true,
            Fault::CrashDevice(_) | Fault::LoseDevice(_) | Fault::Away(..) => false,
            Fault::Cut(_) | Fault::Mute(..) | Fault::CacheAway(_) => false,
            Fault::CrashOperator | Fault::StepClock(..) | Fault::Silence(..) => false,
        };
        self.plan.is_lossy || self.plan.faults.iter().any(|(_, fault)| is_crash(fault))
    }
}

fn mentions(sentence: &str, recipient: &str) -> bool {
    sentence
        .split([' ', ',', ':'])
        .any(|word| word == recipient)
}

fn expect(id: MessageId, sentence: &str, is_right: bool, expected: &str) -> Result<(), String> {
    if is_right {
        Ok(())
    } else {
        Err(format!(
            "the trace of {id} says {sentence:?}, and what was seen says {expected:?}"
        ))
    }
}
