//! Goal: no spelling and no embedding of an address gets past the policy. Method: the ranges edge by edge, every
//! spelling a URL parser knows, and properties over all of IPv4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn policy(ranges: &[&str]) -> Policy {
    Policy::new(ranges.iter().map(|range| range.parse().unwrap()).collect())
}

/// First and last address of each refused range, and its public neighbours (empty where there is none).
const V4_EDGES: [(&str, &str, &str, &str); 15] = [
    ("", "0.0.0.0", "0.255.255.255", "1.0.0.0"),
    ("9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"),
    ("100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"),
    ("126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"),
    ("168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"),
    ("169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"),
    ("172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"),
    ("191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"),
    ("192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"),
    ("192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"),
    ("192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"),
    ("198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"),
    ("198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"),
    ("203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"),
    ("223.255.255.255", "224.0.0.0", "255.255.255.255", ""),
];

#[test]
fn the_ranges_of_ipv4_end_where_they_should() {
    let policy = Policy::public_only();
    for (before, first, last, after) in V4_EDGES {
        for refused in [first, last] {
            assert!(!policy.allows(ip(refused)), "{refused}");
        }
        for public in [before, after].into_iter().filter(|text| !text.is_empty()) {
            assert!(policy.allows(ip(public)), "{public}");
            assert!(!policy.may_use_plain_http(ip(public)), "{public}");
        }
    }
    assert!(!policy.allows(ip("169.254.169.254")));
    assert!(!policy.allows(ip("240.0.0.1")));
}

#[test]
fn the_ranges_of_ipv6_end_where_they_should() {
    let policy = Policy::public_only();
    for refused in [
        "::",
        "::1",
        "::8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b::1:8.8.8.8",
        "100::1",
        "1fff:ffff::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:1ff:ffff::1",
        "2001:db8::1",
        "2001:db8:ffff::1",
        "3fff::1",
        "3fff:fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ] {
        assert!(!policy.allows(ip(refused)), "{refused}");
    }
    for public in [
        "2000::1",
        "2001:200::1",
        "2001:db7:ffff::1",
        "2001:db9::1",
        "2606:4700:4700::1111",
        "2a00:1450::1",
        "3ffe:ffff::1",
        "3fff:1000::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ] {
        assert!(policy.allows(ip(public)), "{public}");
    }
}

#[test]
fn a_listed_range_admits_itself_and_its_mapped_form_only() {
    let policy = policy(&["127.0.0.0/8", "fd00:1::/32"]);
    for listed in ["127.0.0.1", "127.255.255.255", "::ffff:127.0.0.1", "fd00:1::5"] {
        assert!(policy.allows(ip(listed)) && policy.may_use_plain_http(ip(listed)), "{listed}");
    }
    for other in ["::127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::1", "::1", "10.0.0.1", "fd00:2::5"] {
        assert!(!policy.allows(ip(other)), "{other}");
    }
    assert!(policy.allows_loopback());
    assert!(self::policy(&["::1/128"]).allows_loopback());
    assert!(!self::policy(&["10.0.0.0/8"]).allows_loopback());
    // A wide range of IPv6 is not a way to the loopback of IPv4.
    assert!(!self::policy(&["::ffff:0:0/96"]).allows(ip("::ffff:127.0.0.1")));
    assert!(!policy.may_use_plain_http(ip("8.8.8.8")));
}

fn embeddings(address: Ipv4Addr) -> [Ipv6Addr; 4] {
    let [a, b, c, d] = address.octets();
    let high = u16::from_be_bytes([a, b]);
    let low = u16::from_be_bytes([c, d]);
    [
        address.to_ipv6_mapped(),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
        Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
    ]
}

fn refused_v4() -> impl Strategy<Value = Ipv4Addr> {
    let edges = V4_EDGES.map(|(_, first, last, _)| (first, last));
    (proptest::sample::select(edges.to_vec()), any::<u32>()).prop_map(|((first, last), chance)| {
        let (first, last): (Ipv4Addr, Ipv4Addr) = (first.parse().unwrap(), last.parse().unwrap());
        let span = u64::from(u32::from(last)) - u64::from(u32::from(first)) + 1;
        Ipv4Addr::from(u32::from(first) + u32::try_from(u64::from(chance) % span).unwrap())
    })
}

/// Refused addresses as often as any other.
fn some_v4() -> impl Strategy<Value = Ipv4Addr> {
    prop_oneof![refused_v4(), any::<u32>().prop_map(Ipv4Addr::from)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn an_embedding_is_never_allowed_where_its_ipv4_is_not(address in some_v4()) {
        let policy = Policy::public_only();
        let judged = policy.allows(address.into());
        let [mapped, compatible, to4, nat64] = embeddings(address).map(|form| policy.allows(form.into()));
        prop_assert_eq!([mapped, compatible, to4, nat64], [judged, false, judged, judged]);
    }

    #[test]
    fn a_refused_address_is_refused_in_every_spelling(address in refused_v4()) {
        let [a, b, c, d] = address.octets();
        let [mapped, compatible, to4, nat64] = embeddings(address);
        for host in [
            format!("{address}"),
            format!("{address}."),
            format!("{}", u32::from(address)),
            format!("0x{:x}", u32::from(address)),
            format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
            format!("{a}.{}", u32::from(address) & 0x00ff_ffff),
            format!("{a}.{b}.0x{:X}", u32::from(address) & 0xffff),
            format!("[{mapped}]"),
            format!("[{compatible}]"),
            format!("[{to4}]"),
            format!("[{nat64}]"),
        ] {
            let answer = check_url(&format!("https://{host}/"), &Policy::public_only());
            prop_assert_eq!(answer, Err(UrlProblem::Blocked), "{}", host);
        }
    }

    #[test]
    fn checking_never_panics(text in "\\PC{0,60}") {
        let _ = check_url(&text, &Policy::public_only());
        let _ = check_url(&format!("https://{text}"), &policy(&["0.0.0.0/0", "::/0"]));
    }
}

#[track_caller]
fn check(text: &str, ranges: &[&str], expected: Result<&str, UrlProblem>) {
    let answer = check_url(text, &policy(ranges));
    assert_eq!(answer.as_ref().map(Url::as_str).map_err(|problem| *problem), expected, "{text}");
}

#[test]
fn every_spelling_of_loopback_is_seen_through() {
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "１２７.0.0.1",
        "①②⑦.⓪.⓪.①",
        "127。0。0。1",
        "%31%32%37.0.0.1",
    ] {
        check(&format!("https://{host}/x"), &[], Err(UrlProblem::Blocked));
        check(&format!("http://{host}/x"), &["127.0.0.0/8"], Ok("http://127.0.0.1/x"));
    }
    check("https:\\\\127.0.0.1\\x", &[], Err(UrlProblem::Blocked));
    check("https:127.0.0.1/x", &[], Err(UrlProblem::Blocked));
    check("ht\ttps://127.0.\n0.1/x", &[], Err(UrlProblem::Blocked));
    check("https://[::ffff:7f00:1]/x", &[], Err(UrlProblem::Blocked));
    check("https://[::1]/x", &[], Err(UrlProblem::Blocked));
}

#[test]
fn names_of_this_machine_need_loopback() {
    for host in ["localhost", "LOCALHOST", "localhost.", "a.localhost", "a.b.localhost.", "ｌocalhost"] {
        check(&format!("https://{host}/"), &[], Err(UrlProblem::Blocked));
        check(&format!("https://{host}/"), &["10.0.0.0/8"], Err(UrlProblem::Blocked));
        assert!(check_url(&format!("http://{host}/"), &policy(&["127.0.0.0/8"])).is_ok(), "{host}");
    }
    check("https://notlocalhost/", &[], Ok("https://notlocalhost/"));
}

#[test]
fn other_refusals_name_their_reason() {
    check("https://example.com/hook?a=b", &[], Ok("https://example.com/hook?a=b"));
    check("HTTPS://EXAMPLE.com:443", &[], Ok("https://example.com/"));
    check("https://8.8.8.8/", &[], Ok("https://8.8.8.8/"));
    check("example.com/hook", &[], Err(UrlProblem::Unreadable));
    check("", &[], Err(UrlProblem::Unreadable));
    check("https://", &[], Err(UrlProblem::NoHost));
    check("https://./", &[], Err(UrlProblem::NoHost));
    check("https://a../", &[], Err(UrlProblem::NoHost));
    check("gopher://127.0.0.1/", &[], Err(UrlProblem::Scheme));
    check("file:///etc/passwd", &[], Err(UrlProblem::Scheme));
    check("ws://example.com/", &[], Err(UrlProblem::Scheme));
    check("https://user@example.com/", &[], Err(UrlProblem::Userinfo));
    check("https://:pw@example.com/", &[], Err(UrlProblem::Userinfo));
    check("https://example.com/#x", &[], Err(UrlProblem::Fragment));
    check("https://example.com/#", &[], Err(UrlProblem::Fragment));
    check(&format!("https://example.com/{}", "a".repeat(2048)), &[], Err(UrlProblem::TooLong));
    check(&format!("https://example.com/{}", "é".repeat(1000)), &[], Err(UrlProblem::TooLong));
}

#[test]
fn plain_http_needs_a_listed_range() {
    check("http://example.com/", &[], Err(UrlProblem::PlainHttp));
    check("http://8.8.8.8/", &[], Err(UrlProblem::PlainHttp));
    check("http://127.0.0.1/", &[], Err(UrlProblem::Blocked));
    check("http://8.8.8.8/", &["10.0.0.0/8"], Err(UrlProblem::PlainHttp));
    check("http://example.com/", &["10.0.0.0/8"], Ok("http://example.com/"));
    check("http://10.1.2.3:8080/", &["10.0.0.0/8"], Ok("http://10.1.2.3:8080/"));
    assert!(UrlProblem::PlainHttp.to_string().contains("--egress-allow"));
    assert!(UrlProblem::Blocked.to_string().contains("--egress-allow"));
}

#[test]
fn the_servers_own_address_is_no_destination() {
    let everything = policy(&["0.0.0.0/0", "::/0"]);
    let at_loopback = everything.clone().except("127.0.0.1:8700".parse().unwrap());
    let anywhere = everything.except("0.0.0.0:8700".parse().unwrap());
    for (url, by_one, by_all) in [
        ("http://127.0.0.1:8700/x", true, true),
        ("http://2130706433:8700/x", true, true),
        ("http://[::ffff:127.0.0.1]:8700/x", true, true),
        ("http://localhost:8700/x", true, true),
        ("http://a.localhost:8700/x", true, true),
        ("http://0.0.0.0:8700/x", true, true),
        ("http://127.0.0.2:8700/x", false, true),
        ("http://[::1]:8700/x", false, true),
        ("http://127.0.0.1:8701/x", false, false),
        ("http://localhost/x", false, false),
        ("http://10.0.0.1:8700/x", false, false),
    ] {
        for (policy, expected) in [(&at_loopback, by_one), (&anywhere, by_all)] {
            let is_own = check_url(url, policy) == Err(UrlProblem::Own);
            assert_eq!(is_own, expected, "{url}");
        }
    }
}
