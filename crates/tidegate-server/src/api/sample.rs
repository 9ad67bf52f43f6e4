//! `/v1/subscribers/{id}/test`: a real signed sample, sent right now, and what came back.
//!
//! Takes a token of its subscriber's gate; passes the queue with its turns, rates and pauses, so it also tells how a paused or failing endpoint is today.
//! Stores nothing. What it reports of the request leaves out the values of custom headers, which may be credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tidegate_core::attempt::{Attempt, ErrorClass, Verdict};
use tidegate_core::event::Event;
use tidegate_core::fold::{self, Bundle, ClosedBy, Fold, Key};
use tidegate_core::id::SubscriberNo;
use tidegate_core::ingest::Request;
use tidegate_core::limits::{SAMPLES_IN_FLIGHT_MAX, SAMPLES_PER_SUBSCRIBER_MAX};
use tidegate_core::route::View;
use tidegate_core::subscriber::{Definition, read};
use tidegate_core::verification::VerificationStatus;
use tidegate_destinations::webhook;

use super::auth::Caller;
use super::gates::Patience;
use super::problem::{Answer, Problem};
use super::request::{Segment, read_body};
use super::{App, json_answer};
use crate::probe::{Probed, Prober};
use crate::roster::Endpoint;

/// Tells a sample from a delivery.
static MARK: HeaderName = HeaderName::from_static("tidegate-test");
const TYPE_DEFAULT: &str = "tidegate.test";
/// How long it waits at its subscriber's gate.
const GATE_PATIENCE: Duration = Duration::from_secs(10);
/// Not `tidegate` itself, which is for what operators are told.
const SOURCE: &str = "tidegate-test";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish<'a> {
    #[serde(rename = "type")]
    type_name: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

/// Sends a sample and reports.
pub(super) async fn test(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(id): Segment,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    caller.must_change()?;
    let (body, _room) = read_body(&headers, body, &app.pipeline.ingest).await?;
    let endpoint = app.endpoint(&caller, &id)?;
    if endpoint.verification.as_ref().is_some_and(|row| row.status != VerificationStatus::Verified) {
        let detail =
            "its endpoint has not agreed to be sent to; see `verification_detail`, or verify it again";
        return Err(Problem::conflict("endpoint_unverified", detail));
    }
    let event = sample(&app, &body)?;
    let _place = app.samples.enter(endpoint.rule.no).ok_or_else(busy)?;
    if let Some(name) = &endpoint.definition().gate {
        // The receiver's limit holds for this request too.
        app.acquire(&app.gate(&caller, name)?, GATE_PATIENCE, Patience::Fixed).await?;
    }
    let prober = Prober::new(&app.parts);
    let id = prober.id("test_");
    let body = rendered(&app, endpoint.definition(), &id, &event);
    let mark = HeaderMap::from_iter([(MARK.clone(), HeaderValue::from_static("true"))]);
    let probed = prober.send(&endpoint, &id, Method::POST, body.clone(), mark).await;
    Ok(json_answer(StatusCode::OK, &report(&app, &endpoint, probed, &body)))
}

/// The sample in the form of the subscriber's deliveries: where it folds, as a window that holds this event alone.
fn rendered(app: &App, definition: &Definition, id: &str, event: &Event) -> Bytes {
    let payload = definition.destination.payload;
    let Fold::Many(folded) = &definition.fold else { return payload.render(&event.body) };
    let now = app.parts.clock.now();
    let bundle = Bundle {
        terms: folded.terms(payload),
        key: Key::of(&View::new(event), &folded.by).text.to_string(),
        opened_at: now,
        closed_at: now,
        closed_by: ClosedBy::Flush,
        events: vec![event.body.clone()],
    };
    fold::render(id, &bundle)
}

fn busy() -> Problem {
    let detail = format!(
        "{SAMPLES_PER_SUBSCRIBER_MAX} tests of this subscriber, or {SAMPLES_IN_FLIGHT_MAX} of all, are under way: \
         wait for one to end"
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "tests_in_flight", detail)
}

/// An event like any other, made from what the caller wants in it; ingest's rules hold for it.
fn sample(app: &App, body: &[u8]) -> Result<Event, Problem> {
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    let wish: Wish<'_> = read(body)?;
    let event = json!({
        "source": SOURCE,
        "type": wish.type_name.as_deref().unwrap_or(TYPE_DEFAULT),
        "subject": "test",
    });
    let mut text = event.to_string();
    text.pop();
    text.push_str(",\"data\":");
    text.push_str(wish.data.map_or(r#"{"message":"a test by tidegate"}"#, RawValue::get));
    text.push('}');
    let request = Request { content_type: None, headers: &[], body: &Bytes::from(text) };
    let mut units = app.pipeline.ingest.decode(&request)?;
    Ok(units.remove(0).events.remove(0))
}

fn report(app: &App, endpoint: &Endpoint, probed: Probed, body: &[u8]) -> Value {
    let wall = app.parts.clock.wall();
    let verdict = match webhook::judge(&probed.exchange, wall) {
        Verdict::Delivered => "delivered",
        Verdict::RetryLater { .. } => "retry_later",
        Verdict::Gone => "gone",
    };
    let attempt: Attempt = webhook::attempt(probed.exchange, probed.at);
    json!({
        "verdict": verdict,
        "at": attempt.at,
        "status": attempt.status,
        "error": attempt.error.map(ErrorClass::name),
        "detail": attempt.detail,
        "phases": attempt.phases,
        "response": attempt.response,
        "request": {
            "headers": shown_headers(endpoint, &probed.headers),
            "body": String::from_utf8_lossy(body),
        },
    })
}

fn shown_headers(endpoint: &Endpoint, headers: &HeaderMap) -> BTreeMap<String, String> {
    let custom = &endpoint.definition().destination.headers;
    let shown = |name: &HeaderName, value: &HeaderValue| {
        let is_custom = custom.keys().any(|custom| custom.eq_ignore_ascii_case(name.as_str()));
        let text = if is_custom { "***" } else { value.to_str().unwrap_or("***") };
        (name.to_string(), text.to_owned())
    };
    headers.iter().map(|(name, value)| shown(name, value)).collect()
}

/// The samples under way.
#[derive(Default)]
pub(super) struct Samples(Mutex<BTreeMap<SubscriberNo, usize>>);

/// A place among them, given back when dropped.
pub(super) struct Place<'a> {
    samples: &'a Samples,
    subscriber: SubscriberNo,
}

impl Samples {
    fn enter(&self, subscriber: SubscriberNo) -> Option<Place<'_>> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = under_way.get(&subscriber).copied().unwrap_or(0);
        if of_one >= SAMPLES_PER_SUBSCRIBER_MAX || under_way.values().sum::<usize>() >= SAMPLES_IN_FLIGHT_MAX
        {
            return None;
        }
        under_way.insert(subscriber, of_one + 1);
        Some(Place { samples: self, subscriber })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut under_way = self.samples.0.lock().unwrap_or_else(PoisonError::into_inner);
        match under_way.get_mut(&self.subscriber) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(under_way.remove(&self.subscriber)),
        }
    }
}
