//! Answers of a process to probes and to Prometheus.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Port;
use crate::lifecycle::{Phase, Phases, ServiceReadiness};
use crate::pulse::Pulse;

/// Section `health`: port of probes and Prometheus.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HealthConfig {
    /// Address of `/livez`, `/readyz` and `/metrics`, without the desk. A thread of its own
    /// answers, even before any part is reached.
    pub listen: SocketAddr,
}

impl Default for HealthConfig {
    fn default() -> Self {
        HealthConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 9180)),
        }
    }
}

/// State of a process, for probes and metrics.
#[derive(Clone)]
pub struct Health {
    pub phases: Phases,
    /// `None` in tests, where several systems share a process.
    pub metrics: Option<PrometheusHandle>,
    pub pulse: Pulse,
}

#[cfg(test)]
impl Health {
    /// Health of a process that is starting and counts nothing.
    pub(crate) fn silent() -> Health {
        Health {
            phases: Phases::default(),
            metrics: None,
            pulse: Pulse::of(&[]),
        }
    }
}

/// Binds the port of probes and serves until `stop`, on a thread of its own, so that a process with
/// blocked runtimes still says so.
///
/// # Errors
/// An address that cannot be bound.
pub fn start_health(
    config: &HealthConfig,
    health: Health,
    stop: CancellationToken,
) -> Result<SocketAddr> {
    let bind = || {
        let listener = std::net::TcpListener::bind(config.listen)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok::<_, std::io::Error>((listener, runtime))
    };
    let (listener, runtime) =
        bind().with_context(|| format!("health.listen = {}", config.listen))?;
    let address = listener.local_addr()?;
    let serve = move || {
        runtime.block_on(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => {
                    Port::new("health", routes(health))
                        .serve(listener, stop)
                        .await
                }
                Err(error) => tracing::error!(%error, "cannot serve the health port"),
            }
        });
    };
    let thread = std::thread::Builder::new().name("health".to_owned());
    thread
        .spawn(serve)
        .context("starting the thread of the health port")?;
    Ok(address)
}

pub(super) fn routes(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health)
}

async fn live(State(health): State<Health>) -> (StatusCode, String) {
    let stalled_runtimes = health.pulse.list_stalled();
    if stalled_runtimes.is_empty() {
        return (StatusCode::OK, "live\n".to_owned());
    }
    let text = format!("stalled threads: {}\n", stalled_runtimes.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

/// Writes a line for the process, and one for each service.
async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    let phases = &health.phases;
    let (status, word) = match (phases.is_ready(), phases.now()) {
        (true, _) => (StatusCode::OK, "ready"),
        (false, Phase::Ready) => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        (false, phase) => (StatusCode::SERVICE_UNAVAILABLE, phase.name()),
    };
    let standings = phases.standings().into_iter();
    let lines = standings.map(|ServiceReadiness { part, troubles }| {
        if troubles.is_empty() {
            format!("{part}: ready\n")
        } else {
            format!("{part}: {}\n", troubles.join(", "))
        }
    });
    (status, format!("{word}\n{}", lines.collect::<String>()))
}

async fn metrics(State(parts): State<Health>) -> String {
    parts
        .metrics
        .map(|metrics| metrics.render())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread::sleep;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::watch;
    use tokio::time::Instant;
    use tokio_util::sync::DropGuard;

    use super::*;
    use crate::lifecycle::Condition;

    /// Far more than anything here takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build();
        runtime.expect("a runtime")
    }

    fn port(phases: Phases, pulse: Pulse) -> (SocketAddr, DropGuard) {
        let stop = CancellationToken::new();
        let listen = ([127, 0, 0, 1], 0).into();
        let health = Health {
            phases,
            metrics: None,
            pulse,
        };
        let port = start_health(&HealthConfig { listen }, health, stop.clone());
        (port.expect("it binds"), stop.drop_guard())
    }

    /// Status and body of the answer.
    fn get(port: SocketAddr, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(port).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status");
        (status.parse().expect("a number"), text.to_owned())
    }

    fn wait_for_answer(port: SocketAddr, expected: &(u16, String)) {
        let start = Instant::now();
        while get(port, "/livez") != *expected {
            let time_passed = start.elapsed();
            assert!(time_passed < TEST_TIMEOUT, "{:?}", get(port, "/livez"));
            sleep(Duration::from_millis(100));
        }
    }

    /// Blocks both threads until the senders are dropped.
    fn hold(runtime: &Runtime) -> [std::sync::mpsc::Sender<()>; 2] {
        [(); 2].map(|()| {
            let (sender, receiver): (_, Receiver<()>) = channel();
            runtime.spawn(async move { receiver.recv() });
            sender
        })
    }

    // A process with hung connections counted as live, because another runtime answered.
    #[test]
    fn a_process_with_a_runtime_that_is_held_is_not_live() {
        let (services, connections) = (runtime(), runtime());
        let runtimes = [
            ("services", services.handle()),
            ("connections", connections.handle()),
        ];
        let (port, _stop) = port(Phases::default(), Pulse::of(&runtimes));
        let live = (200, "live\n".to_owned());
        wait_for_answer(port, &live);
        for (name, runtime) in [("connections", &connections), ("services", &services)] {
            let guard = hold(runtime);
            wait_for_answer(port, &(503, format!("stalled threads: {name}\n")));
            drop(guard);
            wait_for_answer(port, &live);
        }
    }

    #[test]
    fn each_service_has_a_line() {
        let phases = Phases::default();
        let (port, _stop) = port(phases.clone(), Pulse::of(&[]));
        assert_eq!(get(port, "/readyz"), (503, "starting\n".to_owned()));
        let (log, holds) = watch::channel(false);
        let registration = watch::Sender::new(true);
        let condition = |part| Condition {
            part,
            holds: holds.clone(),
            trouble: "the log does not answer",
        };
        let boat = Condition {
            part: "boat",
            holds: registration.subscribe(),
            trouble: "not registered with discovery",
        };
        phases.follow(vec![boat, condition("horn")]);
        phases.enter(Phase::Ready);
        let text = "not ready\nboat: ready\nhorn: the log does not answer\n";
        assert_eq!(get(port, "/readyz"), (503, text.to_owned()));
        log.send_replace(true);
        let text = "ready\nboat: ready\nhorn: ready\n";
        assert_eq!(get(port, "/readyz"), (200, text.to_owned()));
        phases.enter(Phase::Draining);
        let (status, text) = get(port, "/readyz");
        assert_eq!((status, text.lines().next()), (503, Some("draining")));
    }
}
