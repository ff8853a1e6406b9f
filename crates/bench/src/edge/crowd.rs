//! Processes of clients, and the orders to them.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::orders::{Answer, Kind, Order};

/// Clients of one process: it may not open more files than a server.
pub(super) const CLIENTS_MAX: u64 = 18_000;
/// Concurrent sign-ins, over all processes.
const AT_A_TIME: usize = 64;

/// Clients of one or more processes, numbered from `first`.
pub(super) struct Crowd {
    members: Vec<Member>,
}

struct Member {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    first: u64,
    count: u64,
}

/// Range of users in a crowd.
#[derive(Clone, Copy, Debug)]
pub(super) struct Users {
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Users {
    /// Splits the users over at least `processes` processes, and gives none more than it can hold.
    fn share(self, processes: u64) -> Vec<Users> {
        let processes = processes.max(self.count.div_ceil(CLIENTS_MAX)).max(1);
        let begin = |process| self.count * process / processes;
        (0..processes)
            .map(|process| Users {
                first: self.first + begin(process),
                count: begin(process + 1) - begin(process),
            })
            .collect()
    }
}

impl Crowd {
    /// Starts at least one process for each of `urls`, which connects there.
    pub(super) async fn start(
        config: Option<&Path>,
        urls: &[String],
        ca_file: Option<&Path>,
        users: Users,
    ) -> Result<Crowd> {
        let mut members = Vec::new();
        for (users, url) in (users.share(urls.len() as u64).into_iter()).zip(urls.iter().cycle()) {
            members.push(Member::start(config, url, ca_file, users).await?);
        }
        Ok(Crowd { members })
    }

    /// Signs all users in.
    pub(super) async fn connect(&mut self, kind: Kind) -> Result<Answer> {
        let at_a_time = (AT_A_TIME / self.members.len()).max(1);
        self.ask(|first, count| Order::Connect {
            first,
            count,
            at_a_time,
            kind,
        })
        .await
    }

    pub(super) async fn cycle(&mut self, times: u64) -> Result<Answer> {
        let processes = self.members.len() as u64;
        self.ask(|first, users| Order::Cycle {
            first,
            users,
            times: times / processes,
        })
        .await
    }

    pub(super) async fn cut(&mut self) -> Result<()> {
        self.ask(|_, _| Order::Cut).await.map(drop)
    }

    /// Cuts all connections, and has the clients come back.
    pub(super) async fn herd(&mut self) -> Result<Answer> {
        self.ask(|_, _| Order::Herd).await
    }

    async fn ask(&mut self, order: impl Fn(u64, u64) -> Order) -> Result<Answer> {
        let requests = (self.members.iter_mut()).map(|member| {
            let order = order(member.first, member.count);
            member.ask(order)
        });
        Ok(Answer::sum(try_join_all(requests).await?))
    }

    /// Kills the processes with `kill -9`: all sockets close in one moment.
    pub(super) async fn kill(mut self) -> Result<()> {
        for member in &mut self.members {
            member.child.start_kill()?;
        }
        for member in &mut self.members {
            member.child.wait().await?;
        }
        Ok(())
    }
}

impl Member {
    async fn start(
        config: Option<&Path>,
        url: &str,
        ca_file: Option<&Path>,
        Users { first, count }: Users,
    ) -> Result<Member> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        command.args(["edge-clients", "--url", url]);
        if let Some(file) = ca_file {
            command.arg("--ca-file").arg(file);
        }
        let with_pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = with_pipes.kill_on_drop(true).spawn()?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let (orders, answers) = orders.zip(answers).context("a process without pipes")?;
        let mut answers = BufReader::new(answers).lines();
        let ready = answers.next_line().await?;
        ensure!(ready.is_some(), "a process of clients did not start");
        Ok(Member {
            child,
            orders,
            answers,
            first,
            count,
        })
    }

    async fn ask(&mut self, order: Order) -> Result<Answer> {
        let line = serde_json::to_string(&order)? + "\n";
        self.orders.write_all(line.as_bytes()).await?;
        self.orders.flush().await?;
        let answer = self.answers.next_line().await?;
        let answer = answer.context("a process of clients has ended")?;
        Ok(serde_json::from_str(&answer)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_shared_without_a_gap_and_none_has_too_many() {
        let users = Users {
            first: 7,
            count: 100_003,
        };
        for processes in [1, 6, 20] {
            let shares = users.share(processes);
            assert!(shares.len() as u64 >= processes.max(6));
            let mut next = 7;
            for share in &shares {
                assert_eq!(share.first, next);
                assert!(share.count <= CLIENTS_MAX);
                next += share.count;
            }
            assert_eq!(next, 7 + 100_003);
        }
        let few = Users { first: 0, count: 3 }.share(1);
        assert_eq!(few.len(), 1);
    }
}
