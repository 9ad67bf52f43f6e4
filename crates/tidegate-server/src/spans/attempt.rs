//! The span of one attempt, and what its receiver learns of it.

use http::{HeaderMap, HeaderValue, Method};
use tidegate_core::attempt::Verdict;
use tidegate_core::delivery::Job;
use tidegate_core::span::{Carried, SpanContext, carried_by};
use tidegate_destinations::{Exchange, Outbound};

use super::{Ending, Kind, Open, Spans, Value};

/// Begins it, if the event carries a context. The receiver learns what caused the request: our own span if it is
/// recorded, else the one the event came with.
pub fn begin(spans: &Spans, job: &Job, outbound: &mut Outbound) -> Option<Open> {
    let carried = carried_by(&job.body)?;
    let open = spans.begin(Some(carried.context));
    let context = open.as_ref().map_or(carried.context, |open| open.context);
    send_along(&mut outbound.headers, &carried, context);
    open
}

/// Sends a context along, unless the subscriber's own headers say something else.
fn send_along(headers: &mut HeaderMap, carried: &Carried, context: SpanContext) {
    let parent = HeaderValue::try_from(context.to_string()).expect("a context is plain ASCII");
    headers.entry("traceparent").or_insert(parent);
    if let Some(state) = carried.state.as_deref().and_then(|state| HeaderValue::from_str(state).ok()) {
        headers.entry("tracestate").or_insert(state);
    }
}

/// What is said about it when it ends.
pub fn ending(
    job: &Job,
    delivery: String,
    subscriber: &str,
    exchange: &Exchange,
    verdict: &Verdict,
) -> Ending {
    let mut attributes = vec![
        ("tidegate.delivery", Value::Text(delivery)),
        ("tidegate.subscriber", Value::Text(subscriber.to_owned())),
        ("tidegate.attempt", Value::Int(i64::from(job.attempts) + 1)),
        ("http.request.method", Value::Text(Method::POST.to_string())),
    ];
    match &exchange.result {
        Ok(answer) => attributes.push(("http.response.status_code", Value::Int(answer.status.into()))),
        Err(failure) => attributes.push(("error.type", Value::Text(failure.class.name().to_owned()))),
    }
    let has_failed = *verdict != Verdict::Delivered;
    Ending { name: "attempt", kind: Kind::Client, attributes, links: Vec::new(), has_failed }
}
