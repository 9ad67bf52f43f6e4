//! The servers come, can be killed and come back where they were, and leave nothing.

use std::net::TcpStream;
use std::path::PathBuf;

use super::{Either, Services};

#[test]
fn they_come_back_after_a_kill_and_leave_nothing() {
    let mut services = Services::start_own().expect("the servers start");
    let environment = services.environment();
    assert!(listens(&services.postgres_url()) && listens(&services.redis_url()));

    services.kill_postgres().expect("PostgreSQL can be killed");
    assert!(!listens(&services.postgres_url()));
    services.resume_postgres().expect("PostgreSQL starts again");
    services.kill_redis().expect("Redis can be killed");
    assert!(!listens(&services.redis_url()));
    services.resume_redis().expect("Redis starts again");
    services.flush_redis().expect("Redis can be emptied");
    assert_eq!(services.environment(), environment, "clients would not find them again");

    let folder = folder(&services);
    assert!(folder.is_dir());
    drop(services);
    assert!(!folder.exists());
    assert!(environment.iter().all(|(_, url)| !listens(url)));
}

#[test]
fn what_a_dead_run_left_is_cleared_away() {
    let services = Services::start_own().expect("the servers start");
    let (abandoned, folder) = (services.postgres_url(), folder(&services));
    forget_owner(services);
    assert!(listens(&abandoned), "the dead run's PostgreSQL still runs");
    drop(Services::start_own().expect("the next run starts"));
    assert!(!listens(&abandoned) && !folder.exists());
}

#[test]
fn those_of_others_are_left_alone() {
    let theirs = Services::start_beside(Some("postgres://a/b".to_owned()), Some("redis://c".to_owned()));
    let mut theirs = theirs.expect("nothing is started");
    let refused = theirs.kill_postgres().expect_err("not ours to kill").to_string();
    assert!(refused.contains("TIDEGATE_TEST_POSTGRES"), "{refused}");
    assert!(theirs.flush_redis().is_err());
}

/// As if the process had been killed: the lock goes, everything else stays.
fn forget_owner(services: Services) {
    services._home.expect("it has a folder").abandon();
}

fn folder(services: &Services) -> PathBuf {
    match (&services._home, &services.postgres) {
        (Some(home), Either::Ours(_)) => home.path().to_path_buf(),
        _ => unreachable!("the test started its own"),
    }
}

fn listens(url: &str) -> bool {
    let address = url.rsplit('@').next().unwrap_or(url).trim_start_matches("redis://");
    let address = address.split('/').next().unwrap_or(address);
    TcpStream::connect(address).is_ok()
}
