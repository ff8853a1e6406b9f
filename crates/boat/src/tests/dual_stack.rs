//! An IPv6 listener that also takes IPv4 clients: they keep the identity they have on an IPv4 one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use protocol::Code;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::client::Client;
use super::harbour::Harbour;
use crate::Config;
use crate::config::ProxyHeader;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// Connects from 127.0.0.`last`.
async fn from(last: u8, port: u16) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let source_address = SocketAddr::from(([127, 0, 0, last], 0));
    socket
        .bind(source_address)
        .expect("an address of this machine");
    let stream = socket.connect((Ipv4Addr::LOCALHOST, port).into());
    stream.await.expect("connects")
}

/// Trusts the heads of balancers elsewhere.
fn dual_stack(config: &mut Config) {
    (config.websocket, config.tcp) = (ANY, ANY);
    config.proxy.header = ProxyHeader::XForwardedFor;
    config.proxy.networks = vec!["198.51.100.0/24".parse().expect("a network")];
}

async fn websocket(stream: TcpStream) -> Client {
    let headers = [("X-Forwarded-For", "203.0.113.7")];
    let client = Client::websocket_over(stream, &headers).await;
    client.expect("upgrades")
}

// proves S1-05 in part: of two clients of IPv4 each has a limit of its own.
#[tokio::test]
async fn a_client_of_ipv4_counts_by_its_own_address() {
    let harbour = Harbour::with(|config| {
        dual_stack(config);
        config.connections_per_address_max = Some(2);
    })
    .await;
    let (ws, tcp) = (
        harbour.handle.websocket().port(),
        harbour.handle.tcp().port(),
    );
    let mut admitted_clients = Vec::new();
    let mut addresses = Vec::new();
    for (user, last) in (1..).zip([1, 2]) {
        let streams = [from(last, ws).await, from(last, tcp).await];
        addresses.extend(streams.each_ref().map(|it| it.local_addr().expect("bound")));
        let [first, second] = streams;
        for mut client in [websocket(first).await, Client::tcp_over(second)] {
            client.hello(user).await;
            admitted_clients.push(client);
        }
    }
    for third in [
        websocket(from(1, ws).await).await,
        Client::tcp_over(from(1, tcp).await),
    ] {
        let mut third = third;
        assert_eq!(third.closing().await, Some(Code::RateLimited));
    }
    // Stations get the address that the client has, and its port.
    let peers: Vec<_> = (harbour.peer.connects.lock().iter())
        .map(|connect| connect.peer.clone())
        .collect();
    assert_eq!(
        peers,
        addresses
            .iter()
            .map(SocketAddr::to_string)
            .collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn an_arrival_of_ipv4_is_charged_once() {
    const ARRIVALS: u32 = 4;
    let harbour = Harbour::with(|config| {
        dual_stack(config);
        config.arrivals_per_address = Some(NonZeroU32::MIN);
        config.arrivals_per_address_burst = NonZeroU32::new(ARRIVALS);
    })
    .await;
    let port = harbour.handle.websocket().port();
    let start = Instant::now();
    let mut admitted_clients = Vec::new();
    for user in 1..=i64::from(ARRIVALS) {
        let mut client = websocket(from(1, port).await).await;
        client.hello(user).await;
        admitted_clients.push(client);
    }
    // Beyond those that may come at once, one a second.
    let max_arrivals = || i64::from(ARRIVALS) + start.elapsed().as_secs() as i64;
    let mut arrival_count = i64::from(ARRIVALS);
    while let Ok(client) = Client::websocket_over(from(1, port).await, &[]).await {
        arrival_count += 1;
        assert!(
            arrival_count <= max_arrivals(),
            "{arrival_count} in {:?}",
            start.elapsed()
        );
        admitted_clients.push(client);
    }
    websocket(from(2, port).await).await.hello(9).await;
}
