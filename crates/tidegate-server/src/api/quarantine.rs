//! `/v1/quarantine`: what the catalog did not let in; released or discarded by request only.
//!
//! One call handles a bounded number of units and says how many remain; `next` goes on behind those that stayed.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::catalog::Reason;
use tidegate_core::limits::{QUARANTINE_IDS_MAX, QUARANTINE_UNITS_PER_CALL_MAX, REQUEST_BYTES_MAX};
use tidegate_store::{Picked, QuarantineFilter, QuarantineRow, UnitStatus};

use super::auth::Caller;
use super::events::{refused_for_now, status_name};
use super::pages::Pages;
use super::problem::{Answer, Problem};
use super::request::{Query, overloaded, parse, read_body};
use super::{App, json_answer};

/// Quarantined units, newest first.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "quarantine", &query);
    let filter = QuarantineFilter {
        ids: Vec::new(),
        source: query.take("source"),
        type_name: query.take("type"),
        reason: query.take("reason").map(|name| reason(&name)).transpose()?,
        beyond: pages.position(&mut query)?,
        limit: query.limit()?,
    };
    let page = app.parts.store.quarantine(caller.project, filter).await?;
    let items: Vec<Value> = page.items.iter().map(shown).collect();
    Ok(pages.answer(&items, page.next))
}

fn shown(row: &QuarantineRow) -> Value {
    json!({
        "id": row.id,
        "source": row.source,
        "type": row.type_name,
        "reason": row.reason.name(),
        "detail": row.detail,
        "at": row.at,
    })
}

fn reason(name: &str) -> Result<Reason, Problem> {
    Reason::parse(name).ok_or_else(|| {
        let names = Reason::ALL.map(Reason::name).join(", ");
        Problem::invalid("reason_unknown", "reason", format!("expected one of {names}"))
    })
}

/// Which units, on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selector {
    ids: Option<Vec<String>>,
    source: Option<String>,
    r#type: Option<String>,
    reason: Option<String>,
    all: Option<bool>,
    cursor: Option<String>,
}

impl Selector {
    /// Nothing said is not everything meant.
    fn filter(self, pages: &Pages) -> Result<QuarantineFilter, Problem> {
        let has_ids = self.ids.is_some();
        let is_narrow = has_ids || self.source.is_some() || self.r#type.is_some() || self.reason.is_some();
        let is_all = self.all == Some(true);
        if is_narrow == is_all {
            let detail = "say which: `ids`, `source`, `type` or `reason`; or `\"all\": true` alone";
            return Err(Problem::invalid("selector_invalid", "all", detail));
        }
        let ids = self.ids.unwrap_or_default();
        if has_ids && !(1..=QUARANTINE_IDS_MAX).contains(&ids.len()) {
            let detail = format!("expected 1 to {QUARANTINE_IDS_MAX} ids");
            return Err(Problem::invalid("selector_invalid", "ids", detail));
        }
        Ok(QuarantineFilter {
            ids,
            source: self.source,
            type_name: self.r#type,
            reason: self.reason.map(|name| reason(&name)).transpose()?,
            beyond: self.cursor.map(|text| pages.read(&text)).transpose()?,
            limit: QUARANTINE_UNITS_PER_CALL_MAX,
        })
    }
}

/// Accepts quarantined units now, whatever the catalog says.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let ingest = &app.pipeline.ingest;
    let (body, _room) = read_body(&headers, body, ingest).await?;
    let pages = picks(&app, &caller)?;
    let filter = parse::<Selector>(&body)?.filter(&pages)?;
    let _room = ingest.reserve(REQUEST_BYTES_MAX).ok_or_else(overloaded)?;
    let mut picked = app.parts.store.pick(caller.project, filter).await?;
    let released =
        ingest.release(caller.project, &mut picked.units).await.map_err(|why| refused_for_now(&app, why))?;
    let count = |wanted| released.iter().filter(|status| **status == wanted).count();
    let results = picked.units.iter().zip(&released).map(|(row, status)| result(row, status_name(*status)));
    let counts = json!({
        "released": count(UnitStatus::Accepted),
        "duplicates": count(UnitStatus::Duplicate),
        "conflicts": count(UnitStatus::Conflict),
    });
    Ok(answer(counts, results.collect(), &picked, &pages))
}

/// Takes quarantined units away for good.
pub(super) async fn discard(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let pages = picks(&app, &caller)?;
    let filter = parse::<Selector>(&body)?.filter(&pages)?;
    let picked = app.parts.store.discard(caller.project, filter, app.parts.clock.now()).await?;
    let results = picked.units.iter().map(|row| result(row, "discarded")).collect();
    Ok(answer(json!({ "discarded": picked.units.len() }), results, &picked, &pages))
}

fn result(row: &QuarantineRow, status: &str) -> Value {
    json!({ "id": row.id, "source": row.source, "status": status })
}

/// The cursors of releases and discards, whatever they select.
fn picks(app: &App, caller: &Caller) -> Result<Pages, Problem> {
    Ok(Pages::of(app, caller, "quarantine picks", &Query::parse(None)?))
}

fn answer(
    mut counts: Value,
    results: Vec<Value>,
    picked: &Picked,
    pages: &Pages,
) -> axum::response::Response {
    counts["remaining"] = picked.remaining.into();
    counts["next"] = picked.next.map(|position| pages.cursor(position)).into();
    counts["results"] = results.into();
    json_answer(StatusCode::OK, &counts)
}
