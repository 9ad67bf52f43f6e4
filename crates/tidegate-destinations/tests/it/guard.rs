//! Goal: no URL, name or answer makes us connect to an address that is not allowed. Method: a canary on loopback,
//! and every way we know to point at it; at the end it must have seen nobody.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use tidegate_core::attempt::ErrorClass;
use tidegate_core::egress::{Policy, UrlProblem, check_url};
use tidegate_destinations::{HttpTransport, Transport};
use tokio::io::AsyncWriteExt as _;

use crate::support::*;

/// Hosts that are this machine, or some other place nobody outside should reach.
const HOSTS: [&str; 48] = [
    "127.0.0.1",
    "127.0.0.1.",
    "2130706433",
    "0x7f000001",
    "0x7F.1",
    "0177.0.0.1",
    "017700000001",
    "127.1",
    "127.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "%31%32%37.0.0.1",
    "１２７.0.0.1",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "0",
    "0.0.0.0",
    "0x0",
    "10.0.0.1",
    "100.64.0.1",
    "168.63.129.16",
    "169.254.169.254",
    "0xa9fea9fe",
    "2852039166",
    "172.16.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b:1::127.0.0.1]",
    "[2002:7f00:1::1]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
];

const LOCAL_NAMES: [&str; 5] = ["localhost", "LOCALHOST", "localhost.", "a.localhost", "a.b.localhost."];

#[test]
fn saving_refuses_every_spelling() {
    for host in HOSTS.iter().chain(&LOCAL_NAMES) {
        for scheme in ["https", "http"] {
            let answer = check_url(&format!("{scheme}://{host}:8080/x"), &Policy::public_only());
            assert_eq!(answer, Err(UrlProblem::Blocked), "{scheme}://{host}");
        }
    }
}

#[tokio::test]
async fn no_literal_is_dialled() {
    let canary = Canary::new();
    // A list that is not empty, so that plain http is refused for its address and not for its scheme.
    for policy in [Policy::public_only(), policy(&["10.99.0.0/16"])] {
        let transport = HttpTransport::new(policy, Arc::new(Names::default()));
        for host in HOSTS {
            for scheme in ["https", "http"] {
                let url = format!("{scheme}://{host}:{}/x", canary.port);
                assert_blocked(&transport.send(post(&target(&url), PLENTY)).await, &url);
            }
        }
    }
    assert_eq!(canary.connections(), 0);
}

/// The addresses that [`HOSTS`] come down to.
fn addresses(canary: &Canary) -> BTreeSet<SocketAddr> {
    let address =
        |host: &&str| match tidegate_core::egress::Url::parse(&format!("https://{host}/")).unwrap().host() {
            Some(url::Host::Ipv4(address)) => SocketAddr::new(address.into(), canary.port),
            Some(url::Host::Ipv6(address)) => SocketAddr::new(address.into(), canary.port),
            other => panic!("{other:?}"),
        };
    HOSTS.iter().map(address).collect()
}

#[tokio::test]
async fn no_answer_of_the_name_system_is_dialled_if_any_is_refused() {
    let canary = Canary::new();
    let public = canary.at("8.8.8.8");
    for address in addresses(&canary) {
        for answer in [vec![address], vec![public, address], vec![address, public]] {
            for scheme in ["https", "http"] {
                let names = Names::new("receiver.test", vec![answer.clone()]);
                let transport = HttpTransport::new(Policy::public_only(), names);
                let url = format!("{scheme}://receiver.test:{}/x", canary.port);
                assert_blocked(
                    &transport.send(post(&target(&url), PLENTY)).await,
                    &format!("{url} {answer:?}"),
                );
            }
        }
    }
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn an_answer_that_flips_gains_nothing() {
    // 127.0.0.2 plays the public address and 127.0.0.1 the private one.
    let canary = Canary::new();
    let listener = tokio::net::TcpListener::bind(("127.0.0.2", canary.port)).await.unwrap();
    let public = Receiver::on(listener, |_, mut peer| async move {
        peer.read_request().await?;
        peer.stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await
    });
    let names = Names::new("receiver.test", vec![vec![canary.at("127.0.0.2")], vec![canary.at("127.0.0.1")]]);
    let transport = HttpTransport::new(policy(&["127.0.0.2/32"]), names.clone());
    let receiver = target(&format!("http://receiver.test:{}/x", canary.port));
    let mut delivered = 0;
    for _ in 0..1_000 {
        let exchange = transport.send(post(&receiver, PLENTY)).await;
        match &exchange.result {
            Ok(_) => delivered += 1,
            Err(_) => assert_blocked(&exchange, "the flipped answer"),
        }
    }
    assert_eq!((delivered, public.requests().len()), (500, 500));
    assert_eq!(names.asked(), 1_000, "once per connection");
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn names_without_an_answer_fail_closed() {
    let canary = Canary::new();
    let nothing = HttpTransport::new(policy(&["127.0.0.0/8"]), Names::new("receiver.test", vec![vec![]]));
    for (transport, name) in [(&nothing, "receiver.test"), (&loopback(), "unknown.test")] {
        let receiver = target(&format!("http://{name}:{}/token-in-path?secret=s3", canary.port));
        let failure = failure(transport, &receiver, PLENTY).await;
        assert_eq!(
            (failure.class, failure.detail.as_str()),
            (ErrorClass::Dns, "the host name did not resolve")
        );
    }
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn plain_http_goes_to_listed_addresses_only() {
    let canary = Canary::new();
    let transport = HttpTransport::new(
        policy(&["127.0.0.0/8"]),
        Names::new("receiver.test", vec![vec![canary.at("127.0.0.1"), canary.at("8.8.8.8")]]),
    );
    for host in ["receiver.test", "8.8.8.8", "[2606:4700:4700::1111]"] {
        let url = format!("http://{host}:{}/x", canary.port);
        assert_blocked(&transport.send(post(&target(&url), PLENTY)).await, &url);
    }
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn a_blocked_port_can_not_be_probed() {
    let canary = Canary::new();
    let transport = HttpTransport::new(Policy::public_only(), Arc::new(Names::default()));
    let open = format!("https://127.0.0.1:{}/", canary.port);
    let mut answers = Vec::new();
    for url in [&open, "https://127.0.0.1:1/", "https://10.255.255.1/", "https://[fd00::1]:22/"] {
        let exchange = transport.send(post(&target(url), PLENTY)).await;
        answers.push((exchange.result.clone(), exchange.phases.dns_us, exchange.phases.connect_us));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let canary = Canary::new();
    for status in [301, 302, 303, 307, 308] {
        let location = format!("http://127.0.0.1:{}/x", canary.port);
        let head = format!("HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
        let receiver = Receiver::answering(head).await;
        assert_eq!(answer(&loopback(), &receiver.target()).await.status, status);
        assert_eq!(receiver.requests().len(), 1);
    }
    assert_eq!(canary.connections(), 0);
}

/// The control of everything above: what is allowed is reached.
#[tokio::test]
async fn what_is_listed_is_reached() {
    let canary = Canary::new();
    let names = Names::new("receiver.test", vec![vec![canary.at("127.0.0.1")]]);
    let transport = HttpTransport::new(policy(&["127.0.0.0/8"]), names);
    let hosts = ["127.0.0.1", "2130706433", "receiver.test", "[::ffff:127.0.0.1]"];
    for host in hosts {
        for scheme in ["http", "https"] {
            let receiver = target(&format!("{scheme}://{host}:{}/x", canary.port));
            assert_eq!(failure(&transport, &receiver, SHORT).await.class, ErrorClass::Timeout, "{host}");
            assert_eq!(canary.connections(), 1, "{scheme}://{host}");
        }
    }
}

/// Runs the control again in a process whose environment names proxies.
#[test]
fn proxies_of_the_environment_are_ignored() {
    let canary = Canary::new();
    let proxy = format!("http://127.0.0.1:{}", canary.port);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "guard::what_is_listed_is_reached"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        child.env(name, &proxy).env(name.to_lowercase(), &proxy);
    }
    let output = child.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(canary.connections(), 0);
}

#[tokio::test]
async fn a_name_that_leads_to_ourselves_is_not_dialled() {
    let canary = Canary::new();
    let own = canary.at("127.0.0.1");
    let names = Names::new("inside.example", vec![vec![own]]);
    let transport = HttpTransport::new(policy(&["127.0.0.0/8"]).except(own), names);
    let url = format!("http://inside.example:{}/x", canary.port);
    assert_blocked(&transport.send(post(&target(&url), PLENTY)).await, &url);
    assert_eq!(canary.connections(), 0);
}
