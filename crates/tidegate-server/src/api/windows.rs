//! `/v1/windows`: what folds hold, since when and until when; and what ends it early.
//!
//! Flushing makes deliveries of what was gathered. Cancelling lets it go, so nothing said is not everything meant there.
//! One call ends a bounded number of windows and says whether that was all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate_core::delivery::Status;
use tidegate_core::fold::{ClosedBy, Fold, Key};
use tidegate_core::id::{DeliveryNo, ProjectNo};
use tidegate_core::limits::{END_WINDOWS_MAX, END_WINDOWS_ROUNDS_MAX};
use tidegate_core::route::Path;
use tidegate_store::{DeliveryRow, EndWindows, Ended, FoldRow, WindowFilter, WindowRow, WindowsEnd};

use super::auth::Caller;
use super::members::Members;
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, parse, read_body};
use super::{App, json_answer};
use crate::pipeline::lanes;
use crate::roster::Endpoint;

/// Windows that gather, and closed ones that wait in their lanes and still take what comes; oldest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "windows", &query);
    let subscriber = query.take("subscriber").map(|id| app.endpoint(&caller, &id)).transpose()?;
    let filter = WindowFilter {
        subscriber: subscriber.map(|endpoint| endpoint.rule.no),
        after: pages.position(&mut query)?,
        waiting: true,
        limit: query.limit()?,
    };
    let page = app.parts.store.windows(caller.project, filter).await?;
    let numbers = page.items.iter().filter_map(|row| row.delivery).collect();
    let made = app.parts.store.deliveries_among(caller.project, numbers).await?;
    let made: BTreeMap<DeliveryNo, DeliveryRow> = made.into_iter().map(|row| (row.no, row)).collect();
    let items: Vec<Value> = page.items.iter().map(|row| shown(&app, row, &made)).collect();
    Ok(pages.answer(&items, page.next))
}

fn shown(app: &App, row: &WindowRow, made: &BTreeMap<DeliveryNo, DeliveryRow>) -> Value {
    let mut value = json!({
        "subscriber": row.subscriber_id,
        "mode": row.mode,
        "key": key_value(&row.key),
        "opened_at": row.opened_at,
        "due_at": row.due_at,
        "count": row.count,
        "bytes": row.bytes,
    });
    let Some(((at, by), delivery)) = row.closed.zip(row.delivery) else {
        value["reason"] = format!("gathers until {}", row.due_at).into();
        return value;
    };
    let made = made.get(&delivery);
    let id = made.map(|row| app.pipeline.mint.delivery(row.key())).unwrap_or_default();
    let waits = made.and_then(|row| app.reason(row)).unwrap_or_else(|| match made {
        Some(row) if row.status == Status::Sending => {
            let endpoint = app.parts.rosters.current().endpoint(row.subscriber).cloned();
            let gate = endpoint.as_ref().and_then(|endpoint| endpoint.definition().gate.as_deref());
            in_hand(app.parts.standing.is_alone(), gate)
        }
        _ => "waits for its turn in its lane".to_owned(),
    });
    value["reason"] = format!("closed by {}; its delivery {id}: {waits}", by.name()).into();
    value["closed_at"] = json!(at);
    value["closed_by"] = by.name().into();
    value["delivery"] = id.into();
    value
}

/// What is said of a delivery that was claimed, has not begun to leave and does not wait here: of those that others hold
/// nobody else knows how far they are.
fn in_hand(is_alone: bool, gate: Option<&str>) -> String {
    let waits = match gate {
        _ if is_alone => return "is about to leave".to_owned(),
        Some(gate) => format!("gate {gate}"),
        None => "its rate, a place or its turn".to_owned(),
    };
    format!("is in the hands of another process, where it waits for {waits}, or about to leave")
}

/// A window's key as the API shows it.
pub(super) fn key_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// A window as a trace shows it.
pub(super) fn traced(row: &FoldRow) -> Value {
    let mut value = json!({ "key": key_value(&row.key), "opened_at": row.opened_at, "due_at": row.due_at });
    if let Some((at, by)) = row.closed {
        value["closed_at"] = json!(at);
        value["closed_by"] = by.name().into();
    }
    value
}

/// Makes deliveries of what windows hold, now.
pub(super) async fn flush(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let asked = Asked::parse(&body)?;
    end(&app, &caller, asked, WindowsEnd::Close(ClosedBy::Flush)).await
}

/// Ends windows without a delivery.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let asked = Asked::parse(&body)?;
    if asked.subscriber.is_none() && asked.all != Some(true) {
        let detail =
            "what is cancelled is never delivered: say whose windows with `subscriber`, or `\"all\": true`";
        return Err(Problem::invalid("selector_invalid", "subscriber", detail));
    }
    end(&app, &caller, asked, WindowsEnd::Cancel).await
}

/// Which windows, on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    #[serde(default, deserialize_with = "said")]
    subscriber: Option<Option<String>>,
    #[serde(default, deserialize_with = "said")]
    key: Option<Option<Members>>,
    all: Option<bool>,
}

/// Tells what is null from what is absent.
fn said<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Which windows.
struct Asked {
    subscriber: Option<String>,
    /// Each member as it is written: a number may have more digits than any value holds.
    key: Option<BTreeMap<String, Box<RawValue>>>,
    all: Option<bool>,
}

impl Asked {
    /// Leaving something out means more windows. A null may be a variable that was not set, and must not mean that.
    fn parse(body: &[u8]) -> Result<Self, Problem> {
        let Wish { subscriber, key, all } = parse(body)?;
        if subscriber == Some(None) {
            let detail =
                "`subscriber` is null: say whose windows, or leave `subscriber` out to mean those of all";
            return Err(Problem::invalid("selector_invalid", "subscriber", detail));
        }
        if matches!(key, Some(None)) {
            let detail = "`key` is null: name a key as `GET /v1/windows` shows it, or leave `key` out to mean all of them";
            return Err(Problem::invalid("selector_invalid", "key", detail));
        }
        let key = key.flatten().map(once_each).transpose()?;
        Ok(Self { subscriber: subscriber.flatten(), key, all })
    }
}

/// A member that stands twice may have been meant as two keys.
fn once_each(Members(members): Members) -> Result<BTreeMap<String, Box<RawValue>>, Problem> {
    let mut key = BTreeMap::new();
    for (path, value) in members {
        let field = format!("key.{path}");
        if key.insert(path, value).is_some() {
            let detail = "a key has one value for each of its members: ask once for each window";
            return Err(Problem::invalid("field_repeated", &field, detail));
        }
    }
    Ok(key)
}

async fn end(app: &App, caller: &Caller, asked: Asked, end: WindowsEnd) -> Answer {
    if asked.all == Some(true) && (asked.subscriber.is_some() || asked.key.is_some()) {
        let detail = "`all` means every window of the project: send it alone, or leave it out";
        return Err(Problem::invalid("selector_invalid", "all", detail));
    }
    let subscriber = asked.subscriber.map(|id| app.endpoint(caller, &id)).transpose()?;
    let ask = EndWindows {
        subscriber: subscriber.as_ref().map(|endpoint| endpoint.rule.no),
        key: asked.key.as_ref().map(|members| key(members).hash),
        limit: END_WINDOWS_MAX,
        end,
    };
    let ended = app.end_windows(caller.project, ask).await?;
    // A window opened on former terms has a key of those times, so only a key that nothing has is looked at closely.
    if let Some(members) = asked.key.filter(|_| ended.windows == 0) {
        check_key(app, caller, subscriber.as_deref(), &members)?;
    }
    Ok(json_answer(StatusCode::OK, &json!({ "windows": ended.windows, "complete": ended.is_complete })))
}

fn key(members: &BTreeMap<String, Box<RawValue>>) -> Key {
    Key::with(members.iter().map(|(path, value)| (path.as_str(), value.get())))
}

/// Whether a key could be a window's at all.
fn check_key(
    app: &App,
    caller: &Caller,
    subscriber: Option<&Endpoint>,
    members: &BTreeMap<String, Box<RawValue>>,
) -> Result<(), Problem> {
    let given: BTreeSet<&str> = members.keys().map(String::as_str).collect();
    let invalid = |detail: String| Err(Problem::invalid("window_key_invalid", "key", detail));
    let Some(endpoint) = subscriber else {
        let roster = app.parts.rosters.current();
        let mut own = roster.endpoints().filter(|endpoint| endpoint.rule.project == caller.project);
        if own.any(|endpoint| paths(endpoint).as_ref() == Some(&given)) {
            return Ok(());
        }
        return invalid("no subscriber folds by exactly these; copy a key from `GET /v1/windows`".to_owned());
    };
    let Some(known) = paths(endpoint) else {
        return invalid("this subscriber does not fold; it has no windows".to_owned());
    };
    let list = |paths: &BTreeSet<&str>| match paths.len() {
        0 => "nothing".to_owned(),
        _ => format!("`{}`", paths.iter().copied().collect::<Vec<_>>().join("`, `")),
    };
    if let Some(stray) = given.difference(&known).next() {
        let stray: String = stray.chars().take(80).collect();
        let by = list(&known);
        return invalid(format!("this subscriber folds by {by}: remove `{}`", stray.escape_debug()));
    }
    match known.difference(&given).next() {
        Some(lack) => {
            let by = list(&known);
            invalid(format!("this subscriber folds by {by}: add `{lack}`, null where events lack it"))
        }
        None => Ok(()),
    }
}

/// What makes up the keys of a subscriber's windows; nothing when it has none.
fn paths(endpoint: &Endpoint) -> Option<BTreeSet<&str>> {
    match &endpoint.definition().fold {
        Fold::Each => None,
        Fold::Many(folded) => Some(folded.by.iter().map(Path::as_str).collect()),
    }
}

impl App {
    /// Ends windows because somebody asked, a bounded number of them, and lets the pipeline know.
    pub(super) async fn end_windows(&self, project: ProjectNo, ask: EndWindows) -> Result<Ended, Problem> {
        let mut all = Ended::default();
        for _ in 0..END_WINDOWS_ROUNDS_MAX {
            let now = self.parts.clock.now();
            let ended = self.parts.store.end_windows(project, ask, now).await?;
            self.parts.metrics.closed(&ended.closed, now);
            let roster = self.parts.rosters.current();
            lanes::ready(&roster, &self.parts.store, &ended.closed).await;
            lanes::ready(&roster, &self.parts.store, &ended.unsent).await;
            self.pipeline.herald().work_is_due(ended.subscribers);
            all.windows += ended.windows;
            all.is_complete = ended.is_complete;
            if all.is_complete {
                break;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_hold_is_not_said_to_wait_for_its_lane() {
        assert_eq!(in_hand(true, Some("notion")), "is about to leave");
        for (gate, expected) in [(Some("notion"), "waits for gate notion"), (None, "waits for its rate")] {
            let told = in_hand(false, gate);
            assert!(told.contains("another process") && told.contains(expected), "{told}");
        }
    }
}
