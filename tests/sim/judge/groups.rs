//! Groups: nobody sees what was never theirs to read, and every member has all that was said since they came.

use protocol::{ConversationId, Seq};

use crate::app::Said;
use crate::crowd::Crowd;
use crate::device::Device;
use crate::model::{Model, Talk};
use crate::world::World;

impl World {
    /// Who is in, and as what, is what the log comes to; one row a message.
    pub(crate) fn judge_groups(&self, model: &Model) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let ConversationId::Group(number) = conversation else {
                continue;
            };
            let rows = self.group_rows(*number);
            let rows: Vec<_> = rows.into_iter().map(|(seq, row)| (seq, row.id)).collect();
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
                let member = kept.as_ref().and_then(|group| group.members.get(&user));
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

    pub(crate) fn judge_in_group(
        &self,
        device: &Device,
        conversation: ConversationId,
        talk: &Talk,
    ) -> Result<(), String> {
        let view = device.app.view(conversation);
        let Some(crowd) = &talk.group else {
            return match view.is_empty() {
                true => Ok(()),
                false => Err(format!("{} shows {view:?} of no group", device.name)),
            };
        };
        nothing_strange(device, conversation, crowd, &view)?;
        if !crowd.is_in(device.user) {
            return Ok(());
        }
        let since = crowd.since(device.user);
        let behind = |said: &&Said| said.seq > since;
        let got: Vec<_> = view.iter().filter(behind).collect();
        let expected = talk.view_of(device.user);
        let expected: Vec<_> = expected.iter().filter(behind).collect();
        let is_cleared = talk.cleared(device.user) >= talk.end();
        let is_part = is_cleared && got.len() < expected.len();
        if got != expected && !is_part {
            return Err(format!(
                "{} shows {got:?} of {conversation}, the log says {expected:?}",
                device.name
            ));
        }
        Ok(())
    }
}

fn nothing_strange(
    device: &Device,
    conversation: ConversationId,
    crowd: &Crowd,
    view: &[Said],
) -> Result<(), String> {
    let mut last = Seq::ZERO;
    for said in view {
        if !crowd.may_have_heard(device.user, said.seq) {
            let name = &device.name;
            return Err(format!(
                "{name} shows {said:?} of {conversation}, not theirs to read"
            ));
        }
        if said.seq <= last {
            return Err(format!("{} shows {} after {last}", device.name, said.seq));
        }
        last = said.seq;
    }
    Ok(())
}
