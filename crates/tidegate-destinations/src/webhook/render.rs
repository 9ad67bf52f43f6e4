//! The headers of a webhook.
//!
//! What does not change between attempts is prepared once ([`Letterhead`]); each attempt adds its id, its time
//! and its signatures ([`render`]), since the time is part of what is signed.

use std::collections::BTreeMap;

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use tidegate_core::headers::{HeaderProblem, check_headers, check_prefix, prefixed};
use tidegate_core::payload::media_type;
use tidegate_core::sign::{SIGNATURE_LEN, Signer};
use tidegate_core::subscriber::Signing;
use tidegate_core::time::Timestamp;

static ID: HeaderName = HeaderName::from_static("webhook-id");
static TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
static SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// Of the body alone, for receivers that know nothing of Standard Webhooks.
static BODY_SIGNATURE: HeaderName = HeaderName::from_static("x-webhook-signature");
/// The same, as GitHub calls it.
static GITHUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");

/// Somebody asked for this delivery to be made again.
static REPLAY: HeaderName = HeaderName::from_static("tidegate-replay");
static OUT_OF_ORDER: HeaderName = HeaderName::from_static("tidegate-out-of-order");

/// Headers that [`render`], [`mark_replay`] and the transport add.
const ADDED: usize = 6;

/// What every request of a subscriber has in common.
#[derive(Clone, Debug)]
pub struct Letterhead {
    headers: HeaderMap,
    /// Names under which id, timestamp and signature are sent a second time.
    prefixed: Option<Box<[HeaderName; 3]>>,
    github: bool,
}

impl Letterhead {
    /// With a subscriber's custom headers, signed as it wants.
    pub fn new(custom: &BTreeMap<String, String>, signing: &Signing) -> Result<Self, HeaderProblem> {
        let prefixed = match &signing.header_prefix {
            Some(prefix) => Some(Box::new(names(prefix, custom)?)),
            None => None,
        };
        Ok(Self { headers: base_headers(custom)?, prefixed, github: signing.github })
    }
}

fn names(prefix: &str, custom: &BTreeMap<String, String>) -> Result<[HeaderName; 3], HeaderProblem> {
    check_prefix(prefix, custom)?;
    let [id, timestamp, signature] =
        prefixed(prefix).map(|name| HeaderName::try_from(name).map_err(|_| HeaderProblem::Prefix));
    Ok([id?, timestamp?, signature?])
}

/// The headers that every request of a subscriber carries, its custom ones included.
fn base_headers(custom: &BTreeMap<String, String>) -> Result<HeaderMap, HeaderProblem> {
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

/// The headers of one attempt at `wall`. Every signer signs, the newest first. The body's own signature has room for
/// one only: the oldest one's, so that it changes when the receiver had its time to follow.
pub fn render(
    delivery_id: &str,
    wall: Timestamp,
    body: &[u8],
    signers: &[Signer],
    letterhead: &Letterhead,
) -> HeaderMap {
    let seconds = wall.as_seconds();
    let mut headers = letterhead.headers.clone();
    headers.insert(&ID, HeaderValue::from_str(delivery_id).expect("delivery ids are plain ASCII"));
    headers.insert(&TIMESTAMP, HeaderValue::from(seconds));
    // The body tells, not the subscriber: what is sent again may be older than its present form.
    if let Some(media_type) = media_type(body) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    }
    if !signers.is_empty() {
        let mut signatures = String::with_capacity(signers.len() * (SIGNATURE_LEN + 1));
        for signer in signers {
            // One space exactly: some verifiers stumble over two.
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            signer.sign_into(&mut signatures, delivery_id, seconds, body);
        }
        headers.insert(&SIGNATURE, ascii(signatures));
    }
    if let Some(oldest) = signers.iter().rev().find(|signer| signer.is_hmac()) {
        let mut hex = String::with_capacity(7 + 64);
        hex.push_str("sha256=");
        oldest.hex_into(&mut hex, body);
        let value = ascii(hex);
        if letterhead.github {
            headers.insert(&GITHUB_SIGNATURE, value.clone());
        }
        headers.insert(&BODY_SIGNATURE, value);
    }
    if let Some(names) = &letterhead.prefixed {
        repeat(&mut headers, names);
    }
    headers
}

/// Says the three headers of Standard Webhooks again, under other names.
fn repeat(headers: &mut HeaderMap, names: &[HeaderName; 3]) {
    for (standard, name) in [&ID, &TIMESTAMP, &SIGNATURE].into_iter().zip(names) {
        if let Some(value) = headers.get(standard).cloned() {
            headers.insert(name, value);
        }
    }
}

/// Tells the receiver that this is an event it may have had before, under another id.
pub fn mark_replay(headers: &mut HeaderMap) {
    headers.insert(&REPLAY, HeaderValue::from_static("true"));
}

/// Tells the receiver that others of its lane came before it that were accepted after it.
pub fn mark_out_of_order(headers: &mut HeaderMap) {
    headers.insert(&OUT_OF_ORDER, HeaderValue::from_static("true"));
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
        let letterhead = Letterhead::new(&custom(&[("X-Team", "core")]), &Signing::default()).unwrap();
        let signers =
            ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "old"].map(|text| Signer::parse(text).unwrap());
        let body = br#"{"test": 2432232314}"#;
        let wall = Timestamp::from_ms(1_614_265_330_999);
        let headers = render("msg_p5jXN8AQM9LWM0D4loKWxJek", wall, body, &signers, &letterhead);
        let old = signers[1].signature("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        let expected = [
            ("content-type", "application/json".to_owned()),
            ("user-agent", format!("Tidegate/{}", env!("CARGO_PKG_VERSION"))),
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned()),
            ("webhook-signature", format!("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= {old}")),
            ("webhook-timestamp", "1614265330".to_owned()),
            ("x-team", "core".to_owned()),
            ("x-webhook-signature", format!("sha256={}", signers[1].hex_signature(body))),
        ];
        let mut sent: Vec<(&str, String)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap().to_owned())).collect();
        sent.sort();
        assert_eq!(sent, expected);
    }

    fn sent(signing: &Signing, secrets: &[&str]) -> BTreeMap<String, String> {
        let signers: Vec<Signer> = secrets.iter().map(|text| Signer::parse(text).unwrap()).collect();
        let letterhead = Letterhead::new(&BTreeMap::new(), signing).unwrap();
        let headers = render("dlv_1", Timestamp::from_ms(5_000), b"body", &signers, &letterhead);
        headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
    }

    #[test]
    fn other_receivers_get_their_headers_in_addition() {
        let signing = Signing { header_prefix: Some("svix".to_owned()), github: true, ..Signing::default() };
        let headers = sent(&signing, &["new", "old"]);
        for name in ["id", "timestamp", "signature"] {
            assert_eq!(headers[&format!("svix-{name}")], headers[&format!("webhook-{name}")]);
        }
        assert_eq!(headers["x-hub-signature-256"], headers["x-webhook-signature"]);
        let taken = Letterhead::new(&custom(&[("svix-id", "x")]), &signing);
        assert_eq!(taken.err(), Some(HeaderProblem::Twice("svix-id".to_owned())));
    }

    #[test]
    fn a_body_is_signed_alone_by_the_oldest_shared_secret_or_by_nobody() {
        let key = tidegate_core::sign::private_key_from([7; 32]);
        let hex = |secret: &str| format!("sha256={}", Signer::parse(secret).unwrap().hex_signature(b"body"));
        for (secrets, signer) in [
            (&["new", "old"][..], Some("old")),
            (&[key.as_str(), "old"], Some("old")),
            (&["new", key.as_str()], Some("new")),
            (&[key.as_str()], None),
        ] {
            let headers = sent(&Signing::default(), secrets);
            assert_eq!(headers.get("x-webhook-signature").cloned(), signer.map(hex), "{secrets:?}");
            assert_eq!(headers["webhook-signature"].split(' ').count(), secrets.len());
        }
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
