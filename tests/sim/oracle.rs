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
    heard: BTreeSet<(MessageId, Target)>,
    /// Targets of each message when it was last given to the delivery machine.
    owed: BTreeMap<MessageId, BTreeSet<Target>>,
    /// Messages whose records a store failed while they were written: they came again.
    pub(crate) failed: BTreeSet<MessageId>,
}

impl Witness {
    pub(crate) fn pushed(&mut self, token: Token, id: MessageId) {
        self.pushes.insert((token.source, token.number), id);
    }

    /// The session's device has acknowledged the push.
    pub(crate) fn push_acknowledged(&mut self, token: Token, session: &Session) {
        let id = self.pushes.get(&(token.source, token.number));
        if let (Some(&id), Some(user)) = (id, session.user()) {
            let platform = session.platform();
            self.acknowledged(id, Target { user, platform });
        }
    }

    pub(crate) fn acknowledged(&mut self, id: MessageId, target: Target) {
        self.heard.insert((id, target));
    }

    pub(crate) fn owed(&mut self, id: MessageId, targets: impl Iterator<Item = Target>) {
        self.owed.insert(id, targets.collect());
    }
}

/// Right verdicts of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) repeats: u64,
    pub(crate) placed: u64,
    pub(crate) delivered: u64,
    pub(crate) stored: u64,
    pub(crate) by_sync: u64,
    /// Acknowledged by a device; the service that heard it died before it wrote the ledger, and the
    /// mailbox knew.
    pub(crate) by_mailbox: u64,
    /// The same, but the mailbox did not know either; or stored for a platform that is owed nothing,
    /// by a carrier that died.
    pub(crate) untold: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.repeats += other.repeats;
        self.placed += other.placed;
        self.delivered += other.delivered;
        self.stored += other.stored;
        self.by_sync += other.by_sync;
        self.by_mailbox += other.by_mailbox;
        self.untold += other.untold;
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
                let expected = format!("a repeat of {first}, dropped: the first one counts");
                expect(id, sentence, *sentence == expected, &expected)?;
                tally.repeats += 1;
                continue;
            }
            let from = self.judge_place(id, sentence)?;
            tally.placed += 1;
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
    fn waits(&self, id: MessageId, target: Target) -> bool {
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
        let right = sentence.starts_with(&expected) && !sentence.contains("not settled");
        expect(id, sentence, right, &expected)?;
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
        let owed = self.witness.owed.get(&id).unwrap_or(&none);
        let of_this = |(message, target): &(MessageId, Target)| (*message == id).then_some(*target);
        let heard: BTreeSet<_> = self.witness.heard.iter().filter_map(of_this).collect();
        let stored: BTreeSet<_> = self.disk.stored.iter().filter_map(of_this).collect();
        let mut untold: Vec<&String> = sentences.iter().collect();
        let targets = owed.iter().chain(&heard).chain(&stored);
        for target in targets.copied().collect::<BTreeSet<_>>() {
            let who = format!("{}/{}", target.user, target.platform);
            let at = untold.iter().position(|sentence| names(sentence, &who));
            let sentence = at.map_or("nothing", |at| untold.swap_remove(at).as_str());
            let delivered = sentence.starts_with(&format!("delivered to {who} after "));
            let is_stored = sentence.starts_with(&format!("stored offline for {who} after "));
            let by_sync = sentence.starts_with(&format!("{who} finds it by sync"));
            // A sender's own other devices are owed nothing.
            let own = target.user == from;
            let by_sync = by_sync || own && sentence != "nothing" && sentence.contains("by sync");
            let claims_it_waits = is_stored && sentence.contains("not fetched yet");
            if heard.contains(&target) {
                let may_be_untold = self.someone_died() || own;
                // Mail still waits if a boat died between the acknowledgement and its report. A
                // device that is connected would have fetched it again.
                let by_mailbox = is_stored && claims_it_waits == self.waits(id, target);
                // A power cut loses the last acknowledgements, and may lose that a new user exists
                // at all. A platform that signed in behind the message is owed nothing, either:
                // only its live session got it.
                let is_unowed = own || !owed.contains(&target);
                let is_forgotten = sentence == "nothing" && (is_unowed || self.machine_died());
                let otherwise = by_mailbox || by_sync || is_forgotten;
                let right = delivered || may_be_untold && otherwise;
                expect(id, sentence, right, &format!("delivered to {who}"))?;
                match (delivered, by_mailbox && !claims_it_waits) {
                    (true, _) => tally.delivered += 1,
                    (false, true) => tally.by_mailbox += 1,
                    (false, false) => tally.untold += 1,
                }
            } else if stored.contains(&target) {
                let expected = format!("stored offline for {who}, not fetched yet");
                let right = if self.waits(id, target) {
                    claims_it_waits
                } else {
                    is_stored && !claims_it_waits && self.mailbox_was_lost()
                };
                // Stored for a dead session of a platform that is owed nothing, by a carrier that
                // died before it wrote the ledger: the next one knows of neither.
                let is_forgotten =
                    sentence == "nothing" && !owed.contains(&target) && self.carrier_died();
                expect(id, sentence, right || is_forgotten, &expected)?;
                if is_forgotten {
                    tally.untold += 1
                } else {
                    tally.stored += 1
                }
            } else if !own {
                let expected = format!("{who} finds it by sync");
                expect(id, sentence, by_sync, &expected)?;
                tally.by_sync += 1;
            }
        }
        // No other sentence may claim that anybody has the message.
        match untold.iter().find(|sentence| !sentence.contains("by sync")) {
            Some(claim) => Err(format!(
                "the trace of {id} says {claim:?}, and nobody saw that"
            )),
            None => Ok(()),
        }
    }

    fn machine_died(&self) -> bool {
        let is_embedded = self.plan.embedded;
        let died = |fault: &Fault| match fault {
            Fault::CrashAll => true,
            Fault::SetBack(_) => is_embedded,
            _ => false,
        };
        self.plan.faults.iter().any(|(_, fault)| died(fault))
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
        let lost = |fault: &Fault| matches!(fault, Fault::FlushMailbox);
        self.plan.faults.iter().any(|(_, fault)| lost(fault))
    }

    /// Whether a service may have died with acknowledgements not passed on, or an answer was lost.
    fn someone_died(&self) -> bool {
        let died = |fault: &Fault| match fault {
            Fault::CrashBoat(_) | Fault::CrashStation(_) => true,
            Fault::CrashCarrier | Fault::CrashAll | Fault::SetBack(_) => true,
            Fault::Rebalance => true,
            // Fetched mail is gone from the flushed store before its removal is asked for.
            Fault::FlushMailbox => true,
            Fault::CrashDevice(_) | Fault::LoseDevice(_) | Fault::Away(..) => false,
            Fault::Cut(_) | Fault::Mute(..) | Fault::CacheAway(_) => false,
            Fault::CrashOperator | Fault::StepClock(..) | Fault::Silence(..) => false,
        };
        self.plan.lossy || self.plan.faults.iter().any(|(_, fault)| died(fault))
    }
}

fn names(sentence: &str, who: &str) -> bool {
    sentence.split([' ', ',', ':']).any(|word| word == who)
}

fn expect(id: MessageId, said: &str, right: bool, expected: &str) -> Result<(), String> {
    if right {
        Ok(())
    } else {
        Err(format!(
            "the trace of {id} says {said:?}, and what was seen says {expected:?}"
        ))
    }
}
