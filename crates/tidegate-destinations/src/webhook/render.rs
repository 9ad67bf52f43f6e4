//! The headers of a webhook.
//!
//! What does not change between attempts is prepared once ([`base_headers`]); each attempt adds its id, its time
//! and its signatures ([`render`]), since the time is part of what is signed.

use std::collections::BTreeMap;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use tidegate_core::headers::{HeaderProblem, check_headers};
use tidegate_core::sign::{SIGNATURE_LEN, Signer};
use tidegate_core::time::Timestamp;

static ID: HeaderName = HeaderName::from_static("webhook-id");
static TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
static SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Of the body alone, for receivers that know nothing of Standard Webhooks.
static BODY_SIGNATURE: HeaderName = HeaderName::from_static("x-webhook-signature");

/// Headers that [`render`] and the transport add.
const ADDED: usize = 5;

/// The headers that every request of a subscriber carries, its custom ones included.
pub fn base_headers(custom: &BTreeMap<String, String>) -> Result<HeaderMap, HeaderProblem> {
    check_headers(custom)?;
    let mut headers = HeaderMap::with_capacity(custom.len() + 2 + ADDED);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("Tidegate/", env!("CARGO_PKG_VERSION"))));
    for (name, value) in custom {
        let header =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| HeaderProblem::Name(name.clone()))?;
        let value = HeaderValue::from_str(value).map_err(|_| HeaderProblem::Value(name.clone()))?;
        headers.insert(header, value);
    }
    Ok(headers)
}

/// The headers of one attempt at `wall`. Every signer signs; the body's own signature is the first one's.
pub fn render(
    delivery_id: &str,
    wall: Timestamp,
    body: &[u8],
    signers: &[Signer],
    base: &HeaderMap,
) -> HeaderMap {
    let seconds = wall.as_seconds();
    let mut headers = base.clone();
    headers.insert(&ID, HeaderValue::from_str(delivery_id).expect("delivery ids are plain ASCII"));
    headers.insert(&TIMESTAMP, HeaderValue::from(seconds));
    let Some(first) = signers.first() else {
        return headers;
    };
    let mut signatures = String::with_capacity(signers.len() * (SIGNATURE_LEN + 1));
    for signer in signers {
        // One space exactly: some verifiers stumble over two.
        if !signatures.is_empty() {
            signatures.push(' ');
        }
        signer.sign_into(&mut signatures, delivery_id, seconds, body);
    }
    headers.insert(&SIGNATURE, ascii(signatures));
    let mut hex = String::with_capacity(7 + 64);
    hex.push_str("sha256=");
    first.hex_into(&mut hex, body);
    headers.insert(&BODY_SIGNATURE, ascii(hex));
    headers
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("base64 and hex are plain ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn an_attempt_carries_its_headers_and_nothing_else() {
        let base = base_headers(&custom(&[("X-Team", "core")])).unwrap();
        let signers =
            ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "old"].map(|text| Signer::parse(text).unwrap());
        let body = br#"{"test": 2432232314}"#;
        let wall = Timestamp::from_ms(1_614_265_330_999);
        let headers = render("msg_p5jXN8AQM9LWM0D4loKWxJek", wall, body, &signers, &base);
        let old = signers[1].signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let expected = [
            ("content-type", "application/json".to_owned()),
            ("user-agent", format!("Tidegate/{}", env!("CARGO_PKG_VERSION"))),
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned()),
            ("webhook-signature", format!("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= {old}")),
            ("webhook-timestamp", "1614265330".to_owned()),
            ("x-team", "core".to_owned()),
            ("x-webhook-signature", format!("sha256={}", signers[0].hex_signature(body))),
        ];
        let mut sent: Vec<(&str, String)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned())).collect();
        sent.sort();
        assert_eq!(sent, expected);
    }

    #[test]
    fn custom_headers_are_checked() {
        assert_eq!(
            base_headers(&custom(&[("Webhook-Id", "x")])).err(),
            Some(HeaderProblem::Reserved("webhook-id".to_owned()))
        );
        assert!(base_headers(&custom(&[("x-a", "b\r\nhost: c")])).is_err());
        assert!(base_headers(&custom(&[("x-a", "tab\tand space"), ("!#$%&'*+-.^_`|~9", "")])).is_ok());
    }
}
