//! Calls that a role may make: the one table, and a proof that every method is in it.

use protocol::access::{Caller, Role};
use tonic::{Code, Request, Status};

use Role::{Backend, Boat, Carrier, Desk, Horn, Station};

/// Methods and the roles that may call them; nobody may call a method that is missing.
const METHODS: [(&str, &[Role]); 23] = [
    ("/packetboat.v1.BoatService/Deliver", &[Carrier]),
    // A desk shows the certificate of its process: a station's may order a drain, a carrier's may
    // not.
    ("/packetboat.v1.BoatService/Drain", &[Station, Desk]),
    ("/packetboat.v1.BoatService/Notice", &[Carrier, Station]),
    (
        "/packetboat.v1.BoatService/Probe",
        &[Carrier, Station, Desk],
    ),
    ("/packetboat.v1.StationService/Connect", &[Boat]),
    ("/packetboat.v1.StationService/Disconnect", &[Boat]),
    ("/packetboat.v1.StationService/Reassert", &[Boat]),
    ("/packetboat.v1.StationService/Refresh", &[Boat]),
    ("/packetboat.v1.StationService/ResumeTickets", &[Boat]),
    ("/packetboat.v1.StationService/SendBatch", &[Boat]),
    ("/packetboat.v1.StationService/Receipts", &[Boat]),
    ("/packetboat.v1.StationService/MailPage", &[Boat]),
    ("/packetboat.v1.StationService/MailAck", &[Boat]),
    ("/packetboat.v1.StationService/Sync", &[Boat]),
    (
        "/packetboat.v1.StationService/Online",
        &[Station, Carrier, Horn, Backend, Desk],
    ),
    (
        "/packetboat.v1.StationService/OnlineMembers",
        &[Station, Carrier, Horn, Backend, Desk],
    ),
    // A desk shows the certificate of its process: a station's may sign users out, a carrier's may
    // not.
    (
        "/packetboat.v1.StationService/Kickout",
        &[Station, Backend, Desk],
    ),
    (
        "/packetboat.v1.StationService/Revoke",
        &[Station, Backend, Desk],
    ),
    ("/packetboat.v1.StationService/Revoked", &[Boat]),
    // Services of gRPC itself. Reflection shows proto/, if the settings turn it on.
    ("/grpc.health.v1.Health/Check", &Role::ALL),
    ("/grpc.health.v1.Health/Watch", &Role::ALL),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        &[Backend, Desk],
    ),
    (
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        &[Backend, Desk],
    ),
];

/// Service that makes a call, if it has proved what it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer(pub(crate) Option<Caller>);

/// Service that makes a call, as its certificate says.
pub fn request_caller<T>(request: &Request<T>) -> Option<Caller> {
    request.extensions().get().cloned()
}

/// Lets a call pass, or says who may make it. Without a caller every listed method passes: where
/// services show no certificates the network is trusted, and the settings have said so.
///
/// # Errors
/// `UNIMPLEMENTED` for a method of no row, `PERMISSION_DENIED` for one of other roles.
pub(crate) fn permit(path: &str, caller: Option<&Caller>) -> Result<(), Status> {
    let Some((_, roles)) = METHODS.iter().find(|(method, _)| *method == path) else {
        let text = format!("{path} cannot be called by any role");
        return Err(Status::new(Code::Unimplemented, text));
    };
    match caller {
        Some(caller) if !roles.contains(&caller.role) => {
            let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
            Err(Status::permission_denied(format!(
                "{path} is for {}, but the certificate is for {caller}",
                names.join(", ")
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Design: each role with the methods that it may call.
    const ALLOWED: [(Role, &[&str]); 6] = [
        (
            Boat,
            &[
                "Check",
                "Connect",
                "Disconnect",
                "MailAck",
                "MailPage",
                "Reassert",
                "Receipts",
                "Refresh",
                "ResumeTickets",
                "Revoked",
                "SendBatch",
                "Sync",
                "Watch",
            ],
        ),
        (
            Station,
            &[
                "Check",
                "Drain",
                "Kickout",
                "Notice",
                "Online",
                "OnlineMembers",
                "Probe",
                "Revoke",
                "Watch",
            ],
        ),
        (
            Carrier,
            &[
                "Check",
                "Deliver",
                "Notice",
                "Online",
                "OnlineMembers",
                "Probe",
                "Watch",
            ],
        ),
        (Horn, &["Check", "Online", "OnlineMembers", "Watch"]),
        (
            Backend,
            &[
                "Check",
                "Kickout",
                "Online",
                "OnlineMembers",
                "Revoke",
                "ServerReflectionInfo",
                "Watch",
            ],
        ),
        (
            Desk,
            &[
                "Check",
                "Drain",
                "Kickout",
                "Online",
                "OnlineMembers",
                "Probe",
                "Revoke",
                "ServerReflectionInfo",
                "Watch",
            ],
        ),
    ];

    /// All methods that a listener for services may have, ours and those of gRPC itself.
    fn methods() -> BTreeSet<String> {
        let sets = [
            crate::envelope::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut methods = BTreeSet::new();
        for set in sets {
            let pool = prost_reflect::DescriptorPool::decode(set).expect("descriptors");
            // An Authenticator is somebody else's.
            let services = pool
                .services()
                .filter(|service| service.name() != "AuthenticatorService");
            for service in services {
                let path = |method: prost_reflect::MethodDescriptor| {
                    format!("/{}/{}", service.full_name(), method.name())
                };
                methods.extend(service.methods().map(path));
            }
        }
        methods
    }

    #[test]
    fn every_method_has_one_row() {
        let rows: Vec<String> = METHODS.iter().map(|(path, _)| (*path).to_owned()).collect();
        let unique: BTreeSet<String> = rows.iter().cloned().collect();
        assert_eq!(rows.len(), unique.len(), "a method twice");
        assert_eq!(unique, methods());
    }

    // Threat 6: every method with every role, by the descriptors.
    #[test]
    fn a_role_calls_what_is_its_own_and_nothing_else() {
        for path in methods() {
            for (role, allowed) in ALLOWED {
                let caller = Caller::new(role, "a");
                let (_, name) = path.rsplit_once('/').expect("a path");
                let result = permit(&path, Some(&caller));
                if allowed.contains(&name) {
                    assert!(result.is_ok(), "{role} {path}")
                } else {
                    let status = result.expect_err(&path);
                    assert_eq!(status.code(), Code::PermissionDenied, "{role} {path}");
                }
            }
            assert!(permit(&path, None).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_method_without_a_row_is_nobodys() {
        for caller in [None, Some(Caller::new(Desk, "a"))] {
            for path in ["/packetboat.v1.StationService/Anything", "/", ""] {
                let status = permit(path, caller.as_ref()).expect_err(path);
                assert_eq!(status.code(), Code::Unimplemented);
            }
        }
    }
}
