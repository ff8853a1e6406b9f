//! Number of commands that Redis executed, by its own count.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Commands of all masters among these servers so far. Replicas count the writes of their masters
/// again.
pub(super) async fn commands(addresses: &[String]) -> Result<f64> {
    let mut sum = 0.0;
    for address in addresses {
        let info = timeout(QUERY_TIMEOUT, info(address)).await;
        let info = info
            .with_context(|| format!("{address} does not answer"))?
            .with_context(|| format!("reading the counts of {address}"))?;
        sum += count_commands(&info);
    }
    Ok(sum)
}

/// Fetches a server's role and its command counts.
async fn info(address: &str) -> Result<String> {
    let mut server = BufReader::new(TcpStream::connect(address).await?);
    server
        .write_all(b"INFO replication commandstats\r\n")
        .await?;
    let mut head = String::new();
    server.read_line(&mut head).await?;
    let length = head.trim_end().strip_prefix('$');
    ensure!(
        length.is_some(),
        "a Redis without password is expected: {head}"
    );
    let mut text = vec![0; length.unwrap_or_default().parse()?];
    server.read_exact(&mut text).await?;
    Ok(String::from_utf8(text)?)
}

/// Data commands of a master; a script counts once, and the commands it calls count, too.
fn count_commands(info: &str) -> f64 {
    if !info.lines().any(|line| line == "role:master") {
        return 0.0;
    }
    let calls = info.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let of_connections = [
            "auth", "client", "cluster", "config", "hello", "info", "ping", "replconf", "select",
        ];
        let name = name.split('|').next().unwrap_or(name);
        if of_connections.contains(&name) {
            return None;
        }
        rest.split(',').next()?.parse::<f64>().ok()
    });
    calls.sum()
}

#[cfg(test)]
mod tests {
    use super::count_commands;

    #[test]
    fn only_commands_of_clients_of_a_master_are_counted() {
        let stats = "cmdstat_evalsha:calls=7,usec=9\r\ncmdstat_hset:calls=20,usec=3\r\n\
            cmdstat_info:calls=400,usec=1\r\ncmdstat_config|get:calls=50,usec=1\r\n";
        assert_eq!(count_commands(&format!("role:master\r\n{stats}")), 27.0);
        assert_eq!(count_commands(&format!("role:slave\r\n{stats}")), 0.0);
    }
}
