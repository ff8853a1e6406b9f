//! The operators' API: the one table of its routes. The router, the schema, docs/operations/api.md
//! and the tests of rights are made from it.

#[cfg(test)]
use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{MethodRouter, any, get, post};
use axum::{Json, Router, middleware};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::desk::{self, Desk};
use super::operators::{Operator, Role, authenticate};
use super::refusal::DeskRefusal;
use super::{PREFIX, openapi};
use crate::answer::{List, Page};
use crate::audit::{self, trace, verify};
use crate::boats::{self, BoatProgress, BoatRow, DrainQuestion};
use crate::dead_letters::operation::Operation;
use crate::dead_letters::routes::{
    EDIT_BYTES, ExportQuestion, IMPORT_BYTES, ImportQuestion, ListQuestion, LogQuestion,
    LookQuestion, PauseQuestion,
};
use crate::dead_letters::task_view::{RedriveAnswer, Task};
use crate::dead_letters::{
    self, EditResult, Envelope, ImportResult, Letter, LetterChange, LetterDetail, LetterPackage,
    Plan, Request, Selection, SelectionCount, Stats,
};
use crate::doctor::{
    self, Checkup, Doctor, ProcessClock, RepairQuestion, RepairReport, UserReport,
};
use crate::users::{self, KickAnswer, KickQuestion};

use self::Needs::{Also, Either, View};

/// Path of requests that are none of the API.
pub(super) const OTHERS: &str = "/{*path}";

/// Paths of the API as a whole, which is no route of it.
pub(super) fn roots() -> [String; 2] {
    [PREFIX.to_owned(), format!("{PREFIX}/")]
}

/// A route of the API.
pub(super) struct Route {
    pub(super) method: Method,
    /// Path behind [`super::PREFIX`].
    pub(super) path: &'static str,
    pub(super) needs: Needs,
    pub(super) summary: &'static str,
    pub(super) input: Option<Input>,
    pub(super) answer: Form,
    serve: Serve,
}

/// Roles that a route requires, beside `view`, which all require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    View,
    /// Each of these.
    Also(&'static [Role]),
    /// One of these, by the work of the task.
    Either(&'static [Role]),
}

/// Parameters or body of a request.
pub(super) struct Input {
    pub(super) place: Place,
    pub(super) form: Form,
    /// A body that the route takes; empty for parameters.
    pub(super) example: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    Body,
}

/// A type as a schema shows it.
pub(super) struct Form {
    #[cfg(test)]
    pub(super) name: fn() -> Cow<'static, str>,
    pub(super) schema: fn(&mut SchemaGenerator) -> Schema,
    /// Reads a value as this type, and writes it again.
    #[cfg(test)]
    pub(super) round_trip: fn(Value) -> serde_json::Result<Value>,
}

/// Handler of a route, by the part of the process that it asks.
enum Serve {
    Desk(fn() -> MethodRouter<Arc<Desk>>),
    Doctor(fn() -> MethodRouter<Arc<Doctor>>),
}

const fn form<T: JsonSchema + Serialize + DeserializeOwned>() -> Form {
    Form {
        #[cfg(test)]
        name: T::schema_name,
        schema: SchemaGenerator::subschema_for::<T>,
        #[cfg(test)]
        round_trip: again::<T>,
    }
}

#[cfg(test)]
fn again<T: Serialize + DeserializeOwned>(value: Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(value)?)
}

const fn query<T: JsonSchema + Serialize + DeserializeOwned>() -> Option<Input> {
    Some(Input {
        place: Place::Query,
        form: form::<T>(),
        example: "",
    })
}

const fn body<T: JsonSchema + Serialize + DeserializeOwned>(
    example: &'static str,
) -> Option<Input> {
    Some(Input {
        place: Place::Body,
        form: form::<T>(),
        example,
    })
}

const WHY: &str = r#"{"why": "a complaint"}"#;
const IDS: &str = r#"{"type": "ids", "ids": ["message-0-0"]}"#;
const TASK: &str =
    r#"{"work": "discard", "selection": {"type": "ids", "ids": ["message-0-0"]}, "why": "a test"}"#;
const EDIT: &str = r#"{"base": "0123456789abcdef", "envelope": "{}", "why": "a slip"}"#;
const KICK: &str = r#"{"why": "the phone was stolen", "revoke": true}"#;

/// Every route of the API, in the order of its page.
pub(super) static ROUTES: [Route; 31] = [
    Route {
        method: Method::GET,
        path: "/me",
        needs: View,
        summary: "Name and roles of the operator who asks.",
        input: None,
        answer: form::<Operator>(),
        serve: Serve::Desk(|| get(desk::me)),
    },
    Route {
        method: Method::GET,
        path: "/openapi.json",
        needs: View,
        summary: "Schema of this API.",
        input: None,
        answer: form::<Value>(),
        serve: Serve::Desk(|| get(schema)),
    },
    Route {
        method: Method::GET,
        path: "/trace/{id}",
        needs: View,
        summary: "Life of the message with this id, or of those with this send_id; none if nothing is known.",
        input: None,
        answer: form::<List<trace::Report>>(),
        serve: Serve::Desk(|| get(audit::routes::trace_one)),
    },
    Route {
        method: Method::GET,
        path: "/audit",
        needs: View,
        summary: "Balance of the accepted messages of a window.",
        input: query::<audit::AuditQuestion>(),
        answer: form::<audit::Report>(),
        serve: Serve::Desk(|| get(audit::routes::audit_all)),
    },
    Route {
        method: Method::GET,
        path: "/audit/verify",
        needs: View,
        summary: "Verification of the chain of closed minutes.",
        input: query::<verify::VerifyQuestion>(),
        answer: form::<verify::Report>(),
        serve: Serve::Desk(|| get(audit::routes::verify_chain)),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters",
        needs: View,
        summary: "Letters that match, messages before notifications, oldest first.",
        input: query::<ListQuestion>(),
        answer: form::<Page<Letter>>(),
        serve: Serve::Desk(|| get(dead_letters::routes::list)),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters/stats",
        needs: View,
        summary: "Counts of letters by reason and by cause.",
        input: None,
        answer: form::<Stats>(),
        serve: Serve::Desk(|| get(dead_letters::routes::stats)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/count",
        needs: View,
        summary: "Number of letters in a selection.",
        input: body::<Selection>(IDS),
        answer: form::<SelectionCount>(),
        serve: Serve::Desk(|| post(dead_letters::routes::count)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/plan",
        needs: View,
        summary: "Forecast of a redrive of at most 1000 letters; changes nothing.",
        input: body::<Selection>(IDS),
        answer: form::<Plan>(),
        serve: Serve::Desk(|| post(dead_letters::routes::plan)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/redrive",
        needs: Also(&[Role::Redrive]),
        summary: "Redrive of at most 1000 letters; answers with its task and the outcomes of the first 20 seconds.",
        input: body::<Selection>(IDS),
        answer: form::<RedriveAnswer>(),
        serve: Serve::Desk(|| post(dead_letters::routes::redrive)),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters/tasks",
        needs: View,
        summary: "Tasks, newest first: all open ones, and the last hundred that ended. Letters are \
                  counted, not listed.",
        input: None,
        answer: form::<List<Task>>(),
        serve: Serve::Desk(|| get(dead_letters::routes::tasks)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/tasks",
        needs: Either(&[Role::Redrive, Role::Discard]),
        summary: "Start of a task: a redrive, a discard or a restore. A repeat under the same name starts nothing.",
        input: body::<Request>(TASK),
        answer: form::<Task>(),
        serve: Serve::Desk(|| post(dead_letters::routes::begin)),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters/tasks/{id}",
        needs: View,
        summary: "One task, with the outcomes of its first thousand letters.",
        input: None,
        answer: form::<Task>(),
        serve: Serve::Desk(|| get(dead_letters::routes::task)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/tasks/{id}/pause",
        needs: Either(&[Role::Redrive, Role::Discard]),
        summary: "Pause of a task.",
        input: body::<PauseQuestion>(WHY),
        answer: form::<Task>(),
        serve: Serve::Desk(|| post(dead_letters::routes::pause)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/tasks/{id}/resume",
        needs: Either(&[Role::Redrive, Role::Discard]),
        summary: "End of the pause of a task.",
        input: None,
        answer: form::<Task>(),
        serve: Serve::Desk(|| post(dead_letters::routes::resume)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/tasks/{id}/cancel",
        needs: Either(&[Role::Redrive, Role::Discard]),
        summary: "End of a task; letters without an outcome stay as they are.",
        input: None,
        answer: form::<Task>(),
        serve: Serve::Desk(|| post(dead_letters::routes::cancel)),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters/log",
        needs: View,
        summary: "Log of operations, newest first: requests of operators, and the work on them.",
        input: query::<LogQuestion>(),
        answer: form::<Page<Operation>>(),
        serve: Serve::Desk(|| get(dead_letters::routes::log)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/export",
        needs: Also(&[Role::ViewBody]),
        summary: "Letters that match, with their bodies. The log of operations records it.",
        input: body::<ExportQuestion>(WHY),
        answer: form::<Page<LetterPackage>>(),
        serve: Serve::Desk(|| post(dead_letters::routes::export)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/import",
        needs: Also(&[Role::Import]),
        summary: "Import of exported letters into the installation that they came from.",
        input: body::<ImportQuestion>(WHY),
        answer: form::<ImportResult>(),
        serve: Serve::Desk(|| {
            post(dead_letters::routes::import).layer(DefaultBodyLimit::max(IMPORT_BYTES))
        }),
    },
    Route {
        method: Method::GET,
        path: "/dead-letters/{id}",
        needs: View,
        summary: "One letter, without its body.",
        input: None,
        answer: form::<LetterDetail>(),
        serve: Serve::Desk(|| get(dead_letters::routes::show)),
    },
    // A read is logged, and so changes something.
    Route {
        method: Method::POST,
        path: "/dead-letters/{id}/read",
        needs: Also(&[Role::ViewBody]),
        summary: "One letter, with its body in words. The log of operations records it.",
        input: body::<LookQuestion>(WHY),
        answer: form::<LetterDetail>(),
        serve: Serve::Desk(|| post(dead_letters::routes::read)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/{id}/envelope",
        needs: Also(&[Role::ViewBody]),
        summary: "Body of a letter, for an edit. The log of operations records it.",
        input: body::<LookQuestion>(WHY),
        answer: form::<Envelope>(),
        serve: Serve::Desk(|| post(dead_letters::routes::envelope)),
    },
    Route {
        method: Method::POST,
        path: "/dead-letters/{id}/edit",
        needs: Also(&[Role::ViewBody, Role::Edit]),
        summary: "Edit of a letter, or its preview.",
        input: body::<LetterChange>(EDIT),
        answer: form::<EditResult>(),
        serve: Serve::Desk(|| {
            post(dead_letters::routes::edit).layer(DefaultBodyLimit::max(EDIT_BYTES))
        }),
    },
    Route {
        method: Method::POST,
        path: "/users/{user}/kick",
        needs: Also(&[Role::SignOut]),
        summary: "End of the sessions of a user and, if wished, of all tokens issued so far.",
        input: body::<KickQuestion>(KICK),
        answer: form::<KickAnswer>(),
        serve: Serve::Desk(|| post(users::kick)),
    },
    Route {
        method: Method::GET,
        path: "/boats",
        needs: View,
        summary: "Boats, as they last published themselves.",
        input: None,
        answer: form::<List<BoatRow>>(),
        serve: Serve::Desk(|| get(boats::list)),
    },
    Route {
        method: Method::GET,
        path: "/boats/{boat}",
        needs: View,
        summary: "State of a boat, which is asked for it.",
        input: None,
        answer: form::<BoatProgress>(),
        serve: Serve::Desk(|| get(boats::progress)),
    },
    Route {
        method: Method::POST,
        path: "/boats/{boat}/drain",
        needs: Also(&[Role::Drain]),
        summary: "Drain of a boat, or its end.",
        input: body::<DrainQuestion>("{}"),
        answer: form::<BoatProgress>(),
        serve: Serve::Desk(|| post(boats::drain)),
    },
    Route {
        method: Method::GET,
        path: "/doctor",
        needs: View,
        summary: "Findings of this process about the installation.",
        input: None,
        answer: form::<Checkup>(),
        serve: Serve::Doctor(|| get(doctor::routes::checkup)),
    },
    Route {
        method: Method::GET,
        path: "/doctor/clock",
        needs: View,
        summary: "Version and time of this process.",
        input: None,
        answer: form::<ProcessClock>(),
        serve: Serve::Doctor(|| get(doctor::routes::clock)),
    },
    Route {
        method: Method::GET,
        path: "/doctor/user/{user}",
        needs: View,
        summary: "Contradictions in what the stores keep of a user.",
        input: None,
        answer: form::<UserReport>(),
        serve: Serve::Doctor(|| get(doctor::routes::examine)),
    },
    Route {
        method: Method::POST,
        path: "/doctor/user/{user}/repair",
        needs: Also(&[Role::Repair]),
        summary: "Repair of these contradictions.",
        input: body::<RepairQuestion>(WHY),
        answer: form::<RepairReport>(),
        serve: Serve::Doctor(|| post(doctor::routes::repair)),
    },
];

/// Routes that ask the desk.
pub(super) fn desk_routes(desk: Arc<Desk>) -> Router {
    let operators = desk.operators.clone();
    let mut router = Router::new();
    for route in &ROUTES {
        if let Serve::Desk(serve) = route.serve {
            router = router.route(route.path, serve());
        }
    }
    router
        .route(OTHERS, any(unknown))
        .layer(middleware::from_fn_with_state(operators, authenticate))
        .with_state(desk)
}

/// Refusals at the paths of the API as a whole.
pub(super) fn root_routes(desk: &Desk) -> Router {
    let mut router = Router::new();
    for path in roots() {
        router = router.route(&path, any(unknown));
    }
    let operators = desk.operators.clone();
    router.layer(middleware::from_fn_with_state(operators, authenticate))
}

/// Routes that ask the doctor, which every process has.
pub(super) fn doctor_routes(doctor: Arc<Doctor>) -> Router {
    let operators = Arc::new(doctor.operators().clone());
    let mut router = Router::new();
    for route in &ROUTES {
        if let Serve::Doctor(serve) = route.serve {
            router = router.route(route.path, serve());
        }
    }
    router
        .layer(middleware::from_fn_with_state(operators, authenticate))
        .with_state(doctor)
}

async fn schema() -> Json<Value> {
    Json(openapi::document())
}

async fn unknown(uri: Uri) -> DeskRefusal {
    let text = format!("unknown path {}: see /openapi.json", uri.path());
    DeskRefusal::new(StatusCode::NOT_FOUND, text)
}

impl Needs {
    /// Names of the roles in the settings, for people.
    pub(super) fn words(self) -> String {
        let names = |roles: &[Role], word: &str| {
            let names: Vec<_> = roles
                .iter()
                .map(|role| format!("`{}`", role.name()))
                .collect();
            names.join(word)
        };
        match self {
            View => names(&[Role::View], ""),
            Also(roles) => names(roles, " and "),
            Either(roles) => names(roles, " or "),
        }
    }
}
