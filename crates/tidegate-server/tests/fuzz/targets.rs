//! What is fuzzed, and what must hold whatever comes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bytes::Bytes;
use serde_json::value::RawValue;
use tidegate_core::egress::{Policy, Url, check_url};
use tidegate_core::event::Event;
use tidegate_core::headers::check_headers;
use tidegate_core::ingest::{Request, decode};
use tidegate_core::route::{Condition, View};
use tidegate_core::sign::{Signer, verify};
use tidegate_core::subscriber::{Creation, join, part, patch, validate};
use tidegate_core::time::Timestamp;
use tidegate_server::settings::File;
use tidegate_server::settings::store::Secrets;

use crate::chance::Chance;

/// One thing that takes bytes.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Inputs to begin with.
    pub(crate) corpus: &'static [&'static str],
    /// Words of its format.
    pub(crate) words: &'static [&'static str],
    /// Panics when a promise is broken.
    pub(crate) check: fn(&[u8], &mut Chance),
}

const NOW: Timestamp = Timestamp::from_ms(1_767_225_600_000);

/// What `POST /v1/events` takes, in every media type.
pub(crate) const BODIES: Target = Target {
    name: "bodies",
    corpus: &[
        r#"{"id":"1","source":"shop","type":"order.paid","subject":"a/b","time":"2026-01-31T09:30:00Z","data":{"total":1.50}}"#,
        r#"[{"source":"s","type":"t"},{"source":"s","type":"t","events":[{"type":"u","data":[1,2,{"a":null}]}]}]"#,
        "{\"source\":\"s\",\"type\":\"t\"}\n{\"source\":\"s\",\"type\":\"u\",\"data\":\"\\ud83d\\ude00\"}\n",
        r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/xml","data":"<a/>","ext":"1"}"#,
        r#"[{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AAEC"}]"#,
    ],
    words: &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "null",
        "true",
        "-0",
        "1e999",
        "NaN",
        "\"id\":",
        "\"data\":",
        "\"time\":",
        "\"events\":[",
        "\"parents\":[\"a\"]",
        "\"extensions\":{\"a\":1}",
        "\"data_base64\":",
        "\"specversion\":\"1.0\"",
        "\u{feff}",
        "\n",
        "\r\n",
        "9999-12-31T23:59:60Z",
        "-0001-01-01T00:00:00+24:00",
    ],
    check: |input, chance| {
        let types = [
            "application/json",
            "application/x-ndjson",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
            "text/plain",
            "application/json; charset=utf-8; x=\"",
        ];
        let content_type = Some(chance.pick(&types)).filter(|_| chance.below(8) > 0);
        let headers: [(&str, &[u8]); 4] =
            [("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/s"), ("ce-type", b"t")];
        let headers = if chance.below(4) == 0 { &headers[..] } else { &[] };
        let body = Bytes::copy_from_slice(input);
        let request = Request { content_type, headers, body: &body };
        let units = decode(&request, NOW, &mut || u128::from(chance.next())).unwrap_or_default();
        for event in units.iter().flat_map(|unit| &unit.events) {
            let text = std::str::from_utf8(&event.body).expect("bodies are UTF-8");
            serde_json::from_str::<&RawValue>(text).expect("bodies are JSON");
            assert!(!event.source.is_empty() && !event.type_name.is_empty() && !event.id.is_empty());
        }
    },
};

/// Custom headers of a subscriber.
pub(crate) const HEADERS: Target = Target {
    name: "headers",
    corpus: &["x-team\ncore", "authorization\nBearer abc.def", "X-Key\n a \tb ", "x-a\n\nx-b\nc"],
    words: &[
        "\r\n",
        "\n",
        "\0",
        ":",
        " ",
        "\t",
        "content-length",
        "transfer-encoding",
        "host",
        "webhook-id",
        "é",
        "\u{7f}",
        "x-hub-signature-256",
        "proxy-authorization",
        "Connection",
    ],
    check: |input, _| {
        let text = String::from_utf8_lossy(input);
        let mut lines = text.splitn(2, '\n').map(str::to_owned);
        let (name, value) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        if check_headers(&BTreeMap::from([(name.clone(), value.clone())])).is_ok() {
            assert!(http::HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?}");
            assert!(http::HeaderValue::from_str(&value).is_ok(), "{value:?}");
            assert!(!value.contains(['\r', '\n', '\0']) && !name.eq_ignore_ascii_case("host"));
        }
    },
};

/// Where deliveries go.
pub(crate) const URLS: Target = Target {
    name: "urls",
    corpus: &[
        "https://example.com/hook?a=b",
        "https://127.0.0.1:8443/x",
        "https://[::ffff:7f00:1]/",
        "https://0x7f.1/",
        "https://2130706433/",
        "http://localhost./",
        "https://[2002:7f00:1::1]/",
        "https://[64:ff9b::10.0.0.1]/",
        "https://8.8.8.8/",
        "https://user:pass@169.254.169.254/latest",
    ],
    words: &[
        "://",
        "@",
        "\\",
        "/",
        "//",
        "#",
        "?",
        "%00",
        "%2f",
        ".",
        "。",
        "①",
        "0x",
        "0",
        "127",
        "::",
        "[",
        "]",
        ":",
        "\t",
        "\n",
        "localhost",
        "http",
        "https",
        "ffff:",
        "10.0.0.1",
        "169.254.169.254",
        "\u{ad}",
        "ｌ",
        ".internal",
    ],
    check: |input, _| {
        let text = String::from_utf8_lossy(input);
        let policy = Policy::public_only();
        let Ok(url) = check_url(&text, &policy) else { return };
        assert_eq!(url.scheme(), "https", "{text:?}");
        assert!(url.username().is_empty() && url.password().is_none() && url.fragment().is_none());
        assert_eq!(Url::parse(url.as_str()).as_ref(), Ok(&url), "what is kept is what was checked");
        let host = url.host_str().expect("a host");
        let bare = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        if let Ok(address) = bare.parse::<IpAddr>() {
            assert!(policy.allows(address), "{text:?} is {address}");
        }
        assert!(bare != "localhost" && !bare.ends_with(".localhost"), "{text:?}");
    },
};

/// CEL conditions, and events to judge by them.
pub(crate) const CONDITIONS: Target = Target {
    name: "conditions",
    corpus: &[
        "data.component == 'NEOFORGE' && data.n > 3",
        "type.startsWith('order.') || source in ['a', 'b']",
        "data.l.all(x, x > 0) && data.l.exists(y, y == 2)",
        "has(data.o.a) ? data.o.a : size(data.s) < 10",
        "data.s.matches('^a+b?$') && int(data.n) % 2 == 0",
        "timestamp(time) > timestamp('2020-01-01T00:00:00Z') + duration('1h')",
        "[1, 2.5, 'x', {'a': null}].map(x, x)[0] == 1u",
    ],
    words: &[
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ".",
        ",",
        "?",
        ":",
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        "!=",
        "<=",
        "in",
        "&&",
        "||",
        "data",
        "data.l",
        "all(x, ",
        "exists(x, ",
        "map(x, ",
        "filter(x, ",
        "matches('",
        "(a*)*",
        "size(",
        "has(",
        "9223372036854775807",
        "-9223372036854775808",
        "1e308",
        "b'\\xff'",
        "r'",
        "'''",
        "\"",
        "\\u0000",
        "true",
        "null",
        "duration('1h')",
        "timestamp('",
        "string(",
        "int(",
        "double(",
        "dyn(",
        "type(",
        "max(",
    ],
    check: |input, _| {
        let text = String::from_utf8_lossy(input);
        let Ok(condition) = Condition::compile(&text) else { return };
        let datas =
            [r#"{"component":"NEOFORGE","n":4,"l":[1,2,3],"s":"aab","o":{"a":true}}"#, "null", "[[1],{}]"];
        for data in datas {
            let body = format!(
                r#"{{"id":"e","source":"a","type":"order.paid","time":"2026-01-01T00:00:00Z","data":{data}}}"#
            );
            let event = Event {
                id: "e".into(),
                source: "a".into(),
                type_name: "order.paid".into(),
                subject: None,
                time: NOW,
                body: body.into(),
            };
            let first = condition.judge(&View::new(&event));
            assert_eq!(first, condition.judge(&View::new(&event)), "a condition has one answer");
        }
    },
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The headers of a delivery, as a receiver checks them.
pub(crate) const SIGNATURES: Target = Target {
    name: "signatures",
    corpus: &["", "v1,", "v1,AAAA v1a,BBBB", "v2,x v1,y", "{\"id\":1}"],
    words: &[
        "v1,",
        "v1a,",
        " ",
        ",",
        "=",
        "==",
        "\n",
        "+",
        "-",
        "_",
        "whsec_",
        "0",
        "\0",
        "dlv_1",
        "1767225600",
    ],
    check: |input, chance| {
        let seconds = NOW.as_ms() / 1000;
        let signer = Signer::parse(SECRET).expect("a secret");
        let right = signer.signature("dlv_1", seconds, input);
        let judge = |id: &str, at: &str, signatures: &str, body: &[u8]| {
            verify(SECRET, id, at, signatures, body, NOW).is_ok()
        };
        let at = seconds.to_string();
        assert!(judge("dlv_1", &at, &right, input), "what was signed is right");
        let text = String::from_utf8_lossy(input);
        assert!(judge("dlv_1", &at, &format!("v9,x {right}"), input), "unknown ones beside it mean nothing");
        assert!(!judge("dlv_1", &at, &text, input), "{text:?} was never signed");
        assert!(
            !judge("dlv_2", &at, &right, input) && !judge("dlv_1", &(seconds + 1).to_string(), &right, input)
        );
        assert!(!judge(
            "dlv_1",
            &(seconds - 301).to_string(),
            &signer.signature("dlv_1", seconds - 301, input),
            input
        ));
        let mut other = input.to_vec();
        other.insert(chance.below(input.len() + 1), b'x');
        assert!(!judge("dlv_1", &at, &right, &other), "another body");
        let _ = verify(&text, &text, &text, &text, input, NOW);
    },
};

/// What `POST` and `PATCH /v1/subscribers` take.
pub(crate) const SUBSCRIBERS: Target = Target {
    name: "subscribers",
    corpus: &[
        r#"{"destination":{"url":"https://example.com/hook","headers":{"x-team":"core"}}}"#,
        r#"{"name":"n","match":{"types":["order.*","*"],"sources":["s"],"where":"data.a == 1"},"destination":{"url":"https://e.com"},"order":{"by":"data.id"},"limits":{"concurrency":8,"rate":"10/s","timeout":"30s"},"retry":{"schedule":["1m","2m"]},"from":"beginning","active":false}"#,
        r#"{"name":null,"destination":{"headers":{"x-team":"***"}},"limits":null}"#,
    ],
    words: &[
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "null",
        "\"***\"",
        "\"1ms\"",
        "\"99999999999999999999d\"",
        "\"0/s\"",
        "\"*\"",
        "\"where\":",
        "\"url\":",
        "\"headers\":{",
        "-1",
        "1e9",
        "\"none\"",
        "\"data.\\u0000\"",
        "\"fold\":{\"mode\":\"each\"}",
    ],
    check: |input, _| {
        let check_url = |url: &str| {
            check_url(url, &Policy::public_only()).map(drop).map_err(|problem| problem.to_string())
        };
        let check_headers = |all: &BTreeMap<_, _>| check_headers(all).map_err(|problem| problem.to_string());
        let base = Creation::parse(SUBSCRIBERS.corpus[0].as_bytes()).expect("a definition").definition;
        let patched = patch(&base, input).ok().filter(|it| it.validate(&check_url, &check_headers).is_ok());
        let created = Creation::parse(input).ok().map(|creation| creation.definition);
        let created = created.filter(|it| validate(it, &check_url, &check_headers).is_ok());
        for definition in patched.map(|it| it.definition).into_iter().chain(created) {
            let (open, hidden) = part(&definition);
            assert_eq!(join(&open, &hidden).as_ref(), Ok(&definition), "what is kept comes back");
            let same = patch(&definition, b"{}").expect("nothing changes");
            assert!(same.changed.is_empty() && same.definition == definition);
        }
    },
};

/// The configuration file.
pub(crate) const SETTINGS: Target = Target {
    name: "settings",
    corpus: &[
        "listen: 127.0.0.1:9\ndata_dir: ./x\negress:\n  allow: [127.0.0.0/8, '::1']\nlog:\n  format: json\n",
        "tls:\n  cert: a.pem\n  key: b.pem\nlimits:\n  connections: 10\ntimeouts:\n  head: 10s\n  idle: 1m\n",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    ],
    words: &[
        ":",
        "-",
        "\n",
        "  ",
        "[",
        "]",
        "{",
        "}",
        "&a ",
        "*a",
        "<<: *a",
        "|",
        ">",
        "!!str ",
        "!!binary ",
        "'",
        "\"",
        "#",
        "---\n",
        "...",
        "%YAML 1.2\n",
        "null",
        "~",
        "0x7f",
        "1e9",
        ".inf",
        "\t",
        "? ",
        "listen: ",
        "egress:\n  allow: ",
    ],
    check: |input, _| {
        let text = String::from_utf8_lossy(input);
        // A name would be looked up, which is no business of a fuzzer.
        let is_literal = |listen: &Option<String>| {
            listen.as_ref().is_none_or(|text| text.parse::<std::net::SocketAddr>().is_ok())
        };
        if let Ok(file) = File::parse(&text)
            && is_literal(&file.listen)
        {
            let _ = file.settle(Secrets::default());
        }
    },
};
