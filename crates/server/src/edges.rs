//! A station's public HTTP port: `GET /v1/edges`, addresses of boats that take clients.
//!
//! Reads discovery every few seconds, independent of requests; no request waits for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use backend::discovery::Registry;
use backend::rate_limit::AddressLimit;
use bytes::Bytes;
use metrics::{Counter, counter};
use operator::port::{Handshakes, Places, Port};
use protocol::edges::{self, LIST_AGE_MAX, LIST_REFRESH_INTERVAL};
use protocol::proxy::{TrustedNetworks, forwarded_for};
use station::http::Config;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Longest life of a connection: a list takes one request.
const LIFE: Duration = Duration::from_secs(60);

/// Time for discovery to answer.
const DISCOVERY_WITHIN: Duration = Duration::from_secs(2);

/// Newest list from discovery, in the form of an answer.
#[derive(Clone)]
struct List {
    body: Bytes,
    as_of: Instant,
}

struct Door {
    list: watch::Receiver<Option<List>>,
    balancers: TrustedNetworks,
    requests: AddressLimit,
    answers: RequestCounters,
}

/// Counters of requests, by their answer.
struct RequestCounters {
    lists: Counter,
    unknown: Counter,
    refusals: Counter,
}

/// Limit on requests, as a warning names it.
const REQUESTS: &str = "of requests to station.http";

/// A port at work, which ends when dropped.
pub struct EdgePort {
    pub address: SocketAddr,
    _stop: DropGuard,
}

/// Serves the list, if the settings name a port.
///
/// # Errors
/// An address that cannot be bound, or certificates that cannot be used.
pub async fn start(config: &Config, registry: Arc<dyn Registry>) -> Result<Option<EdgePort>> {
    let Some(listen) = config.listen else {
        return Ok(None);
    };
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("station.http.listen = {listen}"))?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let names = ("station-http", "station.http.tls");
    let tls = Handshakes::keep(config.tls.load()?, config.connections_max, names, &stop)?;
    let (lists, list) = watch::channel(None);
    let looks = look(registry, lists);
    tokio::spawn(stop.clone().run_until_cancelled_owned(looks));
    let balancers = TrustedNetworks::new(config.proxy_networks.clone());
    let bounds = config.address_bounds();
    let places = Places::new(config.connections_max).per_address(
        (bounds.connections_max, bounds.arrivals),
        balancers.clone(),
        "http_connections_per_address",
        ["of connections to station.http", REQUESTS],
    );
    let port = Port {
        name: "station.http",
        tls,
        router: routes(config, list, balancers),
        places,
        // Spare files are for operators and probes.
        spares: 0,
        life: Some(LIFE),
    };
    tokio::spawn(port.serve(listener, stop.clone()));
    Ok(Some(EdgePort {
        address,
        _stop: stop.drop_guard(),
    }))
}

/// Looks at discovery forever; a look that fails leaves the list as it is.
async fn look(registry: Arc<dyn Registry>, lists: watch::Sender<Option<List>>) {
    let mut looks = interval(LIST_REFRESH_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_away = false;
    loop {
        looks.tick().await;
        let cause = match timeout(DISCOVERY_WITHIN, registry.loads()).await {
            Ok(Ok(loads)) => {
                // Serialized once, for all requests.
                if let Ok(body) = serde_json::to_vec(&edges::edges(&loads)) {
                    let (body, as_of) = (body.into(), Instant::now());
                    lists.send_replace(Some(List { body, as_of }));
                }
                is_away = false;
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {DISCOVERY_WITHIN:?}"),
        };
        if !is_away {
            tracing::warn!(%cause, "cannot list boats from discovery: serving the last known edges \
                                    for up to {LIST_AGE_MAX:?}");
        }
        is_away = true;
    }
}

fn routes(
    config: &Config,
    list: watch::Receiver<Option<List>>,
    balancers: TrustedNetworks,
) -> Router {
    let answers =
        |result: &'static str| counter!("station_edge_requests_total", "result" => result);
    let door = Door {
        list,
        balancers,
        requests: AddressLimit::new(
            "edges_per_address",
            REQUESTS,
            config.address_bounds().requests,
        ),
        answers: RequestCounters {
            lists: answers("listed"),
            unknown: answers("unknown"),
            refusals: answers("refused"),
        },
    };
    Router::new()
        .route("/v1/edges", get(answer))
        .with_state(Arc::new(door))
}

async fn answer(
    State(door): State<Arc<Door>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
) -> Response {
    let mut response = door.answer(peer.ip(), &headers);
    // Pages of every origin may ask: nothing here is private.
    let anybody = HeaderValue::from_static("*");
    (response.headers_mut()).insert(ACCESS_CONTROL_ALLOW_ORIGIN, anybody);
    response
}

impl Door {
    fn answer(&self, peer: IpAddr, headers: &HeaderMap) -> Response {
        let values = headers.get_all("x-forwarded-for");
        let values = values.iter().map(HeaderValue::as_bytes);
        let address = match forwarded_for(peer, values, &self.balancers) {
            Ok(address) => address,
            Err(error) => {
                self.answers.refusals.increment(1);
                return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response();
            }
        };
        if let Err(wait) = self.requests.check(address) {
            self.answers.refusals.increment(1);
            let text = "too many requests from your address: keep the list and try again later\n";
            return later(StatusCode::TOO_MANY_REQUESTS, wait, text);
        }
        let list = self.list.borrow().clone();
        match list.filter(|list| list.as_of.elapsed() <= LIST_AGE_MAX) {
            Some(list) => {
                self.answers.lists.increment(1);
                let headers = [
                    (CONTENT_TYPE, "application/json".to_owned()),
                    (
                        CACHE_CONTROL,
                        format!("public, max-age={}", LIST_REFRESH_INTERVAL.as_secs()),
                    ),
                ];
                (headers, list.body).into_response()
            }
            None => {
                self.answers.unknown.increment(1);
                let text = "this station cannot list the boats now: keep using your last list\n";
                later(StatusCode::SERVICE_UNAVAILABLE, LIST_REFRESH_INTERVAL, text)
            }
        }
    }
}

/// Answer that asks for a retry later, in whole seconds.
fn later(status: StatusCode, wait: Duration, text: &'static str) -> Response {
    let seconds = wait.as_millis().div_ceil(1000).max(1);
    let headers = [
        (RETRY_AFTER, seconds.to_string()),
        (CACHE_CONTROL, "no-store".to_owned()),
    ];
    (status, headers, text).into_response()
}

#[cfg(test)]
mod tests;
