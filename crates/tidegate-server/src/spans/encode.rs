//! Spans as OTLP/JSON, which every collector's HTTP receiver takes beside protobuf.
//!
//! Written with the JSON at hand: three kinds of spans do not need the protobuf of all of OpenTelemetry, nor its SDK
//! with a second idea of clocks, queues and HTTP clients.

use serde_json::{Value as Json, json};
use tidegate_core::span::SpanContext;

use super::{Span, Value};

/// The body of one export.
pub(super) fn request(spans: &[Span]) -> String {
    let service = [
        attribute("service.name", &Value::Text("tidegate".to_owned())),
        attribute("service.version", &Value::Text(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    let scope = json!({ "name": "tidegate", "version": env!("CARGO_PKG_VERSION") });
    let spans: Vec<Json> = spans.iter().map(span).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": service },
        "scopeSpans": [{ "scope": scope, "spans": spans }],
    }] })
    .to_string()
}

fn span(span: &Span) -> Json {
    let began = i128::from(span.at.as_ms()) * 1_000_000;
    let ended = began + i128::try_from(span.took.as_nanos()).unwrap_or(0);
    let attributes: Vec<Json> = span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    let mut json = link(&span.context);
    json["name"] = span.name.into();
    json["kind"] = (span.kind as u8).into();
    // Numbers of 64 bits are strings in the JSON of protobuf.
    json["startTimeUnixNano"] = began.to_string().into();
    json["endTimeUnixNano"] = ended.to_string().into();
    json["attributes"] = attributes.into();
    if let Some(parent) = span.parent {
        json["parentSpanId"] = format!("{parent:016x}").into();
    }
    if !span.links.is_empty() {
        json["links"] = span.links.iter().map(link).collect();
    }
    if span.has_failed {
        json["status"] = json!({ "code": 2 });
    }
    json
}

fn link(context: &SpanContext) -> Json {
    json!({ "traceId": format!("{:032x}", context.trace), "spanId": format!("{:016x}", context.span) })
}

fn attribute(name: &str, value: &Value) -> Json {
    let value = match value {
        Value::Int(number) => json!({ "intValue": number.to_string() }),
        Value::Text(text) => json!({ "stringValue": text }),
    };
    json!({ "key": name, "value": value })
}
