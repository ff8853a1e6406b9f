//! Groups: commands, and members.

use protocol::frame::MemberPage;
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::{Refusal, Timestamp, UserId};

use super::{field, invalid, present};
use crate::v1;
use crate::v1::group_wish::Wish as Kind;

/// Role; `None` if it is unspecified.
pub(super) fn role(number: i32) -> Result<Option<Role>, Refusal> {
    match v1::GroupRole::try_from(number) {
        Ok(v1::GroupRole::Unspecified) => Ok(None),
        Ok(v1::GroupRole::Member) => Ok(Some(Role::Member)),
        Ok(v1::GroupRole::Admin) => Ok(Some(Role::Admin)),
        Ok(v1::GroupRole::Owner) => Ok(Some(Role::Owner)),
        Err(_) => Err(invalid(format!(
            "a role is 1 (member), 2 (admin) or 3 (owner), got {number}"
        ))),
    }
}

pub(super) fn role_number(role: Option<Role>) -> i32 {
    let wire = match role {
        None => v1::GroupRole::Unspecified,
        Some(Role::Member) => v1::GroupRole::Member,
        Some(Role::Admin) => v1::GroupRole::Admin,
        Some(Role::Owner) => v1::GroupRole::Owner,
    };
    wire.into()
}

fn users(wire: Vec<i64>) -> Result<Vec<UserId>, Refusal> {
    let users = wire.into_iter();
    users
        .map(|user| field("wish.users", UserId::new(user)))
        .collect()
}

fn numbers(users: &[UserId]) -> Vec<i64> {
    users.iter().map(|user| user.get()).collect()
}

fn group_users(users: &[UserId]) -> v1::GroupUsers {
    v1::GroupUsers {
        users: numbers(users),
    }
}

impl From<v1::GroupSettings> for GroupSettings {
    fn from(wire: v1::GroupSettings) -> Self {
        GroupSettings {
            open_history: wire.open_history,
            open_door: wire.open_door,
            muted: wire.muted,
            quiet: wire.quiet,
        }
    }
}

impl From<GroupSettings> for v1::GroupSettings {
    fn from(settings: GroupSettings) -> Self {
        v1::GroupSettings {
            open_history: settings.open_history,
            open_door: settings.open_door,
            muted: settings.muted,
            quiet: settings.quiet,
        }
    }
}

impl TryFrom<v1::GroupWish> for GroupCommand {
    type Error = Refusal;

    fn try_from(wire: v1::GroupWish) -> Result<Self, Refusal> {
        Ok(match present("change.wish", wire.wish)? {
            Kind::Create(create) => GroupCommand::Create {
                settings: create.settings.unwrap_or_default().into(),
                members: users(create.members)?,
            },
            Kind::Join(v1::GroupJoin {}) => GroupCommand::Join,
            Kind::Leave(v1::GroupLeave {}) => GroupCommand::Leave,
            Kind::Add(add) => GroupCommand::Add(users(add.users)?),
            Kind::Remove(user) => {
                GroupCommand::Remove(vec![field("wish.remove", UserId::new(user))?])
            }
            Kind::RemoveAll(remove) => GroupCommand::Remove(users(remove.users)?),
            Kind::Ban(ban) => GroupCommand::Ban(users(ban.users)?),
            Kind::Mute(mute) => GroupCommand::Mute(
                field("wish.mute.user", UserId::new(mute.user))?,
                Timestamp::from_millis(mute.until.max(0)),
            ),
            Kind::Dissolve(v1::GroupDissolve {}) => GroupCommand::Dissolve,
            Kind::SetRole(change) => GroupCommand::SetRole(
                field("wish.set_role.user", UserId::new(change.user))?,
                present("wish.set_role.role", role(change.role)?)?,
            ),
            Kind::HandOver(user) => {
                GroupCommand::HandOver(field("wish.hand_over", UserId::new(user))?)
            }
            Kind::Set(settings) => GroupCommand::Set(settings.into()),
        })
    }
}

impl From<&GroupCommand> for v1::GroupWish {
    fn from(command: &GroupCommand) -> Self {
        let kind = match command {
            GroupCommand::Create { settings, members } => Kind::Create(v1::GroupCreate {
                settings: Some((*settings).into()),
                members: numbers(members),
            }),
            GroupCommand::Join => Kind::Join(v1::GroupJoin {}),
            GroupCommand::Leave => Kind::Leave(v1::GroupLeave {}),
            GroupCommand::Add(users) => Kind::Add(v1::GroupAdd {
                users: numbers(users),
            }),
            // An older carrier knows only this form.
            GroupCommand::Remove(users) if users.len() == 1 => Kind::Remove(users[0].get()),
            GroupCommand::Remove(users) => Kind::RemoveAll(group_users(users)),
            GroupCommand::Ban(users) => Kind::Ban(group_users(users)),
            GroupCommand::Mute(user, until) => Kind::Mute(v1::GroupMute {
                user: user.get(),
                until: until.millis(),
            }),
            GroupCommand::Dissolve => Kind::Dissolve(v1::GroupDissolve {}),
            GroupCommand::SetRole(user, role) => Kind::SetRole(v1::GroupSetRole {
                user: user.get(),
                role: role_number(Some(*role)),
            }),
            GroupCommand::HandOver(user) => Kind::HandOver(user.get()),
            GroupCommand::Set(settings) => Kind::Set((*settings).into()),
        };
        v1::GroupWish { wish: Some(kind) }
    }
}

impl TryFrom<v1::MemberPage> for MemberPage {
    type Error = Refusal;

    fn try_from(wire: v1::MemberPage) -> Result<Self, Refusal> {
        let members = wire.members.into_iter().map(|member| {
            Ok((
                field("page.members.user", UserId::new(member.user))?,
                present("page.members.role", role(member.role)?)?,
            ))
        });
        Ok(MemberPage {
            settings: wire.settings.unwrap_or_default().into(),
            members: members.collect::<Result<_, Refusal>>()?,
            more: wire.more,
        })
    }
}

impl From<&MemberPage> for v1::MemberPage {
    fn from(page: &MemberPage) -> Self {
        let members = page.members.iter().map(|(user, role)| v1::GroupMember {
            user: user.get(),
            role: role_number(Some(*role)),
        });
        v1::MemberPage {
            settings: Some(page.settings.into()),
            members: members.collect(),
            more: page.more,
        }
    }
}
