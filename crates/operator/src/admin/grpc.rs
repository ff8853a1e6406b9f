//! The desk over gRPC: the HTTP API's own answers as typed messages, for programs.

mod convert;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::v1;
use api::v1::desk_service_server::{DeskService, DeskServiceServer};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::{Extension, Json, Router};
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::time::sleep;
use tonic::server::NamedService;
use tonic::{Code, Request, Response, Status};

use self::convert::{filter, request, selection};
use super::api::{Answer, Desk, Refused};
use super::dead_letters::{self, ListQuestion, LookQuestion, PauseQuestion};
use super::operators::{Operator, Operators, identify};
use super::trace;
use crate::desk::{OperatorTask, TaskId};

/// Interval of looks at a watched task.
const LOOK: Duration = Duration::from_millis(500);
/// Longest watch of a task; a client that still wants to follow it asks again.
const WATCH_MAX: Duration = Duration::from_secs(3600);

type Reply<T> = Result<Response<T>, Status>;

/// Routes for the admin port's own router, which answers HTTP/1.1 and HTTP/2 alike.
pub(super) fn routes(desk: Arc<Desk>) -> Router {
    let operators = desk.operators.clone();
    let calls = format!("/{}/{{*call}}", DeskServiceServer::<Service>::NAME);
    Router::new()
        .route_service(&calls, DeskServiceServer::new(Service { desk }))
        .layer(from_fn_with_state(operators, sign_in))
}

async fn sign_in(
    State(operators): State<Arc<Operators>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: axum::extract::Request,
    next: Next,
) -> axum::response::Response {
    match identify(&operators, peer, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => status(refused).into_http(),
    }
}

struct Service {
    desk: Arc<Desk>,
}

impl Service {
    fn desk(&self) -> State<Arc<Desk>> {
        State(self.desk.clone())
    }

    async fn task(&self, id: &TaskId) -> Result<OperatorTask, Status> {
        answer(dead_letters::task(self.desk(), Path(id.clone())).await)
    }
}

#[tonic::async_trait]
impl DeskService for Service {
    type WatchTaskStream = BoxStream<'static, Result<v1::WatchTaskResponse, Status>>;

    async fn list_letters(
        &self,
        asked: Request<v1::ListLettersRequest>,
    ) -> Reply<v1::ListLettersResponse> {
        let asked = asked.into_inner();
        let limit = usize::try_from(asked.limit).unwrap_or(usize::MAX);
        let question = ListQuestion {
            limit: Some(limit).filter(|limit| *limit > 0),
            after: Some(asked.after).filter(|after| !after.is_empty()),
            ..filter(asked.filter.unwrap_or_default())?
        };
        let page = answer(dead_letters::list(self.desk(), Query(question)).await)?;
        Ok(Response::new(convert::page(page)))
    }

    async fn show_letter(
        &self,
        asked: Request<v1::ShowLetterRequest>,
    ) -> Reply<v1::ShowLetterResponse> {
        let operator = operator(&asked)?;
        let v1::ShowLetterRequest { id, body, why } = asked.into_inner();
        let shown = match body {
            true => {
                let question = Json(LookQuestion { why });
                dead_letters::read(self.desk(), operator, Path(id), question).await
            }
            false => dead_letters::show(self.desk(), Path(id)).await,
        };
        Ok(Response::new(convert::shown(answer(shown)?)))
    }

    async fn count_letters(
        &self,
        _: Request<v1::CountLettersRequest>,
    ) -> Reply<v1::CountLettersResponse> {
        let stats = answer(dead_letters::stats(self.desk()).await)?;
        Ok(Response::new(convert::stats(stats)))
    }

    async fn count_selection(
        &self,
        asked: Request<v1::CountSelectionRequest>,
    ) -> Reply<v1::CountSelectionResponse> {
        let selection = selection(asked.into_inner().selection)?;
        let count = answer(dead_letters::count(self.desk(), Json(selection)).await)?;
        Ok(Response::new(v1::CountSelectionResponse {
            letters: count.letters,
            more: count.more,
        }))
    }

    async fn get_envelope(
        &self,
        asked: Request<v1::GetEnvelopeRequest>,
    ) -> Reply<v1::GetEnvelopeResponse> {
        let operator = operator(&asked)?;
        let v1::GetEnvelopeRequest { id, why } = asked.into_inner();
        let question = Json(LookQuestion { why });
        let held = dead_letters::envelope(self.desk(), operator, Path(id), question).await;
        Ok(Response::new(convert::envelope(answer(held)?)))
    }

    async fn edit_letter(
        &self,
        asked: Request<v1::EditLetterRequest>,
    ) -> Reply<v1::EditLetterResponse> {
        let operator = operator(&asked)?;
        let mut asked = asked.into_inner();
        let id = Path(std::mem::take(&mut asked.id));
        let change = Json(convert::change(asked)?);
        let changed = dead_letters::edit(self.desk(), operator, id, change).await;
        Ok(Response::new(convert::changed(answer(changed)?)))
    }

    async fn plan_redrive(
        &self,
        asked: Request<v1::PlanRedriveRequest>,
    ) -> Reply<v1::PlanRedriveResponse> {
        let selection = selection(asked.into_inner().selection)?;
        let plan = answer(dead_letters::plan(self.desk(), Json(selection)).await)?;
        Ok(Response::new(convert::plan(plan)))
    }

    async fn begin_task(
        &self,
        asked: Request<v1::BeginTaskRequest>,
    ) -> Reply<v1::BeginTaskResponse> {
        let operator = operator(&asked)?;
        let request = request(asked.into_inner())?;
        let task = answer(dead_letters::begin(self.desk(), operator, Json(request)).await)?;
        let task = Some(convert::task(task));
        Ok(Response::new(v1::BeginTaskResponse { task }))
    }

    async fn list_tasks(&self, _: Request<v1::ListTasksRequest>) -> Reply<v1::ListTasksResponse> {
        let tasks = answer(dead_letters::tasks(self.desk()).await)?;
        let tasks = tasks.into_iter().map(convert::task).collect();
        Ok(Response::new(v1::ListTasksResponse { tasks }))
    }

    async fn watch_task(
        &self,
        asked: Request<v1::WatchTaskRequest>,
    ) -> Reply<Self::WatchTaskStream> {
        let id = task_id(&asked.into_inner().task)?;
        // An unknown task is refused at once.
        let first = self.task(&id).await?;
        let told = v1::WatchTaskResponse {
            task: Some(convert::task(first.clone())),
        };
        let rest = changes(self.desk.clone(), first).take_until(sleep(WATCH_MAX));
        Ok(Response::new(stream::iter([Ok(told)]).chain(rest).boxed()))
    }

    async fn pause_task(
        &self,
        asked: Request<v1::PauseTaskRequest>,
    ) -> Reply<v1::PauseTaskResponse> {
        let operator = operator(&asked)?;
        let v1::PauseTaskRequest { task, why } = asked.into_inner();
        let (id, question) = (Path(task_id(&task)?), Json(PauseQuestion { why }));
        let task = answer(dead_letters::pause(self.desk(), operator, id, question).await)?;
        let task = Some(convert::task(task));
        Ok(Response::new(v1::PauseTaskResponse { task }))
    }

    async fn resume_task(
        &self,
        asked: Request<v1::ResumeTaskRequest>,
    ) -> Reply<v1::ResumeTaskResponse> {
        let operator = operator(&asked)?;
        let id = Path(task_id(&asked.into_inner().task)?);
        let task = answer(dead_letters::resume(self.desk(), operator, id).await)?;
        let task = Some(convert::task(task));
        Ok(Response::new(v1::ResumeTaskResponse { task }))
    }

    async fn cancel_task(
        &self,
        asked: Request<v1::CancelTaskRequest>,
    ) -> Reply<v1::CancelTaskResponse> {
        let operator = operator(&asked)?;
        let id = Path(task_id(&asked.into_inner().task)?);
        let task = answer(dead_letters::cancel(self.desk(), operator, id).await)?;
        let task = Some(convert::task(task));
        Ok(Response::new(v1::CancelTaskResponse { task }))
    }

    async fn trace(&self, asked: Request<v1::TraceRequest>) -> Reply<v1::TraceResponse> {
        let name = Path(asked.into_inner().name);
        let lives: Vec<trace::Report> = answer(super::api::trace_one(self.desk(), name).await)?;
        let messages = lives
            .into_iter()
            .map(convert::life)
            .collect::<Result<_, _>>()?;
        Ok(Response::new(v1::TraceResponse { messages }))
    }
}

/// Stream of the task after each change, until it is over.
fn changes(
    desk: Arc<Desk>,
    first: OperatorTask,
) -> impl futures_util::Stream<Item = Result<v1::WatchTaskResponse, Status>> {
    stream::unfold(Some(first), move |before| {
        let desk = desk.clone();
        async move {
            let before = before.filter(|task| !task.is_over())?;
            loop {
                sleep(LOOK).await;
                match dead_letters::task(State(desk.clone()), Path(before.id().clone())).await {
                    Ok(Json(now)) if now == before => {}
                    Ok(Json(now)) => {
                        let task = Some(convert::task(now.clone()));
                        return Some((Ok(v1::WatchTaskResponse { task }), Some(now)));
                    }
                    Err(refused) => return Some((Err(status(refused)), None)),
                }
            }
        }
    })
}

/// Operator of the request, as `sign_in` noted it.
fn operator<T>(request: &Request<T>) -> Result<Extension<Operator>, Status> {
    let operator = request.extensions().get::<Operator>().cloned();
    let operator = operator.ok_or_else(|| Status::unauthenticated("nobody signed in"))?;
    Ok(Extension(operator))
}

fn task_id(text: &str) -> Result<TaskId, Status> {
    text.parse().map_err(Status::invalid_argument)
}

fn answer<T>(answer: Answer<T>) -> Result<T, Status> {
    answer.map(|Json(answer)| answer).map_err(status)
}

/// The nearest gRPC code to a refusal of the HTTP API.
fn status((status, text): Refused) -> Status {
    let code = match status {
        StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::CONFLICT => Code::Aborted,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    };
    Status::new(code, text)
}

#[cfg(test)]
mod tests;
