//! How addresses are built and how refusals read. The wire itself is tested in `tests/cli.rs`.

use super::*;

fn client(url: &str, key: Option<&str>) -> Client {
    let globals =
        Globals { url: url.to_owned(), key: key.map(str::to_owned), project: None, ca: None, json: false };
    Client::new(&globals).expect("a good address")
}

fn answer(status: u16, body: &str) -> Answer {
    Answer {
        status: StatusCode::from_u16(status).expect("a status"),
        retry_after: None,
        location: None,
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

#[test]
fn addresses_keep_the_prefix_and_escape_what_users_name() {
    let with_prefix = client("https://example.com/gate/", None);
    let url = with_prefix.address(&["v1", "events", "a/b ?#", "trace"], &[("source", "x&y")]);
    assert_eq!(url.as_str(), "https://example.com/gate/v1/events/a%2Fb%20%3F%23/trace?source=x%26y");
    let plain = client("http://127.0.0.1:8700", None);
    assert_eq!(plain.address(&["v1", "keys"], &[]).as_str(), "http://127.0.0.1:8700/v1/keys");
}

#[test]
fn wrong_addresses_are_usage_errors() {
    for text in ["localhost:8700", "ftp://example.com", "http://u:p@example.com", "http://h/?q=1", "nonsense"]
    {
        let failure = parse_base(text).expect_err(text);
        assert_eq!(failure.exit, Exit::Usage, "{text}");
    }
}

#[test]
fn a_problem_prints_title_detail_field_code_and_fix() {
    let body = r#"{"code":"FIELD_UNKNOWN","title":"a field is wrong","status":422,
        "detail":"`tpye` is not a field of an event","field":"tpye","index":1}"#;
    let failure = client("http://h", Some("tgk_x")).problem(&answer(422, body));
    assert_eq!(failure.exit, Exit::Failed);
    let expected = "\
a field is wrong
  `tpye` is not a field of an event
  event: 2
  field: tpye
  code: FIELD_UNKNOWN (HTTP 422)
  fix: correct `tpye` and try again";
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn every_refusal_has_its_exit_code() {
    let client = client("http://h", Some("tgk_x"));
    for (status, exit) in [
        (400, Exit::Failed),
        (401, Exit::NotAllowed),
        (403, Exit::NotAllowed),
        (404, Exit::NotFound),
        (409, Exit::Failed),
        (429, Exit::Later),
        (503, Exit::Later),
        (500, Exit::Failed),
    ] {
        assert_eq!(client.problem(&answer(status, "")).exit, exit, "{status}");
    }
}

#[test]
fn a_redirect_names_its_target_and_is_a_failure() {
    let mut moved = answer(308, "");
    moved.location = Some("https://example.com/".to_owned());
    let client = client("http://h", Some("tgk_x"));
    let failure = client.success(moved).err().expect("redirects are not followed");
    assert!(failure.to_string().contains("pass --url https://example.com/"), "{failure}");
}
