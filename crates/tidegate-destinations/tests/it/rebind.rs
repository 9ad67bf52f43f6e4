//! Goal: a name server that changes its mind between check and connect never leads us to an address that is not
//! allowed. Method: the operating system's own resolver asks a server of ours that lies in every way we know, and a
//! canary on loopback must see nobody.
//!
//! The resolver reads `/etc/resolv.conf` and asks port 53, so the test runs itself again in namespaces of its own
//! (user, mount, network). There a public address is an address of this machine too, and nothing leaves it. No root is
//! needed. Where the machine forbids such namespaces this is said on stderr, and is a failure if `CI=true`.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::attempt::ErrorClass;
use tidegate_core::egress::Policy;
use tidegate_destinations::{HttpTransport, SystemResolver, Transport};

use crate::name_server::{Lie, NameServer};
use crate::support::*;

const NAME: &str = "rebind::a_name_server_that_changes_its_mind_never_leads_to_the_canary";
/// Set for the run inside.
const INSIDE: &str = "TIDEGATE_TEST_REBIND_INSIDE";
/// What the set-up ends with when the machine does not allow it.
const NOT_ALLOWED: i32 = 77;
const PUBLIC: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
const SET_UP: &str = "\
{ ip link set lo up && ip addr add 93.184.216.34/32 dev lo &&
mount --bind \"$1/resolv.conf\" /etc/resolv.conf && mount --bind \"$1/nsswitch.conf\" /etc/nsswitch.conf; } || exit 77
shift; exec \"$@\"";

#[test]
fn a_name_server_that_changes_its_mind_never_leads_to_the_canary() {
    if env::var_os(INSIDE).is_some() {
        return inside();
    }
    let output = run_inside();
    let is_allowed = output.as_ref().is_ok_and(is_world_set_up);
    if !is_allowed {
        let note = format!("not proven here: this machine allows no namespaces of one's own: {output:?}\n");
        assert_ne!(env::var("CI").as_deref(), Ok("true"), "{note}");
        // Past the capture of the test's output, which nobody reads when a test passes.
        let _ = io::stderr().write_all(note.as_bytes());
        return;
    }
    let output = output.expect("it ran");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("1 passed"), "{told}");
}

fn run_inside() -> io::Result<Output> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rebind");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")?;
    fs::write(folder.join("nsswitch.conf"), "hosts: dns\n")?;
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "--net", "sh", "-c", SET_UP, "sh"]).arg(folder);
    command.arg(env::current_exe()?).args(["--exact", NAME, "--nocapture"]);
    command.env(INSIDE, "yes").output()
}

/// `unshare` itself fails with 1 and a line of its own, the set-up with a code nobody else uses.
fn is_world_set_up(output: &Output) -> bool {
    let is_refused = String::from_utf8_lossy(&output.stderr).starts_with("unshare:");
    output.status.code() != Some(NOT_ALLOWED) && !is_refused
}

/// What a thousand attempts came to.
#[derive(Debug, Default)]
struct Tally {
    dialled: usize,
    blocked: usize,
    unresolved: usize,
}

fn inside() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let names = NameServer::start(UdpSocket::bind(("127.0.0.1", 53)).unwrap(), PUBLIC);
        let canary = Canary::new();
        let listener = tokio::net::TcpListener::bind((PUBLIC, canary.port)).await.unwrap();
        // Hangs up before the handshake: that it was dialled is all we want to know.
        let public = Receiver::on(listener, |_, peer| async move {
            drop(peer);
            Ok(())
        });
        let mut attempts = 0;
        for (lie, count) in [
            (Lie::Flip, 400),
            (Lie::FlipSix, 200),
            (Lie::Mixed, 200),
            (Lie::Mapped, 98),
            (Lie::ServerFailure, 50),
            (Lie::NoSuchName, 50),
            (Lie::Silence, 2),
        ] {
            let before = public.accepted();
            let tally = attempt(lie, count, &canary).await;
            check(lie, &tally, count);
            assert_eq!(public.accepted() - before, tally.dialled, "{lie:?}");
            assert_eq!(names.asked(lie), count, "{lie:?}: one question per connection");
            attempts += count;
        }
        assert_eq!(attempts, 1_000);
        can_be_seen(&canary).await;
    });
}

async fn attempt(lie: Lie, count: usize, canary: &Canary) -> Tally {
    let transport = HttpTransport::new(Policy::public_only(), Arc::new(SystemResolver::default()));
    let receiver = target(&format!("https://{}:{}/x", lie.name(), canary.port));
    let mut tally = Tally::default();
    for _ in 0..count {
        let exchange = transport.send(post(&receiver, PLENTY)).await;
        assert_eq!(canary.connections(), 0, "{lie:?}");
        let failure = exchange.result.as_ref().expect_err("nobody answers here");
        match failure.class {
            _ if exchange.phases.connect_us.is_some() => tally.dialled += 1,
            ErrorClass::Blocked => tally.blocked += 1,
            ErrorClass::Dns => tally.unresolved += 1,
            other => panic!("{other:?}: {}", failure.detail),
        }
    }
    tally
}

/// A machine that is too busy to answer within a second turns a few attempts into unresolved ones.
fn check(lie: Lie, tally: &Tally, count: usize) {
    let most = count * 4 / 5;
    let is_fine = match lie {
        Lie::Flip | Lie::FlipSix => tally.dialled > count / 3 && tally.blocked > count / 3,
        Lie::Mixed | Lie::Mapped => tally.dialled == 0 && tally.blocked > most,
        Lie::ServerFailure | Lie::NoSuchName | Lie::Silence | Lie::None => tally.unresolved == count,
    };
    assert!(is_fine, "{lie:?}: {tally:?}");
}

/// The canary is alive, and sees whoever is let through.
async fn can_be_seen(canary: &Canary) {
    let transport = HttpTransport::new(policy(&["127.0.0.0/8"]), Arc::new(SystemResolver::default()));
    let receiver = target(&format!("http://{}:{}/x", Lie::None.name(), canary.port));
    failure(&transport, &receiver, Duration::from_secs(2)).await;
    assert_eq!(canary.connections(), 1);
}
