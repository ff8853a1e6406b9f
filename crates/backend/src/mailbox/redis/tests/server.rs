//! Servers owned by a test, which may break them.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, FromRedisValue};
use tempfile::TempDir;

use crate::clock::{Entropy, SystemEntropy};

/// Time for each answer of a server: other tests keep the machine busy for seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A `redis-server` (or sentinel) on a port of its own, killed when it is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
    dir: TempDir,
    args: Vec<String>,
}

impl Server {
    pub(super) async fn start(args: &[&str]) -> Server {
        let port = free_port();
        let dir = tempfile::tempdir().expect("a directory");
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let child = spawn(port, &dir, &args);
        let server = Server {
            child,
            port,
            dir,
            args,
        };
        server.wait_until_ready().await;
        server
    }

    /// A sentinel that watches `master` under the name "packetboat".
    pub(super) async fn sentinel(master: &Server) -> Server {
        let port = free_port();
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("sentinel.conf");
        let text = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\n\
             sentinel monitor packetboat 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds packetboat 3000\n\
             sentinel failover-timeout packetboat 10000\n",
            dir.path().display(),
            master.port
        );
        std::fs::write(&file, text).expect("written");
        let child = Command::new("redis-server")
            .arg(file)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Server {
            child,
            port,
            dir,
            args: Vec::new(),
        };
        server.wait_until_ready().await;
        server
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server, as a power cut would, except that the page cache survives.
    pub(super) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Restarts the server on its data.
    pub(super) async fn restart(&mut self) {
        self.child = spawn(self.port, &self.dir, &self.args);
        self.wait_until_ready().await;
    }

    /// Sends STOP or CONT.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status();
        assert!(status.expect("sent").success());
    }

    pub(super) async fn execute<T: FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = Client::open(format!("redis://{}/", self.address()))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut connection).await
    }

    /// Waits until INFO has this line.
    pub(super) async fn wait_for_info(&self, line: &str) {
        for _ in 0..1200 {
            let info = self.execute::<String>(&["INFO"]).await.unwrap_or_default();
            if info.lines().any(|info| info == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{} never said {line}", self.address());
    }

    async fn wait_until_ready(&self) {
        for _ in 0..2400 {
            if self.execute::<String>(&["PING"]).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{} does not answer", self.address());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, dir: &TempDir, args: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--repl-diskless-sync-delay", "0", "--dir"])
        .arg(dir.path())
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// The cluster's bus uses the port 10,000 above. Both are below the kernel's range for outgoing
/// connections, so a restarted server finds its own port free.
fn free_port() -> u16 {
    loop {
        let port = 13_000 + (SystemEntropy.next() % 9_700) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok()
            && std::net::TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok()
        {
            return port;
        }
    }
}
