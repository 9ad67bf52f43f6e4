//! `/v1/gates`: named rates that subscribers and clients share.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_core::gate::{Gate, Standing, check_name};
use tidegate_core::limits::{
    GATE_CLIENTS_MAX, GATE_PENALTY_DEFAULT_MS, GATE_PENALTY_MAX_MS, GATE_WAIT_MAX_MS,
};
use tidegate_core::schedule::LineView;
use tidegate_core::subscriber::Definition;
use tidegate_core::time::{Span, Timestamp};
use tidegate_store::Change;

use super::auth::Caller;
use super::pages::{Pages, page};
use super::problem::{Answer, Problem};
use super::request::{Query, Segment, parse, read_body};
use super::{App, json_answer};
use crate::gates::GateEntry;
use crate::pipeline::gates::Refused;

/// Makes a gate, or makes it anew: the next token is given by it. Saying the same twice changes nothing, a dry run
/// never does.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(name): Segment,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let is_trial = Query::parse(raw.as_deref())?.flag("dry_run")?;
    check_name(&name, "name")?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let gate = Gate::parse(&body)?;
    if is_trial {
        let known = app.gate(&caller, &name).ok().map(|entry| entry.gate);
        return Ok(json_answer(StatusCode::OK, &told(&name, known, gate)));
    }
    if let Ok(entry) = app.gate(&caller, &name)
        && entry.gate == gate
    {
        return Ok(json_answer(StatusCode::OK, &shown(&name, &entry)));
    }
    let definition = serde_json::to_string(&gate).expect("a gate is always JSON");
    let changed =
        app.change(Change::PutGate { project: caller.project, name: name.clone(), definition }).await?;
    let status = if changed.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(json_answer(status, &shown(&name, &app.gate(&caller, &name)?)))
}

/// One gate, and how it stands.
pub(super) async fn get(State(app): State<Arc<App>>, caller: Caller, Segment(name): Segment) -> Answer {
    caller.must_read()?;
    let entry = app.gate(&caller, &name)?;
    let mut answer = shown(&name, &entry);
    if let Some(line) = app.pipeline.line(entry.no, entry.gate.into()).await {
        show_line(&mut answer, &entry, &line, app.parts.clock.now());
    }
    Ok(json_answer(StatusCode::OK, &answer))
}

/// What may stand in the body of a request that says everything elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Takes a token, or waits for one in line with everything else that passes the gate.
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(name): Segment,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_pass("take a token")?;
    let (body, room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let entry = app.gate(&caller, &name)?;
    parse::<Nothing>(&body)?;
    // Whoever waits here keeps nobody else's body out.
    drop((body, room));
    let mut query = Query::parse(raw.as_deref())?;
    let wait = query.take("wait").map(|text| read_wait(&text)).transpose()?.unwrap_or_default();
    let waited = app.acquire(&entry, wait, Patience::Asked).await?;
    let granted_at = app.parts.clock.now();
    Ok(json_answer(StatusCode::OK, &json!({ "granted_at": granted_at, "waited": seconds_text(waited) })))
}

fn read_wait(text: &str) -> Result<Duration, Problem> {
    let wait = Span::parse(text).map(|wait| wait.0).or_else(|| read_seconds(text));
    wait.filter(|wait| wait.as_millis() <= u128::from(GATE_WAIT_MAX_MS)).ok_or_else(|| {
        let detail = format!("expected a duration up to {}s such as 10s or 0.5s", GATE_WAIT_MAX_MS / 1000);
        Problem::invalid("duration_invalid", "wait", detail)
    })
}

/// `1.2s`, as answers tell how long somebody waited: to the millisecond.
fn read_seconds(text: &str) -> Option<Duration> {
    let (seconds, rest) = text.strip_suffix('s')?.split_once('.')?;
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(seconds) || !is_digits(rest) || rest.len() > 3 {
        return None;
    }
    let ms: u64 = format!("{rest:0<3}").parse().ok()?;
    Some(Duration::from_millis(seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(ms)?))
}

/// A refusal that says when to come back.
fn later(code: &'static str, detail: impl Into<String>, retry_in: Duration) -> Problem {
    let seconds = u64::try_from(retry_in.as_millis().div_ceil(1000)).unwrap_or(u64::MAX);
    let seconds = seconds.clamp(1, GATE_PENALTY_MAX_MS / 1000);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail).retry_after(seconds)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    until: Option<Timestamp>,
    #[serde(rename = "for")]
    lasts: Option<Span>,
}

/// A client was told "too many": nothing passes the gate for a while.
pub(super) async fn penalize(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(name): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_pass("pause a gate")?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let entry = app.gate(&caller, &name)?;
    let (now, wall) = (app.parts.clock.now(), app.parts.clock.wall());
    let lasts = match parse::<Pause>(&body)? {
        Pause { until: Some(_), lasts: Some(_) } => {
            return Err(Problem::invalid("field_conflict", "until", "send `until` or `for`, not both"));
        }
        // Clients know the wall clock; the schedule runs on its own.
        Pause { until: Some(until), .. } => ("until", until.since(wall)),
        Pause { lasts: Some(lasts), .. } => ("for", lasts.0),
        Pause { .. } => ("for", Duration::from_millis(GATE_PENALTY_DEFAULT_MS)),
    };
    let (field, lasts) = lasts;
    if lasts.is_zero() {
        let detail = format!(
            "`{field}` is over already, so nothing would pause: name a time after {wall}, or a duration such as 30s in `for`"
        );
        return Err(Problem::invalid("field_range", field, detail));
    }
    if lasts > Duration::from_millis(GATE_PENALTY_MAX_MS) {
        let detail = format!("a gate pauses for {}m at most", GATE_PENALTY_MAX_MS / 60_000);
        return Err(Problem::invalid("field_range", field, detail));
    }
    app.pipeline.penalize(entry.no, entry.gate.into(), now.plus(lasts), "a client was asked to wait").await;
    let line = app.pipeline.desk.line(entry.no).unwrap_or_default();
    let answer = json!({ "name": name, "penalized_until": penalized_until(&line, app.parts.clock.now()) });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// What the gate was told to wait for is over already, as somebody knows who may change things here. Lifting what is not there
/// changes nothing.
pub(super) async fn lift(State(app): State<Arc<App>>, caller: Caller, Segment(name): Segment) -> Answer {
    caller.must_change()?;
    let entry = app.gate(&caller, &name)?;
    if !app.pipeline.lift(entry.no, entry.gate.into()).await {
        let detail = "the tokens that all processes share can not be reached: ask again";
        return Err(Problem::unavailable("store_unavailable", detail));
    }
    let line = app.pipeline.desk.line(entry.no).unwrap_or_default();
    let answer = json!({ "name": name, "penalized_until": penalized_until(&line, app.parts.clock.now()) });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Gates by name.
pub(super) async fn list(State(app): State<Arc<App>>, caller: Caller, RawQuery(raw): RawQuery) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, "gates", &query);
    let (limit, after) = (query.limit()?, pages.name(&mut query)?);
    let roster = app.parts.rosters.current();
    let all = roster.gates(caller.project).map(|(name, entry)| (name, shown(name, entry)));
    Ok(page(all, limit, after.as_deref(), &pages))
}

/// Ends a gate that nobody passes any more.
pub(super) async fn delete(State(app): State<Arc<App>>, caller: Caller, Segment(name): Segment) -> Answer {
    caller.must_change()?;
    app.gate(&caller, &name)?;
    let roster = app.parts.rosters.current();
    let mut own = roster.endpoints().filter(|endpoint| endpoint.rule.project == caller.project);
    if let Some(user) = own.find(|endpoint| endpoint.definition().gate.as_ref() == Some(&name)) {
        let id = user.rule.id.as_str();
        let detail = format!("the subscriber {id} passes the gate {name}: change or delete it first");
        return Err(Problem::conflict("gate_in_use", detail).with("subscriber", id));
    }
    let answer = json!({ "name": name, "deleted": true });
    app.change(Change::DeleteGate { project: caller.project, name }).await?;
    Ok(json_answer(StatusCode::OK, &answer))
}

/// What a declaration would change.
fn told(name: &str, known: Option<Gate>, wanted: Gate) -> Value {
    let members = |gate: Gate| [("rate", json!(gate.rate)), ("burst", json!(gate.burst))];
    let pairs = known.into_iter().flat_map(|known| members(known).into_iter().zip(members(wanted)));
    let fields: Vec<Value> = pairs
        .filter(|((_, from), (_, to))| from != to)
        .map(|((field, from), (_, to))| json!({ "field": field, "from": from, "to": to }))
        .collect();
    let change = match known {
        None => "create",
        Some(_) if fields.is_empty() => "none",
        Some(_) => "update",
    };
    json!({ "name": name, "change": change, "fields": fields })
}

fn shown(name: &str, entry: &GateEntry) -> Value {
    json!({
        "name": name,
        "rate": entry.gate.rate,
        "burst": entry.gate.burst,
        "created_at": entry.created_at,
        "updated_at": entry.updated_at,
    })
}

/// How it stands: tokens and penalties of all processes together, who waits in the one that answers.
fn show_line(answer: &mut Value, entry: &GateEntry, line: &LineView, now: Timestamp) {
    let Standing { tokens, eighths, .. } = line.standing;
    let per_second = f64::from(entry.gate.rate.count) / entry.gate.rate.per.as_secs_f64();
    answer["tokens"] = tokens.into();
    answer["effective_rate_per_second"] = (per_second * f64::from(eighths) / 8.0).into();
    answer["penalized_until"] = json!(penalized_until(line, now));
    answer["waiting"] =
        json!({ "subscribers": line.subscribers, "deliveries": line.deliveries, "clients": line.clients });
    answer["waits"] = json!({ "p50": seconds_text(line.wait_p50), "p99": seconds_text(line.wait_p99) });
    answer["passed"] = line.passed.into();
    answer["penalties"] = line.penalties.into();
}

fn penalized_until(line: &LineView, now: Timestamp) -> Option<Timestamp> {
    let lasts = line.standing.penalized_for;
    (!lasts.is_zero()).then(|| now.plus(lasts))
}

/// `1.2s`, as people read it.
fn seconds_text(duration: Duration) -> String {
    format!("{}s", (duration.as_secs_f64() * 1000.0).round() / 1000.0)
}

/// Who says how long to wait at a gate.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// Whoever asks.
    Asked,
    /// The server, always the same.
    Fixed,
}

/// Why there was no token, for whoever asked.
fn refusal(refused: Refused, patience: Patience) -> Problem {
    match refused {
        Refused::Unknown => Problem::not_found("gate"),
        Refused::Stopping => Problem::unavailable("overloaded", "the server is on its way out; ask again"),
        Refused::Full(retry_in) => {
            let detail = format!(
                "{GATE_CLIENTS_MAX} clients wait at this gate already: come back after `retry-after` seconds, when they \
                 may have passed"
            );
            later("gate_full", detail, retry_in)
        }
        Refused::Late(retry_in) => {
            let or_longer = match patience {
                Patience::Asked => ", or wait longer",
                Patience::Fixed => "",
            };
            let detail = format!("no token came in time: come back after `retry-after` seconds{or_longer}");
            later("gate_busy", detail, retry_in)
        }
    }
}

impl App {
    /// Takes a token of a gate, in line with all others; says how long that took. `patience` is whose it is to wait longer.
    pub(super) async fn acquire(
        &self,
        entry: &GateEntry,
        wait: Duration,
        patience: Patience,
    ) -> Result<Duration, Problem> {
        // What was answered anywhere before holds for this token.
        if self.pipeline.desk.is_behind(&self.parts.rosters.current()) {
            self.pipeline.reconfigured(&self.parts.rosters);
        }
        self.pipeline.desk.acquire(entry.no, wait).await.map_err(|refused| refusal(refused, patience))
    }

    /// A project's gate, or 404.
    pub(super) fn gate(&self, caller: &Caller, name: &str) -> Result<GateEntry, Problem> {
        let roster = self.parts.rosters.current();
        roster.gate(caller.project, name).copied().ok_or_else(|| Problem::not_found("gate"))
    }

    /// A subscriber passes only gates that are there.
    pub(super) fn check_gate(&self, caller: &Caller, definition: &Definition) -> Result<(), Problem> {
        let Some(name) = &definition.gate else { return Ok(()) };
        self.gate(caller, name).map(|_| ()).map_err(|_| {
            let detail =
                format!("there is no gate {name} in this project; make it with PUT /v1/gates/{name}");
            Problem::invalid("gate_unknown", "gate", detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_chooses_how_long_to_wait_is_told_to_wait_longer() {
        let told = |patience| format!("{:?}", refusal(Refused::Late(Duration::from_secs(7)), patience));
        assert!(told(Patience::Asked).contains("or wait longer"), "{}", told(Patience::Asked));
        assert!(!told(Patience::Fixed).contains("wait longer"), "{}", told(Patience::Fixed));
    }
}
