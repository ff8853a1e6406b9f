//! Judges of ring 1, applied to the stores of a whole system.

use std::collections::{BTreeMap, BTreeSet};

use protocol::ledger::trace::{MessageLife, TraceEnd};
use protocol::ledger::{LedgerEntry, LedgerEvent};
use protocol::message::Target;
use protocol::record::Work;
use protocol::{ConversationId, Seq, UserId};
use tests::conversations::{StoredConversation, StoredConversations};
use tests::core_device::CoreDevice;
use tests::evidence::Evidence;
use tests::judge::{self, Ledger, Rows};
use tests::model::Model;

use crate::letters::Letters;
use crate::scenes::Scene;
use crate::world::World;

/// Stores of a world, read as a whole.
pub(crate) struct Stores {
    pub(crate) log: Vec<Work>,
    /// Offset of each record of the log in its partition.
    offsets: Vec<u64>,
    pub(crate) rows: Rows,
    ledger: Ledger,
    pub(crate) conversations: StoredConversations,
    letters: Letters,
}

impl Stores {
    async fn read(world: &World) -> backend::Result<Stores> {
        let machine = world.machine();
        let backends = &machine.backends;
        let records = judge::accepted_records(backends).await?.into_iter();
        let (offsets, log): (Vec<u64>, Vec<Work>) = records.unzip();
        let users: BTreeSet<UserId> = world
            .devices
            .iter()
            .map(|device| device.lock().user)
            .collect();
        let messages = log.iter().filter_map(judge::message_key);
        let conversations: BTreeSet<ConversationId> = messages
            .filter_map(|(_, conversation)| conversation)
            .collect();
        let rows = judge::rows(backends, &users, &conversations).await?;
        let ledger = judge::ledger(backends, &log).await?;
        let conversations = StoredConversation::read(backends, conversations).await?;
        let mut stores = Stores {
            log,
            offsets,
            rows,
            ledger,
            conversations,
            letters: Letters::default(),
        };
        if world.plan.scene.has_letters() {
            let bounds = world.settings.station.bounds();
            stores.letters = Letters::read(backends, bounds, &stores).await?;
        }
        Ok(stores)
    }

    /// Records of the log, each with its offset.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, &Work)> {
        self.offsets.iter().copied().zip(&self.log)
    }

    /// Model of the whole log, with the places of changes that died.
    fn model(&self) -> Model {
        let records = self.records();
        let records = records.filter(|(offset, work)| self.letters.counts(*offset, work));
        let mut model = Model::of(records.map(|(_, work)| work));
        for (conversation, stored) in &self.conversations {
            if !stored.died.is_empty() {
                let talk = model.talks.entry(*conversation).or_default();
                talk.died.extend(stored.died.keys());
            }
        }
        model
    }
}

impl World {
    /// Judges the first `count` devices, and everything accepted.
    ///
    /// # Errors
    /// The first thing wrong, or not yet right.
    pub(crate) async fn judge(&self, count: usize) -> Result<(), String> {
        let devices = &mut self.devices[..count].iter();
        if let Some(stopped_device) = devices.find(|device| !device.lock().is_running()) {
            return Err(format!("{} is not there", stopped_device.lock().name));
        }
        let stores = Stores::read(self)
            .await
            .map_err(|error| error.to_string())?;
        stores.letters.judge(&self.plan.scene, &stores)?;
        let accepted_count = self.judge_devices(count, &stores)?;
        self.judge_mailboxes(count).await?;
        if self.plan.scene.scene == Some(Scene::Visits) {
            judge_mail_in_ledger(&stores)?;
        }
        if self.plan.is_quiet() {
            judge_pushes(&stores)?;
        }
        self.audit(accepted_count).await?;
        self.examine().await
    }

    /// Judges the devices. Returns the number of accepted sends.
    fn judge_devices(&self, count: usize, stores: &Stores) -> Result<u64, String> {
        let devices: Vec<_> = self.devices[..count].iter().map(|it| it.lock()).collect();
        let devices: Vec<&CoreDevice> = devices.iter().map(|device| &**device).collect();
        let (mut accepted_ids, mut judged_ids) = (BTreeMap::new(), BTreeSet::new());
        for device in &devices {
            for (send_id, id) in &device.accepted_ids {
                if device.change_sends.contains(send_id) {
                    _ = judged_ids.insert(*id)
                } else {
                    _ = accepted_ids.insert(*send_id, *id)
                }
            }
        }
        let lives = stores
            .ledger
            .iter()
            .map(|(id, entries)| MessageLife::of(*id, entries));
        let repeats = lives.filter_map(|life| Some((life.message, life.repeat_of?)));
        let repeats = repeats.collect();
        let evidence = Evidence {
            rows: &stores.rows,
            ledger: &stores.ledger,
            devices: devices.clone(),
            complete_devices: devices,
            accepted_ids: &accepted_ids,
            judged_ids: &judged_ids,
            repeats: &repeats,
            late_ids: &stores.letters.late_ids(),
            open_letters: &stores.letters.open_ids(),
        };
        evidence.judge_devices()?;
        evidence.judge_senders()?;
        evidence.judge_history()?;
        evidence.judge_ledger()?;
        let model = stores.model();
        let stored = &stores.conversations;
        evidence.judge_changes(&model, stored)?;
        evidence.judge_overlays(&model, stored)?;
        evidence.judge_fates(&model, stored, |_| !self.plan.is_quiet())?;
        evidence.judge_groups(&model, stored)?;
        evidence.judge_views(&model)?;
        evidence.judge_registers(&model, stored)?;
        // A read position waits for no fsync, and the next row of its conversation restores it.
        if self.plan.power_cuts.is_empty() {
            evidence.judge_reads(stored)?;
        }
        // Only devices that synced when all was quiet have a current list.
        if count == self.devices.len() && !self.plan.lists_miss_rows() {
            evidence.judge_lists(&model, |device, conversation| {
                let registers = stored
                    .get(&conversation)
                    .and_then(|it| it.registers.get(&device.user));
                let read = registers.map_or(Seq::ZERO, |registers| registers.read_seq);
                let own_read = device.snapshot.list.get(&conversation);
                let own_read = own_read.map_or(Seq::ZERO, |row| row.read_seq);
                // The next row brings the count of a position that a power cut took back.
                (self.plan.power_cuts.is_empty() || own_read <= read).then_some(read)
            })?;
        }
        Ok((accepted_ids.len() + judged_ids.len()) as u64)
    }

    /// I9: no mail waits for a device that is there.
    async fn judge_mailboxes(&self, count: usize) -> Result<(), String> {
        let machine = self.machine();
        for device in &self.devices[..count] {
            let (target, name) = {
                let device = device.lock();
                let target = Target {
                    user: device.user,
                    platform: device.platform,
                };
                (target, device.name.clone())
            };
            let waiting_count = machine.backends.mailbox.waiting(target).await;
            let waiting_count = waiting_count.map_err(|error| error.to_string())?;
            if waiting_count > 0 {
                return Err(format!(
                    "{waiting_count} messages wait in the mailbox of {name}, which runs"
                ));
            }
        }
        Ok(())
    }

    /// Audits the books, as an operator does.
    async fn audit(&self, accepted_count: u64) -> Result<(), String> {
        let report = judge::audit_all(&self.machine().backends).await?;
        if report.balanced && report.in_flight == 0 && report.accepted >= accepted_count {
            Ok(())
        } else {
            Err(format!(
                "{accepted_count} were accepted, and the audit says {report:?}"
            ))
        }
    }

    /// Examines the stores of each user, as a doctor does.
    async fn examine(&self) -> Result<(), String> {
        let users: BTreeSet<UserId> = self
            .devices
            .iter()
            .map(|device| device.lock().user)
            .collect();
        let machine = self.machine();
        for user in users {
            let report = machine.doctor.examine(user).await;
            let report = report.expect("it sees the stores");
            if let Some(difference) = report.differences.items.first() {
                return Err(format!("the doctor says of {user}: {difference:?}"));
            }
        }
        Ok(())
    }
}

/// Checks the ledger against mailboxes that are empty, where no host died: what was fetched had been
/// stored, and nothing is said to wait.
fn judge_mail_in_ledger(stores: &Stores) -> Result<(), String> {
    for (id, entries) in &stores.ledger {
        let stored_targets: BTreeSet<_> = entries
            .iter()
            .filter(|entry| entry.event == LedgerEvent::StoredOffline)
            .filter_map(|entry| entry.target)
            .collect();
        let is_fetch = |entry: &&LedgerEntry| matches!(entry.event, LedgerEvent::Fetched { .. });
        for entry in entries.iter().filter(is_fetch) {
            let was_stored = |target| stored_targets.contains(&target);
            if !entry.target.is_some_and(was_stored) {
                return Err(format!(
                    "the ledger says that {id} was fetched, and not that it was stored: {entry:?}"
                ));
            }
        }
        for (target, obligation) in MessageLife::of(*id, entries).obligations {
            if matches!(obligation.end, Some(TraceEnd::Stored { .. })) {
                return Err(format!(
                    "the ledger says that {id} waits for {target:?}, whose mailbox is empty"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that no push failed, where nothing happens: all devices acknowledge at once (pitfall C of
/// S1).
fn judge_pushes(stores: &Stores) -> Result<(), String> {
    for (id, entries) in &stores.ledger {
        let is_failure = |entry: &&LedgerEntry| {
            let event = &entry.event;
            matches!(
                event,
                LedgerEvent::Failed { .. } | LedgerEvent::Retried { .. }
            )
        };
        if let Some(entry) = entries.iter().find(is_failure) {
            return Err(format!("a push of {id} failed in a quiet world: {entry:?}"));
        }
    }
    Ok(())
}
