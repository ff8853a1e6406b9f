//! Groups: members and messages are those of the log.

use protocol::ConversationId;
use tests::model::Model;

use crate::world::World;

impl World {
    /// Checks members, their roles and the rows against the log: one row for each message.
    pub(crate) fn judge_groups(&self, model: &Model) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let ConversationId::Group(number) = conversation else {
                continue;
            };
            let rows = self.disk.rows_of_group(*number);
            let rows: Vec<_> = rows.into_iter().map(|(seq, row)| (seq, row.id())).collect();
            let said = talk.view();
            let said: Vec<_> = said.iter().map(|said| (said.seq, said.id)).collect();
            if rows != said {
                return Err(format!(
                    "{conversation} has {rows:?}, the log says {said:?}"
                ));
            }
            let kept = self.group(*number);
            let users = self.devices.iter().map(|device| device.user);
            for user in users {
                let member = kept.as_ref().and_then(|group| group.members.get(user));
                let got = member.map(|member| (member.role, member.since));
                let crowd = talk.group.as_ref().filter(|crowd| crowd.ever_had(user));
                let expected = crowd.map(|crowd| (crowd.role(user), crowd.since(user)));
                if got != expected {
                    return Err(format!(
                        "{user} in {number}: {got:?}, the log says {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
