//! Groups: what is to become of one, and who is in it.

use protocol::frame::MemberPage;
use protocol::group::{Role, Settings, Wish};
use protocol::{Refusal, UserId};

use super::{field, invalid, present};
use crate::v1;
use crate::v1::group_wish::Wish as Kind;

/// Unspecified is none.
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

impl From<v1::GroupSettings> for Settings {
    fn from(wire: v1::GroupSettings) -> Self {
        Settings {
            open_history: wire.open_history,
            open_door: wire.open_door,
        }
    }
}

impl From<Settings> for v1::GroupSettings {
    fn from(settings: Settings) -> Self {
        v1::GroupSettings {
            open_history: settings.open_history,
            open_door: settings.open_door,
        }
    }
}

impl TryFrom<v1::GroupWish> for Wish {
    type Error = Refusal;

    fn try_from(wire: v1::GroupWish) -> Result<Self, Refusal> {
        Ok(match present("change.wish", wire.wish)? {
            Kind::Create(create) => Wish::Create {
                settings: create.settings.unwrap_or_default().into(),
                members: users(create.members)?,
            },
            Kind::Join(v1::GroupJoin {}) => Wish::Join,
            Kind::Leave(v1::GroupLeave {}) => Wish::Leave,
            Kind::Add(add) => Wish::Add(users(add.users)?),
            Kind::Remove(user) => Wish::Remove(field("wish.remove", UserId::new(user))?),
            Kind::SetRole(set) => Wish::SetRole(
                field("wish.set_role.user", UserId::new(set.user))?,
                present("wish.set_role.role", role(set.role)?)?,
            ),
            Kind::HandOver(user) => Wish::HandOver(field("wish.hand_over", UserId::new(user))?),
            Kind::Set(settings) => Wish::Set(settings.into()),
        })
    }
}

impl From<&Wish> for v1::GroupWish {
    fn from(wish: &Wish) -> Self {
        let kind = match wish {
            Wish::Create { settings, members } => Kind::Create(v1::GroupCreate {
                settings: Some((*settings).into()),
                members: numbers(members),
            }),
            Wish::Join => Kind::Join(v1::GroupJoin {}),
            Wish::Leave => Kind::Leave(v1::GroupLeave {}),
            Wish::Add(users) => Kind::Add(v1::GroupAdd {
                users: numbers(users),
            }),
            Wish::Remove(user) => Kind::Remove(user.get()),
            Wish::SetRole(user, role) => Kind::SetRole(v1::GroupSetRole {
                user: user.get(),
                role: role_number(Some(*role)),
            }),
            Wish::HandOver(user) => Kind::HandOver(user.get()),
            Wish::Set(settings) => Kind::Set((*settings).into()),
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
