//! The network between services of one process, for tests: the program's own calls there pass no
//! gate.

use std::sync::Arc;

use tonic::body::Body;
use tonic::{Status, async_trait};

use super::body::{BoundedBody, StatusSource};

/// The network as one caller has it. A late message waits in here, and a lost one never comes out.
#[async_trait]
pub trait Gate: Send + Sync {
    /// A call sets out to the server of this name.
    ///
    /// # Errors
    /// The caller's: the call is not made.
    async fn request(&self, _to: &str) -> Result<(), Status> {
        Ok(())
    }

    /// The answer sets out, or the head of a stream of answers.
    ///
    /// # Errors
    /// The caller's, in place of the answer: the call is done, and nobody knows.
    async fn response(&self, _from: &str) -> Result<(), Status> {
        Ok(())
    }

    /// Resolves once the connection with this server breaks: open calls and streams end then.
    async fn broken(&self, with: &str) -> Status;
}

/// A gate, and the server on its other side.
#[derive(Clone)]
pub(super) struct Passage {
    gate: Arc<dyn Gate>,
    name: Arc<str>,
}

impl Passage {
    pub(super) fn new(gate: Arc<dyn Gate>, name: &str) -> Passage {
        let name = name.into();
        Passage { gate, name }
    }

    pub(super) async fn call<F>(&self, call: F) -> Result<http::Response<Body>, Status>
    where
        F: Future<Output = Result<http::Response<Body>, Status>>,
    {
        let passage_through = async {
            self.gate.request(&self.name).await?;
            let response = call.await?;
            self.gate.response(&self.name).await?;
            Ok::<_, Status>(response)
        };
        let response = tokio::select! {
            biased;
            status = self.gate.broken(&self.name) => return Err(status),
            response = passage_through => response?,
        };
        if http_body::Body::is_end_stream(response.body()) {
            return Ok(response);
        }
        let passage = self.clone();
        let broken = Box::pin(async move { passage.gate.broken(&passage.name).await });
        Ok(response.map(|body| Body::new(BoundedBody::new(body, broken, StatusSource::Error))))
    }
}
