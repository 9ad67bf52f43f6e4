//! `/v1/replicas`: the processes that share the store, as this one last saw them. Asked with the installation's own key.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_store::Replica;

use super::auth::Caller;
use super::problem::Answer;
use super::{App, json_answer};
use crate::standing::Fellows;

/// All that live, oldest first. A process with a store of its own is the only one, and is not listed.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller) -> Answer {
    caller.must_operate()?;
    let standing = &app.parts.standing;
    let fellows = standing.fellows();
    let items: Vec<Value> = fellows.replicas.iter().map(|replica| shown(replica, &fellows)).collect();
    let age = standing.lease_age().map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let answer = json!({
        "shared": !standing.is_alone(),
        "lease_age_ms": age,
        "items": items,
        "next": null,
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

fn shown(replica: &Replica, fellows: &Fellows) -> Value {
    let place = fellows.replicas.iter().position(|other| other.incarnation == replica.incarnation);
    json!({
        "incarnation": replica.incarnation,
        "name": replica.name,
        "began_at": replica.began_at,
        "seen_at": replica.at,
        "clock_offset_ms": replica.clock_offset_ms(),
        "in_flight": replica.load.in_flight,
        "queued": replica.load.queued,
        "streams": replica.load.streams,
        "observe_off": replica.load.switches.map(|switches| switches.off()),
        "leads": fellows.leader() == Some(replica.incarnation),
        "answers": place == Some(fellows.rank),
    })
}
