//! Tokens of several issuers: each has its keys, and nothing of one proves a token of another.

use std::path::{Path, PathBuf};

use backend::files::Reload;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Header;
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData, RsaKeySize,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::auth::Algorithm as Allowed;

/// A pair of keys, as a provider has it: one half signs, the other is published.
pub(super) struct Pair {
    algorithm: Algorithm,
    kid: Option<&'static str>,
    pair: KeyPair,
}

impl Pair {
    pub(super) fn new(algorithm: Algorithm, kid: Option<&'static str>) -> Pair {
        let pair = match algorithm {
            Algorithm::EdDSA => KeyPair::generate_for(&PKCS_ED25519),
            Algorithm::ES256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            _ => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        };
        Pair {
            algorithm,
            kid,
            pair: pair.expect("a key"),
        }
    }

    pub(super) fn sign_with(&self, claims: &Value, change: impl FnOnce(&mut Header)) -> String {
        let pem = self.pair.serialize_pem();
        let key = match self.algorithm {
            Algorithm::EdDSA => EncodingKey::from_ed_pem(pem.as_bytes()),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_rsa_pem(pem.as_bytes()),
        };
        let mut header = Header::new(self.algorithm);
        header.kid = self.kid.map(str::to_owned);
        change(&mut header);
        jsonwebtoken::encode(&header, claims, &key.expect("its key")).expect("signable")
    }

    pub(super) fn sign(&self, claims: &Value) -> String {
        self.sign_with(claims, |_| {})
    }

    pub(super) fn jwk(&self) -> Value {
        let public = self.pair.der_bytes();
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match self.algorithm {
            Algorithm::EdDSA => json!({"kty": "OKP", "crv": "Ed25519", "x": text(public)}),
            // SEC 1: 4, x, y.
            Algorithm::ES256 => json!({"kty": "EC", "crv": "P-256",
                "x": text(&public[1..33]), "y": text(&public[33..])}),
            _ => {
                let (n, e) = rsa(public);
                json!({"kty": "RSA", "n": text(n), "e": text(e)})
            }
        };
        if let Some(kid) = self.kid {
            jwk["kid"] = kid.into();
        }
        jwk
    }
}

/// Both numbers of an RSAPublicKey (RFC 8017, A.1.1) in DER.
fn rsa(der: &[u8]) -> (&[u8], &[u8]) {
    fn read_value(der: &[u8]) -> (&[u8], &[u8]) {
        let (long, short) = (usize::from(der[1] & 0x7f), usize::from(der[1]));
        let (begin, length) = match short {
            0..0x80 => (2, short),
            _ => {
                let bytes = &der[2..2 + long];
                let add = |sum: usize, byte: &u8| sum << 8 | usize::from(*byte);
                (2 + long, bytes.iter().fold(0, add))
            }
        };
        der[begin..].split_at(length)
    }
    let (sequence, _) = read_value(der);
    let (n, rest) = read_value(sequence);
    (n, read_value(rest).0)
}

pub(super) fn set(pairs: &[&Pair]) -> Value {
    json!({ "keys": pairs.iter().map(|pair| pair.jwk()).collect::<Vec<_>>() })
}

pub(super) const ASYMMETRIC_ALGORITHMS: [Allowed; 3] =
    [Allowed::EdDSA, Allowed::ES256, Allowed::RS256];

/// Files of issuers, in a folder of their own.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("written");
        path
    }

    fn issuer(&self, name: &str, keys: &Value) -> Issuer {
        let file = self.write(&name.replace('/', "_"), keys.to_string());
        issuer(name, &ASYMMETRIC_ALGORITHMS, Some(&file), &[])
    }
}

pub(super) fn issuer(
    name: &str,
    algorithms: &[Allowed],
    jwks_file: Option<&Path>,
    secrets: &[SecretFile],
) -> Issuer {
    Issuer {
        issuer: name.into(),
        audience: "boats".into(),
        algorithms: algorithms.to_vec(),
        jwks_file: jwks_file.map(Path::to_owned),
        jwks_url: None,
        secrets: secrets.to_vec(),
        lifetime_max: Duration::from_secs(24 * 3600),
    }
}

fn open(issuers: &[Issuer]) -> Result<SignedTokens, KeyError> {
    SignedTokens::open(&Config {
        issuers: issuers.to_vec(),
        ..Config::default()
    })
}

pub(super) fn issuer_claims(issuer: &str) -> Value {
    let begin = NOW.millis() / 1000;
    json!({"sub": "7", "aud": "boats", "iss": issuer, "iat": begin, "exp": begin + 3600})
}

fn refusal_text(tokens: &SignedTokens, token: &str) -> Option<String> {
    tokens.prove(token, NOW).err().map(|refusal| refusal.text)
}

fn is_believed(tokens: &SignedTokens, token: &str) -> bool {
    tokens.prove(token, NOW).is_ok()
}

#[test]
fn an_issuer_signs_with_what_it_published() {
    let files = Files::new();
    let ed = Pair::new(Algorithm::EdDSA, Some("ed"));
    let ec = Pair::new(Algorithm::ES256, Some("ec"));
    let rsa = Pair::new(Algorithm::RS256, Some("rsa"));
    let tokens = open(&[files.issuer("https://id.example", &set(&[&ed, &ec, &rsa]))]);
    let tokens = tokens.expect("fair settings");
    let claims = issuer_claims("https://id.example");
    for pair in [&ed, &ec, &rsa] {
        let identity = tokens
            .prove(&pair.sign(&claims), NOW)
            .expect("a good token");
        assert_eq!((identity.user, identity.expires_at), (user(), NOW + HOUR));
    }
    // A token that names another algorithm than its key's, or another key than the one that signed
    // it.
    let other_key = ec.sign_with(&claims, |header| header.kid = Some("ed".into()));
    assert_eq!(
        refusal_text(&tokens, &other_key).as_deref(),
        Some("the token's key is unknown here")
    );
    let second = Pair::new(Algorithm::EdDSA, Some("ed"));
    let forgery = second.sign(&claims);
    assert_eq!(
        refusal_text(&tokens, &forgery).as_deref(),
        Some("the token's signature is wrong")
    );
}

// A public key is known to everybody: as a secret it must prove nothing.
#[test]
fn a_public_key_is_no_secret() {
    let files = Files::new();
    let rsa = Pair::new(Algorithm::RS256, Some("rsa"));
    let tokens = open(&[files.issuer("id", &set(&[&rsa]))]).expect("fair settings");
    let public = [
        rsa.pair.public_key_pem().into_bytes(),
        rsa.pair.der_bytes().to_vec(),
    ];
    for public_key in public {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("rsa".into());
        let key = EncodingKey::from_secret(&public_key);
        let token = jsonwebtoken::encode(&header, &issuer_claims("id"), &key).expect("signable");
        let refusal = refusal_text(&tokens, &token).expect("a forgery");
        assert!(
            refusal.contains("signature algorithm is not accepted"),
            "{refusal}"
        );
    }
}

// T-X2: another issuer's key of the same name.
#[test]
fn keys_prove_tokens_of_their_own_issuer_only() {
    let files = Files::new();
    let (ours, theirs) = (
        Pair::new(Algorithm::ES256, Some("1")),
        Pair::new(Algorithm::ES256, Some("1")),
    );
    let issuers = [
        files.issuer("ours", &set(&[&ours])),
        files.issuer("theirs", &set(&[&theirs])),
    ];
    let tokens = open(&issuers).expect("fair settings");
    assert!(is_believed(&tokens, &ours.sign(&issuer_claims("ours"))));
    assert!(is_believed(&tokens, &theirs.sign(&issuer_claims("theirs"))));
    for (pair, name) in [(&ours, "theirs"), (&theirs, "ours")] {
        let refusal = refusal_text(&tokens, &pair.sign(&issuer_claims(name)));
        assert_eq!(refusal.as_deref(), Some("the token's signature is wrong"));
    }
    let stranger = refusal_text(&tokens, &ours.sign(&issuer_claims("stranger")));
    assert_eq!(
        stranger.as_deref(),
        Some("the token comes from somebody else")
    );
    // Nor does a key that everybody knows.
    let development = Signer::default().claims(user(), NOW, HOUR);
    let refusal = refusal_text(
        &tokens,
        &Signer::default().sign(&development).expect("signable"),
    );
    assert_eq!(
        refusal.as_deref(),
        Some("the token comes from somebody else")
    );
}

#[test]
fn a_header_brings_no_keys() {
    let files = Files::new();
    let pair = Pair::new(Algorithm::EdDSA, Some("ed"));
    let tokens = open(&[files.issuer("id", &set(&[&pair]))]).expect("fair settings");
    let claims = issuer_claims("id");
    assert!(is_believed(&tokens, &pair.sign(&claims)));
    let own: jsonwebtoken::jwk::Jwk = serde_json::from_value(pair.jwk()).expect("a JWK");
    let headers: [fn(&mut Header, &jsonwebtoken::jwk::Jwk); 4] = [
        |header, _| header.jku = Some("https://id.example/keys".into()),
        |header, _| header.x5u = Some("https://id.example/chain".into()),
        |header, own| header.jwk = Some(own.clone()),
        |header, _| header.crit = Some(vec!["exp".into()]),
    ];
    for change in headers {
        let token = pair.sign_with(&claims, |header| change(header, &own));
        let refusal = refusal_text(&tokens, &token).expect("refused");
        assert!(refusal.contains("crit, jku, jwk, x5u"), "{refusal}");
    }
}

#[test]
fn a_token_without_kid_means_the_only_key() {
    let files = Files::new();
    let (ed, ec) = (
        Pair::new(Algorithm::EdDSA, Some("ed")),
        Pair::new(Algorithm::ES256, None),
    );
    let second = Pair::new(Algorithm::EdDSA, None);
    let claims = issuer_claims("id");
    let no_kid = ed.sign_with(&claims, |header| header.kid = None);
    let one = open(&[files.issuer("id", &set(&[&ed, &ec]))]).expect("fair settings");
    assert!(is_believed(&one, &no_kid) && is_believed(&one, &ec.sign(&claims)));
    let with_kid = ec.sign_with(&claims, |header| header.kid = Some("ec".into()));
    assert_eq!(
        refusal_text(&one, &with_kid).as_deref(),
        Some("the token's key is unknown here")
    );
    let two = open(&[files.issuer("id", &set(&[&ed, &second]))]).expect("fair settings");
    let refusal = refusal_text(&two, &no_kid);
    assert_eq!(
        refusal.as_deref(),
        Some("the token does not name its key (kid)")
    );
}

#[test]
fn a_token_lives_as_long_as_its_issuer_may_say() {
    let files = Files::new();
    let pair = Pair::new(Algorithm::EdDSA, None);
    let tokens = open(&[files.issuer("id", &set(&[&pair]))]).expect("fair settings");
    let begin = NOW.millis() / 1000;
    let with = |iat: Value, exp: Value| {
        let mut claims = issuer_claims("id");
        claims["iat"] = iat;
        claims["exp"] = exp;
        refusal_text(&tokens, &pair.sign(&claims))
    };
    let day = 24 * 3600;
    assert_eq!(with(begin.into(), (begin + day).into()), None);
    let longer = with(begin.into(), (begin + day + 1).into()).expect("refused");
    assert!(longer.contains("lives longer"), "{longer}");
    assert_eq!(with((begin + 30).into(), (begin + 60).into()), None);
    let early = with((begin + 31).into(), (begin + 60).into()).expect("refused");
    assert!(early.contains("not yet valid"), "{early}");
    let unsaid = with(Value::Null, (begin + 60).into());
    assert!(unsaid.is_some());
    // Numbers may have fractions, and be beyond any date.
    let fraction = |seconds: i64| Value::from(seconds as f64 + 0.5);
    assert_eq!(with(fraction(begin), fraction(begin + 60)), None);
    let for_ever = with(begin.into(), i64::MAX.into()).expect("refused");
    assert!(for_ever.contains("lives longer"), "{for_ever}");
    assert!(with(begin.into(), 1e300.into()).is_some());
    let mut claims = issuer_claims("id");
    claims["nbf"] = Value::Null;
    assert_eq!(refusal_text(&tokens, &pair.sign(&claims)), None);
    claims["aud"] = "packetboat".into();
    let refusal = refusal_text(&tokens, &pair.sign(&claims));
    assert_eq!(refusal.as_deref(), Some("the token is for another service"));
    let mut claims = issuer_claims("id");
    claims.as_object_mut().expect("an object").remove("iat");
    let refusal = refusal_text(&tokens, &pair.sign(&claims)).expect("refused");
    assert!(refusal.contains("(iat)"), "{refusal}");
}

// A rotation: both keys, then the new one alone. Files that cannot be used change nothing.
#[test]
fn keys_that_change_are_read_again() {
    let files = Files::new();
    let (old, new) = (
        Pair::new(Algorithm::EdDSA, Some("old")),
        Pair::new(Algorithm::ES256, Some("new")),
    );
    let stays = Pair::new(Algorithm::EdDSA, Some("1"));
    let other = files.issuer("other", &set(&[&stays]));
    let tokens = open(&[files.issuer("id", &set(&[&old])), other]).expect("fair settings");
    let by_old = old.sign(&issuer_claims("id"));
    let by_new = new.sign(&issuer_claims("id"));
    let reload = || {
        let results = tokens.reload();
        results
            .into_iter()
            .map(|it| it.map_err(|error| error.to_string()))
            .collect::<Vec<_>>()
    };
    let beliefs = || (is_believed(&tokens, &by_old), is_believed(&tokens, &by_new));
    assert_eq!(reload(), [Ok(Reload::Unchanged), Ok(Reload::Unchanged)]);
    assert_eq!(beliefs(), (true, false));
    files.issuer("id", &set(&[&old, &new]));
    assert_eq!(reload(), [Ok(Reload::Reloaded), Ok(Reload::Unchanged)]);
    assert_eq!(beliefs(), (true, true));
    // A mistake of one issuer affects no other.
    files.write("id", "half of a fi");
    let new_pair = Pair::new(Algorithm::EdDSA, Some("2"));
    files.issuer("other", &set(&[&new_pair]));
    let results = reload();
    assert!(
        results[0]
            .as_ref()
            .is_err_and(|error| error.contains("not a JWK set"))
    );
    assert_eq!(results[1], Ok(Reload::Reloaded));
    assert_eq!(beliefs(), (true, true));
    assert!(is_believed(
        &tokens,
        &new_pair.sign(&issuer_claims("other"))
    ));
    // A key removed from the set proves nothing.
    files.issuer("id", &set(&[&new]));
    assert_eq!(reload()[0], Ok(Reload::Reloaded));
    assert_eq!(beliefs(), (false, true));
    // The key is stolen: no key at all is better.
    files.issuer("id", &set(&[]));
    assert_eq!(reload()[0], Ok(Reload::Reloaded));
    assert_eq!(beliefs(), (false, false));
}

#[test]
fn secret_proves_tokens_of_any_kid_and_is_reread() {
    let files = Files::new();
    let file = files.write("key", [b'a'; 32]);
    let config = Config {
        key_file: Some(file.clone()),
        ..Config::default()
    };
    let tokens = SignedTokens::open(&config).expect("fair settings");
    let sign = |secret: [u8; 32]| {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("any".into());
        let key = EncodingKey::from_secret(&secret);
        jsonwebtoken::encode(&header, &claims(), &key).expect("signable")
    };
    let (old_token, new_token) = (sign([b'a'; 32]), sign([b'b'; 32]));
    let beliefs = || {
        (
            is_believed(&tokens, &old_token),
            is_believed(&tokens, &new_token),
        )
    };
    assert_eq!(beliefs(), (true, false));
    files.write("key", [b'b'; 32]);
    assert!(matches!(tokens.reload()[..], [Ok(Reload::Reloaded)]));
    assert_eq!(beliefs(), (false, true));
    for content in ["", UNSAFE_DEVELOPMENT_SECRET, &"x".repeat(64 * 1024 + 1)] {
        files.write("key", content);
        let outcome = tokens.reload().remove(0).map_err(|error| error.to_string());
        let path = file.display().to_string();
        assert!(
            outcome.is_err_and(|text| text.contains(&path)),
            "{content:.20}"
        );
        assert_eq!(beliefs(), (false, true));
    }
}

#[test]
fn secrets_have_names() {
    let files = Files::new();
    let secret = |kid: &str, byte: u8| SecretFile {
        kid: kid.into(),
        file: files.write(kid, [[byte; 32].as_slice(), b"\n"].concat()),
    };
    let secrets = [secret("new", b'n'), secret("old", b'o')];
    let config = Config {
        issuers: vec![issuer("id", &[Allowed::HS256], None, &secrets)],
        ..Config::default()
    };
    let tokens = SignedTokens::open(&config).expect("fair settings");
    let signer = Signer::open(&config).expect("a secret");
    assert_eq!(signer.lifetime_max(), Some(Duration::from_secs(24 * 3600)));
    let by_new = signer
        .sign(&signer.claims(user(), NOW, HOUR))
        .expect("signable");
    let header = jsonwebtoken::decode_header(&by_new).expect("a token");
    assert_eq!(header.kid.as_deref(), Some("new"));
    assert!(is_believed(&tokens, &by_new));
    let sign = |kid: Option<&str>| {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = kid.map(str::to_owned);
        let key = EncodingKey::from_secret(&[b'o'; 32]);
        jsonwebtoken::encode(&header, &issuer_claims("id"), &key).expect("signable")
    };
    assert!(is_believed(&tokens, &sign(Some("old"))));
    for kid in [None, Some("new"), Some("none")] {
        assert!(!is_believed(&tokens, &sign(kid)), "{kid:?}");
    }
}

#[test]
fn a_set_of_keys_is_read_with_care() {
    let files = Files::new();
    let pair = Pair::new(Algorithm::ES256, Some("ec"));
    let good = pair.jwk();
    let with = |member: &str, value: Value| {
        let mut jwk = good.clone();
        jwk[member] = value;
        jwk
    };
    let read = |keys: Value| {
        let issuer = files.issuer("id", &json!({ "keys": keys }));
        open(&[issuer]).map_err(|error| error.to_string())
    };
    // Skipped beside a good key, and not enough alone.
    let short = Pair {
        algorithm: Algorithm::RS256,
        ..Pair::new(Algorithm::RS256, Some("rsa"))
    };
    let passed_over = [
        json!({"kty": "oct", "k": "c2VjcmV0"}),
        json!({"kty": "new", "kid": "of the future"}),
        with("use", "enc".into()),
        with("key_ops", json!(["deriveKey"])),
        with("alg", "ECDH-ES".into()),
        with("crv", "P-384".into()),
        with("alg", "EdDSA".into()),
    ];
    for key in passed_over {
        let key_error = read(json!([key])).expect_err("no key");
        assert!(key_error.contains("has no keys for"), "{key_error}");
        let tokens = read(json!([key, good])).expect("a key");
        assert!(
            is_believed(&tokens, &pair.sign(&issuer_claims("id"))),
            "{key}"
        );
    }
    let (_, bytes) = (short.kid, short.pair.der_bytes());
    let (n, e) = rsa(bytes);
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    let weak = json!({"kty": "RSA", "n": text(&n[n.len() - 128..]), "e": text(e)});
    let long =
        json!({"kty": "RSA", "n": text(&[&[1], [7; 512].as_slice()].concat()), "e": text(e)});
    let cases = [
        (
            json!([good, with("d", "c2VjcmV0".into())]),
            "key 1 is a private key",
        ),
        (json!([good, good]), "key 1 has the kid of an earlier key"),
        (json!([with("x", "AAAA".into())]), "key 0 has 3 bytes in x"),
        (
            json!([with("x", "?".into())]),
            "key 0 has no base64url in x",
        ),
        (json!([with("y", Value::Null)]), "key 0 lacks y"),
        (
            json!([with("kid", 7.into())]),
            "key 0 has members of the wrong type",
        ),
        (json!([weak]), "bits; RSA keys have 2048 to 4096"),
        (json!([long]), "key 0 has 4097 bits"),
        (json!(vec![good.clone(); 65]), "it has 65 keys, at most 64"),
        (json!("c2VjcmV0"), "not a JWK set: line 1"),
        (
            json!([{"kty": "RSA", "n": text(n), "e": "AQ"}]),
            "has an e that is no RSA exponent",
        ),
        (
            json!([{"kty": "RSA", "n": text(n), "e": "AQAA"}]),
            "has an e that is no RSA exponent",
        ),
        (
            json!([{"kty": "x", "text": "x".repeat(256 * 1024)}]),
            "larger than 256 KiB",
        ),
    ];
    for (keys, reason) in cases {
        let error = read(keys).expect_err(reason);
        assert!(error.contains(reason), "{error}");
        assert!(!error.contains("c2VjcmV0"), "{error}");
    }
}

type Change = fn(&mut Issuer, SecretFile);

#[test]
fn settings_of_issuers_make_sense() {
    let files = Files::new();
    let pair = Pair::new(Algorithm::EdDSA, None);
    let good = files.issuer("id", &set(&[&pair]));
    let secret = SecretFile {
        kid: "1".into(),
        file: files.write("secret", [b's'; 32]),
    };
    let reason = |change: Change| {
        let mut issuer = good.clone();
        change(&mut issuer, secret.clone());
        open(&[issuer]).expect_err("refused").to_string()
    };
    let cases: [(Change, &str); 15] = [
        (|it, _| it.issuer.clear(), "issuers[0].issuer"),
        (|it, _| it.audience.clear(), "issuers[0].audience"),
        (
            |it, _| it.lifetime_max = Duration::ZERO,
            "issuers[0].lifetime_max",
        ),
        (
            |it, _| it.lifetime_max = Duration::from_secs(90 * 86_400 + 1),
            "issuers[0].lifetime_max is 7776001s",
        ),
        (|it, _| it.algorithms.clear(), "issuers[0].algorithms"),
        (
            |it, _| it.algorithms.push(Allowed::HS256),
            "issuers[0].algorithms",
        ),
        (|it, secret| it.secrets.push(secret), "issuers[0].secrets"),
        (
            |it, _| it.algorithms = vec![Allowed::HS256],
            "issuers[0].jwks_file",
        ),
        (|it, _| it.jwks_file = None, "issuers[0].jwks_file"),
        (
            |it, secret| {
                it.algorithms = vec![Allowed::HS256];
                it.jwks_file = None;
                it.secrets = vec![secret.clone(), secret];
            },
            "issuers[0].secrets is 1",
        ),
        (
            |it, _| it.jwks_url = Some("https://id.example/keys".into()),
            "issuers[0].jwks_url is https://id.example/keys: jwks_file",
        ),
        (
            |it, _| {
                it.jwks_file = None;
                it.jwks_url = Some("https://id.example/keys".into());
                it.algorithms = vec![Allowed::HS256];
            },
            "issuers[0].jwks_url is https://id.example/keys: a set",
        ),
        (
            |it, secret| {
                it.jwks_file = None;
                it.jwks_url = Some("https://id.example/keys".into());
                it.secrets.push(secret);
            },
            "issuers[0].secrets",
        ),
        (
            |it, _| {
                it.jwks_file = None;
                it.jwks_url = Some("ftp://user:hunter2@id.example/keys".into());
            },
            "issuers[0].jwks_url is ftp://(redacted)@id.example/keys: not an https://",
        ),
        (
            |it, _| {
                it.jwks_file = None;
                it.jwks_url = Some("id.example/keys".into());
            },
            "issuers[0].jwks_url is id.example/keys: not a URL",
        ),
    ];
    for (change, key) in cases {
        let text = reason(change);
        assert!(
            text.starts_with(&format!("station.auth.{key}")),
            "{key}: {text}"
        );
    }
    let duplicate = open(&[good.clone(), good.clone()]).expect_err("refused");
    assert!(
        duplicate.to_string().contains("issuers[1].issuer is id"),
        "{duplicate}"
    );
    let conflict = SignedTokens::open(&Config {
        key_file: Some(secret.file),
        issuers: vec![good.clone()],
        ..Config::default()
    });
    assert!(
        conflict
            .expect_err("refused")
            .to_string()
            .contains("key_file")
    );
    let config = Config {
        issuers: vec![good],
        ..Config::default()
    };
    assert!(matches!(Signer::open(&config), Err(KeyError::NoSecret)));
}

// Between here and a provider without TLS anybody could put keys of their own.
#[test]
fn keys_come_by_https_or_from_this_machine() {
    let problem = |url: &str| {
        let mut issuer = issuer("id", &ASYMMETRIC_ALGORITHMS, None, &[]);
        issuer.jwks_url = Some(url.into());
        open(&[issuer]).err().map(|error| error.to_string())
    };
    for url in [
        "https://id.example/keys",
        "https://10.0.0.7:8443/keys?tenant=1",
        "http://localhost:8080/keys",
        "http://127.0.0.1/keys",
        "http://127.9.9.9/keys",
        "http://[::1]:8080/keys",
        "HTTP://LOCALHOST/keys",
    ] {
        assert_eq!(problem(url), None, "{url}");
    }
    for url in [
        "http://id.example/keys",
        "http://10.0.0.7/keys",
        "http://127.0.0.1.id.example/keys",
        "http://localhost.id.example/keys",
        "http://127.0.0.1@id.example/keys",
        "http://[::2]/keys",
        "http://0.0.0.0/keys",
    ] {
        let refusal = problem(url).expect(url);
        assert!(
            refusal.contains("http is for loopback only. Such as https://"),
            "{refusal}"
        );
    }
}
