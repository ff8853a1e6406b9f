//! The driver against real sockets.

mod boat;
mod dial;
mod route;
mod tls;

use std::path::Path;
use std::time::Duration;

use protocol::message::Content;
use protocol::{Code, DeviceId, Platform, Recipient, UserId};
use tokio::time::timeout;

use super::*;
use crate::core::{Origin, Reset, SendStatus, ShownMessage};
use boat::Boat;

/// Bound of what must happen, however busy the machine is. It says nothing about speed.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn config(url: String, user: i64) -> ClientConfig {
    let device = DeviceId::new(&format!("device-of-{user}")).expect("short");
    let mut config = ClientConfig::new(url, user.to_string(), Platform::Desktop, device);
    config.limits.backoff = Duration::from_millis(50);
    config
}

fn websocket(boat: &Boat, user: i64) -> ClientConfig {
    config(format!("ws://{}", boat.websocket), user)
}

fn tcp(boat: &Boat, user: i64) -> ClientConfig {
    config(format!("tcp://{}", boat.tcp), user)
}

fn with_store(config: ClientConfig, folder: &Path) -> ClientConfig {
    ClientConfig {
        state: store::StorePath::Path(folder.join("state.db")),
        ..config
    }
}

async fn start(config: ClientConfig) -> (Client, Events) {
    let (client, events) = Client::connect(config).await.expect("started");
    timeout(TEST_TIMEOUT, client.ready())
        .await
        .expect("in time")
        .expect("ready");
    (client, events)
}

fn to(user: i64) -> Recipient {
    Recipient::User(UserId::new(user).expect("positive"))
}

async fn say(client: &Client, user: i64, text: &str) -> SendTicket {
    client
        .send(to(user), Content::text(text))
        .await
        .expect("taken")
}

async fn next_message(events: &mut Events) -> ShownMessage {
    let next = async {
        loop {
            match events.next().await.expect("the client lives") {
                Event::Message(message) => return message,
                _ => continue,
            }
        }
    };
    timeout(TEST_TIMEOUT, next)
        .await
        .expect("a message in time")
}

async fn next_texts(events: &mut Events, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        texts.push(text(&next_message(events).await));
    }
    texts
}

fn text(message: &ShownMessage) -> String {
    String::from_utf8_lossy(&message.placed.message.content.data).into_owned()
}

async fn until(condition: &str, mut is_so: impl FnMut() -> bool) {
    let poll = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_TIMEOUT, poll)
        .await
        .unwrap_or_else(|_| panic!("never: {condition}"));
}

async fn no_message(events: &mut Events) {
    let quiet = timeout(Duration::from_millis(150), async {
        loop {
            if let Some(Event::Message(message)) = events.next().await {
                return message;
            }
        }
    });
    assert!(quiet.await.is_err(), "nothing more is shown");
}

// proves S3-09, S3-11, S3-12, S3-13, S3-14, S3-15, S3-16: the six steps over both transports.
#[tokio::test]
async fn message_crosses_transports_and_its_receipts_return() {
    let boat = Boat::start().await;
    let (alice, _alice_events) = start(websocket(&boat, 1)).await;
    let (bob, mut bob_events) = start(tcp(&boat, 2)).await;
    let mut ticket = say(&alice, 2, "hello").await;
    let id = ticket.accepted().await.expect("accepted");
    let message = next_message(&mut bob_events).await;
    assert_eq!(
        (text(&message).as_str(), message.placed.message.id),
        ("hello", id)
    );
    assert_eq!(message.origin, Origin::Other);
    assert!(
        ticket.status().rank() < 4,
        "taken only when the next one is asked for"
    );
    bob_events.taken();
    timeout(TEST_TIMEOUT, ticket.delivered())
        .await
        .expect("in time")
        .expect("delivered");
    let entry = &message.placed;
    bob.read(entry.conversation, entry.position.seq, id)
        .await
        .expect("read");
    let read = ticket
        .status
        .wait_for(|status| *status == SendStatus::Read { id });
    timeout(TEST_TIMEOUT, read)
        .await
        .expect("in time")
        .expect("read");
}

// proves S0-48: code is registered by the number of a type; it gets the messages of that type and no others, which stand as
// taken when it returns.
#[tokio::test]
async fn messages_of_a_type_go_to_its_handler() {
    let boat = Boat::start().await;
    let (alice, _alice_events) = start(tcp(&boat, 1)).await;
    let (sender, mut handled_messages) = mpsc::unbounded_channel();
    let hand = |number: i32| {
        let sender = sender.clone();
        move |message: &ShownMessage| {
            sender
                .send((number, text(message)))
                .expect("it is waited for")
        }
    };
    let handlers = Handlers::default();
    let handlers = handlers.on(7, hand(1)).on(-9, hand(2)).on(7, hand(3));
    let config = ClientConfig {
        handlers,
        ..websocket(&boat, 2)
    };
    let (_bob, mut events) = start(config).await;
    let mut tickets = Vec::new();
    for (sub_kind, words) in [(7, "a poll"), (0, "hello"), (8, "unknown"), (-9, "a move")] {
        let content = Content {
            sub_kind,
            ..Content::text(words)
        };
        tickets.push(alice.send(to(2), content).await.expect("taken"));
    }
    assert_eq!(next_texts(&mut events, 2).await, ["hello", "unknown"]);
    let no_other = async {
        while let Some(event) = events.next().await {
            assert!(!matches!(event, Event::Message(_)), "{event:?}");
        }
    };
    let texts = timeout(TEST_TIMEOUT, async {
        [handled_messages.recv().await, handled_messages.recv().await]
    });
    let texts = tokio::select! {
        biased;
        () = no_other => panic!("the client lives"),
        texts = texts => texts.expect("in time"),
    };
    let expected = |number, text: &str| Some((number, text.to_owned()));
    assert_eq!(texts, [expected(3, "a poll"), expected(2, "a move")]);
    events.taken();
    for mut ticket in tickets {
        let delivery = timeout(TEST_TIMEOUT, ticket.delivered()).await;
        delivery.expect("in time").expect("delivered");
    }
}

// proves S3-07: what was taken is acknowledged; what was only shown comes again after the process died.
#[tokio::test]
async fn only_what_was_taken_is_kept() {
    let boat = Boat::start().await;
    let folder = tempfile::tempdir().expect("folder");
    let (alice, _events) = start(tcp(&boat, 1)).await;
    let (bob, mut events) = start(with_store(tcp(&boat, 2), folder.path())).await;
    for text in ["one", "two", "three"] {
        say(&alice, 2, text)
            .await
            .accepted()
            .await
            .expect("accepted");
    }
    assert_eq!(next_texts(&mut events, 2).await, ["one", "two"]);
    until("one is acknowledged", || boat.acked() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(boat.acked(), 1, "two was shown, not taken");
    bob.close().await;
    drop(events);
    let (bob, mut events) = start(with_store(tcp(&boat, 2), folder.path())).await;
    assert_eq!(next_texts(&mut events, 2).await, ["two", "three"]);
    events.taken();
    bob.close().await;
    until("closing waits for what was taken", || boat.acked() == 3).await;
    let (_bob, mut events) = start(with_store(tcp(&boat, 2), folder.path())).await;
    no_message(&mut events).await;
}

// proves S3-20: a send made without a connection waits in the outbox, over a restart, and goes out.
#[tokio::test]
async fn the_outbox_survives_a_restart() {
    let boat = Boat::start().await;
    let folder = tempfile::tempdir().expect("folder");
    let nowhere = "tcp://127.0.0.1:9".to_owned();
    let (alice, events) = Client::connect(with_store(config(nowhere, 1), folder.path()))
        .await
        .expect("started");
    let ticket = say(&alice, 2, "later").await;
    assert_eq!(ticket.status(), SendStatus::Pending);
    alice.close().await;
    drop(events);
    let (_alice, mut events) = start(with_store(tcp(&boat, 1), folder.path())).await;
    let message = next_message(&mut events).await;
    assert_eq!(
        (text(&message).as_str(), message.origin),
        ("later", Origin::OwnHere)
    );
    assert_eq!(message.placed.message.send_id, ticket.send_id());
}

// proves S3-22: the answer is lost with the connection; the resend is the same message.
#[tokio::test]
async fn a_lost_answer_makes_no_second_message() {
    let boat = Boat::start().await;
    let (alice, _events) = start(websocket(&boat, 1)).await;
    boat.set_mute(true);
    let mut ticket = say(&alice, 2, "once").await;
    until("the server has it", || boat.messages() == 1).await;
    boat.set_mute(false);
    boat.drop_connections();
    timeout(TEST_TIMEOUT, ticket.accepted())
        .await
        .expect("in time")
        .expect("accepted");
    assert_eq!(boat.messages(), 1);
    let (_bob, mut events) = start(tcp(&boat, 2)).await;
    assert_eq!(next_texts(&mut events, 1).await, ["once"]);
    no_message(&mut events).await;
}

#[tokio::test]
async fn after_a_cut_everything_comes_once_and_in_order() {
    let boat = Boat::start().await;
    let (alice, _alice_events) = start(websocket(&boat, 1)).await;
    let (_bob, mut events) = start(websocket(&boat, 2)).await;
    let mut tickets = Vec::new();
    for number in 0..60 {
        tickets.push(say(&alice, 2, &number.to_string()).await);
        if number % 15 == 7 {
            boat.drop_connections();
        }
    }
    for ticket in &mut tickets {
        timeout(TEST_TIMEOUT, ticket.accepted())
            .await
            .expect("in time")
            .expect("accepted");
    }
    let expected: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    assert_eq!(next_texts(&mut events, 60).await, expected);
    no_message(&mut events).await;
}

#[tokio::test]
async fn client_that_takes_no_events_can_send() {
    let boat = Boat::start().await;
    let (alice, events) = start(tcp(&boat, 1)).await;
    let (bob, _bob_events) = start(tcp(&boat, 2)).await;
    let mut tickets = Vec::new();
    for number in 0..2000 {
        let (from, to) = if number % 2 == 0 {
            (&alice, 2)
        } else {
            (&bob, 1)
        };
        tickets.push(say(from, to, "x").await);
    }
    for mut ticket in tickets {
        timeout(TEST_TIMEOUT, ticket.accepted())
            .await
            .expect("in time")
            .expect("accepted");
    }
    assert_eq!(boat.acked(), 0);
    drop(events);
}

#[tokio::test]
async fn terminal_codes_end_the_client_and_say_why() {
    for over in [websocket, tcp] {
        let boat = Boat::start().await;
        let (alice, mut events) = start(over(&boat, 1)).await;
        boat.set_mute(true);
        let mut ticket = say(&alice, 2, "too late").await;
        boat.close_connections(Code::Displaced);
        let refusal = timeout(TEST_TIMEOUT, ticket.accepted())
            .await
            .expect("in time");
        assert_eq!(refusal.map_err(|why| why.code), Err(Code::Displaced));
        let last = async {
            let mut last = None;
            while let Some(event) = events.next().await {
                last = Some(event);
            }
            last
        };
        let last = timeout(TEST_TIMEOUT, last).await.expect("the events end");
        assert!(
            matches!(last, Some(Event::State(ConnectionState::Closed(why))) if why.code == Code::Displaced)
        );
        assert!(matches!(
            alice.send(to(2), Content::text("x")).await,
            Err(ClientError::Closed(_))
        ));
        assert_eq!(boat.hellos(), 1, "it does not come back");
    }
}

#[tokio::test]
async fn a_device_is_for_one_client_at_a_time() {
    let boat = Boat::start().await;
    let folder = tempfile::tempdir().expect("folder");
    let (client, _events) = start(with_store(tcp(&boat, 1), folder.path())).await;
    let second = Client::connect(with_store(tcp(&boat, 1), folder.path())).await;
    assert!(matches!(
        second,
        Err(ConnectError::Store(StoreError::Locked(_)))
    ));
    client.close().await;
    start(with_store(tcp(&boat, 1), folder.path())).await;
}

#[tokio::test]
async fn another_installation_is_told_and_gets_what_was_not_sent() {
    let boat = Boat::start().await;
    let mut config = tcp(&boat, 1);
    config.limits.other_installation = Duration::from_millis(200);
    let (alice, mut events) = start(config).await;
    say(&alice, 2, "old")
        .await
        .accepted()
        .await
        .expect("accepted");
    assert_eq!(next_texts(&mut events, 1).await, ["old"]);
    boat.set_mute(true);
    let mut waiting_ticket = say(&alice, 2, "moved").await;
    boat.replace();
    boat.drop_connections();
    boat.set_mute(false);
    let reset = async {
        loop {
            if let Some(Event::Reset(reset)) = events.next().await {
                return reset;
            }
        }
    };
    let reset = timeout(TEST_TIMEOUT, reset).await.expect("in time");
    assert!(matches!(reset, Reset::OtherAccount { now, .. } if now.cluster == 2));
    // Unsent messages go along, under their tickets.
    let outcome = timeout(TEST_TIMEOUT, waiting_ticket.accepted()).await;
    outcome.expect("in time").expect("accepted");
    assert_eq!(next_texts(&mut events, 1).await, ["moved"]);
}

#[tokio::test]
async fn without_acks_nothing_is_acknowledged() {
    let boat = Boat::start().await;
    let (alice, _alice_events) = start(tcp(&boat, 1)).await;
    let quiet = ClientConfig {
        acks: false,
        ..tcp(&boat, 2)
    };
    let (bob, mut events) = start(quiet).await;
    say(&alice, 2, "psst")
        .await
        .accepted()
        .await
        .expect("accepted");
    assert_eq!(next_texts(&mut events, 1).await, ["psst"]);
    events.taken();
    bob.close().await;
    assert_eq!(boat.acked(), 0);
}

// proves S0-23: older messages are loaded on demand, and are not shown by themselves.
#[tokio::test]
async fn older_messages_are_loaded_on_demand() {
    let boat = Boat::start().await;
    let (alice, _alice_events) = start(tcp(&boat, 1)).await;
    for number in 1..=3 {
        say(&alice, 2, &number.to_string())
            .await
            .accepted()
            .await
            .expect("accepted");
    }
    let recent = ClientConfig {
        catch_up: CatchUp::Recent(1),
        ..tcp(&boat, 2)
    };
    let (bob, mut events) = start(recent).await;
    let newest = next_message(&mut events).await.placed;
    assert_eq!(newest.position.seq.0, 3);
    let page = bob
        .load_older(newest.conversation, Some(newest.position.seq), 10)
        .await
        .expect("a page");
    let seqs: Vec<u64> = page
        .messages
        .iter()
        .map(|entry| entry.position.seq.0)
        .collect();
    assert_eq!(seqs, [2, 1]);
    no_message(&mut events).await;
}

/// Source of tokens of user 1, as many as are asked for.
struct Tokens(std::sync::atomic::AtomicUsize);

#[async_trait::async_trait]
impl TokenSource for Tokens {
    async fn token(&self) -> Result<String, Refusal> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok("1".to_owned())
    }
}

#[tokio::test]
async fn the_application_is_asked_for_tokens() {
    let boat = Boat::start().await;
    boat.issue_for(Duration::from_millis(300));
    let tokens = Arc::new(Tokens(0.into()));
    let mut config = tcp(&boat, 1);
    config.token = String::new();
    config.token_source = Some(tokens.clone());
    let (client, _events) = start(config).await;
    let refreshed = async {
        while boat.refreshes().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, refreshed).await.expect("refreshed");
    assert_eq!(boat.refreshes(), ["1"]);
    assert_eq!(tokens.0.load(std::sync::atomic::Ordering::Relaxed), 2);
    assert_eq!(boat.hellos(), 1);
    client.close().await;
}

/// Ids that a client of this seed draws for a group and for its send.
async fn drawn(boat: &Boat, seed: Option<u64>) -> (GroupId, SendId) {
    let seeded = ClientConfig {
        seed,
        ..tcp(boat, 1)
    };
    let (client, _events) = start(seeded).await;
    let settings = group::GroupSettings::CLOSED;
    let made = client.create_group(settings, Vec::new()).await;
    let (group, ticket) = made.expect("in the outbox");
    (group, ticket.send_id())
}

#[tokio::test]
async fn a_seed_draws_the_same_ids_again_and_no_seed_others() {
    let boat = Boat::start().await;
    let first = drawn(&boat, Some(7)).await;
    assert_eq!(drawn(&boat, Some(7)).await, first);
    let seeds = [Some(8), None, None];
    let mut all = vec![first];
    for seed in seeds {
        let (group, send_id) = drawn(&boat, seed).await;
        assert!(all.iter().all(|(g, s)| *g != group && *s != send_id));
        all.push((group, send_id));
    }
}
