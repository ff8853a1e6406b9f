//! Settings of a carrier.

use std::time::Duration;

use protocol::delivery::{DeliveryLimits, Tiers};
use protocol::keys::RETRY_TIERS;
use protocol::reading::LIST_MARGIN;
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
    #[serde(skip)]
    pub poll_max: usize,
    /// Maximum size of a retry in bytes. Retries for more users are split.
    #[serde(skip)]
    pub retry_bytes_max: usize,
    /// Maximum number of group members that each shard keeps in memory, including former ones, at
    /// about 100 bytes each. Beyond it the least recently used groups are dropped and read again.
    pub group_members_max: usize,
    /// Members of the largest group whose messages are stored in mailboxes. A message to a larger
    /// group is pushed to live sessions only; absent members get it by sync. Stations read it, too:
    /// settings files of their own need it as well.
    #[schemars(range(max = 5000), extend("zero" = true))]
    pub group_push_max: usize,
    /// Time that the conversation list looks back before a client's version, as in stations. A row
    /// that took longer than half of this to write is written again with a new stamp.
    #[serde(skip)]
    pub list_margin: Duration,
    /// Timeout of a store, or the log, for one batch; then the batch is repeated. At most half of
    /// `list_margin`: a slower write is repeated for a new stamp.
    #[serde(skip)]
    pub store_timeout: Duration,
    /// First pause after a store, or the log, was unavailable; doubled with each failure.
    #[serde(skip)]
    pub backoff_min: Duration,
    /// Maximum pause after a store, or the log, was unavailable.
    #[serde(skip)]
    pub backoff_max: Duration,
    /// Maximum time from a record's settlement to its commit. A crash repeats uncommitted records.
    #[serde(skip)]
    pub commit_interval: Duration,
    /// Time for work on a partition that is given away, or at a stop. Then it is abandoned, and
    /// repeated by the partition's next owner.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub finish_wait: Duration,

    /// Minimum number of records in flight, however slowly devices acknowledge.
    #[serde(skip)]
    pub in_flight_min: usize,
    /// Maximum number of records in flight. Polling pauses there until some are settled.
    #[serde(skip)]
    pub in_flight_max: usize,
    /// Bytes of frames in flight from which on no further record begins.
    pub bytes_in_flight_max: usize,
    /// Time that boats give a client to acknowledge. The carrier gives a silent boat half as long
    /// again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span")]
    pub ack_wait: Duration,
    /// Delays of the retry topics, shortest first.
    #[serde(with = "tiers")]
    #[schemars(with = "Vec<protocol::settings::Span>")]
    pub retry_delays: [Duration; RETRY_TIERS as usize],
    /// Maximum number of records of one retry topic in memory until they are due, in equal shares
    /// for the partitions. A partition with a full share is not polled.
    #[serde(skip)]
    pub retry_held_max: usize,
    /// Maximum size of these records in bytes, in the same shares.
    #[serde(skip)]
    pub retry_held_bytes_max: usize,

    /// Maximum number of kickouts that wait in one shard. Further ones are deferred by the delay of
    /// the first retry.
    #[serde(skip)]
    pub kickouts_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        let limits = DeliveryLimits::default();
        Config {
            name: "carrier-1".to_owned(),
            shards: 1,
            poll_max: 512,
            retry_bytes_max: 256 << 10,
            group_members_max: 1_000_000,
            group_push_max: 500,
            list_margin: LIST_MARGIN,
            store_timeout: LIST_MARGIN / 2,
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            commit_interval: Duration::from_millis(100),
            finish_wait: Duration::from_secs(4),
            in_flight_min: limits.in_flight_min,
            in_flight_max: limits.in_flight_max,
            bytes_in_flight_max: limits.bytes_in_flight_max,
            ack_wait: limits.ack_wait,
            retry_delays: [1, 5, 30, 120, 600].map(Duration::from_secs),
            retry_held_max: 4096,
            retry_held_bytes_max: 32 << 20,
            kickouts_max: 1024,
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
        problems
    }

    /// Limits of delivery; `None` if the retry delays do not grow.
    pub(crate) fn limits(&self) -> Option<DeliveryLimits> {
        Some(DeliveryLimits {
            in_flight_min: self.in_flight_min,
            in_flight_max: self.in_flight_max,
            bytes_in_flight_max: self.bytes_in_flight_max,
            ack_wait: self.ack_wait,
            tiers: Tiers::new(self.retry_delays)?,
            ..DeliveryLimits::default()
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
    }
}
