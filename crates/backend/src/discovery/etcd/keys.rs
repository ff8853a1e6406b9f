//! Layout of keys in etcd; an operator sees them with `etcdctl get --prefix /packetboat`.

use super::super::Role;

/// The keys of one installation, each below its prefix:
///
/// | key | under a lease | value |
/// | --- | --- | --- |
/// | `/instance/boat/<name>` | yes | address and incarnation, JSON |
/// | `/load/<name>` | yes | room of a boat for clients, JSON |
/// | `/incarnation/<name>` | no | last incarnation given under the name |
/// | `/node/0007` | yes | holder of the number |
/// | `/node-past/0007` | no | last millisecond that ids with the number may bear, 20 digits |
/// | `/cluster` | no | number of the installation |
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn below(prefix: &str) -> Keys {
        Keys {
            prefix: prefix.trim_end_matches('/').to_owned(),
        }
    }

    /// Prefix of the instances of a role, each under its name.
    pub(super) fn instances(&self, role: Role) -> String {
        let role = match role {
            Role::Boat => "boat",
            Role::Station => "station",
            Role::Carrier => "carrier",
            Role::Horn => "horn",
        };
        format!("{}/instance/{role}/", self.prefix)
    }

    pub(super) fn instance(&self, role: Role, name: &str) -> String {
        self.instances(role) + name
    }

    /// Prefix of the loads of boats, each under its name.
    pub(super) fn loads(&self) -> String {
        format!("{}/load/", self.prefix)
    }

    pub(super) fn load(&self, name: &str) -> String {
        self.loads() + name
    }

    pub(super) fn incarnation(&self, name: &str) -> String {
        format!("{}/incarnation/{name}", self.prefix)
    }

    /// Prefix of the node numbers in use.
    pub(super) fn nodes(&self) -> String {
        format!("{}/node/", self.prefix)
    }

    pub(super) fn node(&self, number: u16) -> String {
        format!("{}{number:04}", self.nodes())
    }

    /// Prefix of the pasts of all node numbers ever held.
    pub(super) fn pasts(&self) -> String {
        format!("{}/node-past/", self.prefix)
    }

    pub(super) fn past(&self, number: u16) -> String {
        format!("{}{number:04}", self.pasts())
    }

    pub(super) fn cluster(&self) -> String {
        format!("{}/cluster", self.prefix)
    }
}
