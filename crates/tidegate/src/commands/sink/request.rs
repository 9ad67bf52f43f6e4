//! What one request to the sink was, and how it prints.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::request::Parts;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tidegate_core::sign;
use tidegate_core::time::Timestamp;

use crate::output::{Colour, Paint, plain};

/// One request, as the JSON line shows it.
#[derive(Serialize)]
pub(super) struct Request {
    at: Timestamp,
    method: String,
    path: String,
    /// `webhook-id`.
    pub(super) id: Option<String>,
    timestamp: Option<String>,
    /// Unknown without a secret.
    pub(super) verified: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    complaint: Option<String>,
    /// Its id was here before.
    pub(super) duplicate: bool,
    /// What it was answered.
    pub(super) status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
    #[serde(skip)]
    bytes: Bytes,
}

impl Request {
    /// Reads the headers and checks the signature; whoever decides the answer fills in `duplicate` and `status`.
    pub(super) fn new(parts: &Parts, bytes: Bytes, secrets: &[String], at: Timestamp) -> Self {
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
        let signature = header("webhook-signature").unwrap_or_default();
        let (id_text, timestamp_text) = (id.as_deref().unwrap_or(""), timestamp.as_deref().unwrap_or(""));
        let check = |secret: &String| sign::verify(secret, id_text, timestamp_text, &signature, &bytes, at);
        let complaint = complaint(secrets.iter().map(check));
        let body = one_line_json(&bytes);
        Self {
            at,
            method: parts.method.to_string(),
            path: parts.uri.to_string(),
            id,
            timestamp,
            verified: (!secrets.is_empty()).then_some(complaint.is_none()),
            complaint,
            duplicate: false,
            status: 0,
            body_base64: (body.is_none() && !bytes.is_empty()).then(|| STANDARD.encode(&bytes)),
            body,
            bytes,
        }
    }

    /// A request that was not read to its end.
    pub(super) fn unread(parts: &Parts, complaint: String, at: Timestamp) -> Self {
        let mut request = Self::new(parts, Bytes::new(), &[], at);
        request.complaint = Some(complaint);
        request
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("every member is plain JSON")
    }

    /// For people.
    pub(super) fn text(&self, paint: Paint) -> String {
        let signature = match (self.verified, &self.complaint) {
            (Some(true), _) => paint.text(Colour::Green, "✓"),
            (None, None) => paint.text(Colour::Grey, "unchecked"),
            (_, complaint) => {
                let complaint = plain(complaint.as_deref().unwrap_or_default());
                paint.text(Colour::Red, &format!("✗ {complaint}"))
            }
        };
        let at = self.at.to_string();
        let duplicate = if self.duplicate { "  again" } else { "" };
        let colour = if (200..300).contains(&self.status) { Colour::Green } else { Colour::Red };
        format!(
            "{}  {}  {}  {}  {}  {signature}  {} B{duplicate}",
            paint.text(Colour::Grey, at.get(11..23).unwrap_or(&at)),
            paint.text(colour, &self.status.to_string()),
            plain(&format!("{} {}", self.method, self.path)),
            plain(self.id.as_deref().unwrap_or("(no webhook-id)")),
            plain(&what(&self.bytes)),
            self.bytes.len(),
        )
    }
}

/// Nothing when one secret fits or none was given, otherwise what the first one found.
fn complaint(checks: impl Iterator<Item = Result<(), sign::Complaint>>) -> Option<String> {
    let mut first = None;
    for check in checks {
        match check {
            Ok(()) => return None,
            Err(complaint) => first = first.or(Some(complaint)),
        }
    }
    first.map(|complaint| complaint.to_string())
}

/// JSON as it came, unless it has line breaks, which would break a line of output.
fn one_line_json(bytes: &[u8]) -> Option<Box<RawValue>> {
    if !bytes.contains(&b'\n') && !bytes.contains(&b'\r') {
        return serde_json::from_slice(bytes).ok();
    }
    let value: Value = serde_json::from_slice(bytes).ok()?;
    serde_json::value::to_raw_value(&value).ok()
}

/// The event's type, or how many events a fold holds.
fn what(bytes: &[u8]) -> String {
    let body: Value = serde_json::from_slice(bytes).unwrap_or(Value::Null);
    match (body.get("type").and_then(Value::as_str), body.get("events").and_then(Value::as_array)) {
        (Some(type_name), _) => type_name.to_owned(),
        (None, Some(events)) => format!("{} events", events.len()),
        (None, None) => "(no type)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::sign::Signer;

    use super::*;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const AT: Timestamp = Timestamp::from_ms(1_764_547_200_123);

    fn request(body: &str, secrets: &[&str]) -> Request {
        let signature =
            Signer::parse(SECRET).expect("a secret").signature("dlv_1", AT.as_seconds(), body.as_bytes());
        let request = http::Request::post("/hook?x=1")
            .header("webhook-id", "dlv_1")
            .header("webhook-timestamp", AT.as_seconds().to_string())
            .header("webhook-signature", signature)
            .body(())
            .expect("a request");
        let secrets: Vec<String> = secrets.iter().map(|secret| (*secret).to_owned()).collect();
        let body = Bytes::copy_from_slice(body.as_bytes());
        let mut request = Request::new(&request.into_parts().0, body, &secrets, AT);
        request.status = 200;
        request
    }

    #[test]
    fn a_request_prints_as_one_json_line() {
        let expected = r#"{"at":"2025-12-01T00:00:00.123Z","method":"POST","path":"/hook?x=1","id":"dlv_1","timestamp":"1764547200","verified":true,"duplicate":false,"status":200,"body":{"type": "a","n":1.0}}"#;
        assert_eq!(request(r#"{"type": "a","n":1.0}"#, &["another secret", SECRET]).json(), expected);
    }

    #[test]
    fn without_a_secret_nothing_is_claimed() {
        let request = request("not json", &[]);
        assert!(request.json().contains(r#""verified":null,"duplicate":false"#), "{}", request.json());
        assert!(request.json().ends_with(r#""body_base64":"bm90IGpzb24="}"#), "{}", request.json());
    }

    #[test]
    fn a_body_with_line_breaks_stays_one_line() {
        let json = request("{\r\n  \"a\": \"b\\nc\"\n}", &[SECRET]).json();
        assert_eq!(json.lines().count(), 1);
        assert!(json.ends_with(r#""body":{"a":"b\nc"}}"#), "{json}");
    }

    #[test]
    fn lines_for_people_name_the_complaint() {
        let paint = Paint::for_stream(false);
        let good = request(r#"{"type":"order.paid"}"#, &[SECRET]);
        assert_eq!(good.text(paint), "00:00:00.123  200  POST /hook?x=1  dlv_1  order.paid  ✓  21 B");
        let mut bad = request(r#"{"events":[1,2]}"#, &["another secret"]);
        bad.duplicate = true;
        bad.status = 500;
        let expected = "00:00:00.123  500  POST /hook?x=1  dlv_1  2 events  ✗ the signature does not match";
        assert!(bad.text(paint).starts_with(expected), "{}", bad.text(paint));
        assert!(bad.text(paint).ends_with("  16 B  again"), "{}", bad.text(paint));
    }
}
