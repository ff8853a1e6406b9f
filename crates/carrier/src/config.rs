//! Settings of a carrier.

use std::time::Duration;

use protocol::delivery::{Limits, Tiers};
use protocol::keys::RETRY_TIERS;
use protocol::{change, group};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Names this carrier in dead letters and logs.
    pub name: String,
    /// Deliveries run in so many loops, each a member of the consumer group of its own, with its own
    /// streams to the boats. More than the machine's cores are no use.
    pub shards: usize,
    /// Records of one poll. A larger batch costs memory, a smaller one costs more calls to the stores.
    pub poll_max: usize,
    /// Bytes of the largest record that is worked on; a larger one is a dead letter.
    pub record_bytes_max: usize,
    /// Conversation heads kept in memory by each shard; beyond it the least recently used is read again.
    pub heads_max: usize,
    /// Users whose platforms are kept in memory by each shard; beyond it the least recently used is read
    /// again.
    pub platforms_max: usize,
    /// How long a user's known platforms are believed.
    #[serde(with = "humantime_serde")]
    pub platforms_keep: Duration,
    /// A platform that nobody signed in on for this long is owed nothing.
    #[serde(with = "humantime_serde")]
    pub platform_known_for: Duration,
    /// Members of groups kept in memory by each shard, also those who left; beyond it the groups least recently used
    /// are read again. A member takes about 100 bytes.
    pub group_members_max: usize,
    /// Members that a group may have.
    pub group_size_max: usize,
    /// A message to a group of more members than this is told to the sessions that live, and stored in no mailbox:
    /// who is not there has it by sync.
    pub group_push_max: usize,
    /// How far before a client's list version the difference looks (the station's setting). A row that
    /// took longer than half of this to be written is written again with a new stamp.
    #[serde(with = "humantime_serde")]
    pub list_margin: Duration,
    /// How much earlier than its clock says a send may have been tried first: the search for an unsure
    /// send goes back by its age and this.
    #[serde(with = "humantime_serde")]
    pub unsure_margin: Duration,
    /// How long after it was accepted its sender may recall or edit a message (the station's setting, too).
    #[serde(with = "humantime_serde")]
    pub change_within: Duration,
    /// How long a store, or the log, may take for one batch; after it the batch is repeated.
    #[serde(with = "humantime_serde")]
    pub store_timeout: Duration,
    /// How long the records of one poll are written before the rest waits for another poll. Far below the
    /// poll interval of the log: who does not poll is out of the group.
    #[serde(with = "humantime_serde")]
    pub write_time: Duration,
    /// The first pause after a store, or the log, was unavailable; doubled each time.
    #[serde(with = "humantime_serde")]
    pub backoff_min: Duration,
    /// The longest such pause.
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// At most how long a settled record waits to be committed; a crash repeats what was not.
    #[serde(with = "humantime_serde")]
    pub commit_interval: Duration,
    /// How long work on a partition that is given away, or at a stop, may take to finish; then it is
    /// abandoned, and whoever gets the partition does it again.
    #[serde(with = "humantime_serde")]
    pub finish_wait: Duration,

    /// The number of records in flight never falls below this, however slowly devices acknowledge.
    pub in_flight_min: usize,
    /// Nor rises above this; then nothing is polled until some are settled.
    pub in_flight_max: usize,
    /// The mean wait for acknowledgements above which fewer records are in flight.
    #[serde(with = "humantime_serde")]
    pub ack_latency_target: Duration,
    /// Messages on their way to one user and platform that are not acknowledged; later ones wait.
    pub lane_window: usize,
    /// Messages of one user and platform in flight; a further one is stored, and the session hinted.
    pub lane_max: usize,
    /// What boats give a client to acknowledge. A boat that says nothing is given half as long again.
    #[serde(with = "humantime_serde")]
    pub ack_wait: Duration,
    /// From this retry on a receiver counts as offline, and the message is stored.
    pub offline_after: u32,
    /// A failure beyond this retry is a dead letter.
    pub retry_max: u32,
    /// The delays of the retry topics, shortest first.
    #[serde(with = "tiers")]
    pub retry_delays: [Duration; RETRY_TIERS as usize],
    /// Records of one retry topic that are held in memory until they are due; then no more are polled.
    pub retry_held_max: usize,

    /// Deliveries and notices of one batch to a boat.
    pub push_batch_max: usize,
    /// Notices that may wait for one boat; further ones are dropped, as the promise does not need them.
    pub notices_max: usize,
    /// How long a boat may take to close the sessions of a kickout; then it counts as unreachable.
    #[serde(with = "humantime_serde")]
    pub kickout_timeout: Duration,
    /// Kickouts that wait in one shard; further ones are put off for as long as the first retry.
    pub kickouts_max: usize,
    /// How long a boat's lease is away before the boat is asked whether it lives.
    #[serde(with = "humantime_serde")]
    pub lease_patience: Duration,
    /// How long it may take to answer. A boat without lease that is silent three times is taken for dead, and
    /// asked again ever more seldom.
    #[serde(with = "humantime_serde")]
    pub probe_timeout: Duration,
    /// How often a boat that answers without having a lease is asked again.
    #[serde(with = "humantime_serde")]
    pub probe_interval: Duration,
    /// Dead lives that are remembered; an entry of a forgotten one costs one push more.
    pub denied_max: usize,
}

impl Config {
    pub(crate) fn rules(&self) -> change::Rules {
        change::Rules {
            sender_within: self.change_within,
            ..change::Rules::default()
        }
    }

    pub(crate) fn group_limits(&self) -> group::Limits {
        group::Limits {
            members: self.group_size_max,
            ..group::Limits::default()
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let limits = Limits::default();
        Config {
            name: "carrier-1".to_owned(),
            shards: 1,
            poll_max: 512,
            record_bytes_max: 256 << 10,
            heads_max: 100_000,
            platforms_max: 100_000,
            platforms_keep: Duration::from_secs(1),
            platform_known_for: protocol::delivery::PLATFORM_KNOWN_FOR,
            group_members_max: 1_000_000,
            group_size_max: group::Limits::default().members,
            group_push_max: 500,
            list_margin: Duration::from_secs(10),
            unsure_margin: Duration::from_secs(60),
            change_within: Duration::from_secs(24 * 3600),
            store_timeout: Duration::from_secs(5),
            write_time: Duration::from_secs(5),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            commit_interval: Duration::from_millis(100),
            finish_wait: Duration::from_secs(4),
            in_flight_min: limits.in_flight_min,
            in_flight_max: limits.in_flight_max,
            ack_latency_target: limits.ack_latency_target,
            lane_window: limits.lane_window,
            lane_max: limits.lane_max,
            ack_wait: limits.ack_wait,
            offline_after: limits.offline_after,
            retry_max: limits.retry_max,
            retry_delays: [1, 5, 30, 120, 600].map(Duration::from_secs),
            retry_held_max: 4096,
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
    /// `None` where the retry delays do not grow.
    pub(crate) fn limits(&self) -> Option<Limits> {
        Some(Limits {
            in_flight_min: self.in_flight_min,
            in_flight_max: self.in_flight_max,
            ack_latency_target: self.ack_latency_target,
            lane_window: self.lane_window.max(1),
            lane_max: self.lane_max.max(1),
            ack_wait: self.ack_wait,
            reroutes_max: Limits::default().reroutes_max,
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
            .map_err(|_| de::Error::custom(format!("{count} delays, {RETRY_TIERS} are needed")))
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
        let back: Config = serde_json::from_str(&text).expect("as it was");
        assert_eq!(back, config);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let read = |text: &str| serde_json::from_str::<Config>(text);
        assert!(read(r#"{"retry_delay": []}"#).is_err(), "no such setting");
        assert!(
            read(r#"{"retry_delays": ["1s", "2s"]}"#).is_err(),
            "too few"
        );
        let shrinking = r#"{"retry_delays": ["5s", "1s", "30s", "2min", "10min"]}"#;
        let config = read(shrinking).expect("readable");
        assert_eq!(config.limits(), None, "tiers that shrink");
    }
}
