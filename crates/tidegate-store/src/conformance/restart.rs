//! Restart: what was in hand when a process ended is due again under the same id (P2, P3).

use std::time::Duration;

use super::bench::{Bench, bodies, draft, room};
use super::{Case, named};
use crate::RetryOutcome;

pub(super) fn cases() -> Vec<Case> {
    named!["restart":
        claims_are_void_after_a_restart,
        in_a_lane_the_older_goes_first_after_a_restart,
        incarnations_only_grow,
        the_salt_stays,
        latest_is_never_before_any_row,
        how_long_sweeping_waits_is_kept,
    ]
}

async fn claims_are_void_after_a_restart(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let sent = [draft("1").saying("1").to(subscriber), draft("2").saying("2").to(subscriber)];
    let in_memory = bench.send_into(room(1, &[subscriber]), sent).await.jobs;
    let claimed = bench.claim_one(subscriber).await;
    bench.pass(3_600_000);
    bench.reopen().await;
    let jobs = bench.claim_all(subscriber).await;
    assert_eq!(bodies(&jobs), ["1", "2"]);
    assert_eq!(
        jobs.iter().map(|job| job.delivery).collect::<Vec<_>>(),
        [in_memory[0].delivery, claimed.delivery]
    );
    assert!(jobs.iter().all(|job| job.token == 2 && job.attempts == 0));
}

async fn in_a_lane_the_older_goes_first_after_a_restart(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(["1", "2"].map(|name| draft(name).saying(name).lane(subscriber, 1))).await;
    let one = bench.claim_one(subscriber).await;
    bench.exhaust(&one).await;
    bench.claim_one(subscriber).await;
    assert_eq!(bench.retry(one.delivery).await, RetryOutcome::Queued);
    bench.reopen().await;
    bench.audit().await;
    for name in ["1", "2"] {
        let job = bench.claim_one(subscriber).await;
        assert_eq!(bodies(std::slice::from_ref(&job)), [name]);
        bench.deliver(&job).await;
    }
}

async fn incarnations_only_grow(mut bench: Bench) {
    let mut last = bench.store().incarnation();
    for _ in 0..3 {
        bench.reopen().await;
        assert_ne!(bench.store().incarnation(), last);
        last = bench.store().incarnation();
    }
}

async fn the_salt_stays(mut bench: Bench) {
    let salt = bench.store().salt().to_vec();
    assert!(!salt.is_empty());
    bench.reopen().await;
    assert_eq!(bench.store().salt(), salt);
}

async fn how_long_sweeping_waits_is_kept(mut bench: Bench) {
    let (day, hour) = (Duration::from_hours(24), Duration::from_hours(1));
    assert_eq!(bench.store().sweep_wait(None).await.unwrap(), Duration::ZERO);
    for wait in [day, hour, Duration::ZERO, hour] {
        assert_eq!(bench.store().sweep_wait(Some(wait)).await.unwrap(), wait);
        bench.reopen().await;
        assert_eq!(bench.store().sweep_wait(None).await.unwrap(), wait, "over a restart");
    }
}

/// A clock that begins before anything written would make due what is not, and put new rows before old ones.
async fn latest_is_never_before_any_row(mut bench: Bench) {
    let begin = bench.now;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").to(subscriber)]).await;
    let jobs = bench.claim_all(subscriber).await;
    let expect = async |bench: &mut Bench| {
        let now = std::mem::replace(&mut bench.now, begin);
        bench.reopen().await;
        bench.now = now;
        assert!(bench.store().latest() >= now, "{} is before {now}", bench.store().latest());
    };
    bench.pass(1_000);
    bench.deliver(&jobs[1]).await;
    bench.pass(1_000);
    bench.exhaust(&jobs[0]).await;
    expect(&mut bench).await;
    bench.pass(1_000);
    bench.retry(jobs[0].delivery).await;
    expect(&mut bench).await;
    bench.pass(1_000);
    bench.pause(subscriber).await;
    expect(&mut bench).await;
    bench.pass(1_000);
    bench.send([draft("3")]).await;
    expect(&mut bench).await;
}
