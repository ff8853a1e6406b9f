//! Operators of the desk: sign-in and roles.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use parking_lot::RwLock;
use protocol::Code;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;

use super::Config;
use super::assertion::{Assertion, AssertionOutcome, Provers};
use super::refusal::DeskRefusal;
use super::sign_ins::SignIns;

/// Least length of a token: a shorter one can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Permission of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Views without message bodies: letters, traces, audit, tasks.
    View,
    /// Views of message bodies, with a reason.
    ViewBody,
    Redrive,
    /// Discard and restore.
    Discard,
    /// Repair of data that the stores derived of a user.
    Repair,
    /// Import of exported letters: an operator with this role can make a letter say anything.
    Import,
    /// Edit of a letter: an operator with this role can make it say anything, too.
    Edit,
    /// End of users' sessions and tokens.
    SignOut,
    /// Drain of boats: their clients are sent away.
    Drain,
}

impl Role {
    pub(crate) const ALL: [Role; 9] = [
        Role::View,
        Role::ViewBody,
        Role::Redrive,
        Role::Discard,
        Role::Repair,
        Role::Import,
        Role::Edit,
        Role::SignOut,
        Role::Drain,
    ];

    /// Name in the settings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::ViewBody => "view-body",
            Role::Redrive => "redrive",
            Role::Discard => "discard",
            Role::Repair => "repair",
            Role::Import => "import",
            Role::Edit => "edit",
            Role::SignOut => "sign-out",
            Role::Drain => "drain",
        }
    }
}

/// One of `admin.operators`.
#[derive(Clone, Debug, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorConfig {
    /// Name in the log of operations.
    pub name: String,
    /// File whose first line is the token, 16 bytes or more.
    pub token_file: PathBuf,
    /// Roles
    pub roles: Vec<Role>,
}

/// The operator who sends a request.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Operator {
    pub name: String,
    #[serde(with = "role_names")]
    #[schemars(with = "Vec<RoleName>")]
    pub roles: Vec<Role>,
    /// Whether operators sign in at this desk.
    pub signed_in: bool,
}

/// Role as answers write it.
#[derive(JsonSchema, Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "snake_case")]
#[schemars(rename = "Role")]
enum RoleName {
    View,
    ViewBody,
    Redrive,
    Discard,
    Repair,
    Import,
    Edit,
    SignOut,
    Drain,
}

mod role_names {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Role, RoleName};

    #[derive(Serialize, Deserialize)]
    struct NamedRole(#[serde(with = "RoleName")] Role);

    pub(crate) fn serialize<S: Serializer>(roles: &[Role], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(roles.iter().copied().map(NamedRole))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Role>, D::Error> {
        let named_roles = Vec::<NamedRole>::deserialize(from)?;
        Ok(named_roles
            .into_iter()
            .map(|NamedRole(role)| role)
            .collect())
    }
}

impl Operator {
    /// The operator at a desk without sign-in, where everybody has all roles.
    pub fn anybody() -> Operator {
        Operator {
            name: "operator".to_owned(),
            roles: Role::ALL.to_vec(),
            signed_in: false,
        }
    }

    #[cfg(test)]
    pub fn with(name: &str, roles: &[Role]) -> Operator {
        Operator {
            name: name.to_owned(),
            roles: roles.to_vec(),
            signed_in: true,
        }
    }

    pub(crate) fn may(&self, role: Role) -> Result<(), DeskRefusal> {
        if self.roles.contains(&role) {
            return Ok(());
        }
        let text = format!(
            "{} may not do this: it needs the role {:?} in admin.operators or admin.assertion.roles",
            self.name,
            role.name()
        );
        Err(DeskRefusal::new(StatusCode::FORBIDDEN, text))
    }

    pub(crate) fn may_read(&self, reason: &str) -> Result<(), DeskRefusal> {
        let because = "reading message bodies is logged";
        self.may_because(Role::ViewBody, reason, because)
    }

    pub(crate) fn may_repair(&self, reason: &str) -> Result<(), DeskRefusal> {
        self.may_because(Role::Repair, reason, "repairs are logged")
    }

    pub(crate) fn may_import(&self, reason: &str) -> Result<(), DeskRefusal> {
        self.may_because(Role::Import, reason, "imports are logged")
    }

    /// Requires a reason of everybody: the user may ask for it.
    pub(crate) fn may_sign_out(&self, reason: &str) -> Result<(), DeskRefusal> {
        self.may(Role::SignOut)?;
        if reason.trim().is_empty() {
            let text = "say why: kicks are logged";
            return Err(DeskRefusal::new(StatusCode::BAD_REQUEST, text));
        }
        Ok(())
    }

    /// Requires `ViewBody`, too: an editor sees message bodies.
    pub(crate) fn may_edit(&self, reason: &str) -> Result<(), DeskRefusal> {
        self.may(Role::ViewBody)?;
        self.may_because(Role::Edit, reason, "edits are logged")
    }

    fn may_because(&self, role: Role, reason: &str, because: &str) -> Result<(), DeskRefusal> {
        self.may(role)?;
        if self.signed_in && reason.trim().is_empty() {
            let text = format!("give a reason (--why): {because}");
            return Err(DeskRefusal::new(StatusCode::BAD_REQUEST, text));
        }
        Ok(())
    }
}

type Tokens = Vec<(SecretString, Operator)>;

/// All operators; if there are none, anyone who reaches the port may do everything. Clones share
/// state.
#[derive(Clone, Default)]
pub struct Operators {
    tokens: Arc<RwLock<Tokens>>,
    /// Set if a proxy signs operators in, too.
    assertion: Option<Arc<Assertion>>,
    sign_ins: SignIns,
}

/// Credentials of a request, as recognized.
enum RequestCredentials {
    Nothing,
    Somebody(AssertionOutcome),
    /// A refused sign-in: its reason for the log, and a sentence for the sender.
    Wrong(String, String),
}

impl Operators {
    /// # Errors
    /// A token that cannot be read or is too short, or a name or a token that occurs twice.
    pub fn load(configs: &[OperatorConfig]) -> Result<Operators> {
        Ok(Operators {
            tokens: Arc::new(RwLock::new(Operators::read(configs)?)),
            assertion: None,
            sign_ins: SignIns::default(),
        })
    }

    /// Loads operators with tokens, and keys of a proxy that signs operators in, as the desk's
    /// settings name them. `provers` makes what proves its assertions.
    ///
    /// # Errors
    /// As `load`, and keys of assertions that cannot be read.
    pub fn open(config: &Config, provers: &dyn Provers) -> Result<Operators> {
        let assertion = Assertion::open(&config.assertion, provers).context("admin.assertion")?;
        Ok(Operators {
            assertion: assertion.map(Arc::new),
            ..Operators::load(&config.operators)?
        })
    }

    /// Keeps keys of assertions current until `stop`.
    pub fn keep(&self, stop: CancellationToken) {
        if let Some(assertion) = &self.assertion {
            assertion.keep(stop);
        }
    }

    /// Whether a proxy signs operators in.
    pub fn by_proxy(&self) -> bool {
        self.assertion.is_some()
    }

    /// Reads the operators again: from here on these may sign in, and nobody else.
    ///
    /// # Errors
    /// As `load`, and if no operator would be left: a running desk is not opened to everybody. The
    /// operators of before stay then.
    pub fn renew(&self, configs: &[OperatorConfig]) -> Result<()> {
        let tokens = Operators::read(configs)?;
        let mut current = self.tokens.write();
        if tokens.is_empty() && !current.is_empty() && self.assertion.is_none() {
            bail!(
                "admin.operators is empty now: this would open the admin port to everyone, and needs a restart"
            );
        }
        *current = tokens;
        Ok(())
    }

    fn read(configs: &[OperatorConfig]) -> Result<Tokens> {
        let mut operators = Tokens::new();
        for config in configs {
            let read = std::fs::read_to_string(&config.token_file);
            let text = read.map(SecretString::from).with_context(|| {
                let (name, file) = (&config.name, config.token_file.display());
                format!("admin.operators: reading the token of {name} in {file}")
            })?;
            let token = text.expose_secret().lines().next();
            let token = token.unwrap_or_default().trim();
            if token.len() < TOKEN_BYTES_MIN {
                bail!(
                    "admin.operators: the token of {} is shorter than {TOKEN_BYTES_MIN} bytes",
                    config.name
                );
            }
            let is_taken = |(other, operator): &(SecretString, Operator)| {
                operator.name == config.name || other.expose_secret() == token
            };
            if operators.iter().any(is_taken) {
                bail!(
                    "admin.operators: {} or its token is listed twice",
                    config.name
                );
            }
            let operator = Operator {
                name: config.name.clone(),
                roles: config.roles.clone(),
                signed_in: true,
            };
            operators.push((token.into(), operator));
        }
        Ok(operators)
    }

    /// Number of operators with a token.
    pub fn count(&self) -> usize {
        self.tokens.read().len()
    }

    /// Signs in the operator who sends these headers from `peer`, and who must have the role to
    /// view.
    pub(crate) async fn sign_in(
        &self,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Result<Operator, DeskRefusal> {
        // Before the address is checked, so that guesses from it lock no operator out.
        let (wrong, text) = match self.recognize(headers).await {
            RequestCredentials::Somebody(AssertionOutcome::Operator(operator)) => {
                if operator.signed_in {
                    SignIns::accept();
                }
                operator.may(Role::View)?;
                return Ok(operator);
            }
            RequestCredentials::Somebody(AssertionOutcome::Nobody(text)) => {
                SignIns::forbid();
                tracing::info!(%peer, text, "operator sign-in forbidden");
                return Err(DeskRefusal::new(StatusCode::FORBIDDEN, text));
            }
            RequestCredentials::Somebody(AssertionOutcome::Refused(refusal))
                if refusal.code == Code::Unavailable =>
            {
                SignIns::leave_unanswered();
                let text = format!(
                    "the proxy's assertion cannot be verified now: {}",
                    refusal.text
                );
                return Err(DeskRefusal::new(StatusCode::SERVICE_UNAVAILABLE, text));
            }
            RequestCredentials::Somebody(AssertionOutcome::Refused(refusal)) => {
                let text = format!(
                    "the proxy's assertion was refused: {}: sign in at the proxy again, or check \
                     admin.assertion against the proxy",
                    refusal.text
                );
                (Some(format!("an assertion: {}", refusal.text)), text)
            }
            RequestCredentials::Wrong(wrong, text) => (Some(wrong), text),
            RequestCredentials::Nothing => (None, self.expected_credentials()),
        };
        if !self.sign_ins.hears(peer).await {
            self.sign_ins.ignore().await;
            let text = "too many tokens from your address that belong to no operator: try again in a minute";
            return Err(DeskRefusal::new(StatusCode::TOO_MANY_REQUESTS, text));
        }
        // A request without credentials asks what is needed, and is no guess.
        if let Some(wrong) = wrong {
            self.sign_ins.refuse(peer, &wrong).await;
        }
        Err(DeskRefusal::new(StatusCode::UNAUTHORIZED, text))
    }

    /// Text that names the credentials a request lacks.
    fn expected_credentials(&self) -> String {
        let token =
            "send a token of admin.operators (--operator-token-file, or PACKETBOAT_ADMIN_TOKEN)";
        match &self.assertion {
            None => format!("operators sign in here: {token}"),
            Some(assertion) => format!(
                "operators sign in here: go through the proxy that sets {:?}, or {token}",
                assertion.header().as_str()
            ),
        }
    }

    /// A token wins: a request with one is judged by it alone, not by a proxy's assertion.
    async fn recognize(&self, headers: &HeaderMap) -> RequestCredentials {
        let (token, is_twice) = single(headers, &AUTHORIZATION);
        if is_twice {
            return duplicate_header(&AUTHORIZATION);
        }
        let bearer = token.and_then(|value| value.strip_prefix(b"Bearer "));
        if let Some(operator) = self.find(bearer) {
            return RequestCredentials::Somebody(AssertionOutcome::Operator(operator));
        }
        let assertion = self.assertion.as_deref();
        let Some(assertion) =
            assertion.filter(|it| token.is_none() || it.header() == AUTHORIZATION)
        else {
            return match token {
                Some(_) => RequestCredentials::Wrong(
                    "unknown token".to_owned(),
                    self.expected_credentials(),
                ),
                None => RequestCredentials::Nothing,
            };
        };
        let (value, is_twice) = single(headers, assertion.header());
        match (value, is_twice) {
            (_, true) => duplicate_header(assertion.header()),
            (None, false) => RequestCredentials::Nothing,
            (Some(value), false) => match assertion.of(value) {
                Some(text) => RequestCredentials::Somebody(assertion.ask(text).await),
                None => RequestCredentials::Wrong(
                    "the assertion is not valid text".to_owned(),
                    self.expected_credentials(),
                ),
            },
        }
    }

    /// Compares with all tokens, so that the time says nothing of the token.
    fn find(&self, token: Option<&[u8]>) -> Option<Operator> {
        let tokens = self.tokens.read();
        if tokens.is_empty() && self.assertion.is_none() {
            return Some(Operator::anybody());
        }
        let token = token?;
        let mut matching_operator = None;
        for (secret, operator) in tokens.iter() {
            if bool::from(secret.expose_secret().as_bytes().ct_eq(token)) {
                matching_operator = Some(operator.clone());
            }
        }
        matching_operator
    }
}

/// First value of a header, and true if there is another: nothing tells which of two is right.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> (Option<&'a [u8]>, bool) {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    (first, values.next().is_some())
}

fn duplicate_header(name: &HeaderName) -> RequestCredentials {
    let text = format!(
        "duplicate header {:?}: the proxy must replace it, not add another one",
        name.as_str()
    );
    RequestCredentials::Wrong(format!("duplicate header {:?}", name.as_str()), text)
}

/// Adds the operator, who must have the role to view, to the request.
pub(crate) async fn authenticate(
    State(operators): State<Arc<Operators>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    match operators.sign_in(peer.ip(), request.headers()).await {
        Ok(operator) => {
            request.extensions_mut().insert(operator);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &std::path::Path, name: &str, token: &str) -> OperatorConfig {
        let token_file = dir.join(name);
        std::fs::write(&token_file, format!("{token}\n")).expect("writes");
        OperatorConfig {
            name: name.to_owned(),
            token_file,
            roles: vec![Role::View],
        }
    }

    #[test]
    fn only_owners_of_a_token_are_known() {
        let dir = tempfile::tempdir().expect("a directory");
        let ann = config(dir.path(), "ann", "a-token-of-some-length");
        let bob = config(dir.path(), "bob", "another-token-of-length");
        let operators = Operators::load(&[ann.clone(), bob]).expect("loads");
        let name = |token: &[u8]| operators.find(Some(token)).map(|operator| operator.name);
        assert_eq!(name(b"a-token-of-some-length").as_deref(), Some("ann"));
        assert_eq!(name(b"another-token-of-length").as_deref(), Some("bob"));
        assert_eq!(name(b"a-token-of-some"), None);
        assert_eq!(operators.find(None), None);
        assert!(Operators::load(&[ann.clone(), ann]).is_err());
    }

    #[test]
    fn a_token_that_is_missing_or_short_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let short = config(dir.path(), "ann", "short");
        assert!(Operators::load(std::slice::from_ref(&short)).is_err());
        std::fs::remove_file(&short.token_file).expect("removes");
        let text = format!("{:#}", Operators::load(&[short]).err().expect("missing"));
        assert!(text.contains("ann"), "{text}");
    }

    // A removed token stayed valid until each process had been restarted.
    #[test]
    fn removed_operators_are_refused_and_a_bad_file_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let ann = config(dir.path(), "ann", "a-token-of-some-length");
        let bob = config(dir.path(), "bob", "another-token-of-length");
        let operators = Operators::load(&[ann.clone(), bob.clone()]).expect("loads");
        let desk = operators.clone();
        let knows = |token: &[u8]| desk.find(Some(token)).is_some();
        operators.renew(std::slice::from_ref(&bob)).expect("renews");
        assert!(!knows(b"a-token-of-some-length"));
        let bob = config(dir.path(), "bob", "a-new-token-for-bob");
        operators.renew(std::slice::from_ref(&bob)).expect("renews");
        assert!(!knows(b"another-token-of-length"));
        assert!(knows(b"a-new-token-for-bob"));
        std::fs::remove_file(&bob.token_file).expect("removes");
        assert!(operators.renew(&[bob]).is_err());
        assert!(operators.renew(&[]).is_err(), "nobody opens a desk so");
        assert!(knows(b"a-new-token-for-bob"));
    }

    #[test]
    fn without_operators_everybody_has_all_roles() {
        let anybody = Operators::default().find(None).expect("anybody");
        for role in Role::ALL {
            assert!(anybody.may(role).is_ok());
        }
        assert!(anybody.may_read("").is_ok());
        assert!(anybody.may_repair("").is_ok());
    }
}
