//! Values of every kind, for tests that conversions lose nothing.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use protocol::bounds::Bounds;
use protocol::change::{
    Authorship, ChangeKind, ChangeOf, ChangeRequest, ListArrangement, MessageChange, MessageMarks,
    OrderedChange, Reaction,
};
use protocol::delivery::{Push, PushToken};
use protocol::drain::BoatState;
use protocol::frame::{
    Accepted, Ack, AckItem, Acked, ChangePage, ClientFrame, CountSince, Hello, HiddenPage,
    HistoryPage, HistoryRange, ListEvent, ListEventKind, ListPage, MemberPage, MessageStatus,
    MissedPage, PinPage, PlacedEcho, Refresh, Send, ServerFrame, Summary, SyncAnswer, SyncPage,
    SyncQuery, SyncRequest, UnreadPage, Welcome,
};
use protocol::group::{GroupCommand, GroupSettings, Role};
use protocol::history::RowStatus;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::mailbox::{MailCursor, ReassertAnswer};
use protocol::message::{Content, Target};
use protocol::notify::Notification;
use protocol::presence::{BoatLife, SessionKey};
use protocol::receipt::{Receipt, ReceiptKind};
use protocol::revocation::{PageStart, UserRevocation};
use protocol::session::{self, Page, PageItem, Submit};
use protocol::subscription::{GroupEnd, GroupSignal, SubscriptionState};
use protocol::ticket::{RESUME_TICKET_BYTES, ResumeTicket, TICKET_BYTES, Ticket};
use protocol::{
    BoatId, Code, ConversationId, DeviceId, GroupId, Incarnation, Message, MessageId, Options,
    Placed, Platform, Position, Recipient, Refusal, SendId, Seq, SessionId, Timestamp,
    TraceContext, UserId,
};

use crate::boat::{
    DeliverBatch, DrainCommand, DrainOrder, DrainProgress, Notice, NoticeBatch, NoticeKind, Outcome,
};
use crate::dead_letter::{DeadLetter, LetterOrigin};
use crate::station::{
    Admission, Connect, Disconnect, Kickout, MailAck, MailPageRequest, OnlineMembers,
    OnlineSession, OnlineUser, Reassert, ReassertOutcome, Reasserted, ReceiptItem, RefreshToken,
    Refreshment, ResumeSession, Revoke, RevokedPage, SendAnswer, SyncCall,
};
use crate::task::NotificationTask;
use protocol::record::{KickoutTask, MessageTask, RetryTask, Task, Work};

const TEXT: &str = "[a-zA-Z0-9ü :.-]{1,24}";

fn user() -> impl Strategy<Value = UserId> {
    (1..=i64::MAX).prop_map(|id| UserId::new(id).expect("positive"))
}

fn group() -> impl Strategy<Value = GroupId> {
    (1..=i64::MAX).prop_map(|id| GroupId::new(id).expect("positive"))
}

fn session() -> impl Strategy<Value = SessionId> {
    (1..=i64::MAX).prop_map(|id| SessionId::new(id).expect("positive"))
}

fn message_id() -> impl Strategy<Value = MessageId> {
    (1..=i64::MAX).prop_map(|id| MessageId::new(id).expect("positive"))
}

fn device() -> impl Strategy<Value = DeviceId> {
    "[a-z0-9ü-]{1,32}".prop_map(|text| DeviceId::new(&text).expect("well-formed"))
}

fn send_id() -> impl Strategy<Value = SendId> {
    any::<[u8; 16]>().prop_map(SendId::from_bytes)
}

fn platform() -> impl Strategy<Value = Platform> {
    proptest::sample::select(Platform::ALL.to_vec())
}

fn time() -> impl Strategy<Value = Timestamp> {
    any::<i64>().prop_map(Timestamp::from_millis)
}

/// A time, or none: the wire says 0 for none.
fn optional_time() -> impl Strategy<Value = Option<Timestamp>> {
    time().prop_map(|time| (time != Timestamp::ZERO).then_some(time))
}

/// A time that is not the wire's "not yet".
fn some_time() -> impl Strategy<Value = Timestamp> {
    (1..=i64::MAX).prop_map(Timestamp::from_millis)
}

fn seq() -> impl Strategy<Value = Seq> {
    (1..=u64::MAX).prop_map(Seq)
}

fn marker() -> impl Strategy<Value = Option<u64>> {
    option::of(1..=u64::MAX)
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..64).prop_map(Bytes::from)
}

fn position() -> impl Strategy<Value = Position> {
    (seq(), option::of(message_id())).prop_map(|(seq, prev)| Position { seq, prev })
}

fn receipt_kind() -> impl Strategy<Value = ReceiptKind> {
    prop_oneof![Just(ReceiptKind::Received), Just(ReceiptKind::Read)]
}

fn life() -> impl Strategy<Value = BoatLife> {
    ("[a-z0-9-]{1,20}", any::<u64>()).prop_map(|(boat, incarnation)| BoatLife {
        boat: BoatId::new(&boat).expect("well-formed"),
        incarnation: Incarnation(incarnation),
    })
}

pub(crate) fn session_key() -> impl Strategy<Value = SessionKey> {
    (user(), session(), life()).prop_map(|(user, session, life)| SessionKey {
        user,
        session,
        life,
    })
}

pub(crate) fn conversation() -> impl Strategy<Value = ConversationId> {
    prop_oneof![
        (1..i64::MAX / 2, 1..i64::MAX / 2).prop_map(|(low, more)| {
            let low = UserId::new(low).expect("positive");
            let high = UserId::new(low.get() + more).expect("positive");
            ConversationId::private(low, high).expect("two users")
        }),
        group().prop_map(ConversationId::Group),
        user().prop_map(ConversationId::System),
    ]
}

pub(crate) fn refusal() -> impl Strategy<Value = Refusal> {
    let code = proptest::sample::select(Code::ALL.to_vec());
    let retry_delay = option::of((1..=u64::MAX).prop_map(Duration::from_millis));
    (code, TEXT, retry_delay).prop_map(|(code, text, retry_after)| Refusal {
        code,
        text,
        retry_after,
    })
}

fn recipient() -> impl Strategy<Value = Recipient> {
    prop_oneof![
        user().prop_map(Recipient::User),
        group().prop_map(Recipient::Group)
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (0..=7u8).prop_map(|bits| Options::from_bits(bits).expect("three bits"))
}

fn content() -> impl Strategy<Value = Content> {
    let numbers = any::<(i32, i32, i32, i32, i64)>();
    (numbers, bytes(), option::of(message_id())).prop_map(|(numbers, data, reference)| {
        let (kind, priority, encryption, sub_kind, key_print) = numbers;
        Content {
            kind,
            data,
            priority,
            reference,
            encryption,
            sub_kind,
            key_print,
            change: None,
        }
    })
}

fn reaction() -> impl Strategy<Value = Reaction> {
    "[a-z👍]{1,16}".prop_map(|text| text.parse().expect("short"))
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Member), Just(Role::Admin), Just(Role::Owner)]
}

fn settings() -> impl Strategy<Value = GroupSettings> {
    any::<(bool, bool, bool, bool)>().prop_map(|(open_history, open_door, muted, quiet)| {
        GroupSettings {
            open_history,
            open_door,
            muted,
            quiet,
        }
    })
}

fn command() -> impl Strategy<Value = GroupCommand> {
    prop_oneof![
        (settings(), vec(user(), 0..3))
            .prop_map(|(settings, members)| GroupCommand::Create { settings, members }),
        Just(GroupCommand::Join),
        Just(GroupCommand::Leave),
        vec(user(), 0..3).prop_map(GroupCommand::Add),
        vec(user(), 0..3).prop_map(GroupCommand::Remove),
        (user(), role()).prop_map(|(user, role)| GroupCommand::SetRole(user, role)),
        user().prop_map(GroupCommand::HandOver),
        settings().prop_map(GroupCommand::Set),
        vec(user(), 0..3).prop_map(GroupCommand::Ban),
        (user(), some_time()).prop_map(|(user, until)| GroupCommand::Mute(user, until)),
        Just(GroupCommand::Dissolve),
    ]
}

fn arrangement() -> impl Strategy<Value = ListArrangement> {
    (any::<bool>(), option::of(some_time())).prop_map(|(pinned, muted_until)| ListArrangement {
        pinned,
        muted_until,
    })
}

fn list_event() -> impl Strategy<Value = ListEvent> {
    let kind = prop_oneof![
        any::<u64>().prop_map(|seq| ListEventKind::Cleared(Seq(seq))),
        arrangement().prop_map(ListEventKind::Arranged),
        option::of(role()).prop_map(ListEventKind::Member),
        any::<u64>().prop_map(|seq| ListEventKind::Hidden(Seq(seq))),
    ];
    (message_id(), send_id(), conversation(), kind).prop_map(|(id, send_id, conversation, kind)| {
        ListEvent {
            id,
            send_id,
            conversation,
            kind,
        }
    })
}

fn change_of() -> impl Strategy<Value = ChangeOf> {
    let kind = prop_oneof![
        Just(ChangeKind::Recall),
        Just(ChangeKind::Edit),
        (reaction(), any::<bool>()).prop_map(|(reaction, on)| ChangeKind::React { reaction, on }),
        any::<bool>().prop_map(|on| ChangeKind::Pin { on }),
    ];
    let of_list = prop_oneof![
        Just(ChangeKind::Clear),
        Just(ChangeKind::Hide),
        arrangement().prop_map(ChangeKind::Arrange),
        command().prop_map(ChangeKind::GroupCommand),
    ];
    (message_id(), prop_oneof![kind, of_list]).prop_map(|(subject, kind)| ChangeOf {
        subject: (!matches!(kind, ChangeKind::GroupCommand(_))).then_some(subject),
        kind,
    })
}

/// Content of a message that stands for itself, or of one that changes another.
fn said() -> impl Strategy<Value = Content> {
    (content(), option::of(change_of())).prop_map(|(content, change)| Content {
        change: change.map(Box::new),
        ..content
    })
}

fn ordered_change() -> impl Strategy<Value = OrderedChange> {
    let change = prop_oneof![
        Just(MessageChange::Recall),
        content().prop_map(MessageChange::Edit),
        (reaction(), any::<bool>())
            .prop_map(|(reaction, on)| MessageChange::React { reaction, on }),
        any::<bool>().prop_map(|on| MessageChange::Pin { on }),
        Just(MessageChange::Unknown),
    ];
    let request = (
        message_id(),
        send_id(),
        message_id(),
        user(),
        time(),
        change,
    );
    (any::<u64>(), seq(), request).prop_map(|(rev, seq, (id, send_id, subject, by, at, change))| {
        OrderedChange {
            rev,
            seq,
            asked: ChangeRequest {
                id,
                send_id,
                subject,
                by,
                at,
                change,
            },
        }
    })
}

fn marks() -> impl Strategy<Value = MessageMarks> {
    let authorship = || option::of((user(), time()).prop_map(|(by, at)| Authorship { by, at }));
    let reactions = vec((reaction(), vec(user(), 1..3)), 0..3);
    let marks = (authorship(), authorship(), reactions, authorship());
    marks.prop_map(|(recalled, edited, reactions, pinned)| MessageMarks {
        recalled,
        edited,
        reactions,
        pinned,
        hidden: false,
    })
}

pub(crate) fn trace() -> impl Strategy<Value = TraceContext> {
    any::<(u64, u64, u64, bool)>().prop_map(|(high, low, span, sampled)| TraceContext {
        sampled,
        ..TraceContext::root(high, low, span)
    })
}

pub(crate) fn send() -> impl Strategy<Value = Send> {
    let tries = (
        any::<u32>(),
        any::<u64>(),
        option::of(seq()),
        option::of(trace()),
    );
    (send_id(), recipient(), options(), said(), tries).prop_map(
        |(send_id, to, options, content, (attempt, age, seen_seq, trace))| Send {
            send_id,
            to,
            options,
            content,
            attempt,
            age: Duration::from_millis(age),
            seen_seq,
            trace,
        },
    )
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let parties = (message_id(), user(), recipient());
    let metadata = (time(), device(), send_id(), options(), said());
    (parties, metadata)
        .prop_map(
            |((id, from, to), (accepted_at, device, send_id, options, content))| Message {
                id,
                from,
                to,
                accepted_at,
                device,
                send_id,
                options,
                content,
            },
        )
        .prop_filter("not to oneself", |m| m.conversation().is_some())
}

pub(crate) fn placed() -> impl Strategy<Value = Placed> {
    (message(), position()).prop_map(|(message, position)| Placed {
        conversation: message.conversation().expect("two users"),
        message,
        position,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    let resume = option::of(resume_ticket());
    (any::<u32>(), TEXT, device(), platform(), marker(), resume).prop_map(
        |(version, token, device, platform, marker, resume)| Hello {
            version,
            token,
            device,
            platform,
            marker,
            resume,
        },
    )
}

fn resume_ticket() -> impl Strategy<Value = ResumeTicket> {
    any::<[u8; 16]>().prop_map(|part| {
        let mut bytes = [0; RESUME_TICKET_BYTES];
        bytes[..16].copy_from_slice(&part);
        ResumeTicket::from_bytes(bytes)
    })
}

fn ack_item() -> impl Strategy<Value = AckItem> {
    (conversation(), message_id(), seq()).prop_map(|(conversation, id, seq)| AckItem {
        conversation,
        id,
        seq,
    })
}

fn ack() -> impl Strategy<Value = Ack> {
    (receipt_kind(), vec(ack_item(), 0..5)).prop_map(|(kind, items)| Ack { kind, items })
}

fn range() -> impl Strategy<Value = HistoryRange> {
    prop_oneof![
        any::<u64>().prop_map(|after| HistoryRange::Forward { after: Seq(after) }),
        option::of(seq()).prop_map(|before| HistoryRange::Backward { before }),
    ]
}

pub(crate) fn sync_request() -> impl Strategy<Value = SyncRequest> {
    let query = prop_oneof![
        (time(), option::of(conversation())).prop_map(|(since, after)| SyncQuery::List {
            since,
            cursor: after
        }),
        (conversation(), range(), any::<u32>()).prop_map(|(conversation, range, limit)| {
            SyncQuery::History {
                conversation,
                range,
                limit,
            }
        }),
        conversation().prop_map(|conversation| SyncQuery::Row { conversation }),
        vec(message_id(), 0..5).prop_map(|ids| SyncQuery::Status { ids }),
        (group(), option::of(user()), any::<u32>()).prop_map(|(group, after, limit)| {
            SyncQuery::Members {
                group,
                after,
                limit,
            }
        }),
        (group(), seq()).prop_map(|(group, seq)| SyncQuery::Readers { group, seq }),
        (option::of(message_id()), any::<u32>())
            .prop_map(|(after, limit)| SyncQuery::Missed { after, limit }),
        option::of(conversation()).prop_map(|after| SyncQuery::Unread { after }),
        (group(), time()).prop_map(|(group, since)| SyncQuery::CountSince { group, since }),
        (conversation(), any::<(u64, u32)>()).prop_map(|(conversation, (after, limit))| {
            SyncQuery::Hidden {
                conversation,
                after,
                limit,
            }
        }),
        // 0 stands for the newest.
        (conversation(), option::of(1..=u64::MAX), any::<u32>()).prop_map(
            |(conversation, before, limit)| SyncQuery::Pins {
                conversation,
                before: before.map(Seq),
                limit,
            }
        ),
        (conversation(), any::<(u64, u32)>()).prop_map(|(conversation, (after, limit))| {
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            }
        }),
    ];
    (any::<u32>(), query).prop_map(|(request, query)| SyncRequest { request, query })
}

pub(crate) fn client_frame() -> impl Strategy<Value = ClientFrame> {
    prop_oneof![
        hello().prop_map(ClientFrame::Hello),
        send().prop_map(ClientFrame::Send),
        send_id().prop_map(ClientFrame::GiveUp),
        ack().prop_map(ClientFrame::Ack),
        any::<u64>().prop_map(|nonce| ClientFrame::Ping { nonce }),
        sync_request().prop_map(ClientFrame::Sync),
        TEXT.prop_map(|token| ClientFrame::Refresh(Refresh { token })),
        vec((group(), group_end()), 0..4).prop_map(ClientFrame::Subscribe),
        vec(group(), 0..4).prop_map(ClientFrame::Watch),
    ]
}

fn welcome() -> impl Strategy<Value = Welcome> {
    let limits = any::<(u32, u32, u32)>();
    let state = any::<(u64, u64, bool)>();
    let times = (time(), optional_time());
    (session(), user(), times, limits, state).prop_map(
        |(session, user, (server_time, expires_at), limits, (cluster, marker, recovered))| {
            Welcome {
                session,
                user,
                server_time,
                heartbeat: Duration::from_millis(limits.0.into()),
                frame_bytes_max: limits.1,
                send_window: limits.2,
                cluster,
                marker,
                recovered,
                expires_at,
            }
        },
    )
}

fn accepted() -> impl Strategy<Value = Accepted> {
    (send_id(), message_id(), time()).prop_map(|(send_id, id, accepted_at)| Accepted {
        send_id,
        id,
        accepted_at,
    })
}

fn echo() -> impl Strategy<Value = PlacedEcho> {
    (send_id(), message_id(), conversation(), position()).prop_map(
        |(send_id, id, conversation, position)| PlacedEcho {
            send_id,
            id,
            conversation,
            position,
        },
    )
}

fn ack_answer() -> impl Strategy<Value = Acked> {
    let refusals = vec((message_id(), refusal()), 0..4);
    (receipt_kind(), vec(message_id(), 0..5), refusals).prop_map(|(kind, ids, refusals)| Acked {
        kind,
        ids,
        refusals,
    })
}

fn receipt() -> impl Strategy<Value = Receipt> {
    let subject = (conversation(), message_id(), seq());
    (receipt_kind(), subject, user(), time()).prop_map(|(kind, (conversation, id, seq), by, at)| {
        Receipt {
            kind,
            conversation,
            id,
            seq,
            by,
            at,
        }
    })
}

fn group_end() -> impl Strategy<Value = GroupEnd> {
    any::<(u64, u64)>().prop_map(|(seq, rev)| GroupEnd { seq: Seq(seq), rev })
}

fn group_signal() -> impl Strategy<Value = GroupSignal> {
    let state = proptest::sample::select(&SubscriptionState::ALL[..]);
    (group(), group_end(), time(), state, any::<u32>()).prop_map(
        |(group, end, at, state, spread_ms)| GroupSignal {
            group,
            end,
            at,
            state,
            spread: Duration::from_millis(u64::from(spread_ms)),
        },
    )
}

fn summary() -> impl Strategy<Value = Summary> {
    let numbers = any::<(u64, u64, u64, u64, u64, u64)>();
    let of_user = (
        arrangement(),
        option::of(role()),
        any::<bool>(),
        any::<u64>(),
    );
    let newest = (option::of(placed()), option::of(marks()), of_user);
    (conversation(), numbers, time(), newest).prop_map(
        |(
            conversation,
            (seq, incoming, rev, read_seq, cleared_seq, unread),
            version,
            (newest, marks, (arranged, role, is_large, hidden)),
        )| {
            Summary {
                conversation,
                seq: Seq(seq),
                incoming,
                rev,
                read_seq: Seq(read_seq),
                cleared_seq: Seq(cleared_seq),
                arranged,
                hidden,
                role,
                is_large,
                unread,
                version,
                newest,
                marks,
            }
        },
    )
}

fn status() -> impl Strategy<Value = MessageStatus> {
    (
        message_id(),
        option::of(some_time()),
        option::of(some_time()),
        any::<bool>(),
    )
        .prop_map(|(id, delivered_at, read_at, is_finished)| MessageStatus {
            id,
            delivered_at,
            read_at,
            is_finished,
        })
}

fn row_status() -> impl Strategy<Value = RowStatus> {
    (status(), any::<bool>()).prop_map(|(status, deleted)| RowStatus {
        delivered_at: status.delivered_at,
        read_at: status.read_at,
        deleted,
    })
}

/// Statuses that differ from that of a message nobody has received.
fn statuses_by_seq(messages: &[Placed], statuses: Vec<RowStatus>) -> BTreeMap<Seq, RowStatus> {
    let seqs = messages.iter().map(|message| message.position.seq);
    let statuses_of_messages = seqs.zip(statuses);
    statuses_of_messages
        .filter(|(_, status)| *status != RowStatus::default())
        .collect()
}

pub(crate) fn sync_page() -> impl Strategy<Value = SyncPage> {
    let list =
        (vec(summary(), 0..3), time(), any::<bool>()).prop_map(|(conversations, version, more)| {
            ListPage {
                conversations,
                version,
                more,
            }
        });
    let marks_by_seq = btree_map(seq(), marks(), 0..3);
    let pages = (vec(placed(), 0..3), marks_by_seq, vec(row_status(), 3));
    let history = (conversation(), pages, any::<(u64, u64, bool)>()).prop_map(
        |(conversation, (messages, marks, statuses), (last_seq, rev, more))| HistoryPage {
            conversation,
            statuses: statuses_by_seq(&messages, statuses),
            messages,
            marks,
            rev,
            last_seq: Seq(last_seq),
            more,
        },
    );
    let changes = (
        conversation(),
        vec(ordered_change(), 0..3),
        any::<(u64, bool)>(),
    )
        .prop_map(|(conversation, changes, (last_rev, more))| ChangePage {
            conversation,
            changes,
            last_rev,
            more,
        });
    let answer = prop_oneof![
        list.prop_map(SyncAnswer::List),
        option::of(summary()).prop_map(|row| SyncAnswer::Row(row.map(Box::new))),
        history.prop_map(SyncAnswer::History),
        vec(status(), 0..4).prop_map(SyncAnswer::Status),
        changes.prop_map(SyncAnswer::Changes),
        (settings(), vec((user(), role()), 0..3), any::<bool>()).prop_map(
            |(settings, members, more)| SyncAnswer::Members(MemberPage {
                settings,
                members,
                more,
            })
        ),
        vec(user(), 0..3).prop_map(SyncAnswer::Readers),
        (vec(placed(), 0..3), any::<bool>())
            .prop_map(|(messages, more)| { SyncAnswer::Missed(MissedPage { messages, more }) }),
        (
            vec((conversation(), any::<u64>()), 0..3),
            option::of(conversation())
        )
            .prop_map(|(counts, next)| SyncAnswer::Unread(UnreadPage { counts, next })),
        any::<(u64, bool)>()
            .prop_map(|(count, more)| SyncAnswer::CountSince(CountSince { count, more })),
        (vec(seq(), 0..3), any::<(u64, bool)>())
            .prop_map(|(seqs, (last, more))| SyncAnswer::Hidden(HiddenPage { seqs, last, more })),
        (
            vec(placed(), 0..3),
            btree_map(seq(), marks(), 0..3),
            option::of(1..=u64::MAX),
            any::<u64>()
        )
            .prop_map(|(messages, marks, next, rev)| SyncAnswer::Pins(PinPage {
                messages,
                marks,
                next: next.map(Seq),
                rev
            })),
    ];
    (any::<u32>(), answer).prop_map(|(request, answer)| SyncPage { request, answer })
}

pub(crate) fn server_frame() -> impl Strategy<Value = ServerFrame> {
    prop_oneof![
        welcome().prop_map(ServerFrame::Welcome),
        accepted().prop_map(ServerFrame::Accepted),
        (send_id(), refusal())
            .prop_map(|(send_id, refusal)| ServerFrame::Refused { send_id, refusal }),
        echo().prop_map(ServerFrame::Placed),
        placed().prop_map(ServerFrame::Message),
        ack_answer().prop_map(ServerFrame::Acked),
        vec(receipt(), 0..4).prop_map(ServerFrame::Receipts),
        (any::<u64>(), time())
            .prop_map(|(nonce, server_time)| ServerFrame::Pong { nonce, server_time }),
        sync_page().prop_map(ServerFrame::Page),
        (conversation(), ordered_change()).prop_map(|(conversation, changed)| {
            ServerFrame::Changed {
                conversation,
                changed,
            }
        }),
        list_event().prop_map(ServerFrame::Listed),
        vec(group_signal(), 0..4).prop_map(ServerFrame::Signals),
        Just(ServerFrame::Resync),
        (option::of(1..=u32::MAX), refusal())
            .prop_map(|(request, refusal)| ServerFrame::Error { request, refusal }),
        (refusal(), option::of(resume_ticket()))
            .prop_map(|(refusal, resume)| ServerFrame::Closing { refusal, resume }),
        time().prop_map(|expires_at| ServerFrame::Refreshed { expires_at }),
    ]
}

fn push() -> impl Strategy<Value = Push> {
    let flags = (any::<(u64, bool)>(), option::of(trace()));
    let to = (session(), message_id());
    (to, bytes(), flags).prop_map(|((session, message), frame, (flags, trace))| Push {
        token: PushToken::from_number(flags.0),
        session,
        message,
        frame,
        needs_ack: flags.1,
        trace,
    })
}

fn notice() -> impl Strategy<Value = Notice> {
    let kind = prop_oneof![
        bytes().prop_map(NoticeKind::Frame),
        Just(NoticeKind::Hint),
        Just(NoticeKind::Resync),
        refusal().prop_map(NoticeKind::Close),
    ];
    (session(), kind).prop_map(|(session, kind)| Notice { session, kind })
}

pub(crate) fn deliver_batch() -> impl Strategy<Value = DeliverBatch> {
    let batch = (life(), vec(push(), 0..4), vec(notice(), 0..4));
    batch.prop_map(|(life, pushes, notices)| DeliverBatch {
        life,
        pushes,
        notices,
    })
}

pub(crate) fn drain_command() -> impl Strategy<Value = DrainCommand> {
    let pace = any::<u32>().prop_map(NonZeroU32::new);
    let order = prop_oneof![
        pace.prop_map(|pace| DrainOrder::Drain { pace }),
        Just(DrainOrder::Cancel)
    ];
    (life(), option::of(order)).prop_map(|(life, order)| DrainCommand { life, order })
}

pub(crate) fn drain_progress() -> impl Strategy<Value = DrainProgress> {
    let state = prop_oneof![
        Just(BoatState::Open),
        Just(BoatState::Tight),
        Just(BoatState::Draining),
        Just(BoatState::Unknown)
    ];
    (state, any::<u64>(), any::<bool>()).prop_map(|(state, connections, waits)| DrainProgress {
        state,
        connections,
        waits,
    })
}

pub(crate) fn notice_batch() -> impl Strategy<Value = NoticeBatch> {
    (life(), vec(notice(), 0..4)).prop_map(|(life, notices)| NoticeBatch { life, notices })
}

pub(crate) fn outcome() -> impl Strategy<Value = Outcome> {
    let kinds = [
        session::Outcome::Done,
        session::Outcome::NoAck,
        session::Outcome::NoSession,
        session::Outcome::Full,
    ];
    (any::<u64>(), proptest::sample::select(kinds.to_vec()))
        .prop_map(|(token, kind)| Outcome { token, kind })
}

pub(crate) fn connect() -> impl Strategy<Value = Connect> {
    let identity = (session(), life(), device(), platform());
    (identity, TEXT, TEXT, marker(), option::of(resume_ticket())).prop_map(
        |((session, life, device, platform), token, peer, marker, resume)| Connect {
            session,
            life,
            token,
            resume,
            device,
            platform,
            peer,
            marker,
        },
    )
}

pub(crate) fn refresh_token() -> impl Strategy<Value = RefreshToken> {
    let identity = (user(), session(), platform(), device());
    (identity, TEXT, optional_time(), ticket()).prop_map(
        |((user, session, platform, device), token, issued_at, ticket)| RefreshToken {
            user,
            session,
            platform,
            device,
            token,
            issued_at,
            ticket,
        },
    )
}

pub(crate) fn refreshment() -> impl Strategy<Value = Result<Refreshment, Refusal>> {
    let refreshment =
        (time(), time(), ticket()).prop_map(|(expires_at, issued_at, ticket)| Refreshment {
            expires_at,
            issued_at,
            ticket,
        });
    prop_oneof![refreshment.prop_map(Ok), refusal().prop_map(Err)]
}

pub(crate) fn resume_session() -> impl Strategy<Value = ResumeSession> {
    (user(), session(), platform(), device(), ticket()).prop_map(
        |(user, session, platform, device, ticket)| ResumeSession {
            user,
            session,
            platform,
            device,
            ticket,
        },
    )
}

pub(crate) fn resume_tickets() -> impl Strategy<Value = Vec<Option<ResumeTicket>>> {
    vec(option::of(resume_ticket()), 0..5)
}

pub(crate) fn admission() -> impl Strategy<Value = Result<Admission, Refusal>> {
    let numbers = any::<(u64, u64, u64)>();
    let times = (time(), time(), optional_time());
    let admission = (
        user(),
        numbers,
        any::<(bool, bool, bool)>(),
        times,
        ticket(),
    )
        .prop_map(
            |(user, numbers, flags, (server_time, expires_at, issued_at), ticket)| Admission {
                user,
                login: numbers.0,
                marker: numbers.1,
                is_recovered: flags.0,
                mail_waits: flags.1,
                cluster: numbers.2,
                server_time,
                expires_at,
                is_degraded: flags.2,
                issued_at,
                ticket,
            },
        );
    prop_oneof![admission.prop_map(Ok), refusal().prop_map(Err)]
}

fn ticket() -> impl Strategy<Value = Option<Ticket>> {
    option::of(any::<[u8; TICKET_BYTES]>().prop_map(Ticket::from_bytes))
}

pub(crate) fn disconnects() -> impl Strategy<Value = Vec<Disconnect>> {
    let disconnect = (session_key(), ticket()).prop_map(|(key, ticket)| Disconnect { key, ticket });
    vec(disconnect, 0..4)
}

pub(crate) fn reassert() -> impl Strategy<Value = Reassert> {
    let session = (
        session_key(),
        platform(),
        device(),
        option::of(1..u64::MAX),
        optional_time(),
        ticket(),
    );
    session.prop_map(
        |(key, platform, device, login, issued_at, ticket)| Reassert {
            key,
            platform,
            device,
            login,
            issued_at,
            ticket,
        },
    )
}

pub(crate) fn reasserted() -> impl Strategy<Value = Reasserted> {
    let outcome = prop_oneof![
        any::<bool>()
            .prop_map(|mail_waits| ReassertOutcome::Answer(ReassertAnswer::Known { mail_waits })),
        any::<(u64, bool)>().prop_map(|(marker, mail_waits)| {
            ReassertOutcome::Answer(ReassertAnswer::Restored { marker, mail_waits })
        }),
        Just(ReassertOutcome::Answer(ReassertAnswer::Displaced)),
        Just(ReassertOutcome::Answer(ReassertAnswer::Replaced)),
        Just(ReassertOutcome::Unavailable),
        Just(ReassertOutcome::Revoked),
        Just(ReassertOutcome::Unproved),
    ];
    (outcome, ticket()).prop_map(|(outcome, ticket)| Reasserted { outcome, ticket })
}

pub(crate) fn submit() -> impl Strategy<Value = Submit> {
    (session(), user(), device(), platform(), send(), ticket()).prop_map(
        |(session, user, device, platform, send, ticket)| Submit {
            session,
            user,
            device,
            platform,
            send,
            ticket,
        },
    )
}

pub(crate) fn send_answer() -> impl Strategy<Value = SendAnswer> {
    prop_oneof![
        accepted().prop_map(SendAnswer::Accepted),
        (send_id(), refusal())
            .prop_map(|(send_id, refusal)| SendAnswer::Refused { send_id, refusal }),
    ]
}

pub(crate) fn receipt_item() -> impl Strategy<Value = ReceiptItem> {
    let item = (user(), session(), ack(), ticket());
    item.prop_map(|(user, session, ack, ticket)| ReceiptItem {
        user,
        session,
        ack,
        ticket,
    })
}

fn mail_cursor() -> impl Strategy<Value = Option<MailCursor>> {
    option::of((time(), message_id()).prop_map(|(accepted_at, id)| MailCursor { accepted_at, id }))
}

pub(crate) fn mail_page_request() -> impl Strategy<Value = MailPageRequest> {
    let place = (mail_cursor(), any::<u32>());
    let identity = (user(), platform(), option::of(session()), ticket());
    (identity, place).prop_map(|((user, platform, session, ticket), (cursor, limit))| {
        MailPageRequest {
            user,
            platform,
            cursor,
            limit,
            session,
            ticket,
        }
    })
}

pub(crate) fn mail_page() -> impl Strategy<Value = Page> {
    let mail = (message_id(), bytes()).prop_map(|(id, frame)| PageItem { id, frame });
    (vec(mail, 0..4), mail_cursor()).prop_map(|(mails, next)| Page { mails, next })
}

pub(crate) fn mail_ack() -> impl Strategy<Value = MailAck> {
    let identity = (user(), platform(), session(), ticket());
    (identity, vec(message_id(), 0..5)).prop_map(|((user, platform, session, ticket), ids)| {
        MailAck {
            user,
            platform,
            session,
            ids,
            ticket,
        }
    })
}

pub(crate) fn sync_call() -> impl Strategy<Value = SyncCall> {
    let call = (user(), session(), sync_request(), ticket());
    call.prop_map(|(user, session, request, ticket)| SyncCall {
        user,
        session,
        request,
        ticket,
    })
}

pub(crate) fn online_members() -> impl Strategy<Value = OnlineMembers> {
    (group(), option::of(user())).prop_map(|(group, cursor)| OnlineMembers { group, cursor })
}

pub(crate) fn online_user() -> impl Strategy<Value = OnlineUser> {
    let online =
        (session(), platform(), life()).prop_map(|(session, platform, life)| OnlineSession {
            session,
            platform,
            life,
        });
    let sessions = option::of(vec(online, 0..4));
    (user(), sessions).prop_map(|(user, sessions)| OnlineUser { user, sessions })
}

pub(crate) fn kickout() -> impl Strategy<Value = Kickout> {
    (user(), option::of(platform()), TEXT).prop_map(|(user, platform, text)| Kickout {
        user,
        platform,
        text,
    })
}

pub(crate) fn revoke() -> impl Strategy<Value = Revoke> {
    (user(), optional_time(), TEXT, TEXT).prop_map(|(user, issued_before, reason, by)| Revoke {
        user,
        issued_before,
        reason,
        by,
    })
}

pub(crate) fn page_start() -> impl Strategy<Value = PageStart> {
    (time(), option::of(user())).prop_map(|(since, after)| PageStart {
        start: since,
        cursor: after,
    })
}

pub(crate) fn revoked_page() -> impl Strategy<Value = RevokedPage> {
    let revocation =
        (user(), time(), time()).prop_map(|(user, before, at)| UserRevocation { user, before, at });
    let extent = (
        time(),
        option::of((1..=u64::from(u32::MAX)).prop_map(Duration::from_millis)),
    );
    (vec(revocation, 0..4), any::<bool>(), extent).prop_map(
        |(users, more, (complete_until, retention))| RevokedPage {
            users,
            more,
            complete_until,
            retention,
        },
    )
}

fn target() -> impl Strategy<Value = Target> {
    (user(), platform()).prop_map(|(user, platform)| Target { user, platform })
}

fn message_task() -> impl Strategy<Value = MessageTask> {
    let origin = (session(), life())
        .prop_map(|(session, life)| protocol::delivery::Origin { session, life });
    let how = (any::<(bool, bool, u64)>(), option::of(TEXT));
    (message(), option::of(origin), how, bounds()).prop_map(
        |(message, origin, (flags, letter), bounds)| MessageTask {
            message,
            origin,
            maybe_repeat: flags.0,
            unsure: flags.1,
            age: Duration::from_millis(flags.2),
            letter,
            bounds,
        },
    )
}

fn bounds() -> impl Strategy<Value = Bounds> {
    any::<(usize, usize, usize, u64)>().prop_map(
        |(record_bytes, group_members, group_push, change_within)| Bounds {
            record_bytes,
            group_members,
            group_push,
            change_within: Duration::from_millis(change_within),
        },
    )
}

fn deliver_task() -> impl Strategy<Value = RetryTask> {
    let failure = (TEXT, option::of(TEXT));
    let recipients = (vec(target(), 0..4), vec(user(), 0..2));
    let message = (placed(), any::<u64>());
    (message, recipients, time(), failure).prop_map(
        |((placed, rev), (targets, live_users), due_at, (cause, letter))| RetryTask {
            placed,
            rev,
            targets,
            live_users,
            due_at,
            cause,
            letter,
        },
    )
}

fn kickout_task() -> impl Strategy<Value = KickoutTask> {
    (vec(session_key(), 0..4), refusal()).prop_map(|(sessions, refusal)| KickoutTask {
        sessions,
        refusal: Refusal {
            retry_after: None,
            ..refusal
        },
    })
}

pub(crate) fn task() -> impl Strategy<Value = Task> {
    let work = prop_oneof![
        message_task().prop_map(Work::Message),
        deliver_task().prop_map(Work::Deliver),
        kickout_task().prop_map(Work::Kickout),
    ];
    (any::<u32>(), time(), option::of(trace()), work).prop_map(
        |(retry_count, first_at, trace, work)| Task {
            retry_count,
            first_at,
            trace,
            work,
        },
    )
}

pub(crate) fn notification() -> impl Strategy<Value = NotificationTask> {
    let subject = (message_id(), user(), target(), conversation(), time());
    let how = (any::<u32>(), option::of(trace()), option::of(TEXT));
    (subject, how).prop_map(
        |((message, from, target, conversation, accepted_at), (retry_count, trace, letter))| {
            NotificationTask {
                notification: Notification {
                    message,
                    from,
                    target,
                    conversation,
                    accepted_at,
                },
                retry_count,
                trace,
                letter,
            }
        },
    )
}

pub(crate) fn dead_letter() -> impl Strategy<Value = DeadLetter> {
    let origin = (
        proptest::sample::select(Topic::ALL.to_vec()),
        any::<(u32, u64)>(),
    )
        .prop_map(|(topic, (partition, offset))| LetterOrigin {
            topic,
            partition,
            offset,
        });
    let subject = (
        option::of(message_id()),
        option::of(conversation()),
        vec(target(), 0..4),
    );
    let attempts = (any::<u32>(), time(), time());
    let failure = (
        proptest::sample::select(DeadReason::ALL.to_vec()),
        TEXT,
        TEXT,
        TEXT,
        option::of(trace()),
        option::of(TEXT),
    );
    (origin, subject, attempts, failure).prop_map(|(origin, subject, attempts, failure)| {
        DeadLetter {
            origin,
            message: subject.0,
            conversation: subject.1,
            targets: subject.2,
            retry_count: attempts.0,
            first_failed_at: attempts.1,
            last_failed_at: attempts.2,
            reason: failure.0,
            error_message: failure.1,
            carrier: failure.2,
            build: failure.3,
            trace: failure.4,
            parent: failure.5,
        }
    })
}
