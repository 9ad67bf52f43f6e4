//! When a window closes, and why.

use tidegate_core::fold::{CancelOn, ClosedBy, Mode, Terms};
use tidegate_core::id::DeliveryKey;
use tidegate_core::payload::Payload;
use tidegate_core::time::Span;

use super::super::bench::{Bench, PROJECT, START, draft, new_subscriber, room, statuses, submission};
use super::{Case, bundle, carried, close, drain, named, open, quiet, terms, told, window};
use crate::{Bundled, Change, Group, NewSubscriber, SubscriberUpdate, UnitStatus};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        a_window_counts_from_its_first_event,
        a_quiet_period_begins_anew_until_the_longest_wait,
        batches_close_at_regular_times,
        what_comes_after_its_time_opens_the_next,
        what_is_due_closes_before_anything_comes,
        it_closes_when_it_holds_enough_events,
        it_closes_before_it_is_too_large,
        the_first_may_go_ahead,
        a_recovery_ends_a_window_without_a_delivery,
        a_recovery_that_goes_by_itself_ends_a_window_too,
        a_window_is_ended_by_the_condition_it_opened_with,
        too_many_windows_close_the_oldest,
        keys_and_subscribers_are_apart,
        what_was_there_already_does_not_join,
        it_keeps_the_terms_it_opened_with,
        only_so_many_close_at_once,
        it_goes_straight_to_memory_if_there_is_room,
        a_bundle_is_whole_and_in_order,
        many_arrivals_in_one_group_fill_several_windows,
    ]
}

async fn a_window_counts_from_its_first_event(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(10_000);
    let committed = bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    assert!(committed.closed.is_empty() && committed.jobs.is_empty() && committed.spilled.is_empty());
    let due = bench.later(10_000);
    assert_eq!(committed.close_due, Some(due));
    assert_eq!(bench.store().close_due().await.unwrap(), Some(due));
    for (id, ms) in [("2", 4_000), ("3", 5_999)] {
        bench.pass(ms);
        bench.send([draft(id).folded(subscriber, &terms, "a")]).await;
    }
    let [row] = &open(&bench).await[..] else { panic!("one window gathers") };
    assert_eq!((row.count, row.due_at, row.opened_at, row.mode), (3, due, START, "window"));
    let nothing = close(&bench).await;
    assert!(nothing.closed.is_empty(), "never before its time");
    assert_eq!(nothing.close_due, Some(due));
    bench.pass(1);
    let committed = close(&bench).await;
    let [closed] = committed.closed[..] else { panic!("one closes") };
    assert_eq!((closed.subscriber, closed.count, closed.closed_by), (subscriber, 3, ClosedBy::Window));
    assert_eq!((closed.opened_at, closed.due_at, closed.due_by), (START, due, ClosedBy::Window));
    assert_eq!((committed.close_due, committed.spilled), (None, vec![subscriber]));
    assert!(open(&bench).await.is_empty());
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 3")]));
}

async fn a_quiet_period_begins_anew_until_the_longest_wait(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = quiet(10_000, 25_000);
    for id in ["1", "2", "3"] {
        let committed = bench.send([draft(id).folded(subscriber, &terms, "a")]).await;
        let due = bench.later(10_000).min(START.plus(std::time::Duration::from_millis(25_000)));
        assert_eq!(committed.close_due, Some(due));
        bench.pass(9_000);
        if id != "3" {
            assert!(close(&bench).await.closed.is_empty());
        }
    }
    assert_eq!(close(&bench).await.closed[0].closed_by, ClosedBy::MaxWait, "something came all the time");
    bench.send([draft("4").folded(subscriber, &terms, "a")]).await;
    bench.pass(9_999);
    assert!(close(&bench).await.closed.is_empty());
    bench.pass(1);
    assert_eq!(close(&bench).await.closed[0].closed_by, ClosedBy::Quiet);
    let expected = told(&[(ClosedBy::MaxWait, "1 2 3"), (ClosedBy::Quiet, "4")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn batches_close_at_regular_times(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = terms(Mode::Batch { every: Span::from_ms(30_000) });
    bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    let due = open(&bench).await[0].due_at;
    assert!(due > bench.now && due <= bench.later(30_000));
    bench.send([draft("2").folded(subscriber, &terms, "b")]).await;
    assert!(open(&bench).await.iter().all(|row| row.due_at == due), "for all windows the same");
    bench.now = due;
    assert_eq!(close(&bench).await.closed.len(), 2);
    bench.send([draft("3").folded(subscriber, &terms, "a")]).await;
    assert_eq!(open(&bench).await[0].due_at, bench.later(30_000));
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Every, "1"), (ClosedBy::Every, "2")]));
}

async fn what_comes_after_its_time_opens_the_next(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = quiet(1_000, 60_000);
    bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    bench.pass(1_000);
    // Nobody has closed it: the process was busy, or dead.
    let committed = bench.send([draft("2").folded(subscriber, &terms, "a")]).await;
    assert_eq!(committed.closed[0].closed_by, ClosedBy::Quiet);
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Quiet, "1")]));
    let [row] = &open(&bench).await[..] else { panic!("the next gathers") };
    assert_eq!((row.count, row.due_at), (1, bench.later(1_000)));
}

async fn what_is_due_closes_before_anything_comes(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").folded_in(subscriber, &window(1_000), "a", 7)]).await;
    bench.pass(1_000);
    let submissions = vec![submission([draft("2").lane(subscriber, 7)])];
    let group = Group { submissions, close: 1_000, room: room(9, &[subscriber]), ..Group::default() };
    let committed = bench.commit(group).await;
    let [job] = &committed.jobs[..] else { panic!("one of a lane goes, not {:?}", committed.jobs) };
    assert_eq!(carried(&bench, job).await, (ClosedBy::Window, "1".to_owned()));
}

async fn it_closes_when_it_holds_enough_events(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 2, ..window(10_000) };
    bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    let committed = bench.send(["2", "3"].map(|id| draft(id).folded(subscriber, &terms, "a"))).await;
    let [closed] = committed.closed[..] else { panic!("one is full") };
    assert_eq!((closed.closed_by, closed.count), (ClosedBy::MaxEvents, 2));
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::MaxEvents, "1 2")]));
    assert_eq!(open(&bench).await[0].count, 1);
}

async fn it_closes_before_it_is_too_large(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_bytes: 1_024, ..window(10_000) };
    let sized = |id: &str, bytes: usize| {
        let body = format!("{{\"id\":\"{id}\",\"x\":\"{}\"}}", "x".repeat(bytes));
        draft(id).saying(body).folded(subscriber, &terms, "a")
    };
    bench.send([sized("1", 500), sized("2", 700)]).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::MaxBytes, "1")]), "two are too much");
    bench.send([sized("3", 2_000), sized("4", 1)]).await;
    let expected = told(&[(ClosedBy::MaxBytes, "2"), (ClosedBy::MaxBytes, "3")]);
    assert_eq!(drain(&bench, subscriber).await, expected, "one alone may be larger");
    let [row] = &open(&bench).await[..] else { panic!("the last one gathers") };
    assert_eq!((row.count, row.bytes), (1, sized("4", 1).body.len() as u64));
}

async fn the_first_may_go_ahead(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { leading: true, ..window(1_000) };
    bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Leading, "1")]), "at once, alone");
    bench.send(["2", "3"].map(|id| draft(id).folded(subscriber, &terms, "a"))).await;
    assert!(bench.claim_all(subscriber).await.is_empty());
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "2 3")]));
    bench.send([draft("4").folded(subscriber, &terms, "a")]).await;
    bench.pass(1_000);
    let committed = close(&bench).await;
    assert_eq!((committed.closed.len(), committed.closed[0].count), (1, 0), "nothing came");
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Leading, "4")]));
    assert_eq!(bench.rows(subscriber).await.len(), 3);
}

async fn a_recovery_ends_a_window_without_a_delivery(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let plain = window(1_000);
    bench
        .send([draft("1").folded(subscriber, &plain, "a"), draft("x").folded(subscriber, &plain, "b")])
        .await;
    let committed = bench.send([draft("2").folded(subscriber, &plain, "a").cancelling()]).await;
    assert_eq!((committed.closed[0].closed_by, committed.closed[0].count), (ClosedBy::CancelOn, 2));
    assert_eq!(open(&bench).await.len(), 1, "the other key goes on");
    bench.send([draft("3").folded(subscriber, &plain, "a").cancelling()]).await;
    bench.pass(1_000);
    close(&bench).await;
    let expected = told(&[(ClosedBy::Window, "x"), (ClosedBy::Window, "3")]);
    assert_eq!(drain(&bench, subscriber).await, expected, "a recovery alone is news");
    let leading = Terms { leading: true, ..window(1_000) };
    bench.send([draft("4").folded(subscriber, &leading, "c")]).await;
    bench.send([draft("5").folded(subscriber, &leading, "c").cancelling()]).await;
    bench.pass(1_000);
    close(&bench).await;
    let expected = told(&[(ClosedBy::Leading, "4"), (ClosedBy::Window, "5")]);
    assert_eq!(drain(&bench, subscriber).await, expected, "whoever heard of the failure hears of its end");
}

async fn a_recovery_that_goes_by_itself_ends_a_window_too(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let plain = window(1_000);
    for (round, lane) in [0, 7].into_iter().enumerate() {
        let id = |name: &str| format!("{name}{round}");
        let folded = |name: &str, key| draft(id(name)).folded_in(subscriber, &plain, key, lane);
        bench.send([folded("failure", "a"), folded("other", "b")]).await;
        bench.reopen().await;
        let committed = bench.send([folded("recovery", "a").cancelling().passing()]).await;
        let ended: Vec<_> = committed.closed.iter().map(|one| (one.closed_by, one.count)).collect();
        assert_eq!(ended, [(ClosedBy::CancelOn, 1)], "without it");
        let [job] = &bench.claim_all(subscriber).await[..] else { panic!("it goes at once") };
        assert!(job.fold.is_none() && !job.body.is_empty());
        bench.deliver(job).await;
        let none = bench.send([folded("again", "a").cancelling().passing()]).await;
        assert!(none.closed.is_empty(), "there is nothing to end");
        bench.deliver(&bench.claim_one(subscriber).await).await;
        bench.send([folded("new", "a")]).await;
        bench.pass(1_000);
        let late = bench.send([folded("late", "a").cancelling().passing()]).await;
        assert!(late.closed.is_empty(), "its time was over, though nobody had closed it");
        bench.deliver(&bench.claim_one(subscriber).await).await;
        close(&bench).await;
        let expected = told(&[(ClosedBy::Window, &id("other")), (ClosedBy::Window, &id("new"))]);
        assert_eq!(drain(&bench, subscriber).await, expected);
    }
    // Of one group, in the order in which they come.
    let folded = |id| draft(id).folded(subscriber, &plain, "a");
    let group =
        [folded("1"), folded("2").cancelling().passing(), folded("3"), folded("2").cancelling().passing()];
    let committed = bench.send(group).await;
    assert_eq!(
        (committed.closed.len(), open(&bench).await[0].count),
        (1, 1),
        "what was there ends nothing again"
    );
}

async fn a_window_is_ended_by_the_condition_it_opened_with(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let plain = |cancel_on| Terms { cancel_on, ..window(1_000) };
    let (before, since) = (plain(CancelOn::When(u64::MAX)), plain(CancelOn::When(1)));
    let folded = |id, terms, key| draft(id).folded(subscriber, terms, key);
    let without = plain(CancelOn::Never);
    bench.send([folded("1", &before, "a"), folded("2", &before, "b"), folded("3", &without, "c")]).await;
    bench.reopen().await;
    let late = [
        folded("4", &since, "a").fulfilling(&[1]),
        folded("5", &since, "b").fulfilling(&[1, u64::MAX]),
        folded("6", &since, "c").fulfilling(&[1, u64::MAX]),
    ];
    let committed = bench.send(late).await;
    let ended: Vec<_> = committed.closed.iter().map(|window| (window.closed_by, window.count)).collect();
    assert_eq!(ended, [(ClosedBy::CancelOn, 2)], "by its own condition, and by no other");
    bench.pass(1_000);
    close(&bench).await;
    let expected = told(&[(ClosedBy::Window, "1 4"), (ClosedBy::Window, "3 6")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn too_many_windows_close_the_oldest(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let other =
        bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Default::default() }).await.no;
    let new = NewSubscriber { project: other, ..new_subscriber("theirs") };
    let theirs = bench.change(Change::CreateSubscriber(new)).await.no;
    bench.store().limit_windows(3);
    let terms = window(60_000);
    bench.send([draft("x").of(other).folded(theirs, &terms, "a")]).await;
    for id in ["1", "2", "3"] {
        bench.send([draft(id).folded(subscriber, &terms, id)]).await;
    }
    bench.send([draft("4").folded(subscriber, &terms, "1")]).await;
    assert_eq!(open(&bench).await.len(), 3, "who joins needs no room");
    let committed = bench.send([draft("5").folded(subscriber, &terms, "5")]).await;
    assert_eq!(committed.closed.iter().map(|closed| closed.closed_by).collect::<Vec<_>>(), [ClosedBy::Limit]);
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Limit, "1 4")]));
    bench.send(["6", "7", "8", "9"].map(|id| draft(id).folded(subscriber, &terms, id))).await;
    let keys: Vec<String> = open(&bench).await.into_iter().map(|row| row.key).collect();
    assert_eq!(keys, ["7", "8", "9"].map(|key| format!("{{\"key\":\"{key}\"}}")));
    let gone: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(gone, ["2", "3", "5", "6"], "also those of the same group");
    assert!(bench.claim_all(theirs).await.is_empty(), "others have their own");
    bench.store().limit_windows(2);
    bench.send([draft("10").folded(subscriber, &terms, "10")]).await;
    assert_eq!(open(&bench).await.len(), 2, "as many close as it takes");
}

async fn keys_and_subscribers_are_apart(mut bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let terms = window(1_000);
    let both = |id: &str, key: &str| draft(id).folded(a, &terms, key).folded(b, &terms, "all");
    bench
        .send([both("1", "x"), both("2", "y"), both("3", "x"), draft("4").to(a).folded(b, &terms, "all")])
        .await;
    assert_eq!(open(&bench).await.len(), 3);
    bench.deliver(&bench.claim_one(a).await).await;
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, a).await, told(&[(ClosedBy::Window, "1 3"), (ClosedBy::Window, "2")]));
    assert_eq!(drain(&bench, b).await, told(&[(ClosedBy::Window, "1 2 3 4")]));
}

async fn what_was_there_already_does_not_join(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded(subscriber, &window(1_000), "a");
    let first = bench.send([folded("1"), folded("1"), folded("2")]).await;
    assert_eq!(statuses(&first), [UnitStatus::Accepted, UnitStatus::Duplicate, UnitStatus::Accepted]);
    let again = bench.send([folded("2"), folded("1").saying("{}"), folded("3").with(folded("4"))]).await;
    assert_eq!(statuses(&again), [UnitStatus::Duplicate, UnitStatus::Conflict, UnitStatus::Accepted]);
    assert_eq!(open(&bench).await[0].count, 4);
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 3 4")]));
}

async fn it_keeps_the_terms_it_opened_with(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").folded(subscriber, &window(1_000), "a")]).await;
    let definition = Some("{\"name\":\"other\"}".to_owned());
    bench.update(subscriber, SubscriberUpdate { definition, ..Default::default() }).await;
    let other = Terms { payload: Payload::Thin, max_events: 2, ..quiet(300, 60_000) };
    bench.send(["2", "3"].map(|id| draft(id).folded(subscriber, &other, "a"))).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!(bundle(&bench, &job).await.terms, window(1_000));
    assert_eq!(carried(&bench, &job).await, (ClosedBy::Window, "1 2 3".to_owned()));
    bench.send(["4", "5"].map(|id| draft(id).folded(subscriber, &other, "a"))).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!(bundle(&bench, &job).await.terms, other, "the next one has the new terms");
}

async fn only_so_many_close_at_once(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for n in (1..=5_u64).rev() {
        bench.send([draft(format!("{n}")).folded(subscriber, &window(n * 100), &format!("{n}"))]).await;
    }
    bench.pass(10_000);
    let mut closed = Vec::new();
    for expected in [2, 2, 1, 0] {
        let committed = bench.commit(Group { close: 2, ..Group::default() }).await;
        assert_eq!(committed.closed.len(), expected);
        closed.extend(committed.closed.iter().map(|one| one.due_at.since(START).as_millis()));
        let left = bench.store().close_due().await.unwrap();
        assert_eq!(committed.close_due, left, "it tells that more are due");
    }
    assert_eq!(closed, [100, 200, 300, 400, 500], "those first whose time came first");
    let order: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(order, ["1", "2", "3", "4", "5"]);
}

async fn it_goes_straight_to_memory_if_there_is_room(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send(["1", "2", "3"].map(|id| draft(id).folded(subscriber, &terms, id))).await;
    bench.pass(5_000);
    let group = Group { close: 9, room: room(2, &[subscriber]), ..Group::default() };
    let committed = bench.commit(group).await;
    assert_eq!((committed.jobs.len(), committed.spilled), (2, vec![subscriber]));
    let job = &committed.jobs[0];
    assert_eq!((job.token, job.attempts, job.replay, job.accepted_at), (1, 0, false, bench.now));
    assert!(job.body.is_empty() && job.fold.is_some(), "its content is asked for when it is sent");
    let left = bench.claim_one(subscriber).await;
    assert_eq!((left.accepted_at, left.body.len()), (bench.now, 0));
    for job in committed.jobs.iter().chain([&left]) {
        bench.deliver(job).await;
    }
    let full = Terms { max_events: 1, ..terms };
    let committed =
        bench.send_into(room(1, &[subscriber]), [draft("4").folded(subscriber, &full, "a")]).await;
    assert_eq!(committed.jobs.len(), 1, "also when an event closes it");
}

async fn a_bundle_is_whole_and_in_order(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send([draft("1").saying("{\"id\":\"1\", \"é\": [1,  2]}").folded(subscriber, &terms, "a")]).await;
    let [row] = &open(&bench).await[..] else { panic!("it gathers") };
    let nobody = DeliveryKey { no: row.no, nonce: 1 };
    assert!(bench.store().bundle(row.no, nobody, usize::MAX).await.unwrap().is_none(), "it is still open");
    assert!(bench.store().bundle(row.no + 1_000, nobody, usize::MAX).await.unwrap().is_none());
    bench.pass(400);
    bench.send([draft("2").folded(subscriber, &terms, "a")]).await;
    bench.pass(600);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    let too_large = bench.store().bundle(row.no, job.key(), 34).await.unwrap();
    assert!(matches!(too_large, Some(Bundled::Larger(35))), "{too_large:?}");
    let whole = bench.store().bundle(row.no, job.key(), 35).await.unwrap();
    assert!(matches!(whole, Some(Bundled::Whole(_))));
    let other = DeliveryKey { nonce: job.nonce ^ 1, ..job.key() };
    assert!(bench.store().bundle(row.no, other, 35).await.unwrap().is_none(), "of a delivery that was lost");
    let bundle = bundle(&bench, &job).await;
    assert_eq!(bundle.events, ["{\"id\":\"1\", \"é\": [1,  2]}", "{\"id\":\"2\"}"]);
    assert_eq!((bundle.opened_at, bundle.closed_at), (START, bench.now));
    assert_eq!((bundle.key.as_str(), bundle.closed_by), ("{\"key\":\"a\"}", ClosedBy::Window));
    let delivery = bench.store().delivery(PROJECT, job.delivery).await.unwrap().expect("it is kept").0;
    assert_eq!(delivery.events, ["1", "2"]);
    let fold = delivery.fold.expect("it is a fold");
    assert_eq!((fold.no, fold.delivery, fold.subscriber), (row.no, Some(job.delivery), subscriber));
    assert_eq!((fold.mode, fold.closed), ("window", Some((bench.now, ClosedBy::Window))));
    assert!(!delivery.replay);
}

async fn many_arrivals_in_one_group_fill_several_windows(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 7, ..window(60_000) };
    for round in 0..3 {
        let name = |n: u32| format!("{round}-{n:03}");
        bench.send((0..100).map(|n| draft(name(n)).folded(subscriber, &terms, "a"))).await;
        bench.audit().await;
    }
    let mut seen: Vec<String> = Vec::new();
    for (_, ids) in drain(&bench, subscriber).await {
        let ids: Vec<String> = ids.split(' ').map(str::to_owned).collect();
        assert_eq!(ids.len(), 7);
        seen.extend(ids);
    }
    assert_eq!(seen.len(), 294, "the others gather");
    assert!(seen.is_sorted(), "in the order of acceptance");
    assert_eq!(open(&bench).await[0].count, 6);
}
