//! Where deliveries may go: no spelling, no redirect, no proxy and no old permission reaches an internal address.

use std::net::{Ipv6Addr, TcpListener};

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::{Receiver, Reply};
use crate::server::{Server, Setup};

/// Listens on this machine's loopback addresses. The kernel completes connections by itself, so that none is missed.
struct Canary {
    listeners: Vec<TcpListener>,
    port: u16,
}

impl Canary {
    fn new() -> Self {
        let first = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = first.local_addr().expect("an address").port();
        let second = TcpListener::bind((Ipv6Addr::LOCALHOST, port)).ok();
        let listeners: Vec<_> = [Some(first), second].into_iter().flatten().collect();
        listeners.iter().for_each(|listener| listener.set_nonblocking(true).expect("non-blocking"));
        Self { listeners, port }
    }

    /// Connections since the last call.
    fn connections(&self) -> usize {
        self.listeners.iter().map(|listener| std::iter::from_fn(|| listener.accept().ok()).count()).sum()
    }
}

/// Hosts that are, or lead to, something internal.
const HOSTS: [&str; 44] = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0X7F.0.0.0x1",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.1.",
    "127.255.255.254",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "%31%32%37.0.0.1",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::1]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]",
    "[fe80::1]",
    "[fec0::1]",
    "[fd00::1]",
    "[ff02::1]",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "a.localhost",
    "ｌocalhost",
    "169.254.169.254",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "198.18.0.1",
    "255.255.255.255",
];

fn urls(port: u16) -> Vec<String> {
    let mut urls: Vec<String> = ["https", "http"]
        .iter()
        .flat_map(|scheme| HOSTS.iter().map(move |host| format!("{scheme}://{host}:{port}/hook")))
        .collect();
    let whole = [
        "https://user@127.0.0.1:PORT/",
        "https://user:pw@example.com/",
        "https://example.com@127.0.0.1:PORT/",
        "https://127.0.0.1:PORT#@example.com/",
        "https:\\\\127.0.0.1:PORT\\",
        "https:127.0.0.1:PORT/",
        "ht\ttps://127.0.\n0.1:PORT/",
        " https://127.0.0.1:PORT/ ",
        "https://example.com/#part",
        "//127.0.0.1:PORT/",
        "127.0.0.1:PORT",
        "gopher://127.0.0.1:PORT/",
        "ftp://127.0.0.1:PORT/",
        "ws://127.0.0.1:PORT/",
        "file:///etc/passwd",
        "unix:/run/x.sock",
        "javascript:alert(1)",
        "https://",
        "",
    ];
    urls.extend(whole.iter().map(|url| url.replace("PORT", &port.to_string())));
    urls
}

#[test]
fn no_spelling_of_an_internal_address_can_be_saved() {
    let canary = Canary::new();
    // Without any range plain http is refused as such; with one that is not loopback, the address alone decides.
    let lists_one = Setup { egress_allow: Some("10.99.0.0/16"), ..Setup::usual() };
    for setup in [Setup::guarded(), lists_one] {
        let server = Server::start_with(&setup);
        let client = server.admin();
        let good = json!({ "destination": { "url": "https://example.com/hook" }, "active": false });
        let id = client.post("/v1/subscribers", &good).expect(201)["id"].clone();
        let path = format!("/v1/subscribers/{}", id.as_str().expect("an id"));
        let before = client.get("/v1/subscribers").expect(200);
        for url in urls(canary.port) {
            let destination = json!({ "destination": { "url": url } });
            for answer in [client.post("/v1/subscribers", &destination), client.patch(&path, &destination)] {
                let problem = answer.problem(422, "url_refused");
                assert_eq!(problem["field"], "destination.url", "{url}: {problem}");
            }
        }
        assert_eq!(client.get("/v1/subscribers").expect(200), before, "nothing was stored");
    }
    assert_eq!(canary.connections(), 0);
}

/// Publishes an event for each of so many subscribers and returns the error classes of its attempts.
fn errors(client: &Client, event: &str, count: usize) -> Vec<Value> {
    client.publish(&json!({ "id": event, "source": "s", "type": "t" }));
    let trace = client.until(&format!("/v1/events/{event}/trace"), |trace| {
        let lines = trace["subscribers"].as_array().expect("lines");
        lines.len() == count && lines.iter().all(|line| line["outcome"] == "exhausted")
    });
    let lines = trace["subscribers"].as_array().expect("lines").iter();
    let attempt = |line: &Value| {
        let path = format!("/v1/deliveries/{}", line["delivery"].as_str().expect("a delivery"));
        client.get(&path).expect(200)["attempt_log"][0]["error"].clone()
    };
    lines.map(attempt).collect()
}

#[test]
fn a_permission_that_was_taken_away_is_gone_for_what_was_saved_with_it() {
    let canary = Canary::new();
    let open = Setup { egress_allow: Some("127.0.0.0/8,::1/128"), ..Setup::usual() };
    let mut server = Server::start_with(&open);
    let hosts =
        ["http://127.0.0.1", "http://localhost", "https://2130706433", "https://localhost", "https://[::1]"];
    let mut paths = Vec::new();
    for host in &hosts {
        let body = json!({
            "destination": { "url": format!("{host}:{}/", canary.port) },
            "retry": { "schedule": [] }, "limits": { "timeout": "1s" },
        });
        let id = server.admin().post("/v1/subscribers", &body).expect(201)["id"].clone();
        paths.push(format!("/v1/subscribers/{}", id.as_str().expect("an id")));
    }
    assert_eq!(errors(&server.admin(), "allowed", hosts.len()), vec![json!("timeout"); hosts.len()]);
    assert_eq!(canary.connections(), hosts.len(), "the control: each is reached while it may be");

    server.stop();
    server.restart(&Setup::guarded());
    let client = server.admin();
    assert_eq!(errors(&client, "refused", hosts.len()), vec![json!("blocked"); hosts.len()]);
    assert_eq!(canary.connections(), 0);
    for path in &paths {
        let url = client.get(path).expect(200)["destination"]["url"].clone();
        client.patch(path, &json!({ "name": "new", "limits": { "concurrency": 2 } })).expect(200);
        let other = json!({ "destination": { "url": format!("{}other", url.as_str().expect("a URL")) } });
        client.patch(path, &other).problem(422, "url_refused");
        assert_eq!(client.get(path).expect(200)["destination"]["url"], url);
    }
}

#[test]
fn redirects_are_not_followed_and_proxies_of_the_environment_not_used() {
    let canary = Canary::new();
    let proxy = format!("http://127.0.0.1:{}", canary.port);
    let mut setup = Setup::usual();
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"] {
        setup.variables.push((name, proxy.clone()));
    }
    let server = Server::start_with(&setup);
    let client = server.admin();
    let hook = Receiver::scripted(move |arrival| {
        let status = [301, 302, 303, 307, 308][arrival.before];
        Reply::status(status).header("location", &format!("{proxy}/hook"))
    });
    server.subscribe(&hook, &json!({ "retry": { "schedule": ["1ms", "1ms", "1ms", "1ms"] } }));
    assert_eq!(errors(&client, "e", 1), [json!("status")]);
    assert_eq!(hook.take(5).len(), 5);
    let id = client.get("/v1/deliveries").expect(200)["items"][0]["id"].clone();
    let delivery = client.get(&format!("/v1/deliveries/{}", id.as_str().expect("an id"))).expect(200);
    let log = delivery["attempt_log"].as_array().expect("attempts");
    assert!(
        log.iter().all(|attempt| attempt["detail"].as_str().is_some_and(|text| text.contains("redirects")))
    );
    assert_eq!(canary.connections(), 0);
}
