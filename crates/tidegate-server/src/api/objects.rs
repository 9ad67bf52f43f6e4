//! `/v1/objects`: what is known of an object, and what happened to objects.
//!
//! Like a question about counts, both are answered when everything that was accepted here before is counted. A page of
//! what happened looks through a bounded number of changes, so it may be empty and still have a `next`.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_core::id::MetricNo;
use tidegate_core::observe::{Kind, shortened, state};
use tidegate_core::time::Timestamp;
use tidegate_store::{ChangeFilter, ChangePlace, Told};

use super::auth::Caller;
use super::pages::{Pages, refused};
use super::problem::{Answer, Problem};
use super::request::{Pair, Query, Segment};
use super::{App, json_answer};

/// The states that one object is in.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(object, id): Pair,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let service = query.needed("service")?;
    let states = app.states_of(&caller, &service, &object)?;
    let until = app.pipeline.observe.catch_up().await?;
    let numbers = states.iter().map(|(no, _)| *no).collect();
    let found = app.parts.store.object(numbers, shortened(&id)).await?;
    if found.is_empty() {
        let detail = "no counted event has told of this object: check its id, as its events give it";
        return Err(Problem::new(StatusCode::NOT_FOUND, "not_found", detail));
    }
    let mut known: Vec<Value> = Vec::new();
    for (no, attribute) in &states {
        let told = found.iter().find(|(state, _)| state == no);
        known.extend(told.map(|(_, told)| known_json(attribute, told)));
    }
    let answer = json!({
        "service": service, "object": object, "id": id, "states": known, "complete_until": until.to_string(),
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

fn known_json(attribute: &str, (row, event): &Told<state::ObjectRow>) -> Value {
    let visited: Vec<&str> = row.visited.states().iter().map(|state| &**state).collect();
    json!({
        "attribute": attribute,
        "state": &*row.value,
        "last_seen": row.time.to_string(),
        "event": event,
        "visited": visited,
    })
}

/// What happened to objects of one kind, the latest first.
pub(super) async fn changes(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(object): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, &format!("changes of {object}"), &query);
    let (service, attribute) = (query.needed("service")?, query.needed("attribute")?);
    let states = app.states_of(&caller, &service, &object)?;
    let found = states.iter().find(|(_, name)| *name == attribute);
    let state = found.ok_or_else(|| Problem::not_found("state of objects"))?.0;
    let (from, to) = query.range()?;
    let filter = ChangeFilter {
        state,
        object: query.take("id").map(|id| shortened(&id)),
        from,
        to,
        is_late: query.choice("late")?,
        after: query.take("cursor").map(|cursor| place(&pages, &cursor)).transpose()?,
        limit: query.limit()?,
    };
    let _turn = app.questions.acquire().await;
    let until: Timestamp = app.pipeline.observe.catch_up().await?;
    let page = app.parts.store.changes(filter).await?;
    let items: Vec<Value> = page.items.iter().map(change_json).collect();
    let next = page.next.map(|place| cursor(&pages, place));
    let answer = json!({ "items": items, "next": next, "complete_until": until.to_string() });
    Ok(json_answer(StatusCode::OK, &answer))
}

fn change_json((change, event): &Told<state::Change>) -> Value {
    json!({
        "id": &*change.object,
        "from_state": change.from.as_deref(),
        "to_state": &*change.to,
        "time": change.time.to_string(),
        "late": change.is_late,
        "event": event,
    })
}

/// A place as clients pass it on: its three numbers, each hidden.
fn cursor(pages: &Pages, place: ChangePlace) -> String {
    let behind = i64::try_from(place.behind).unwrap_or(i64::MAX);
    [place.until, place.no, behind].map(|number| pages.cursor(number)).concat()
}

fn place(pages: &Pages, cursor: &str) -> Result<ChangePlace, Problem> {
    let third = cursor.len() / 3;
    let (until, rest) = cursor.split_at_checked(third).ok_or_else(refused)?;
    let (no, behind) = rest.split_at_checked(third).ok_or_else(refused)?;
    let behind = usize::try_from(pages.read(behind)?).map_err(|_| refused())?;
    Ok(ChangePlace { until: pages.read(until)?, no: pages.read(no)?, behind })
}

impl App {
    /// The states of a kind of object, in order of their attributes; or 404.
    fn states_of(
        &self,
        caller: &Caller,
        service: &str,
        object: &str,
    ) -> Result<Vec<(MetricNo, String)>, Problem> {
        let catalog = self.catalog(caller);
        let types = catalog.services().get(service).ok_or_else(|| Problem::not_found("service"))?;
        let metrics = types.values().flat_map(|event_type| &event_type.metrics);
        let mut states: Vec<(MetricNo, String)> = metrics
            .filter(|(kind, ..)| *kind == Kind::State)
            .filter_map(|(_, name, no)| {
                let attribute = name.strip_prefix(object)?.strip_prefix(' ')?;
                Some((*no, attribute.to_owned()))
            })
            .collect();
        if states.is_empty() {
            return Err(Problem::not_found("kind of object"));
        }
        states.sort_by(|(_, a), (_, b)| a.cmp(b));
        states.dedup();
        Ok(states)
    }
}
