//! Settings of a station, each with what happens at its bound.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use protocol::bounds::Bounds;
use protocol::settings::{Problems, is_http_address};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{auth, http, pages, sessions, tickets};

/// Section `station`: admission of sessions, acceptance of messages, answers to questions.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of this station, unique in the cluster.
    pub name: String,
    /// Address of gRPC, for boats. Unset: inside this process only.
    #[schemars(extend("examples" = ["127.0.0.1:9100"]))]
    pub listen: Option<SocketAddr>,
    /// Address at which boats call this station, `http://host:port`, or `https://` with an identity. Unset: `listen` as it was
    /// bound.
    #[schemars(extend("examples" = ["http://10.0.0.8:9100"]))]
    pub advertise: Option<String>,
    /// Answers to reflection on `listen`: backends and desks may ask what there is to call.
    pub reflection: bool,
    pub auth: auth::Config,
    pub tickets: tickets::Config,
    pub sessions: sessions::Config,
    pub http: http::Config,
    /// Bytes of the largest body of a message; a larger one is refused as `too_large`.
    #[schemars(range(max = 16_777_216))]
    pub body_bytes_max: usize,
    /// Bytes of the largest record that is placed; a larger one is a dead letter, so at least 4 KiB
    /// more than `body_bytes_max`. Carriers judge a message by what its station said of it.
    #[schemars(range(max = 104_857_600))]
    pub record_bytes_max: usize,
    /// Members of the largest group.
    pub group_size_max: usize,
    /// Sign-ins a minute that one user may keep up at this station; further ones are refused as
    /// `rate_limited`, for two seconds at least.
    pub user_sign_ins_per_minute: NonZeroU32,
    /// Sign-ins that one user may make at once after a rest.
    pub user_sign_ins_burst: NonZeroU32,
    /// Sends a second that one user's devices may keep up at this station; further ones are refused
    /// as `rate_limited`.
    pub user_sends_per_second: NonZeroU32,
    /// Sends that one user's devices may make at once after a rest.
    pub user_sends_burst: NonZeroU32,
    /// Sends a second that one user's bots may keep up at this station; further ones are refused as
    /// `rate_limited`.
    pub bot_sends_per_second: NonZeroU32,
    /// Sends that one user's bots may make at once after a rest.
    pub bot_sends_burst: NonZeroU32,
    /// Sends a second to one conversation of two users; further ones are refused as `rate_limited`. Of three stations
    /// or more each takes twice its share.
    pub private_sends_per_second: NonZeroU32,
    /// Sends to one conversation of two users at once after a rest.
    pub private_sends_burst: NonZeroU32,
    /// Sends a second to one group, whoever sends them; further ones are refused as `rate_limited`. Of three stations
    /// or more each takes twice its share.
    pub group_sends_per_second: NonZeroU32,
    /// Sends to one group at once after a rest.
    pub group_sends_burst: NonZeroU32,
    /// Questions a second that one user may keep up at this station; further ones are refused as
    /// `rate_limited`.
    pub user_questions_per_second: NonZeroU32,
    /// Questions that one user may ask at once after a rest.
    pub user_questions_burst: NonZeroU32,
    /// Pages a second that one user may have read from history, and not from the copies above it;
    /// further ones are refused as `rate_limited`.
    pub user_history_reads_per_second: NonZeroU32,
    /// Pages that one user may have read from history at once after a rest.
    pub user_history_reads_burst: NonZeroU32,
    /// Pages that are being read from history at once, for all users; further ones are refused as
    /// `unavailable`.
    pub history_reads_max: usize,
    /// Sends on their way into the log at once; further ones are refused as `unavailable`. At least
    /// one batch goes in any case.
    pub sends_in_flight_max: usize,
    /// Items of one batched call; a larger call is refused whole.
    pub batch_items_max: usize,
    /// Time for the log to acknowledge; then sends are refused as `deadline_exceeded`, and whether
    /// the log has them is unknown. Less than `boat.station_timeout`, so that boats hear the
    /// answer.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub publish_deadline: Duration,
    /// Time for the mailbox to say whether a send is a repeat; then it is taken for new, and a
    /// resend is marked unsure.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub dedupe_deadline: Duration,
    /// Time for stores and discovery to answer anything else; then the call is refused as
    /// `unavailable`, and a reservation of ids is asked for again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub store_deadline: Duration,
    /// Time for the store of groups to say whether a sender is in one; then the send goes on to the
    /// writer, who judges it in any case.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub members_deadline: Duration,
    /// Time for reading the newest messages of a group from beside history; then history is read.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub timeline_deadline: Duration,
    /// Time for a boat to take notices. Then they are pushed again, up to five times in a quarter of a minute; sync makes
    /// up for what is lost after that.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub notice_deadline: Duration,
    /// Reservation of ids ahead of the clock: a station accepts messages for this long while
    /// discovery is away; then it refuses them as `unavailable`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub reserve_ahead: Duration,
    /// Rows of one page of history, mail or a conversation list.
    #[schemars(range(max = 10_000))]
    pub page_max: usize,
    /// Section `station.pages`: pages that are kept in this process.
    pub pages: pages::Config,
    /// Bytes of message bodies in one page: it ends before the message that would not fit, and
    /// holds at least one.
    #[schemars(range(max = 67_108_864))]
    pub page_bytes_max: usize,
    /// Look back of the conversation list before the version that a client has: more than twice the
    /// bound on clock differences and the time of a write. The same as `carrier.list_margin`.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub list_margin: Duration,
    /// Age at which a message can no longer be recalled or edited by its sender.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub change_within: Duration,
    /// Kickouts, receipts and other work after the answer that may wait, each in its own queue; of
    /// more, the newest are dropped and counted, and sync or the boats' sweep makes up for them.
    pub background_max: usize,
    /// Attempts to kick a displaced session out; then the boats' sweep does it.
    pub kickout_attempts: u32,
    /// Push of receipts to senders at once. Off: senders ask for them.
    pub push_receipts: bool,
    /// Time for calls in flight to end when the station stops.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub drain_deadline: Duration,
}

impl Config {
    /// Lifts the limits of a user and of a conversation for a load, whose users are faster than people.
    pub fn lift_limits(&mut self, to: NonZeroU32) {
        for limit in [
            &mut self.user_sign_ins_per_minute,
            &mut self.user_sign_ins_burst,
            &mut self.user_sends_per_second,
            &mut self.user_sends_burst,
            &mut self.private_sends_per_second,
            &mut self.private_sends_burst,
            &mut self.group_sends_per_second,
            &mut self.group_sends_burst,
            &mut self.user_questions_per_second,
            &mut self.user_questions_burst,
            &mut self.user_history_reads_per_second,
            &mut self.user_history_reads_burst,
        ] {
            *limit = to;
        }
    }

    /// What travels with each message that is accepted.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            record_bytes: self.record_bytes_max,
            group_members: self.group_size_max,
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
            sessions: sessions::Config::default(),
            http: http::Config::default(),
            body_bytes_max: 60 * 1024,
            record_bytes_max: bounds.record_bytes,
            group_size_max: bounds.group_members,
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
            timeline_deadline: Duration::from_millis(200),
            notice_deadline: Duration::from_secs(1),
            reserve_ahead: Duration::from_secs(600),
            page_max: 100,
            pages: pages::Config::default(),
            page_bytes_max: 1024 * 1024,
            list_margin: Duration::from_secs(10),
            change_within: bounds.change_within,
            background_max: 65_536,
            kickout_attempts: 8,
            push_receipts: true,
            drain_deadline: Duration::from_secs(10),
        }
    }
}

impl Config {
    /// What cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Some(advertise) = self.advertise.as_deref().filter(|it| !is_http_address(it)) {
            let reason = "boats could not call it";
            problems.refuse(
                "advertise",
                advertise,
                reason,
                "Say http://host:port, or https://host:port where services show certificates",
            );
        }
        problems.section("auth", self.auth.problems());
        problems.section("tickets", self.tickets.problems());
        problems.section("sessions", self.sessions.problems());
        problems.section("http", self.http.problems());
        problems
    }
}
