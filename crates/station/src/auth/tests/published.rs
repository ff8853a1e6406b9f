//! Keys at a URL, over a scripted provider and scripted time: no sockets here.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use backend::clock::{SeededEntropy, TimerClock};
use parking_lot::Mutex;
use protocol::settings::Link;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::issuers::{ASYMMETRIC_ALGORITHMS, Pair, issuer, issuer_claims, set};
use super::*;
use crate::auth::provider::{Answer, Provider, ProviderError};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Default)]
struct Script {
    /// Published set; `None` while the provider is away.
    set: Option<Value>,
    fresh_for: Option<Duration>,
    /// Time until an answer, or a failure.
    delay: Duration,
    calls: usize,
}

/// A provider that counts its calls.
#[derive(Clone, Default)]
struct CountingProvider(Arc<Mutex<Script>>);

#[async_trait]
impl Provider for CountingProvider {
    async fn fetch(&self) -> Result<Answer, ProviderError> {
        let delay = {
            let mut script = self.0.lock();
            script.calls += 1;
            script.delay
        };
        sleep(delay).await;
        let script = self.0.lock();
        let set = script.set.as_ref();
        let set = set.ok_or(ProviderError::Unanswered("the provider is away"))?;
        Ok(Answer {
            content: set.to_string().into_bytes(),
            fresh_for: script.fresh_for,
        })
    }
}

impl CountingProvider {
    fn new(pairs: &[&Pair]) -> CountingProvider {
        let provider = CountingProvider::default();
        provider.publish(pairs);
        provider
    }

    fn publish(&self, pairs: &[&Pair]) {
        self.0.lock().set = Some(set(pairs));
    }

    fn leave(&self) {
        self.0.lock().set = None;
    }

    fn delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    fn calls(&self) -> usize {
        self.0.lock().calls
    }

    fn url(name: &str) -> Link {
        Link::from(format!("https://{name}.example/keys").as_str())
    }
}

/// Tokens that a station looks after until the end of the test.
struct World {
    tokens: Arc<SignedTokens>,
    keeper: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl World {
    fn new(providers: &[(&str, &CountingProvider)]) -> World {
        World::start(providers, None, NOW)
    }

    fn start(
        providers: &[(&str, &CountingProvider)],
        cache: Option<&Path>,
        now: Timestamp,
    ) -> World {
        let by_url = |(name, _): &(&str, &CountingProvider)| Issuer {
            jwks_url: Some(CountingProvider::url(name)),
            ..issuer(name, &ASYMMETRIC_ALGORITHMS, None, &[])
        };
        let config = Config {
            issuers: providers.iter().map(by_url).collect(),
            cache_dir: cache.map(Path::to_owned),
            ..Config::default()
        };
        let tokens = SignedTokens::open_with(&config, &|issuer, _| {
            let provider = providers.iter().find(|(name, _)| *name == issuer.issuer);
            let (_, provider) = provider.expect("one of them");
            Ok(Box::new(CountingProvider::clone(provider)))
        });
        let tokens = Arc::new(tokens.expect("fair settings"));
        tokens.restore(now);
        let clock = Arc::new(TimerClock::starting_at(now));
        let entropy = Arc::new(SeededEntropy::new(1));
        let keeper = tokio::spawn(tokens.clone().keep(clock, entropy));
        World { tokens, keeper }
    }

    async fn authenticate(&self, token: &str) -> Result<Principal, Refusal> {
        let device = DeviceId::new("phone").expect("short");
        let client = Client {
            platform: Platform::Ios,
            device: &device,
            address: "192.0.2.7",
        };
        self.tokens.authenticate(token, &client, NOW).await
    }

    /// Code of the refusal; `None` if the token is believed.
    async fn code(&self, token: &str) -> Option<Code> {
        let answer = self.authenticate(token).await;
        answer.err().map(|refusal| refusal.code)
    }
}

impl World {
    /// Time until the answer to try again.
    async fn time_to_refusal(&self, token: &str) -> Duration {
        let begin = Instant::now();
        let refusal = self.authenticate(token).await;
        let refusal = refusal.expect_err("no key");
        assert_eq!(refusal.code, Code::Unavailable, "{refusal}");
        assert!(refusal.retry_after.is_some(), "{refusal}");
        begin.elapsed()
    }
}

fn ed(kid: &'static str) -> Pair {
    Pair::new(Algorithm::EdDSA, Some(kid))
}

fn sign_with_kid(pair: &Pair, kid: &str) -> String {
    pair.sign_with(&issuer_claims("id"), |header| header.kid = Some(kid.into()))
}

#[tokio::test(start_paused = true)]
async fn a_sign_in_waits_for_the_first_set() {
    let pair = ed("1");
    let provider = CountingProvider::new(&[&pair]);
    provider.delay(SECOND);
    let world = World::new(&[("id", &provider)]);
    assert_eq!(world.code(&pair.sign(&issuer_claims("id"))).await, None);
    assert_eq!(provider.calls(), 1);
}

// T-X2: unknown kids, 1,000 of them in a minute, are two looks at most, whether they differ or not.
#[tokio::test(start_paused = true)]
async fn a_thousand_unknown_kids_are_two_looks_a_minute() {
    let pair = ed("1");
    for differ in [false, true] {
        let provider = CountingProvider::new(&[&pair]);
        let world = World::new(&[("id", &provider)]);
        assert_eq!(world.code(&pair.sign(&issuer_claims("id"))).await, None);
        sleep(5 * MINUTE).await;
        let (old_calls, begin) = (provider.calls(), Instant::now());
        for number in 0..1_000 {
            let kid = if differ { number } else { 0 };
            let token = sign_with_kid(&pair, &format!("unknown {kid}"));
            assert_eq!(world.code(&token).await, Some(Code::Unauthenticated));
            sleep(MINUTE / 1_000).await;
        }
        assert!(begin.elapsed() >= MINUTE && begin.elapsed() < MINUTE + SECOND);
        let looks = provider.calls() - old_calls;
        let expected = if differ { 2 } else { 1 };
        assert_eq!(looks, expected, "{differ}");
        // The kid that is known is believed meanwhile.
        assert_eq!(world.code(&pair.sign(&issuer_claims("id"))).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_key_is_looked_for_when_a_token_names_it() {
    let (old, new) = (ed("old"), ed("new"));
    let provider = CountingProvider::new(&[&old]);
    let world = World::new(&[("id", &provider)]);
    let (by_old, by_new) = (
        old.sign(&issuer_claims("id")),
        new.sign(&issuer_claims("id")),
    );
    assert_eq!(world.code(&by_old).await, None);
    sleep(MINUTE).await;
    provider.publish(&[&old, &new]);
    assert_eq!(world.code(&by_new).await, None);
    assert_eq!(world.code(&by_old).await, None);
    assert_eq!(provider.calls(), 2);
    // A set that shrinks forgets: the key that is gone proves nothing.
    provider.publish(&[&new]);
    sleep(11 * MINUTE).await;
    assert_eq!(world.code(&by_old).await, Some(Code::Unauthenticated));
    assert_eq!(world.code(&by_new).await, None);
    // The key's owner wants no token believed.
    provider.publish(&[]);
    sleep(11 * MINUTE).await;
    assert_eq!(world.code(&by_new).await, Some(Code::Unauthenticated));
}

#[tokio::test(start_paused = true)]
async fn a_kid_is_one_issuer_s() {
    let (ours, theirs) = (ed("1"), ed("1"));
    let (our, their) = (
        CountingProvider::new(&[&ours]),
        CountingProvider::new(&[&theirs]),
    );
    let world = World::new(&[("id", &our), ("other", &their)]);
    assert_eq!(world.code(&ours.sign(&issuer_claims("id"))).await, None);
    assert_eq!(
        world.code(&theirs.sign(&issuer_claims("other"))).await,
        None
    );
    let tokens = [
        theirs.sign(&issuer_claims("id")),
        ours.sign(&issuer_claims("other")),
        ours.sign(&issuer_claims("stranger")),
    ];
    for token in tokens {
        assert_eq!(world.code(&token).await, Some(Code::Unauthenticated));
    }
    assert_eq!((our.calls(), their.calls()), (1, 1), "nobody was asked");
}

#[tokio::test(start_paused = true)]
async fn keys_are_believed_for_a_day_while_their_provider_is_away() {
    let pair = ed("1");
    let provider = CountingProvider::new(&[&pair]);
    let world = World::new(&[("id", &provider)]);
    let token = pair.sign(&issuer_claims("id"));
    assert_eq!(world.code(&token).await, None);
    let begin = Instant::now();
    provider.leave();
    sleep(DAY - SECOND).await;
    assert_eq!(world.code(&token).await, None);
    // Nobody can say whether its key is one of theirs.
    let stranger = sign_with_kid(&pair, "unknown");
    assert_eq!(world.code(&stranger).await, Some(Code::Unavailable));
    sleep((DAY + SECOND).saturating_sub(begin.elapsed())).await;
    assert_eq!(world.code(&token).await, Some(Code::Unavailable));
    assert_eq!(world.code(&stranger).await, Some(Code::Unavailable));
    // At most a minute passes between two tries.
    provider.publish(&[&pair]);
    sleep(MINUTE).await;
    assert_eq!(world.code(&token).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_hangs_holds_its_own_for_two_seconds() {
    let (ours, theirs) = (ed("1"), ed("2"));
    let (hangs, other) = (
        CountingProvider::new(&[&ours]),
        CountingProvider::new(&[&theirs]),
    );
    let world = World::new(&[("id", &hangs), ("other", &other)]);
    assert_eq!(world.code(&ours.sign(&issuer_claims("id"))).await, None);
    assert_eq!(
        world.code(&theirs.sign(&issuer_claims("other"))).await,
        None
    );
    sleep(MINUTE).await;
    hangs.leave();
    hangs.delay(5 * SECOND);
    let begin = Instant::now();
    let unknown: Vec<_> = (0..100)
        .map(|number| sign_with_kid(&ours, &format!("unknown {number}")))
        .collect();
    // 64 of them wait, and take the calls of a boat from nobody else for longer than that.
    let waits = unknown.iter().map(|token| world.time_to_refusal(token));
    let waits = async {
        let mut times = futures_util::future::join_all(waits).await;
        times.sort();
        let (at_once, patient) = times.split_at(36);
        assert_eq!(at_once, [Duration::ZERO; 36]);
        assert_eq!(patient, [2 * SECOND; 64]);
    };
    let other_sign_ins = async {
        sleep(SECOND / 10).await;
        assert_eq!(
            world.code(&theirs.sign(&issuer_claims("other"))).await,
            None
        );
        assert_eq!(world.code(&ours.sign(&issuer_claims("id"))).await, None);
        assert_eq!(begin.elapsed(), SECOND / 10, "nobody waits with them");
    };
    tokio::join!(waits, other_sign_ins);
    assert_eq!((hangs.calls(), other.calls()), (2, 1), "single flight");
}

// A key that came into use while its provider hung was unknown for a minute after it was back.
#[tokio::test(start_paused = true)]
async fn a_provider_that_could_not_be_asked_makes_no_key_unknown() {
    let (old, new) = (ed("old"), ed("new"));
    let provider = CountingProvider::new(&[&old]);
    let world = World::new(&[("id", &provider)]);
    let by_new = new.sign(&issuer_claims("id"));
    assert_eq!(world.code(&old.sign(&issuer_claims("id"))).await, None);
    for delay in [Duration::ZERO, 5 * SECOND] {
        sleep(MINUTE).await;
        provider.leave();
        provider.delay(delay);
        for _ in 0..3 {
            assert_eq!(world.code(&by_new).await, Some(Code::Unavailable));
        }
        provider.publish(&[&old]);
        provider.delay(Duration::ZERO);
        sleep(MINUTE + 6 * SECOND).await;
        let stranger = sign_with_kid(&old, &format!("unknown {delay:?}"));
        assert_eq!(world.code(&stranger).await, Some(Code::Unauthenticated));
    }
    provider.leave();
    sleep(MINUTE).await;
    assert_eq!(world.code(&by_new).await, Some(Code::Unavailable));
    provider.publish(&[&old, &new]);
    sleep(MINUTE).await;
    assert_eq!(world.code(&by_new).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_station_starts_without_keys_and_says_so_to_their_users() {
    let (ours, theirs) = (ed("1"), ed("2"));
    let (absent, other) = (
        CountingProvider::default(),
        CountingProvider::new(&[&theirs]),
    );
    let world = World::new(&[("id", &absent), ("other", &other)]);
    let (our, their) = (
        ours.sign(&issuer_claims("id")),
        theirs.sign(&issuer_claims("other")),
    );
    assert_eq!(world.code(&our).await, Some(Code::Unavailable));
    assert_eq!(world.code(&their).await, None);
    // An algorithm that is not the issuer's is nobody's, whoever is away.
    let secret = Signer::default();
    let forgery = secret.sign(&Claims {
        iss: "id".into(),
        ..claims()
    });
    let forgery = world.code(&forgery.expect("signable")).await;
    assert_eq!(forgery, Some(Code::Unauthenticated));
    absent.publish(&[&ours]);
    sleep(2 * SECOND).await;
    assert_eq!(world.code(&our).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_how_long_its_set_is_good_is_asked_then() {
    let pair = ed("1");
    for (fresh_for, minutes, looks) in [
        (None, 100, 9..=12),
        (Some(Duration::ZERO), 100, 90..=101),
        (Some(2 * MINUTE), 100, 45..=56),
        (Some(DAY), 600, 10..=12),
    ] {
        let provider = CountingProvider::new(&[&pair]);
        provider.0.lock().fresh_for = fresh_for;
        let _world = World::new(&[("id", &provider)]);
        sleep(minutes * MINUTE).await;
        let calls = provider.calls();
        assert!(looks.contains(&calls), "{fresh_for:?}: {calls}");
    }
}

/// Waits for another thread, a minute at most.
async fn wait_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if condition() {
            return;
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(SECOND / 100))
            .await
            .expect("a pause");
    }
    panic!("not in time");
}

/// Complete copies: each is written beside its place first.
fn copies(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "jwks"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_restart_while_the_provider_is_away_has_the_keys_of_before() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = dir.path().join("keys");
    let pair = ed("1");
    let provider = CountingProvider::new(&[&pair]);
    let token = pair.sign(&issuer_claims("id"));
    let world = World::start(&[("id", &provider)], Some(&cache), NOW);
    assert_eq!(world.code(&token).await, None);
    wait_until(|| copies(&cache).len() == 1).await;
    let name = copies(&cache).remove(0);
    drop(world);

    provider.leave();
    let start = |name: &'static str, now| World::start(&[(name, &provider)], Some(&cache), now);
    let restart = start("id", NOW + DAY - MINUTE);
    assert_eq!(restart.code(&token).await, None);
    sleep(2 * MINUTE).await;
    assert_eq!(restart.code(&token).await, Some(Code::Unavailable));
    // Copies have their age, and belong to one issuer at one URL.
    let too_late = start("id", NOW + DAY + SECOND);
    assert_eq!(too_late.code(&token).await, Some(Code::Unavailable));
    let too_early = start("id", NOW - 2 * MINUTE);
    assert_eq!(too_early.code(&token).await, Some(Code::Unavailable));
    let other = start("other", NOW);
    let theirs = pair.sign(&issuer_claims("other"));
    assert_eq!(other.code(&theirs).await, Some(Code::Unavailable));

    for content in ["", "no date\n{}", "1800000000000\n{", "1800000000000"] {
        std::fs::write(&name, content).expect("written");
        let broken = start("id", NOW);
        let code = broken.code(&token).await;
        assert_eq!(code, Some(Code::Unavailable), "{content}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_follows_the_set_and_nobody_else_reads_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (old, new) = (ed("old"), ed("new"));
    let provider = CountingProvider::new(&[&old]);
    let _world = World::start(&[("id", &provider)], Some(dir.path()), NOW);
    let content = || {
        let copy = copies(dir.path()).pop();
        copy.and_then(|copy| std::fs::read_to_string(copy).ok())
            .unwrap_or_default()
    };
    sleep(SECOND).await;
    wait_until(|| content().ends_with(&set(&[&old]).to_string())).await;
    provider.publish(&[&new]);
    sleep(11 * MINUTE).await;
    wait_until(|| content().ends_with(&set(&[&new]).to_string())).await;
    let files = copies(dir.path());
    assert_eq!(files.len(), 1, "{files:?}");
    let date: i64 = content()
        .lines()
        .next()
        .expect("a date")
        .parse()
        .expect("a number");
    let age = Timestamp::from_millis(date).since(NOW);
    assert!(age >= 9 * MINUTE && age <= 11 * MINUTE, "{age:?}");
    use std::os::unix::fs::PermissionsExt;
    let mode = files[0].metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_folder_of_copies_is_a_folder() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let by_url = Issuer {
        jwks_url: Some(CountingProvider::url("id")),
        ..issuer("id", &ASYMMETRIC_ALGORITHMS, None, &[])
    };
    let config = Config {
        issuers: vec![by_url],
        cache_dir: Some(file.path().into()),
        ..Config::default()
    };
    let error = SignedTokens::open(&config)
        .expect_err("refused")
        .to_string();
    assert!(error.ends_with("not a directory"), "{error}");
}
