//! Limits of the machine on this process: open files, and space for data.

use std::path::Path;

use backend::discovery::Role;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::doctor::rules::{Finding, OpenFiles, Space};
use crate::doctor::{ANSWER_TIMEOUT, Doctor, Stores};

impl Doctor {
    pub(in crate::doctor) fn open_files(&self) -> OpenFiles {
        let (limit, _) = rlimit::Resource::NOFILE.get().unwrap_or_default();
        let connections = self.parts.settings.connections_max as u64;
        OpenFiles {
            limit,
            connections_max: self.is(Role::Boat).then_some(connections),
        }
    }

    /// Space left for embedded stores; others fill no disk of this machine.
    pub(in crate::doctor) async fn space(&self) -> Vec<Finding> {
        let space = match &self.parts.stores {
            Stores::Real => return Vec::new(),
            Stores::Memory => Space::Memory,
            Stores::Directory(path) => {
                let probe = path.clone();
                // A file system on the network may hang.
                let probe = timeout(ANSWER_TIMEOUT, spawn_blocking(move || disk(&probe))).await;
                match probe {
                    Ok(Ok(space)) => space,
                    Ok(Err(_)) | Err(_) => unknown(path, "no answer"),
                }
            }
        };
        vec![space.finding()]
    }
}

fn disk(path: &Path) -> Space {
    match rustix::fs::statvfs(path) {
        Ok(found) => Space::Disk {
            path: path.display().to_string(),
            free: found.f_bavail.saturating_mul(found.f_frsize),
            total: found.f_blocks.saturating_mul(found.f_frsize),
        },
        Err(error) => unknown(path, &error.to_string()),
    }
}

fn unknown(path: &Path, reason: &str) -> Space {
    Space::Unknown {
        path: path.display().to_string(),
        reason: reason.to_owned(),
    }
}
