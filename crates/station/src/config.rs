//! Settings of a station, each with what happens at its bound.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use protocol::bounds::Bounds;
use protocol::reading::LIST_MARGIN;
use protocol::settings::{Problems, is_http_address};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::read::page_cache;
use crate::session::{self, tickets};
use crate::{auth, http};

/// Section `station`: admission of sessions, acceptance of messages, answers to questions.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of this station, unique in the cluster.
    pub name: String,
    /// Address of gRPC, for boats. Unset: inside this process only.
    #[schemars(extend("examples" = ["127.0.0.1:9100"]))]
    pub listen: Option<SocketAddr>,
    /// Address at which boats call this station: `http://host:port`, or `https://` with an
    /// identity. Unset: the bound address of `listen`.
    #[schemars(extend("examples" = ["http://10.0.0.8:9100"]))]
    pub advertise: Option<String>,
    /// Serves gRPC reflection on `listen`, so that backends and desks can list the calls.
    pub reflection: bool,
    pub auth: auth::Config,
    pub tickets: tickets::Config,
    pub sessions: session::Config,
    pub http: http::Config,
    /// Maximum size of a message's body in bytes; a larger one is refused as `too_large`. Must leave
    /// 4 KiB of the 4 MiB that a call between services has. At most 4 KiB less than
    /// `boat.session.frame_bytes_max`.
    #[schemars(range(max = 4_190_208))]
    pub body_bytes_max: usize,
    /// Maximum size of a placed record in bytes; a larger one becomes a dead letter. Keep it at
    /// least 4 KiB above `body_bytes_max`: nothing checks that. Carriers apply the limits of the
    /// station that accepted the message.
    #[schemars(range(max = 104_857_600))]
    pub record_bytes_max: usize,
    /// Maximum number of members of a group.
    pub group_size_max: usize,
    /// The carriers' setting of this name, which travels with each message.
    #[serde(skip)]
    pub group_push_max: usize,
    /// Sustained rate of one user's sign-ins at this station, per minute. Further ones are refused
    /// as `rate_limited`, for at least two seconds.
    pub user_sign_ins_per_minute: NonZeroU32,
    /// Burst of one user's sign-ins after a quiet period.
    #[serde(skip)]
    pub user_sign_ins_burst: NonZeroU32,
    /// Sustained rate of sends from one user's devices at this station, per second. Further ones
    /// are refused as `rate_limited`.
    pub user_sends_per_second: NonZeroU32,
    /// Burst of sends from one user's devices after a quiet period.
    #[serde(skip)]
    pub user_sends_burst: NonZeroU32,
    /// Sustained rate of sends from one user's bots at this station, per second. Further ones are
    /// refused as `rate_limited`.
    pub bot_sends_per_second: NonZeroU32,
    /// Burst of sends from one user's bots after a quiet period.
    #[serde(skip)]
    pub bot_sends_burst: NonZeroU32,
    /// Sustained rate of sends to one conversation of two users, per second. Further ones are
    /// refused as `rate_limited`. With three or more stations, each allows twice its share.
    pub private_sends_per_second: NonZeroU32,
    /// Burst of sends to one conversation of two users after a quiet period.
    #[serde(skip)]
    pub private_sends_burst: NonZeroU32,
    /// Sustained rate of sends to one group from all its senders, per second. Further ones are
    /// refused as `rate_limited`. With three or more stations, each allows twice its share.
    pub group_sends_per_second: NonZeroU32,
    /// Burst of sends to one group after a quiet period.
    #[serde(skip)]
    pub group_sends_burst: NonZeroU32,
    /// Sustained rate of one user's questions at this station, per second. Further ones are refused
    /// as `rate_limited`.
    pub user_questions_per_second: NonZeroU32,
    /// Burst of one user's questions after a quiet period.
    #[serde(skip)]
    pub user_questions_burst: NonZeroU32,
    /// Sustained rate of pages that one user reads from history, and not from a cache, per second.
    /// Further ones are refused as `rate_limited`.
    pub user_history_reads_per_second: NonZeroU32,
    /// Burst of pages that one user reads from history after a quiet period.
    #[serde(skip)]
    pub user_history_reads_burst: NonZeroU32,
    /// Maximum number of pages being read from history at a time, for all users. Further ones are
    /// refused as `unavailable`.
    #[serde(skip)]
    pub history_reads_max: usize,
    /// Maximum number of sends in flight to the log. Further ones are refused as `unavailable`. At
    /// least one batch always goes.
    #[serde(skip)]
    pub sends_in_flight_max: usize,
    /// Maximum number of items in one batched call. A larger call is refused as a whole.
    #[serde(skip)]
    pub batch_items_max: usize,
    /// Time for the log to acknowledge, the checks before it included. Then sends are refused as
    /// `deadline_exceeded`, and it is unknown whether the log has them. Must be less than
    /// `boat.station_timeout`, so that boats hear the answer.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub publish_deadline: Duration,
    /// Time for the mailbox to say whether a send is a repeat. Then it is taken for new, and a
    /// resend is marked unsure.
    #[serde(skip)]
    pub dedupe_deadline: Duration,
    /// Time for stores and discovery to answer any other call. Then the call is refused as
    /// `unavailable`, and a reservation of ids is requested again. Must be less than
    /// `boat.station_timeout`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub store_deadline: Duration,
    /// Time for the group store to say whether a sender is a member. Then the send goes on to the
    /// writer, which checks membership in any case.
    #[serde(skip)]
    pub members_deadline: Duration,
    /// Maximum number of rows in one page of history, mail or a conversation list.
    #[serde(skip)]
    pub page_max: usize,
    /// Section `station.pages`: pages of history cached in this process. Beyond its size limit a
    /// kind drops the least frequently used pages; 0 keeps none.
    pub pages: page_cache::Config,
    /// Maximum size of the message bodies in one page, in bytes. A page ends before the message
    /// that would not fit, and holds at least one. A call between services has 4 MiB at most.
    #[serde(skip)]
    pub page_bytes_max: usize,
    /// Time that the conversation list looks back before a client's version, as in carriers.
    #[serde(skip)]
    pub list_margin: Duration,
    /// Age from which a sender can no longer recall or edit a message.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub change_within: Duration,
    /// Pushes receipts to senders at once. Off: senders ask for them.
    pub push_receipts: bool,
    /// Time for calls in flight to end when the station stops.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub drain_deadline: Duration,
}

impl Config {
    /// Sets what follows from settings: bursts from their rates, the deadlines of checks before a
    /// publication from the whole.
    pub fn derive(&mut self) {
        let times = |rate: NonZeroU32, factor| rate.saturating_mul(count(factor));
        self.user_sign_ins_burst = two_thirds(self.user_sign_ins_per_minute);
        self.user_sends_burst = times(self.user_sends_per_second, 10);
        self.bot_sends_burst = times(self.bot_sends_per_second, 5);
        self.private_sends_burst = times(self.private_sends_per_second, 8);
        self.group_sends_burst = times(self.group_sends_per_second, 10);
        self.user_questions_burst = times(self.user_questions_per_second, 4);
        self.user_history_reads_burst = times(self.user_history_reads_per_second, 5);
        self.dedupe_deadline = self.publish_deadline / 20;
        self.members_deadline = self.publish_deadline / 8;
    }

    /// Lifts the limits of a user and of a conversation for a load test, whose users are faster
    /// than people.
    pub fn lift_limits(&mut self, to: NonZeroU32) {
        for limit in [
            &mut self.user_sign_ins_per_minute,
            &mut self.user_sends_per_second,
            &mut self.private_sends_per_second,
            &mut self.group_sends_per_second,
            &mut self.user_questions_per_second,
            &mut self.user_history_reads_per_second,
        ] {
            *limit = to;
        }
        self.derive();
    }

    /// Bounds that travel with each accepted message.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            record_bytes: self.record_bytes_max,
            group_members: self.group_size_max,
            group_push: self.group_push_max,
            change_within: self.change_within,
        }
    }
}

const fn count(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(count) => count,
        None => NonZeroU32::MIN,
    }
}

/// Rounded up.
fn two_thirds(rate: NonZeroU32) -> NonZeroU32 {
    count(u64::from(rate.get()).saturating_mul(2).div_ceil(3) as u32)
}

impl Default for Config {
    fn default() -> Self {
        let bounds = Bounds::default();
        Config {
            name: "station-1".into(),
            listen: None,
            advertise: None,
            reflection: false,
            auth: auth::Config::default(),
            tickets: tickets::Config::default(),
            sessions: session::Config::default(),
            http: http::Config::default(),
            body_bytes_max: 60 * 1024,
            record_bytes_max: bounds.record_bytes,
            group_size_max: bounds.group_members,
            group_push_max: bounds.group_push,
            user_sign_ins_per_minute: count(30),
            user_sign_ins_burst: count(20),
            user_sends_per_second: count(20),
            user_sends_burst: count(200),
            bot_sends_per_second: count(200),
            bot_sends_burst: count(1000),
            private_sends_per_second: count(50),
            private_sends_burst: count(400),
            group_sends_per_second: count(100),
            group_sends_burst: count(1000),
            user_questions_per_second: count(50),
            user_questions_burst: count(200),
            user_history_reads_per_second: count(10),
            user_history_reads_burst: count(50),
            history_reads_max: 512,
            sends_in_flight_max: 65_536,
            batch_items_max: 4096,
            publish_deadline: Duration::from_secs(4),
            dedupe_deadline: Duration::from_millis(200),
            store_deadline: Duration::from_secs(3),
            members_deadline: Duration::from_millis(500),
            page_max: 100,
            pages: page_cache::Config::default(),
            page_bytes_max: 1024 * 1024,
            list_margin: LIST_MARGIN,
            change_within: bounds.change_within,
            push_receipts: true,
            drain_deadline: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Some(advertise) = self.advertise.as_deref().filter(|it| !is_http_address(it)) {
            let reason = "boats cannot call this address";
            problems.refuse(
                "advertise",
                advertise,
                reason,
                "Use http://host:port, or https://host:port if services have certificates",
            );
        }
        problems.section("auth", self.auth.problems());
        problems.section("tickets", self.tickets.problems());
        problems.section("sessions", self.sessions.problems());
        problems.section("http", self.http.problems());
        problems
    }
}
