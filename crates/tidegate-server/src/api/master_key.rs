//! `/v1/master-key`: what secrets are sealed with, known by its id only, and how to change it.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde_json::json;

use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::{App, json_answer};
use crate::master_key::{MasterKey, Origin, RotationError};

/// Which key is in use, and whether something still needs the one before it.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_operate()?;
    let origin = match app.master_key()?.origin() {
        Origin::Environment => "environment",
        Origin::Given(_) => "given_file",
        Origin::File(_) => "file",
    };
    let keys = app.parts.rosters.keys();
    let answer = json!({
        "id": keys.current().id(),
        "previous": keys.previous().map(tidegate_core::seal::Sealer::id),
        "origin": origin,
        "unmoved": app.parts.rosters.unmoved().await?,
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Changes the key of the file beside the data. The answer comes when everything is sealed with the new one.
pub(super) async fn rotate(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_operate()?;
    let moved = app.master_key()?.rotate().await?;
    let id = app.parts.rosters.keys().current().id();
    Ok(json_answer(StatusCode::OK, &json!({ "id": id, "moved": moved })))
}

impl App {
    fn master_key(&self) -> Result<&Arc<MasterKey>, Problem> {
        self.master_key.as_ref().ok_or_else(|| Problem::not_found("master key"))
    }
}

impl From<RotationError> for Problem {
    fn from(error: RotationError) -> Self {
        match error {
            RotationError::External => Self::conflict(
                "master_key_external",
                "it is the operator's: start again with the new key in TIDEGATE_MASTER_KEY and this one in \
                 TIDEGATE_MASTER_KEY_PREVIOUS; where others share the store, first give all of them the new one as \
                 TIDEGATE_MASTER_KEY_NEXT",
            ),
            RotationError::Store(error) => error.into(),
            RotationError::File(_) => {
                tracing::error!(%error, "the master key was not changed");
                Self::unavailable(
                    "master_key_unwritable",
                    "the file of the master key can not be written; see the log",
                )
            }
        }
    }
}
