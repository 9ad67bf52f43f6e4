//! Room: what goes straight to memory, what waits in the store, and how it comes back, in order.

use tidegate_core::delivery::Status;
use tidegate_core::retry::Next;

use super::bench::{Bench, PLENTY, bodies, draft, finished, room};
use super::{Case, named};
use crate::{Group, Refill, Refilled, Room};

pub(super) fn cases() -> Vec<Case> {
    named!["room":
        what_fits_goes_straight_to_memory,
        what_does_not_fit_spills,
        room_is_per_subscriber,
        bytes_bound_what_goes_to_memory,
        a_refill_brings_the_oldest_first,
        a_refill_brings_what_became_due_in_that_order,
        a_refill_tells_what_it_left,
        a_refill_stops_at_the_bytes_but_never_sticks,
        a_refill_tells_when_the_next_is_due,
        what_is_claimed_is_not_claimed_again,
        a_refill_sees_what_its_own_group_spilled,
        due_tells_the_first_of_each,
    ]
}

async fn what_fits_goes_straight_to_memory(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.pass(5);
    let committed = bench.send_into(room(2, &[subscriber]), [draft("1").to(subscriber)]).await;
    let [job] = &committed.jobs[..] else { panic!("one job") };
    let row = bench.row(subscriber, "1").await;
    assert_eq!((job.delivery, row.status), (row.no, Status::Sending));
    assert_eq!((job.subscriber, job.project, job.lane), (subscriber, 1, None));
    assert_eq!((job.attempts, job.tries, job.token), (0, 0, 1));
    assert_eq!((job.accepted_at, &job.body[..]), (bench.now, &b"{\"id\":\"1\"}"[..]));
    assert!(committed.spilled.is_empty());
    assert!(bench.claim_all(subscriber).await.is_empty(), "it is in memory's hands");
}

async fn what_does_not_fit_spills(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let drafts = (0..5).map(|n| draft(format!("e{n}")).saying(format!("{n}")).to(subscriber));
    let committed = bench.send_into(room(2, &[subscriber]), drafts).await;
    assert_eq!(bodies(&committed.jobs), ["0", "1"]);
    assert_eq!(committed.spilled, [subscriber]);
    assert_eq!(bodies(&bench.claim_all(subscriber).await), ["2", "3", "4"], "in the order of acceptance");
}

async fn room_is_per_subscriber(bench: Bench) {
    let (full, free) = (bench.subscriber("full").await, bench.subscriber("free").await);
    let drafts = (0..3).map(|n| draft(format!("e{n}")).to(full).to(free));
    let mut room = room(3, &[free]);
    room.set(full, 1);
    let committed = bench.send_into(room, drafts).await;
    let count = |subscriber| committed.jobs.iter().filter(|job| job.subscriber == subscriber).count();
    assert_eq!((count(full), count(free)), (1, 3));
    assert_eq!(committed.spilled, [full]);
}

async fn bytes_bound_what_goes_to_memory(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let other = bench.subscriber("other").await;
    let mut room = Room::new(3_500);
    room.set(subscriber, 100);
    room.set(other, 100);
    let drafts = (0..4).map(|n| draft(format!("e{n}")).saying(vec![b'x'; 1_000]).to(subscriber));
    let drafts = drafts.chain([draft("e4").saying(vec![b'x'; 9_000]).to(other)]);
    let committed = bench.send_into(room, drafts).await;
    let count = |subscriber| committed.jobs.iter().filter(|job| job.subscriber == subscriber).count();
    assert_eq!(count(subscriber), 2, "nobody holds more than is left free");
    assert_eq!(count(other), 1, "whoever holds nothing may take one, whatever its size");
    assert_eq!(committed.spilled, [subscriber]);
}

async fn a_refill_brings_the_oldest_first(bench: Bench) {
    let (one, two) = (bench.subscriber("one").await, bench.subscriber("two").await);
    bench.send((0..10).map(|n| draft(format!("e{n}")).saying(format!("{n}")).to(one).to(two))).await;
    let (jobs, _) = bench.refill(one, 4).await;
    assert_eq!(bodies(&jobs), ["0", "1", "2", "3"]);
    assert!(jobs.iter().all(|job| job.subscriber == one && job.token == 1));
    assert_eq!(bodies(&bench.refill(one, 3).await.0), ["4", "5", "6"]);
    assert_eq!(bodies(&bench.refill(two, 2).await.0), ["0", "1"]);
    assert_eq!(bodies(&bench.claim_all(one).await), ["7", "8", "9"]);
}

async fn a_refill_brings_what_became_due_in_that_order(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send((0..3).map(|n| draft(format!("e{n}")).saying(format!("{n}")).to(subscriber))).await;
    let jobs = bench.claim_all(subscriber).await;
    let due = [bench.later(300), bench.later(100), bench.later(200)];
    let results = jobs.iter().zip(due).map(|(job, at)| finished(job, Next::RetryAt(at), bench.now)).collect();
    bench.commit(Group { results, ..Group::default() }).await;
    bench.pass(150);
    bench.send([draft("e3").saying("3").to(subscriber)]).await;
    assert_eq!(bodies(&bench.claim_all(subscriber).await), ["1", "3"]);
    bench.pass(150);
    assert_eq!(bodies(&bench.claim_all(subscriber).await), ["2", "0"]);
}

async fn a_refill_tells_what_it_left(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let nothing = Refilled { subscriber, drained: true, next_due: None };
    assert_eq!(bench.refill(subscriber, 5).await.1, nothing);
    bench.send((0..5).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    let left = Refilled { subscriber, drained: false, next_due: Some(bench.now) };
    assert_eq!(bench.refill(subscriber, 0).await.1, left);
    assert_eq!(bench.refill(subscriber, 4).await.1, left);
    assert_eq!(bench.refill(subscriber, 1).await.1, nothing, "exactly as many as there were");
}

async fn a_refill_stops_at_the_bytes_but_never_sticks(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send((0..4).map(|n| draft(format!("e{n}")).saying(vec![b'x'; 1_000]).to(subscriber))).await;
    let refills = vec![Refill { subscriber, jobs: 10 }];
    for (bytes, expected, drained) in [(0, 1, false), (1, 1, false), (3_500, 2, true)] {
        let group = Group { refills: refills.clone(), room: Room::new(bytes), ..Group::default() };
        let committed = bench.commit(group).await;
        assert_eq!(committed.jobs.len(), expected, "with {bytes} bytes");
        assert_eq!(committed.refilled[0].drained, drained, "with {bytes} bytes");
    }
}

async fn a_refill_tells_when_the_next_is_due(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send((0..2).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    let jobs = bench.claim_all(subscriber).await;
    let (soon, late) = (bench.later(1_000), bench.later(9_000));
    let committed = bench.finish(&jobs[0], Next::RetryAt(late)).await;
    assert_eq!(committed.postponed, [(subscriber, late)]);
    bench.finish(&jobs[1], Next::PostponedTo(soon)).await;
    let waiting = |next_due| Refilled { subscriber, drained: true, next_due: Some(next_due) };
    assert_eq!(bench.refill(subscriber, 5).await.1, waiting(soon));
    bench.pass(999);
    assert!(bench.claim_all(subscriber).await.is_empty(), "not a millisecond early");
    bench.pass(1);
    let (jobs, refilled) = bench.refill(subscriber, 5).await;
    assert_eq!((jobs.len(), refilled), (1, waiting(late)));
}

async fn what_is_claimed_is_not_claimed_again(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send((0..4).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    let refills = vec![Refill { subscriber, jobs: 2 }, Refill { subscriber, jobs: 10 }];
    let group = Group { refills, room: Room::new(PLENTY), ..Group::default() };
    let committed = bench.commit(group).await;
    let mut claimed: Vec<i64> = committed.jobs.iter().map(|job| job.delivery).collect();
    claimed.dedup();
    assert_eq!(claimed.len(), 4);
    assert_eq!(committed.refilled.iter().map(|refilled| refilled.drained).collect::<Vec<_>>(), [false, true]);
    assert!(bench.claim_all(subscriber).await.is_empty());
}

async fn a_refill_sees_what_its_own_group_spilled(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let submissions = vec![super::bench::submission([draft("1").to(subscriber), draft("2").to(subscriber)])];
    let refills = vec![Refill { subscriber, jobs: 1 }];
    let group = Group { submissions, refills, room: Room::new(PLENTY), ..Group::default() };
    let committed = bench.commit(group).await;
    assert_eq!(bodies(&committed.jobs), ["{\"id\":\"1\"}"]);
    assert!(!committed.refilled[0].drained);
}

async fn due_tells_the_first_of_each(mut bench: Bench) {
    let (a, b, idle) =
        (bench.subscriber("a").await, bench.subscriber("b").await, bench.subscriber("i").await);
    assert_eq!(bench.store().due().await.unwrap(), []);
    bench.send([draft("1").to(a).to(b).to(idle)]).await;
    bench.deliver(&bench.claim_one(idle).await).await;
    bench.finish(&bench.claim_one(b).await, Next::RetryAt(bench.later(5_000))).await;
    let first = bench.now;
    bench.pass(100);
    bench.send([draft("2").to(a)]).await;
    assert_eq!(
        bench.store().due().await.unwrap(),
        [(a, first), (b, first.plus(std::time::Duration::from_secs(5)))]
    );
    bench.claim_all(a).await;
    assert_eq!(bench.store().due().await.unwrap().len(), 1, "what memory holds is not in the store");
    bench.reopen().await;
    assert_eq!(bench.store().due().await.unwrap().len(), 2, "but it is again after a restart");
}
