//! Objects of others: no call of a boat reads, writes or ends anything of a user whose session it
//! does not hold, and no call of a user reads or writes a conversation that they are not in. The
//! rows are those of `proto/`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::station::{
    Connect, Disconnect, MailAck, MailPageRequest, Reassert, ReassertOutcome, Reasserted,
    RefreshToken, Refreshment, ResumeSession, SyncCall,
};
use api::status::carries_refusal;
use api::v1;
use backend::embedded::{ScanOrder, Table};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor, MethodDescriptor};
use protocol::access::{Caller, Role};
use protocol::change::{ChangeKind, ChangeOf};
use protocol::frame::{HistoryRange, Send, SyncQuery, SyncRequest};
use protocol::presence::{DeniedBoats, SessionEntry};
use protocol::receipt::ReceiptKind;
use protocol::session::Submit;
use protocol::ticket::{ResumeTicket, TICKET_BYTES, Ticket};
use protocol::{Code, ConversationId, Placed, Platform, Recipient, Refusal, Seq, Timestamp};
use tokio::time::sleep;
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::{Response, Status};

use super::groups::{CLOSED, group, of};
use super::receipts::receipt_item;
use super::tickets::{CALLS, Strict, strict, with_keys};
use super::world::*;

/// Text of the victim's conversations, which stands in no answer to anybody else.
const CANARY: &str = "canary-of-a-conversation";

/// Everything in the stores.
#[derive(PartialEq, Eq)]
struct State {
    tables: BTreeMap<Table, Vec<(Bytes, Bytes)>>,
    /// Sessions of the three users, in order.
    sessions: Vec<Vec<SessionEntry>>,
}

/// Age at which the station knows that a message was never placed.
const PLACE_TIMEOUT: Duration = Duration::from_secs(660);

/// Platform of all sessions but the second one of the thief.
const PHONE: Platform = Platform::Ios;

const THIEF_BOAT: &str = "boat-1";
const VICTIM_BOAT: &str = "boat-2";

/// Attack on the calls of a row of `proto/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// In the name of a session, with tickets of others: [`CALLS`].
    Session,
    /// With tokens and tickets that prove somebody else, or nothing.
    Token,
    /// By services of other roles.
    Role,
    /// A service of others, which the station calls.
    Foreign,
}

use Role::{Backend, Boat, Carrier, Desk, Horn, Station};

/// Every call of `proto/`, its callers, and its attack.
const ROWS: [(&str, &[Role], Attack); 20] = [
    ("AuthenticatorService/Authenticate", &[], Attack::Foreign),
    ("BoatService/Deliver", &[Carrier], Attack::Role),
    ("BoatService/Drain", &[Station, Desk], Attack::Role),
    ("BoatService/Notice", &[Carrier, Station], Attack::Role),
    ("BoatService/Probe", &[Carrier, Station, Desk], Attack::Role),
    ("StationService/Connect", &[Boat], Attack::Token),
    ("StationService/Disconnect", &[Boat], Attack::Session),
    (
        "StationService/Kickout",
        &[Station, Backend, Desk],
        Attack::Role,
    ),
    ("StationService/MailAck", &[Boat], Attack::Session),
    ("StationService/MailPage", &[Boat], Attack::Session),
    (
        "StationService/Online",
        &[Station, Carrier, Horn, Backend, Desk],
        Attack::Role,
    ),
    (
        "StationService/OnlineMembers",
        &[Station, Carrier, Horn, Backend, Desk],
        Attack::Role,
    ),
    ("StationService/Reassert", &[Boat], Attack::Session),
    ("StationService/Receipts", &[Boat], Attack::Session),
    ("StationService/Refresh", &[Boat], Attack::Session),
    ("StationService/ResumeTickets", &[Boat], Attack::Session),
    (
        "StationService/Revoke",
        &[Station, Backend, Desk],
        Attack::Role,
    ),
    ("StationService/Revoked", &[Boat], Attack::Role),
    ("StationService/SendBatch", &[Boat], Attack::Session),
    ("StationService/Sync", &[Boat], Attack::Session),
];

fn methods() -> Vec<MethodDescriptor> {
    let pool = DescriptorPool::decode(api::envelope::DESCRIPTORS).expect("descriptors");
    let methods = pool.services().flat_map(|service| {
        let methods: Vec<_> = service.methods().collect();
        methods
    });
    methods.collect()
}

fn method_path(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().name(), method.name())
}

// A new method is in no row: add one that says how it is attacked.
#[test]
fn every_call_of_the_protocol_has_an_attack() {
    let rows: BTreeSet<String> = ROWS.iter().map(|(path, ..)| (*path).to_owned()).collect();
    assert_eq!(rows.len(), ROWS.len(), "a call twice");
    assert_eq!(rows, methods().iter().map(method_path).collect());
    let sessions = ROWS
        .iter()
        .filter(|(.., attack)| *attack == Attack::Session);
    let sessions = sessions.filter_map(|(path, ..)| path.split_once('/'));
    let sessions: Vec<&str> = sessions.map(|(_, call)| call).collect();
    assert_eq!(sessions, CALLS);
}

/// Names of fields of a message and of those in it.
fn fields(message: &MessageDescriptor, names: &mut BTreeSet<String>) {
    for field in message.fields() {
        let is_new = names.insert(format!("{}.{}", message.name(), field.name()));
        if let Kind::Message(inner) = field.kind()
            && is_new
        {
            fields(&inner, names);
        }
    }
}

// A call of boats that names a session has a place for its ticket.
#[test]
fn every_call_of_a_boat_for_a_session_bears_a_ticket() {
    for method in methods() {
        let path = method_path(&method);
        let row = ROWS.iter().find(|(row, ..)| *row == path);
        let (_, roles, attack) = row.expect("a row");
        let mut names = BTreeSet::new();
        fields(&method.input(), &mut names);
        let is = |candidates: &[&str]| {
            let name = |name: &String| {
                name.rsplit_once('.')
                    .is_some_and(|(_, n)| candidates.contains(&n))
            };
            names.iter().any(name)
        };
        let is_for_session = roles.contains(&Boat) && is(&["session", "user"]);
        if is_for_session && *attack != Attack::Token {
            assert!(is(&["ticket", "tickets"]), "{path}: {names:?}");
            assert_eq!(*attack, Attack::Session, "{path}");
        }
    }
}

/// A session in whose name a call is made.
#[derive(Clone)]
struct Speaker {
    user: i64,
    session: i64,
    platform: Platform,
    ticket: Option<Ticket>,
}

/// Answer to a call, for its one item.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// `PERMISSION_DENIED`
    Denied,
    Refused(Code),
    Done,
}

/// All bytes of an answer, and its verdict.
struct Answer {
    verdict: Verdict,
    bytes: Vec<u8>,
}

impl Answer {
    fn new<T: prost::Message>(
        answer: Result<Response<T>, Status>,
        code_in: impl Fn(&T) -> Option<Code>,
    ) -> Answer {
        match answer {
            Ok(answer) => {
                let answer = answer.into_inner();
                Answer {
                    verdict: code_in(&answer).map_or(Verdict::Done, Verdict::Refused),
                    bytes: answer.encode_to_vec(),
                }
            }
            Err(status) => Answer {
                verdict: match (
                    status.code(),
                    carries_refusal(&status),
                    refusal_code(&status),
                ) {
                    (_, true, Code::Forbidden) => Verdict::Refused(Code::Forbidden),
                    (tonic::Code::PermissionDenied, ..) => Verdict::Denied,
                    (.., code) => Verdict::Refused(code),
                },
                bytes: format!("{status:?}").into_bytes(),
            },
        }
    }

    fn names(&self, text: &[u8]) -> bool {
        self.bytes.windows(text.len()).any(|part| part == text)
    }
}

fn code(refusal: Option<v1::Refusal>) -> Option<Code> {
    refusal.map(|refusal| Refusal::try_from(refusal).expect("whole").code)
}

/// An assertion ends its session alone; an unproved end silently ends nothing.
fn expected_verdict(call: &str, forgery: Verdict) -> Verdict {
    match (call, forgery) {
        ("Reassert", _) => Verdict::Refused(Code::Unavailable),
        ("Disconnect" | "MailAck", Verdict::Refused(_)) => Verdict::Done,
        (_, expected) => expected,
    }
}

/// Numbers of a case: the thief, the victim, the victim's peer; a group of the latter two.
#[derive(Clone, Copy, Debug)]
struct Cast {
    thief: i64,
    victim: i64,
    peer: i64,
    group: i64,
    /// Bit of a ticket.
    bit: usize,
}

fn casts() -> impl Strategy<Value = Cast> {
    let users = proptest::sample::subsequence((1..=60).collect::<Vec<i64>>(), 3);
    let bits = 0..TICKET_BYTES * 8;
    (users.prop_shuffle(), 1..=50i64, bits).prop_map(|(users, group, bit)| Cast {
        thief: users[0],
        victim: users[1],
        peer: users[2],
        group,
        bit,
    })
}

/// A station with the sessions of a thief and a victim, and the victim's conversations in its
/// stores.
struct Scene {
    strict: Strict,
    cast: Cast,
    private: Placed,
    /// The victim's own message to the peer.
    own: Placed,
    in_group: Placed,
    thief: Speaker,
    /// Another session of the thief.
    second: Speaker,
    victim: Speaker,
}

impl Scene {
    async fn new(strict: Strict, cast: Cast) -> Scene {
        let Cast {
            thief,
            victim,
            peer,
            ..
        } = cast;
        let world = &strict.world;
        let private = world.place(peer, victim, 1, CANARY).await;
        let own = world.place(victim, peer, 2, CANARY).await;
        world.store(&private).await;
        world
            .create_group(cast.group, CLOSED, &[victim, peer])
            .await;
        let in_group = world.say(cast.group, victim, CANARY).await;
        sleep(PLACE_TIMEOUT).await;
        let (thief_ticket, second, victim_ticket) = (
            strict.sign_in(THIEF_BOAT, thief).await.ticket,
            strict.ticket_on(THIEF_BOAT, thief, Platform::Web).await,
            strict.sign_in(VICTIM_BOAT, victim).await.ticket,
        );
        settle().await;
        let speaker = |user, session, platform, ticket| Speaker {
            user,
            session,
            platform,
            ticket,
        };
        Scene {
            private,
            own,
            in_group,
            thief: speaker(thief, thief, PHONE, thief_ticket),
            second: speaker(thief, thief + 1000, Platform::Web, second),
            victim: speaker(victim, victim, PHONE, victim_ticket),
            strict,
            cast,
        }
    }

    async fn state(&self) -> State {
        let world = &self.strict.world;
        let all = |table: &Table| {
            let pairs = (world.engine).range(*table, .., ScanOrder::Forward, usize::MAX);
            (*table, pairs.expect("readable"))
        };
        let users = [self.cast.thief, self.cast.victim, self.cast.peer].map(user);
        let sessions = (world.backends.mailbox)
            .sessions(&users, DeniedBoats::default())
            .await;
        State {
            tables: Table::ALL.iter().map(all).collect(),
            sessions: sessions
                .into_iter()
                .map(|entries| entries.expect("readable"))
                .collect(),
        }
    }

    /// Conversations that the thief is not in.
    fn conversations(&self) -> [ConversationId; 2] {
        [self.private.conversation, of(self.cast.group)]
    }

    /// Makes a call in the name of a session, for the victim's objects.
    async fn call(&self, name: &str, caller: Option<Caller>, speaker: &Speaker) -> Answer {
        let world = &self.strict.world;
        let mut client = self.strict.client_as(caller);
        let (user_id, session_id) = (user(speaker.user), session(speaker.session));
        let (platform, ticket) = (speaker.platform, speaker.ticket);
        let phone = device(&format!("phone-{}", speaker.session));
        match name {
            "SendBatch" => {
                let words = send(self.cast.peer, 1, "forged");
                self.send(&mut client, speaker, words).await
            }
            "Receipts" => {
                let entry = if speaker.user == self.cast.victim {
                    &self.private
                } else {
                    &self.in_group
                };
                self.acknowledge(&mut client, speaker, entry).await
            }
            "MailPage" => {
                let request = MailPageRequest {
                    user: user_id,
                    platform,
                    cursor: None,
                    limit: 9,
                    session: Some(session_id),
                    ticket,
                };
                let page = client.mail_page(v1::MailPageRequest::from(request)).await;
                Answer::new(page, |_| None)
            }
            "MailAck" => {
                let ack = MailAck {
                    user: user_id,
                    platform,
                    session: session_id,
                    ids: vec![self.private.message.id],
                    ticket,
                };
                let request = v1::MailAckRequest {
                    items: vec![(&ack).into()],
                };
                Answer::new(client.mail_ack(request).await, |_| None)
            }
            "Sync" => {
                let query = SyncQuery::History {
                    conversation: self.private.conversation,
                    range: HistoryRange::Backward { before: None },
                    limit: 9,
                };
                self.ask(&mut client, speaker, query).await
            }
            "Reassert" => {
                let session = Reassert {
                    key: world.key(speaker.user, speaker.session),
                    platform,
                    device: phone,
                    login: None,
                    issued_at: None,
                    ticket,
                };
                let request = v1::ReassertRequest {
                    sessions: vec![(&session).into()],
                };
                Answer::new(client.reassert(request).await, |answer| {
                    let result = answer.results[0].clone();
                    let outcome = Reasserted::try_from(result).expect("known").outcome;
                    (outcome == ReassertOutcome::Unproved).then_some(Code::Unavailable)
                })
            }
            "Disconnect" => {
                let key = world.key(speaker.user, speaker.session);
                let request = v1::DisconnectRequest::from(vec![Disconnect { key, ticket }]);
                Answer::new(client.disconnect(request).await, |_| None)
            }
            "Refresh" => {
                let token = world.token(self.cast.victim);
                self.refresh(&mut client, speaker, token).await
            }
            "ResumeTickets" => {
                let session = ResumeSession {
                    user: user_id,
                    session: session_id,
                    platform,
                    device: phone,
                    ticket,
                };
                let request = v1::ResumeTicketsRequest {
                    sessions: vec![session.into()],
                };
                Answer::new(client.resume_tickets(request).await, |answer| {
                    answer.tickets[0].is_empty().then_some(Code::Unavailable)
                })
            }
            _ => panic!("{name} is no call for a session"),
        }
    }

    async fn send(&self, client: &mut Client, speaker: &Speaker, words: Send) -> Answer {
        let item = Submit {
            session: session(speaker.session),
            platform: speaker.platform,
            ticket: speaker.ticket,
            ..item(speaker.user, words)
        };
        let request = v1::SendBatchRequest {
            life: Some((&self.strict.world.life).into()),
            items: vec![(&item).into()],
        };
        Answer::new(client.send_batch(request).await, |answer| {
            code(answer.answers[0].refusal.clone())
        })
    }

    async fn acknowledge(&self, client: &mut Client, speaker: &Speaker, entry: &Placed) -> Answer {
        let mut receipt = receipt_item(speaker.user, ReceiptKind::Read, &[entry]);
        receipt.session = session(speaker.session);
        receipt.ticket = speaker.ticket;
        let request = v1::ReceiptsRequest {
            items: vec![(&receipt).into()],
        };
        let answer = client.receipts(request).await;
        settle().await;
        Answer::new(answer, |answer| {
            let refusal = answer.answers[0].refused.first();
            code(refusal.and_then(|one| one.refusal.clone()))
        })
    }

    async fn ask(&self, client: &mut Client, speaker: &Speaker, query: SyncQuery) -> Answer {
        let call = SyncCall {
            user: user(speaker.user),
            session: session(speaker.session),
            request: SyncRequest { request: 1, query },
            ticket: speaker.ticket,
        };
        Answer::new(client.sync(v1::SyncCall::from(&call)).await, |_| None)
    }

    async fn refresh(&self, client: &mut Client, speaker: &Speaker, token: String) -> Answer {
        let refresh = RefreshToken {
            user: user(speaker.user),
            session: session(speaker.session),
            platform: speaker.platform,
            device: device(&format!("phone-{}", speaker.session)),
            token,
            issued_at: None,
            ticket: speaker.ticket,
        };
        let answer = client.refresh(v1::RefreshRequest::from(&refresh)).await;
        Answer::new(answer, |answer| {
            let outcome: Result<Refreshment, Refusal> = answer.clone().try_into().expect("whole");
            outcome.err().map(|refusal| refusal.code)
        })
    }

    /// Proofs that are not the caller's, by name, each with the code of its refusal.
    fn forgeries(&self) -> Vec<(&'static str, Option<Caller>, Speaker, Verdict)> {
        let (thief, victim) = (&self.thief, &self.victim);
        let boat_caller = |name| Some(Caller::new(Boat, name));
        let with = |speaker: &Speaker, ticket| Speaker {
            ticket,
            ..speaker.clone()
        };
        let mut bytes = *victim.ticket.expect("a ticket").as_bytes();
        bytes[self.cast.bit / 8] ^= 1 << (self.cast.bit % 8);
        // The first byte names the key.
        let bit_verdict = match self.cast.bit / 8 {
            0 => Verdict::Refused(Code::Unavailable),
            _ => Verdict::Denied,
        };
        let thief_session = Speaker {
            session: thief.session,
            ..with(victim, thief.ticket)
        };
        let victim_session = Speaker {
            session: victim.session,
            ..thief.clone()
        };
        vec![
            (
                "the victim, by the thief's ticket",
                boat_caller(THIEF_BOAT),
                with(victim, thief.ticket),
                Verdict::Denied,
            ),
            (
                "the victim, at another boat",
                boat_caller(THIEF_BOAT),
                victim.clone(),
                Verdict::Denied,
            ),
            (
                "the victim, without a certificate",
                None,
                victim.clone(),
                Verdict::Denied,
            ),
            (
                "the victim, at a boat without a name",
                Some(Caller {
                    role: Boat,
                    name: None,
                }),
                victim.clone(),
                Verdict::Denied,
            ),
            (
                "the victim, without a ticket",
                boat_caller(THIEF_BOAT),
                with(victim, None),
                Verdict::Refused(Code::Unavailable),
            ),
            (
                "the victim, by a ticket with another bit",
                boat_caller(VICTIM_BOAT),
                with(victim, Some(Ticket::from_bytes(bytes))),
                bit_verdict,
            ),
            (
                "the victim, in the thief's session",
                boat_caller(THIEF_BOAT),
                thief_session,
                Verdict::Denied,
            ),
            (
                "the thief, in the victim's session",
                boat_caller(THIEF_BOAT),
                victim_session,
                Verdict::Denied,
            ),
            (
                "the thief's second session, by the ticket of the first",
                boat_caller(THIEF_BOAT),
                with(&self.second, thief.ticket),
                Verdict::Denied,
            ),
        ]
    }

    /// Makes nothing but attacks: returns those that went through, or had a wrong answer.
    async fn violations(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for call in CALLS {
            for (name, caller, speaker, expected) in self.forgeries() {
                let expected = expected_verdict(call, expected);
                let old_state = self.state().await;
                let answer = self.call(call, caller, &speaker).await;
                violations.extend(
                    self.judge(call, name, &old_state, &answer, &[expected])
                        .await,
                );
            }
        }
        violations
    }

    async fn judge(
        &self,
        call: &str,
        name: &str,
        old_state: &State,
        answer: &Answer,
        expected: &[Verdict],
    ) -> Vec<String> {
        let mut violations = Vec::new();
        if !expected.contains(&answer.verdict) {
            violations.push(format!("{call}: {name}: {:?}", answer.verdict));
        }
        if answer.names(CANARY.as_bytes()) {
            violations.push(format!("{call}: {name}: a body of the victim's"));
        }
        let new_state = self.state().await;
        if new_state.sessions != old_state.sessions {
            violations.push(format!("{call}: {name}: sessions changed"));
        }
        for (table, pairs) in &old_state.tables {
            if new_state.tables.get(table) != Some(pairs) {
                violations.push(format!("{call}: {name}: {table:?} changed"));
            }
        }
        let frames = self.strict.world.boat.frames();
        if frames
            .iter()
            .any(|(session, _)| *session == self.cast.victim)
        {
            violations.push(format!("{call}: {name}: a frame to the victim"));
        }
        violations
    }

    /// Attacks in the thief's own name, on objects that are not the thief's.
    async fn trespasses(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let mut client = self.strict.client(THIEF_BOAT);
        let thief = &self.thief;
        let forbidden = || Verdict::Refused(Code::Forbidden);
        let own_list = || vec![Verdict::Done];
        let queries = self.conversations().into_iter().flat_map(|conversation| {
            let range = HistoryRange::Backward { before: None };
            let limit = 9;
            let forward = HistoryRange::Forward { after: Seq(0) };
            [
                (
                    SyncQuery::History {
                        conversation,
                        range,
                        limit,
                    },
                    vec![forbidden()],
                ),
                (
                    SyncQuery::History {
                        conversation,
                        range: forward,
                        limit,
                    },
                    vec![forbidden()],
                ),
                (
                    SyncQuery::Changes {
                        conversation,
                        after: 0,
                        limit,
                    },
                    vec![forbidden()],
                ),
                // Rows and hidden messages are the asker's own, and the thief has none.
                (
                    SyncQuery::Row { conversation },
                    vec![forbidden(), Verdict::Done],
                ),
                (
                    SyncQuery::Hidden {
                        conversation,
                        after: 0,
                        limit,
                    },
                    vec![forbidden(), Verdict::Done],
                ),
            ]
        });
        let in_group = group(self.cast.group);
        let ids = [&self.private, &self.own, &self.in_group].map(|entry| entry.message.id);
        let other_queries = [
            (
                SyncQuery::Members {
                    group: in_group,
                    after: None,
                    limit: 9,
                },
                vec![forbidden()],
            ),
            (
                SyncQuery::Readers {
                    group: in_group,
                    seq: Seq(1),
                },
                vec![forbidden()],
            ),
            (
                SyncQuery::CountSince {
                    group: in_group,
                    since: Timestamp::ZERO,
                },
                vec![forbidden()],
            ),
            (
                SyncQuery::List {
                    since: Timestamp::ZERO,
                    cursor: Some(self.private.conversation),
                },
                vec![forbidden()],
            ),
            (
                SyncQuery::List {
                    since: Timestamp::ZERO,
                    cursor: None,
                },
                own_list(),
            ),
            (SyncQuery::Unread { after: None }, own_list()),
            (
                SyncQuery::Missed {
                    after: None,
                    limit: 9,
                },
                own_list(),
            ),
            (SyncQuery::Status { ids: ids.to_vec() }, own_list()),
        ];
        for (query, expected) in queries.chain(other_queries) {
            let name = format!("{query:?}");
            let old_state = self.state().await;
            let answer = self.ask(&mut client, thief, query).await;
            violations.extend(
                self.judge("Sync", &name, &old_state, &answer, &expected)
                    .await,
            );
        }
        for entry in [&self.private, &self.own, &self.in_group] {
            let old_state = self.state().await;
            let answer = self.acknowledge(&mut client, thief, entry).await;
            let expected = [forbidden(), Verdict::Refused(Code::NotFound)];
            violations.extend(
                self.judge("Receipts", "others'", &old_state, &answer, &expected)
                    .await,
            );
        }
        for (number, words) in self.words().into_iter().enumerate() {
            let old_state = self.state().await;
            let answer = self.send(&mut client, thief, words).await;
            let expected = [forbidden(), Verdict::Refused(Code::NotFound)];
            let name = format!("send {number}");
            violations.extend(
                self.judge("SendBatch", &name, &old_state, &answer, &expected)
                    .await,
            );
        }
        let old_state = self.state().await;
        let caller = || Some(Caller::new(Boat, THIEF_BOAT));
        let answer = self.call("MailPage", caller(), thief).await;
        violations.extend(
            self.judge("MailPage", "own", &old_state, &answer, &[Verdict::Done])
                .await,
        );
        // An acknowledgement removes the asker's own mail, and there is none.
        let answer = self.call("MailAck", caller(), thief).await;
        violations.extend(
            self.judge("MailAck", "own", &old_state, &answer, &[Verdict::Done])
                .await,
        );
        let token = self.strict.world.token(self.cast.victim);
        let answer = self.refresh(&mut client, thief, token).await;
        let expected = [Verdict::Refused(Code::Unauthenticated)];
        violations.extend(
            self.judge("Refresh", "others'", &old_state, &answer, &expected)
                .await,
        );
        violations
    }

    /// Messages of the thief into a group of others, and changes of others' messages.
    fn words(&self) -> Vec<Send> {
        let to_group = Recipient::Group(group(self.cast.group));
        let plain = Send {
            to: to_group,
            ..send(1, 11, "let me in")
        };
        let mut words = vec![plain];
        let targets = [
            (to_group, &self.in_group),
            (Recipient::User(user(self.cast.victim)), &self.private),
            (Recipient::User(user(self.cast.peer)), &self.own),
        ];
        for (to, entry) in targets {
            for (kind, text) in [(ChangeKind::Recall, ""), (ChangeKind::Edit, "changed")] {
                let mut change = send(1, 12 + words.len() as u8, text);
                change.to = to;
                change.content.change = Some(Box::new(ChangeOf {
                    subject: Some(entry.message.id),
                    kind,
                }));
                words.push(change);
            }
        }
        words
    }

    /// Sign-ins with proof of somebody else.
    async fn sign_ins(&self) -> Vec<String> {
        let mut violations = Vec::new();
        let world = &self.strict.world;
        let resume = self.resume_ticket().await;
        let mut bytes = *resume.as_bytes();
        bytes[self.cast.bit / 8] ^= 1 << (self.cast.bit % 8);
        let base = world.connect_request(self.cast.thief, PHONE, 3000);
        let by_ticket = |ticket, of: i64, platform| Connect {
            token: String::new(),
            resume: Some(ticket),
            device: device(&format!("phone-{of}")),
            platform,
            ..base.clone()
        };
        let (thief, victim) = (self.cast.thief, self.cast.victim);
        let token = world.token(victim);
        let cut = token.len() - 4;
        let swapped_token = {
            let own = world.token(thief);
            let (_, signature) = own.rsplit_once('.').expect("three parts");
            let (claims, _) = token.rsplit_once('.').expect("three parts");
            format!("{claims}.{signature}")
        };
        let by_token = |token: String| Connect {
            token,
            ..base.clone()
        };
        let attacks = [
            (
                "a ticket on another device",
                by_ticket(resume, thief, PHONE),
            ),
            (
                "a ticket on another platform",
                by_ticket(resume, victim, Platform::Web),
            ),
            (
                "a ticket with another bit",
                by_ticket(ResumeTicket::from_bytes(bytes), victim, PHONE),
            ),
            ("a token without its end", by_token(token[..cut].to_owned())),
            (
                "claims of the victim, signature of the thief",
                by_token(swapped_token),
            ),
            ("no token", by_token(String::new())),
        ];
        for (name, connect) in attacks {
            let old_state = self.state().await;
            let request = v1::ConnectRequest::from(&connect);
            let answer = self.strict.client(THIEF_BOAT).connect(request).await;
            let answer = Answer::new(answer, |answer| match &answer.result {
                Some(v1::connect_response::Result::Refusal(refusal)) => code(Some(refusal.clone())),
                _ => None,
            });
            if matches!(
                answer.verdict,
                Verdict::Done | Verdict::Refused(Code::Unavailable)
            ) {
                violations.push(format!("Connect: {name}: {:?}", answer.verdict));
            }
            let any = std::slice::from_ref(&answer.verdict);
            violations.extend(self.judge("Connect", name, &old_state, &answer, any).await);
        }
        violations
    }
    async fn resume_ticket(&self) -> ResumeTicket {
        let victim = &self.victim;
        let session = ResumeSession {
            user: user(victim.user),
            session: session(victim.session),
            platform: victim.platform,
            device: device(&format!("phone-{}", victim.session)),
            ticket: victim.ticket,
        };
        let request = v1::ResumeTicketsRequest {
            sessions: vec![session.into()],
        };
        let mut client = self.strict.client(VICTIM_BOAT);
        let answer = client.resume_tickets(request).await.expect("answered");
        let tickets: Vec<Option<ResumeTicket>> = answer.into_inner().try_into().expect("whole");
        tickets[0].expect("a ticket")
    }

    /// Calls every method as every role, and returns those that should have been refused.
    async fn foreign_roles(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for (path, allowed, attack) in ROWS {
            if attack == Attack::Foreign {
                continue;
            }
            for role in Role::ALL {
                let old_state = self.state().await;
                let status = self.call_empty(path, role).await;
                let is_refused = status.code() == tonic::Code::PermissionDenied;
                if is_refused == allowed.contains(&role) {
                    violations.push(format!("{path} by {role}: {status:?}"));
                }
                if self.state().await != old_state {
                    violations.push(format!("{path} by {role} changed something"));
                }
            }
        }
        violations
    }

    /// A call without a message, for which no service does anything.
    async fn call_empty(&self, path: &str, role: Role) -> Status {
        let world = &self.strict.world;
        let connector = world.connector.clone();
        let connector = connector.with_caller(Caller::new(role, "anybody"));
        let mut channel = if path.starts_with("Boat") {
            connector.channel(Boat, "inproc:boat-1")
        } else {
            connector.channel(Station, &world.station.instance().address)
        };
        let request = http::Request::post(format!("http://here/packetboat.v1.{path}"))
            .header("content-type", "application/grpc")
            .body(Body::empty())
            .expect("a request");
        match channel.call(request).await {
            Ok(answer) => Status::from_header_map(answer.headers())
                .unwrap_or_else(|| Status::ok("the call was heard")),
            Err(status) => status,
        }
    }
}

impl Strict {
    /// Ticket of a user's session, whose number is the user's plus a thousand.
    async fn ticket_on(&self, boat: &str, number: i64, platform: Platform) -> Option<Ticket> {
        let connect = self.world.connect_request(number, platform, number + 1000);
        let request = v1::ConnectRequest::from(&connect);
        let answer = self.client(boat).connect(request).await;
        let admission: Result<api::station::Admission, Refusal> =
            (answer.expect("answered").into_inner().try_into()).expect("whole");
        admission.expect("admitted").ticket
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build();
    runtime.expect("a runtime")
}

fn seeded(cases: u32) -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(17),
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(seeded(64))]

    // Threat 5, I17: nobody reads, writes or ends anything of another by any call of the protocol.
    #[test]
    fn no_call_reads_or_changes_what_is_anothers(cast in casts()) {
        let violations = runtime().block_on(async {
            let scene = Scene::new(strict().await, cast).await;
            let mut violations = scene.violations().await;
            violations.extend(scene.trespasses().await);
            violations.extend(scene.sign_ins().await);
            violations.extend(scene.foreign_roles().await);
            violations
        });
        prop_assert!(violations.is_empty(), "{cast:?}: {violations:#?}");
    }
}

// The property is not vacuous: a station that believes boats without tickets breaks it by every
// call for a session.
#[test]
fn a_station_that_asks_for_no_ticket_breaks_every_row() {
    let cast = Cast {
        thief: 1,
        victim: 2,
        peer: 3,
        group: 1,
        bit: 100,
    };
    for call in CALLS {
        let violations = runtime().block_on(async {
            let scene = Scene::new(with_keys(false).await, cast).await;
            let mut violations = Vec::new();
            for (name, caller, speaker, expected) in scene.forgeries() {
                if speaker.ticket.is_none() {
                    let old_state = scene.state().await;
                    let answer = scene.call(call, caller, &speaker).await;
                    violations = scene
                        .judge(
                            call,
                            name,
                            &old_state,
                            &answer,
                            &[expected_verdict(call, expected)],
                        )
                        .await;
                }
            }
            violations
        });
        // A session that is not proved is no ground for another proof.
        assert_eq!(
            violations.is_empty(),
            call == "ResumeTickets",
            "{call}: {violations:?}"
        );
    }
}
