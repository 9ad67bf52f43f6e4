//! Limits on requests: off until configured, then told with every answer.

use serde_json::json;

use crate::server::{Folder, Server, Setup};

fn limited(name: &'static str, rate: &str) -> Server {
    Server::start_with(&Setup { variables: vec![(name, rate.to_owned())], ..Setup::usual() })
}

#[test]
fn nothing_is_limited_until_it_is_configured() {
    let server = Server::start();
    let answer = server.admin().get("/v1/events");
    assert_eq!((answer.header("ratelimit"), answer.header("ratelimit-policy")), (None, None));
}

#[test]
fn a_key_that_asks_too_often_is_told_when_to_come_back() {
    let server = limited("TIDEGATE_LIMITS_REQUESTS_PER_KEY", "120/h");
    let admin = server.admin();
    let first = admin.get("/v1/events");
    assert_eq!(first.header("ratelimit-policy"), Some("\"key\";q=120;w=3600"));
    assert_eq!(
        first.header("ratelimit"),
        Some("\"key\";r=0;t=30"),
        "the burst is one second's worth, at least one"
    );
    let second = admin.post("/v1/events", &json!({"source": "s", "type": "t"}));
    second.problem(429, "rate_limited");
    let wait: u64 = second.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((25..=31).contains(&wait), "{wait}");
    assert!(second.header("ratelimit").is_some_and(|text| text.starts_with("\"key\";r=0")));
    let stranger = admin.with_key("tgk_nobody00000000000000000000000000");
    stranger.get("/v1/events").problem(401, "key_invalid");
    stranger.get("/v1/events").problem(401, "key_invalid");
    assert!(stranger.get("/metrics").text().contains("tidegate_requests_limited_total 1"));
}

#[test]
fn an_address_that_asks_too_often_is_refused_whatever_its_key_and_probes_are_not() {
    let server = limited("TIDEGATE_LIMITS_REQUESTS_PER_ADDRESS", "2/s");
    let admin = server.admin();
    let statuses: Vec<u16> = (0..20).map(|_| admin.get("/v1/events").status).collect();
    assert_eq!(statuses[..2], [200, 200]);
    assert!(statuses.contains(&429), "{statuses:?}");
    for _ in 0..10 {
        admin.get("/readyz").expect(200);
        assert_eq!(admin.get("/livez").status, 200);
    }
}

#[test]
fn a_limit_that_means_nothing_is_refused_at_the_start() {
    let folder = Folder::new();
    let config = folder.path().join("tidegate.yaml");
    std::fs::write(&config, "limits:\n  requests_per_key: 0/s\n").expect("written");
    let variables = vec![("TIDEGATE_CONFIG", config.display().to_string())];
    let refusal = Setup { variables, ..Setup::usual() }.refusal(&folder);
    assert!(refusal.contains("10/s"), "{refusal}");
}
