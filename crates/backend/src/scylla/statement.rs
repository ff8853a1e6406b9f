//! A statement, prepared at its first use.

use std::borrow::Cow;

use scylla::client::execution_profile::ExecutionProfileHandle;
use scylla::client::session::Session;
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::OnceCell;

use super::error;
use crate::Result;

/// CQL on tables of the session's keyspace. Every statement may be repeated.
pub(crate) struct Statement {
    text: Cow<'static, str>,
    prepared_cell: OnceCell<PreparedStatement>,
}

impl Statement {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Statement {
        Statement {
            text: text.into(),
            prepared_cell: OnceCell::new(),
        }
    }

    pub(super) async fn prepared(
        &self,
        seam: &'static str,
        session: &Session,
        profile: &ExecutionProfileHandle,
    ) -> Result<&PreparedStatement> {
        let prepare = async || {
            let mut statement = session
                .prepare(&*self.text)
                .await
                .map_err(|error| error::prepare(seam, error))?;
            statement.set_is_idempotent(true);
            statement.set_execution_profile_handle(Some(profile.clone()));
            Ok(statement)
        };
        self.prepared_cell.get_or_try_init(prepare).await
    }
}
