//! Servers of etcd owned by a test, which may kill them.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Members of one cluster, killed and deleted when dropped.
pub(super) struct Servers {
    members: Vec<Member>,
    dir: TempDir,
}

struct Member {
    command: Vec<String>,
    log: PathBuf,
    client: String,
    child: Option<Child>,
}

impl Servers {
    pub(super) async fn start(count: usize) -> Servers {
        let dir = tempfile::tempdir().unwrap();
        let urls = free_urls(count * 2);
        let (clients, peers) = urls.split_at(count);
        let indexed_peers = peers.iter().enumerate();
        let cluster: Vec<_> = indexed_peers
            .map(|(index, peer)| format!("m{index}={peer}"))
            .collect();
        let cluster = cluster.join(",");
        let members = (clients.iter().zip(peers)).enumerate().map(|(index, (client, peer))| {
            let data = dir.path().join(format!("m{index}"));
            let command = format!(
                "--name m{index} --data-dir {} --listen-client-urls {client} --advertise-client-urls {client} \
                 --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} \
                 --initial-cluster {cluster} --heartbeat-interval 100 --election-timeout 1000",
                data.display()
            );
            Member {
                command: command.split_whitespace().map(str::to_owned).collect(),
                log: dir.path().join(format!("m{index}.log")),
                client: client.clone(),
                child: None,
            }
        });
        let mut servers = Servers {
            members: members.collect(),
            dir,
        };
        servers.up().await;
        servers
    }

    pub(super) fn endpoints(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| member.client.clone())
            .collect()
    }

    /// Starts members that are down, on their data, and waits for a leader.
    pub(super) async fn up(&mut self) {
        for member in &mut self.members {
            if member.child.is_none() {
                let log = std::fs::File::create(&member.log).unwrap();
                let child = Command::new("etcd")
                    .args(&member.command)
                    .stdout(Stdio::null())
                    .stderr(log)
                    .spawn()
                    .expect("etcd is installed: Debian has it as etcd-server");
                member.child = Some(child);
            }
        }
        for member in &self.members {
            let deadline = Instant::now() + Duration::from_secs(60);
            while leader(&member.client).await.is_none() {
                assert!(Instant::now() < deadline, "etcd does not start");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    pub(super) fn kill(&mut self, index: usize) {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(super) fn kill_all(&mut self) {
        (0..self.members.len()).for_each(|index| self.kill(index));
    }

    /// Kills all members and restarts them without their data.
    pub(super) async fn lose_all(&mut self) {
        self.kill_all();
        for index in 0..self.members.len() {
            std::fs::remove_dir_all(self.dir.path().join(format!("m{index}"))).unwrap();
        }
        self.up().await;
    }

    /// Index of the leading member.
    pub(super) async fn leader(&self) -> usize {
        for (index, member) in self.members.iter().enumerate() {
            if leader(&member.client).await == Some(true) {
                return index;
            }
        }
        panic!("nobody leads");
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Whether the member leads; `None` if it knows no leader or does not answer.
async fn leader(member: &str) -> Option<bool> {
    let options = ConnectOptions::new().with_timeout(Duration::from_secs(1));
    let mut client = Client::connect([member], Some(options)).await.ok()?;
    let status = client.status().await.ok()?;
    let me = status.header()?.member_id();
    (status.leader() != 0).then(|| status.leader() == me)
}

fn free_urls(count: usize) -> Vec<String> {
    let any = || TcpListener::bind("127.0.0.1:0").unwrap();
    let listeners: Vec<_> = (0..count).map(|_| any()).collect();
    let url = |socket: TcpListener| format!("http://{}", socket.local_addr().unwrap());
    listeners.into_iter().map(url).collect()
}
