//! Tests of CloudEvents in structured, batch and binary mode.

use super::*;

#[test]
fn structured_cloud_events() {
    let body = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-01T00:00:00Z","tenant": "x",
        "datacontenttype":"application/json","dataschema":"urn:s","traced":true,"nothing":null,"data":{ "a":1 }}"#;
    let expected = r#"{"id":"1","source":"/s","type":"t","time":"2026-01-01T00:00:00Z","extensions":{"tenant":"x","dataschema":"urn:s","traced":true},"data":{ "a":1 }}"#;
    assert_eq!(bodies(STRUCTURED, body), [expected]);
    assert_eq!(bodies(BATCH, &format!("[{body},{body}]")), [expected, expected]);
    let other = r#"{"specversion":"1.0","id":"1","source":"s","type":"t","time":"2026-01-01T00:00:00Z","datacontenttype":"text/xml","data":"<a/>"}"#;
    assert!(
        bodies(STRUCTURED, other)[0]
            .ends_with(r#""extensions":{"datacontenttype":"text/xml"},"data":"<a/>"}"#)
    );
    for (body, expected) in [
        (r#"{"id":"1","source":"s","type":"t"}"#, "Invalid field_missing - specversion"),
        (
            r#"{"specversion":"0.3","id":"1","source":"s","type":"t"}"#,
            "Invalid specversion_unsupported - specversion",
        ),
        (r#"{"specversion":"1.0","source":"s","type":"t"}"#, "Invalid field_missing - id"),
        (
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","a":[]}"#,
            "Invalid extension_value - extensions.a",
        ),
        (
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","a":1,"a":2}"#,
            "Invalid field_repeated - extensions.a",
        ),
        (r#"{"specversion":"1.0","id":"1","id":"2","source":"s","type":"t"}"#, "Invalid field_repeated - id"),
        (
            r#"{"specversion":"1.0","id":"1","source":"s","type":"t","a\"b":1}"#,
            "Invalid extension_name - extensions",
        ),
        (r#"{"specversion":"1.0","id":1,"source":"s","type":"t"}"#, "Invalid field_type - id"),
        ("[]", "Invalid field_type - -"),
        ("", "Unparsable json_syntax - -"),
    ] {
        assert_eq!(refusal(STRUCTURED, body), expected, "{body}");
    }
    assert_eq!(refusal(BATCH, "{}"), "Invalid field_type - -");
    assert_eq!(refusal(BATCH, "[{}]"), "Invalid field_missing 0 specversion");
}

pub(super) const CE: [(&str, &[u8]); 5] = [
    ("ce-specversion", b"1.0"),
    ("ce-id", b"1"),
    ("ce-source", b"/s"),
    ("ce-type", b"t"),
    ("ce-time", b"2026-01-01T00:00:00Z"),
];

fn binary(content_type: Option<&str>, more: &[(&str, &[u8])], body: &[u8]) -> Result<String, String> {
    let headers: Vec<_> = CE.iter().chain(more).copied().collect();
    let units = send(content_type, &headers, body).map_err(|refusal| short(&refusal))?;
    Ok(String::from_utf8(units[0].events[0].body.to_vec()).unwrap())
}

#[test]
fn binary_cloud_events() {
    let head = r#"{"id":"1","source":"/s","type":"t""#;
    let time = r#""time":"2026-01-01T00:00:00Z""#;
    for (content_type, more, body, expected) in [
        (JSON, &[][..], " { \"a\":1 } ", format!("{head},{time},\"data\":{{ \"a\":1 }}}}")),
        (None, &[], "", format!("{head},{time},\"data\":null}}")),
        (
            Some("application/vnd.x+json"),
            &[("ce-tenant", b"x".as_slice())],
            "1",
            format!(
                "{head},{time},\"extensions\":{{\"tenant\":\"x\",\"datacontenttype\":\"application/vnd.x+json\"}},\"data\":1}}"
            ),
        ),
        (
            Some("text/plain"),
            &[],
            "hi",
            format!(
                "{head},{time},\"extensions\":{{\"datacontenttype\":\"text/plain\"}},\"data_base64\":\"aGk=\"}}"
            ),
        ),
        (
            JSON,
            &[("ce-subject", b"\"a\\\"b%20%E2%82%AC%2525\"".as_slice())],
            "1",
            format!("{head},\"subject\":\"a\\\"b €%25\",{time},\"data\":1}}"),
        ),
    ] {
        assert_eq!(binary(content_type, more, body.as_bytes()), Ok(expected));
    }
    for (more, body, expected) in [
        (&[("ce-subject", b"%C0%A0".as_slice())][..], "1", "Invalid header_invalid - ce-subject"),
        (&[("ce-subject", b"\xff".as_slice())], "1", "Invalid header_invalid - ce-subject"),
        (
            &[("ce-datacontenttype", b"text/xml".as_slice())],
            "1",
            "Invalid header_invalid - ce-datacontenttype",
        ),
        (&[("ce-id", b"2".as_slice())], "1", "Invalid field_repeated - ce-id"),
        (&[("ce-a", b"1".as_slice()), ("ce-a", b"2")], "1", "Invalid field_repeated - extensions.a"),
        (&[], "{", "Unparsable json_syntax - -"),
        (&[], "\u{1}", "Unparsable json_syntax - -"),
    ] {
        assert_eq!(binary(JSON, more, body.as_bytes()), Err(expected.to_owned()));
    }
    let deep = "[".repeat(64) + &"]".repeat(64);
    assert_eq!(binary(JSON, &[], deep.as_bytes()), Err("TooDeep json_too_deep - -".to_owned()));
    let missing = send(JSON, &CE[..2], "1").unwrap_err();
    assert_eq!(short(&missing), "Invalid field_missing - ce-source");
}
