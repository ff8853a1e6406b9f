//! Settings of a carrier.

use std::time::Duration;

use protocol::delivery::{DeliveryLimits, Tiers};
use protocol::keys::RETRY_TIERS;
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Section `carrier`: delivery.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of this carrier in dead letters and logs.
    pub name: String,
    /// Number of delivery loops, each a member of the consumer group with its own streams to the
    /// boats. More than the machine's cores are of no use.
    #[schemars(range(max = 1024))]
    pub shards: usize,
    /// Maximum number of records in one poll. A larger batch costs memory; a smaller one costs more
    /// calls to the stores.
    pub poll_max: usize,
    /// Maximum size of a retry in bytes. Retries for more users are split.
    #[schemars(range(max = 104_857_600))]
    pub retry_bytes_max: usize,
    /// Maximum number of conversation heads that each shard keeps in memory. Beyond it the least
    /// recently used are dropped and read again.
    pub heads_max: usize,
    /// Maximum number of users whose platforms each shard keeps in memory. Beyond it the least
    /// recently used are dropped and read again.
    pub platforms_max: usize,
    /// Age at which a user's platforms are read again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub platforms_keep: Duration,
    /// Time since the last sign-in on a platform after which no messages are owed to it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub platform_known_for: Duration,
    /// Maximum number of group members that each shard keeps in memory, including former ones, at
    /// about 100 bytes each. Beyond it the least recently used groups are dropped and read again.
    pub group_members_max: usize,
    /// Members of the largest group whose messages are stored in mailboxes. A message to a larger
    /// group is pushed to live sessions only; absent members get it by sync.
    #[schemars(extend("zero" = true))]
    pub group_push_max: usize,
    /// Time that the conversation list looks back before a client's version. Must equal
    /// `station.list_margin`. A row that took longer than half of this to write is written again
    /// with a new stamp.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub list_margin: Duration,
    /// Tolerance of the age that a send names for its first attempt. The search for an unsure send
    /// goes back by that age and this margin.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub unsure_margin: Duration,
    /// Timeout of a store, or the log, for one batch; then the batch is repeated. At most half of
    /// `carrier.list_margin`: a slower write is repeated for a new stamp.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub store_timeout: Duration,
    /// Time for writing the records of one poll, or for looking up the state of due retries; then
    /// the rest waits for another poll. Far below `kafka.consumer.poll_interval_max`: a carrier
    /// that does not poll drops out of the group.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub write_time: Duration,
    /// First pause after a store, or the log, was unavailable; doubled with each failure.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub backoff_min: Duration,
    /// Maximum pause after a store, or the log, was unavailable.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub backoff_max: Duration,
    /// Maximum time from a record's settlement to its commit. A crash repeats uncommitted records.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub commit_interval: Duration,
    /// Time for work on a partition that is given away, or at a stop. Then it is abandoned, and
    /// repeated by the partition's next owner.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub finish_wait: Duration,

    /// Minimum number of records in flight, however slowly devices acknowledge.
    pub in_flight_min: usize,
    /// Maximum number of records in flight. Polling pauses there until some are settled.
    pub in_flight_max: usize,
    /// Number of users owed records in flight from which on no further record begins. A group
    /// message counts with each member whose mailbox keeps it.
    pub users_in_flight_max: usize,
    /// Bytes of frames in flight from which on no further record begins.
    pub bytes_in_flight_max: usize,
    /// Mean acknowledgement latency above which fewer records are in flight.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ack_latency_target: Duration,
    /// Maximum number of pushed, unacknowledged messages of one user and platform; later ones wait.
    /// At most `boat.session.push_window`.
    pub lane_window: usize,
    /// Maximum number of messages of one user and platform in flight. A further one is stored, and
    /// the session gets a hint.
    pub lane_max: usize,
    /// Time that boats give a client to acknowledge. The carrier gives a silent boat half as long
    /// again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ack_wait: Duration,
    /// Number of the retry from which on a recipient counts as offline and the message is stored.
    #[schemars(extend("zero" = true))]
    pub offline_after: u32,
    /// Number of the last retry; a failure after it makes a dead letter.
    #[schemars(extend("zero" = true))]
    pub retry_max: u32,
    /// Delays of the retry topics, shortest first.
    #[serde(with = "tiers")]
    #[schemars(with = "Vec<protocol::settings::Span>")]
    pub retry_delays: [Duration; RETRY_TIERS as usize],
    /// Maximum number of records of one retry topic in memory until they are due, in equal shares
    /// for the partitions. A partition with a full share is not polled.
    pub retry_held_max: usize,
    /// Maximum size of these records in bytes, in the same shares.
    pub retry_held_bytes_max: usize,

    /// Maximum number of deliveries and notices in one batch to a boat.
    pub push_batch_max: usize,
    /// Maximum number of notices that wait for one boat. Further ones are dropped, as the delivery
    /// guarantee does not need them.
    pub notices_max: usize,
    /// Time for a boat to close the sessions of a kickout; then the boat counts as unreachable.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub kickout_timeout: Duration,
    /// Maximum number of kickouts that wait in one shard. Further ones are deferred by the delay of
    /// the first retry.
    pub kickouts_max: usize,
    /// Time without a boat's lease after which the boat is probed.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub lease_patience: Duration,
    /// Timeout of a probe. A boat without a lease that is silent three times counts as dead, and is
    /// probed again at growing intervals.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub probe_timeout: Duration,
    /// Interval between probes of a boat that answers without a lease.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub probe_interval: Duration,
    /// Maximum number of dead lives of boats that are remembered. An entry of a forgotten one costs
    /// one more push.
    pub denied_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let limits = DeliveryLimits::default();
        Config {
            name: "carrier-1".to_owned(),
            shards: 1,
            poll_max: 512,
            retry_bytes_max: 256 << 10,
            heads_max: 100_000,
            platforms_max: 100_000,
            platforms_keep: Duration::from_secs(1),
            platform_known_for: protocol::delivery::PLATFORM_KNOWN_FOR,
            group_members_max: 1_000_000,
            group_push_max: 500,
            list_margin: Duration::from_secs(10),
            unsure_margin: Duration::from_secs(60),
            store_timeout: Duration::from_secs(5),
            write_time: Duration::from_secs(5),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            commit_interval: Duration::from_millis(100),
            finish_wait: Duration::from_secs(4),
            in_flight_min: limits.in_flight_min,
            in_flight_max: limits.in_flight_max,
            users_in_flight_max: limits.users_in_flight_max,
            bytes_in_flight_max: limits.bytes_in_flight_max,
            ack_latency_target: limits.ack_latency_target,
            lane_window: limits.lane_window,
            lane_max: limits.lane_max,
            ack_wait: limits.ack_wait,
            offline_after: limits.offline_after,
            retry_max: limits.retry_max,
            retry_delays: [1, 5, 30, 120, 600].map(Duration::from_secs),
            retry_held_max: 4096,
            retry_held_bytes_max: 32 << 20,
            push_batch_max: 512,
            notices_max: 4096,
            kickout_timeout: Duration::from_secs(1),
            kickouts_max: 1024,
            lease_patience: Duration::from_secs(2),
            probe_timeout: Duration::from_secs(2),
            probe_interval: Duration::from_secs(10),
            denied_max: 1024,
        }
    }
}

impl Config {
    /// Settings that cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if Tiers::new(self.retry_delays).is_none() {
            let reason = "each delay must be longer than the one before";
            problems.refuse("retry_delays", "", reason, "List them in increasing order");
        }
        if self.in_flight_min > self.in_flight_max {
            let remedy = "At most carrier.in_flight_max";
            problems.refuse(
                "in_flight_min",
                self.in_flight_min,
                "it is the lower end",
                remedy,
            );
        }
        if self.backoff_min > self.backoff_max {
            let value = humantime_serde::re::humantime::format_duration(self.backoff_min);
            let remedy = "At most carrier.backoff_max";
            problems.refuse("backoff_min", value, "it is the lower end", remedy);
        }
        if self.store_timeout > self.list_margin / 2 {
            let value = humantime_serde::re::humantime::format_duration(self.store_timeout);
            let reason = "a list write that takes this long is discarded and repeated";
            let remedy = "At most half of carrier.list_margin";
            problems.refuse("store_timeout", value, reason, remedy);
        }
        problems
    }

    /// Limits of delivery; `None` if the retry delays do not grow.
    pub(crate) fn limits(&self) -> Option<DeliveryLimits> {
        Some(DeliveryLimits {
            in_flight_min: self.in_flight_min,
            in_flight_max: self.in_flight_max,
            users_in_flight_max: self.users_in_flight_max,
            bytes_in_flight_max: self.bytes_in_flight_max,
            ack_latency_target: self.ack_latency_target,
            lane_window: self.lane_window.max(1),
            lane_max: self.lane_max.max(1),
            ack_wait: self.ack_wait,
            reroutes_max: DeliveryLimits::default().reroutes_max,
            offline_after: self.offline_after,
            retry_max: self.retry_max,
            tiers: Tiers::new(self.retry_delays)?,
        })
    }
}

/// The delays as a list of `"1s"`, `"10min"`.
mod tiers {
    use serde::{Deserialize, Deserializer, Serializer, de, ser::SerializeSeq};

    use super::{Duration, RETRY_TIERS};

    type Delays = [Duration; RETRY_TIERS as usize];

    pub(super) fn serialize<S: Serializer>(delays: &Delays, to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(delays.len()))?;
        for delay in delays {
            list.serialize_element(
                &humantime_serde::re::humantime::format_duration(*delay).to_string(),
            )?;
        }
        list.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Delays, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let delays = texts
            .iter()
            .map(|text| {
                humantime_serde::re::humantime::parse_duration(text).map_err(de::Error::custom)
            })
            .collect::<Result<Vec<Duration>, D::Error>>()?;
        let count = delays.len();
        delays
            .try_into()
            .map_err(|_| de::Error::custom(format!("{count} delays given, {RETRY_TIERS} needed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_being_written_down() {
        let config = Config::default();
        let text = serde_json::to_string(&config).expect("serialisable");
        assert!(
            text.contains(r#""retry_delays":["1s","5s","30s","2m","10m"]"#),
            "{text}"
        );
        let parsed: Config = serde_json::from_str(&text).expect("as it was");
        assert_eq!(parsed, config);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let read = |text: &str| serde_json::from_str::<Config>(text);
        assert!(read(r#"{"retry_delay": []}"#).is_err(), "no such setting");
        assert!(
            read(r#"{"retry_delays": ["1s", "2s"]}"#).is_err(),
            "too few"
        );
        let shrinking_delays = r#"{"retry_delays": ["5s", "1s", "30s", "2min", "10min"]}"#;
        let config = read(shrinking_delays).expect("readable");
        assert_eq!(config.limits(), None, "tiers that shrink");
        assert!(config.problems().to_string().starts_with("retry_delays"));
        let problems = |text| read(text).expect("readable").problems().to_string();
        assert_eq!(problems(r#"{"store_timeout": "5s"}"#), "");
        let too_long = problems(r#"{"store_timeout": "5001ms"}"#);
        assert!(
            too_long.starts_with("store_timeout is 5s 1ms"),
            "{too_long}"
        );
        let too_short = problems(r#"{"list_margin": "9s"}"#);
        assert!(too_short.starts_with("store_timeout is 5s"), "{too_short}");
    }
}
