mod issuers;
mod provider;
mod published;
mod remote;

use jsonwebtoken::{Algorithm, EncodingKey};
use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

fn user() -> UserId {
    UserId::new(7).expect("positive")
}

fn claims() -> Claims {
    Claims::new(user(), NOW, HOUR)
}

fn tokens() -> SignedTokens {
    SignedTokens::open(&Config::default()).expect("fair settings")
}

fn sign_token(claims: &Claims) -> String {
    Signer::default().sign(claims).expect("signable")
}

fn refusal_code(token: &str) -> Option<Code> {
    tokens().prove(token, NOW).err().map(|refusal| refusal.code)
}

/// Any header, any payload, signed with HS256 and the right secret over exactly these bytes.
fn forge(header: &str, payload: &str) -> String {
    let body = format!("{}.{}", base64url(header), base64url(payload));
    let key = EncodingKey::from_secret(UNSAFE_DEVELOPMENT_SECRET.as_bytes());
    let mac = jsonwebtoken::crypto::sign(body.as_bytes(), &key, Algorithm::HS256).expect("a mac");
    format!("{body}.{mac}")
}

fn base64url(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    text.as_bytes()
        .chunks(3)
        .flat_map(|chunk| {
            let mut three = [0; 3];
            three[..chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            (0..=chunk.len())
                .map(move |i| char::from(ALPHABET[(bits >> (18 - 6 * i)) as usize & 63]))
        })
        .collect()
}

fn payload() -> String {
    let (begin, end) = (NOW.millis() / 1000, NOW.millis() / 1000 + 60);
    format!(r#"{{"sub":"7","aud":"packetboat","iss":"packetboat","nbf":{begin},"exp":{end}}}"#)
}

#[test]
fn a_signed_token_says_who_it_is() {
    let device = DeviceId::new("phone").expect("short");
    let token = sign_token(&claims().for_platform(Platform::Ios).for_device(&device));
    let identity = tokens().prove(&token, NOW).expect("a good token");
    assert_eq!(identity.user, user());
    assert_eq!(identity.expires_at, NOW + HOUR);
    assert_eq!(identity.issued_at, NOW);
    assert_eq!(identity.permits(Platform::Ios, &device), Ok(()));
    let other = DeviceId::new("tablet").expect("short");
    for wrong in [
        identity.permits(Platform::Web, &device),
        identity.permits(Platform::Ios, &other),
    ] {
        assert_eq!(wrong.map_err(|r| r.code), Err(Code::Unauthenticated));
    }
}

#[test]
fn token_without_issue_time_is_older_than_every_revocation() {
    let token = forge(r#"{"alg":"HS256","typ":"JWT"}"#, &payload());
    let identity = tokens().prove(&token, NOW).expect("a good token");
    assert_eq!(identity.issued_at, protocol::revocation::UNDATED);
}

#[test]
fn a_revocation_outlives_the_longest_token() {
    let mut config = Config::default();
    assert_eq!(config.lifetime_max(), HOUR * 24 * 30);
    let issuer = |lifetime_max: &str| -> Issuer {
        let settings = serde_json::json!({
            "issuer": "a", "algorithms": ["HS256"], "lifetime_max": lifetime_max,
        });
        serde_json::from_value(settings).expect("an issuer")
    };
    config.issuers = vec![issuer("1h"), issuer("5h")];
    assert_eq!(config.lifetime_max(), HOUR * 5);
}

#[test]
fn a_forged_token_of_the_test_is_good_where_nothing_is_wrong() {
    assert_eq!(
        refusal_code(&forge(r#"{"alg":"HS256","typ":"JWT"}"#, &payload())),
        None
    );
}

// T-X2: replayed after its end, forged, for another audience, too early: each is refused.
#[test]
fn bad_tokens_are_refused() {
    let with = |change: fn(&mut Claims)| {
        let mut claims = claims();
        change(&mut claims);
        sign_token(&claims)
    };
    let other_key = Signer::new(Secret::new(&[b'k'; 32]).expect("long enough"));
    let good = sign_token(&claims());
    let (head, signature) = good.rsplit_once('.').expect("three parts");
    let bad = [
        ("empty", String::new()),
        ("garbage", "not a token".into()),
        ("three parts of nothing", "..".into()),
        ("other key", other_key.sign(&claims()).expect("signable")),
        ("signature cut off", format!("{head}.")),
        ("signature of another token", {
            let other = with(|c| c.sub = "8".into());
            let (other_head, _) = other.rsplit_once('.').expect("three parts");
            format!("{other_head}.{signature}")
        }),
        (
            "none",
            format!(
                "{}.{}.",
                base64url(r#"{"alg":"none"}"#),
                base64url(&payload())
            ),
        ),
        ("none, signed", forge(r#"{"alg":"none"}"#, &payload())),
        (
            "RS256 with our secret as key",
            forge(r#"{"alg":"RS256"}"#, &payload()),
        ),
        ("ES256", forge(r#"{"alg":"ES256"}"#, &payload())),
        ("HS512", forge(r#"{"alg":"HS512"}"#, &payload())),
        ("other audience", with(|c| c.aud = "ferry".into())),
        ("other issuer", with(|c| c.iss = "somebody".into())),
        ("not yet valid", with(|c| c.nbf += 31)),
        ("no user", with(|c| c.sub = "alice".into())),
        ("user zero", with(|c| c.sub = "0".into())),
        ("negative user", with(|c| c.sub = "-7".into())),
        (
            "unknown platform",
            with(|c| c.platform = Some("fridge".into())),
        ),
        ("empty device", with(|c| c.device = Some(String::new()))),
        (
            "no exp",
            forge(
                r#"{"alg":"HS256"}"#,
                r#"{"sub":"7","aud":"packetboat","iss":"packetboat"}"#,
            ),
        ),
        (
            "no aud",
            forge(
                r#"{"alg":"HS256"}"#,
                r#"{"sub":"7","exp":1900000000,"iss":"packetboat"}"#,
            ),
        ),
        (
            "no iss",
            forge(
                r#"{"alg":"HS256"}"#,
                r#"{"sub":"7","exp":1900000000,"aud":"packetboat"}"#,
            ),
        ),
        ("huge", format!("{head}.{}", "A".repeat(1 << 20))),
        ("not ASCII", "ä.ö.ü".into()),
    ];
    for (case, token) in bad {
        assert_eq!(refusal_code(&token), Some(Code::Unauthenticated), "{case}");
    }
}

#[test]
fn a_token_ends_after_its_leeway_and_begins_before() {
    let end = |seconds: i64| {
        let mut claims = claims();
        claims.exp = NOW.millis() / 1000 + seconds;
        refusal_code(&sign_token(&claims))
    };
    assert_eq!(end(-29), None);
    assert_eq!(end(-30), Some(Code::TokenExpired));
    assert_eq!(end(-1_000_000), Some(Code::TokenExpired));
    let mut early = claims();
    early.nbf += 30;
    assert_eq!(refusal_code(&sign_token(&early)), None);
}

#[test]
fn weak_settings_are_refused() {
    assert!(matches!(
        Secret::new(b"short"),
        Err(KeyError::TooShort { bytes: 5, .. })
    ));
    let no_file = Config {
        key_file: Some("/nowhere/key".into()),
        ..Config::default()
    };
    for error in [
        SignedTokens::open(&no_file).expect_err("no file"),
        Signer::open(&no_file).expect_err("no file"),
    ] {
        assert!(matches!(error, KeyError::Unreadable { .. }));
    }
    assert!(Config::default().is_well_known() && !no_file.is_well_known());
    let debug_text = format!("{:?}", Signer::default());
    assert!(!debug_text.contains("unsafe"), "{debug_text}");
}

proptest! {
    // T-X2: whatever the claims say, a token is believed exactly when all of them are right.
    #[test]
    fn claims_are_believed_exactly_when_right(
        number in -2i64..5,
        audience in prop_oneof![Just("packetboat"), Just("ferry"), Just("")],
        issuer in prop_oneof![Just("packetboat"), Just("else")],
        begin in -200i64..200,
        end in -200i64..200,
    ) {
        let seconds = NOW.millis() / 1000;
        let token = sign_token(&Claims {
            sub: number.to_string(),
            aud: audience.into(),
            iss: issuer.into(),
            iat: seconds,
            nbf: seconds + begin,
            exp: seconds + end,
            platform: None,
            device: None,
        });
        let ours = number > 0 && audience == "packetboat" && issuer == "packetboat";
        let expected = if ours && end <= -30 {
            Some(Code::TokenExpired)
        } else if ours && begin <= 30 {
            None
        } else {
            Some(Code::Unauthenticated)
        };
        prop_assert_eq!(refusal_code(&token), expected);
    }

    #[test]
    fn no_change_of_a_token_is_believed(at in 0usize..200, byte in 33u8..127) {
        let good = sign_token(&claims());
        let mut bytes = good.clone().into_bytes();
        let at = at % bytes.len();
        prop_assume!(bytes[at] != byte);
        bytes[at] = byte;
        let altered_token = String::from_utf8(bytes).expect("ASCII");
        // The last character of a part has bits that mean nothing: another spelling of the same bytes
        // is refused too, since the decoder is strict.
        prop_assert_eq!(refusal_code(&altered_token), Some(Code::Unauthenticated));
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,300}") {
        prop_assert!(refusal_code(&text).is_some());
    }
}
