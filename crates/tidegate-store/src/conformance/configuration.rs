//! The configuration: each change a new version, read whole or in part, and nobody changes another's (P10).

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::KEYS_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;

use super::bench::{Bench, PROJECT, draft, new_subscriber};
use super::{Case, named};
use crate::{Change, Error, Group, NewKey, NewSecret, NewSubscriber, SubscriberRow, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["configuration":
        a_streak_is_kept_until_it_ends,
        a_streak_ends_when_its_subscriber_resumes,
        a_new_store_has_one_project_and_nothing_else,
        every_change_is_a_new_version,
        a_refused_change_is_none,
        a_change_of_what_others_changed_is_stale,
        projects_come_and_go,
        a_project_with_subscribers_stays,
        keys_come_and_go,
        a_project_has_so_many_keys,
        subscribers_come_change_and_go,
        a_rotated_secret_keeps_the_one_before_it,
        subscribers_are_read_incrementally,
        former_conditions_of_a_fold_are_told,
        a_taken_id_is_a_conflict,
        what_is_not_there_is_not_found,
        what_is_foreign_is_not_found,
        the_order_changes_only_when_nothing_is_unfinished,
        pausing_holds_and_resuming_lets_go,
        deleting_cancels,
        the_configuration_survives_a_restart,
    ]
}

fn project(id: &str) -> Change {
    Change::CreateProject { id: id.to_owned(), catalog: Mode::Open }
}

fn key(project: i64, id: &str) -> NewKey {
    NewKey {
        project,
        id: id.to_owned(),
        role: "publisher".to_owned(),
        name: "a label".to_owned(),
        prefix: "tgk_1234…".to_owned(),
        hash: format!("hash of {project}/{id}").into_bytes(),
    }
}

fn delete_key(project: i64, id: &str) -> Change {
    Change::DeleteKey { project, id: id.to_owned() }
}

fn update(project: i64, no: i64) -> Change {
    Change::UpdateSubscriber { project, no, update: SubscriberUpdate::default() }
}

async fn conflicts(bench: &Bench, change: Change) -> String {
    match bench.try_change(change.clone()).await {
        Err(Error::Conflict(text)) => text,
        other => panic!("{change:?} conflicts, but: {other:?}"),
    }
}

async fn is_unfinished(bench: &Bench, change: Change) {
    let refused = bench.try_change(change).await;
    assert!(matches!(refused, Err(Error::Unfinished)), "{refused:?}");
}

async fn is_not_found(bench: &Bench, change: Change) {
    match bench.try_change(change.clone()).await {
        Err(Error::NotFound) => {}
        other => panic!("{change:?} is about nothing, but: {other:?}"),
    }
}

async fn a_new_store_has_one_project_and_nothing_else(bench: Bench) {
    let configuration = bench.store().configuration(0).await.unwrap();
    let [default] = &configuration.projects[..] else { panic!("one project") };
    assert_eq!((default.no, default.id.as_str(), default.created_at), (PROJECT, "default", bench.now));
    assert!(configuration.keys.is_empty() && configuration.subscribers.is_empty());
}

async fn every_change_is_a_new_version(bench: Bench) {
    let mut version = bench.version().await;
    let subscriber = new_subscriber("s");
    for change in [project("p"), Change::CreateKey(key(1, "k")), Change::CreateSubscriber(subscriber)] {
        let changed = bench.change(change).await.version;
        assert!(changed > version);
        version = changed;
        assert_eq!(bench.version().await, version);
    }
    bench.send([draft("1")]).await;
    assert_eq!(bench.version().await, version, "events change nothing");
}

async fn a_refused_change_is_none(bench: Bench) {
    bench.change(project("p")).await;
    let before = bench.store().configuration(0).await.unwrap();
    conflicts(&bench, project("p")).await;
    is_not_found(&bench, delete_key(1, "none")).await;
    is_not_found(&bench, Change::DeleteProject { no: 99 }).await;
    let after = bench.store().configuration(0).await.unwrap();
    assert_eq!((before.version, before.projects), (after.version, after.projects));
    assert!(bench.change(project("q")).await.version > after.version);
}

async fn a_change_of_what_others_changed_is_stale(bench: Bench) {
    let no = bench.subscriber("s").await;
    let read = row(&bench, no).await.version;
    let change = |based_on| Change::UpdateSubscriber {
        project: PROJECT,
        no,
        update: SubscriberUpdate {
            definition: Some("{}".to_owned()),
            based_on,
            ..SubscriberUpdate::default()
        },
    };
    bench.change(change(Some(read))).await;
    let current = row(&bench, no).await.version;
    let refused = bench.try_change(change(Some(read))).await;
    assert!(
        matches!(refused, Err(Error::Stale { routed, current: now }) if routed == read && now == current),
        "{refused:?}"
    );
    assert_eq!(bench.store().version().await.unwrap(), current, "a refused change is none");
    bench.change(change(Some(current))).await;
    bench.change(change(None)).await;
}

async fn projects_come_and_go(mut bench: Bench) {
    let first = bench.change(project("p")).await.no;
    assert!(conflicts(&bench, project("p")).await.contains('p'));
    bench.change(Change::CreateKey(key(first, "k"))).await;
    bench.change(Change::DeleteProject { no: first }).await;
    let configuration = bench.store().configuration(0).await.unwrap();
    assert!(configuration.keys.is_empty(), "its keys go with it");
    assert_eq!(configuration.projects.len(), 1);
    is_not_found(&bench, Change::DeleteProject { no: first }).await;
    bench.pass(1);
    let second = bench.change(project("p")).await.no;
    assert_ne!(first, second, "a new one of that name sees nothing of the old one");
}

async fn a_project_with_subscribers_stays(bench: Bench) {
    let no = bench.change(project("p")).await.no;
    let new = NewSubscriber { project: no, ..new_subscriber("s") };
    let subscriber = bench.change(Change::CreateSubscriber(new)).await.no;
    conflicts(&bench, Change::DeleteProject { no }).await;
    bench.change(Change::DeleteSubscriber { project: no, no: subscriber }).await;
    bench.change(Change::DeleteProject { no }).await;
}

async fn keys_come_and_go(bench: Bench) {
    bench.change(Change::CreateKey(key(0, "admin"))).await;
    bench.change(Change::CreateKey(key(1, "k"))).await;
    let keys = bench.store().configuration(0).await.unwrap().keys;
    assert_eq!(
        keys.iter().map(|key| (key.project, key.id.as_str())).collect::<Vec<_>>(),
        [(0, "admin"), (1, "k")]
    );
    let (read, written) = (&keys[1], key(1, "k"));
    assert_eq!((&read.role, &read.name, &read.prefix), (&written.role, &written.name, &written.prefix));
    assert_eq!((&read.hash, read.created_at), (&written.hash, bench.now));
    let same = NewKey { id: "again".to_owned(), hash: written.hash, ..key(1, "k") };
    bench.change(Change::CreateKey(same)).await;
    assert_eq!(bench.store().configuration(0).await.unwrap().keys, keys, "the same key changes nothing");
    bench.change(delete_key(1, "k")).await;
    is_not_found(&bench, delete_key(1, "k")).await;
    assert_eq!(bench.store().configuration(0).await.unwrap().keys.len(), 1);
}

async fn a_project_has_so_many_keys(bench: Bench) {
    for n in 0..KEYS_PER_PROJECT_MAX {
        bench.change(Change::CreateKey(key(1, &format!("k{n}")))).await;
    }
    let refused = bench.try_change(Change::CreateKey(key(1, "more"))).await;
    assert!(matches!(refused, Err(Error::Quota(_))), "{refused:?}");
    bench.change(Change::CreateKey(key(1, "k0"))).await;
    bench.change(Change::CreateKey(key(0, "another's"))).await;
    bench.change(delete_key(1, "k5")).await;
    bench.change(Change::CreateKey(key(1, "more"))).await;
}

async fn subscribers_come_change_and_go(mut bench: Bench) {
    let paused = NewSubscriber { active: false, ..new_subscriber("s") };
    let created = bench.change(Change::CreateSubscriber(paused)).await;
    let read = async |bench: &Bench| bench.store().configuration(0).await.unwrap().subscribers.remove(0);
    let row = read(&bench).await;
    assert_eq!((row.no, row.project, row.id.as_str()), (created.no, PROJECT, "s"));
    assert_eq!(
        (row.created_at, row.created_version, row.version),
        (bench.now, created.version, created.version)
    );
    assert_eq!((row.active, row.inactive_reason.as_deref()), (false, Some("paused")));
    assert_eq!((row.secret.as_slice(), row.deleted, row.backfilling), (&b"sealed"[..], false, false));
    bench.pass(9);
    bench.resume(created.no).await;
    let row = read(&bench).await;
    assert_eq!((row.active, row.inactive_reason, row.definition.as_str()), (true, None, "{\"name\":\"s\"}"));
    let definition = Some("{}".to_owned());
    let update = SubscriberUpdate { definition, active: Some(Err("gone".to_owned())), ..Default::default() };
    let changed = bench.update(created.no, update).await;
    let row = read(&bench).await;
    assert_eq!((row.version, row.created_version), (changed.version, created.version));
    assert_eq!((row.definition.as_str(), row.inactive_reason.as_deref()), ("{}", Some("gone")));
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: created.no }).await;
    assert!(read(&bench).await.deleted);
}

async fn a_rotated_secret_keeps_the_one_before_it(bench: Bench) {
    let no = bench.subscriber("s").await;
    let other = bench.subscriber("other").await;
    let until = Timestamp::from_ms(bench.now.as_ms() + 5);
    let read = async || bench.store().configuration(0).await.unwrap().subscribers.remove(0);
    for (name, grace_until, previous) in [
        ("a", Some(until), Some(("sealed", until))),
        ("b", Some(until), Some(("a", until))),
        ("c", None, None),
        ("d", Some(until), Some(("c", until))),
    ] {
        let secret = Some(NewSecret { sealed: name.as_bytes().to_vec(), grace_until });
        let changed = bench.update(no, SubscriberUpdate { secret, ..Default::default() }).await;
        let row = read().await;
        assert_eq!((row.secret.as_slice(), row.version), (name.as_bytes(), changed.version));
        let previous = previous.map(|(name, until)| (name.as_bytes().to_vec(), until));
        assert_eq!(row.previous_secret, previous, "{name}");
    }
    let untouched = bench.store().configuration(0).await.unwrap().subscribers.remove(1);
    assert_eq!((untouched.no, untouched.previous_secret), (other, None));
    bench.pause(no).await;
    assert_eq!(read().await.previous_secret, Some((b"c".to_vec(), until)), "other changes leave it alone");
}

async fn subscribers_are_read_incrementally(bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let seen = bench.version().await;
    let changed = async |since| {
        let rows = bench.store().configuration(since).await.unwrap().subscribers;
        rows.into_iter().map(|row| (row.no, row.deleted)).collect::<Vec<_>>()
    };
    assert_eq!(changed(seen).await, []);
    bench.pause(b).await;
    let paused = bench.version().await;
    assert_eq!(changed(seen).await, [(b, false)]);
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: a }).await;
    assert_eq!(changed(seen).await, [(a, true), (b, false)]);
    assert_eq!(changed(paused).await, [(a, true)]);
    assert_eq!(changed(0).await.len(), 2);
}

async fn a_taken_id_is_a_conflict(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    conflicts(&bench, Change::CreateSubscriber(new_subscriber("s"))).await;
    let other = bench.change(project("p")).await.no;
    bench.change(Change::CreateSubscriber(NewSubscriber { project: other, ..new_subscriber("s") })).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    let again = bench.change(Change::CreateSubscriber(new_subscriber("s"))).await.no;
    assert_ne!(again, subscriber, "the id is free again, and somebody else's");
    bench.change(Change::CreateKey(key(1, "k"))).await;
    let another = NewKey { hash: b"another".to_vec(), ..key(1, "k") };
    conflicts(&bench, Change::CreateKey(another)).await;
}

async fn what_is_not_there_is_not_found(bench: Bench) {
    is_not_found(&bench, update(PROJECT, 99)).await;
    is_not_found(&bench, Change::DeleteSubscriber { project: PROJECT, no: 99 }).await;
    let no = bench.subscriber("s").await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no }).await;
    is_not_found(&bench, update(PROJECT, no)).await;
    is_not_found(&bench, Change::DeleteSubscriber { project: PROJECT, no }).await;
    let gone = bench.change(project("p")).await.no;
    bench.change(Change::DeleteProject { no: gone }).await;
    for project in [gone, 99] {
        let new = NewSubscriber { project, ..new_subscriber("s2") };
        is_not_found(&bench, Change::CreateSubscriber(new)).await;
        is_not_found(&bench, Change::CreateKey(key(project, "k"))).await;
    }
}

async fn what_is_foreign_is_not_found(bench: Bench) {
    let other = bench.change(project("p")).await.no;
    let no = bench.subscriber("s").await;
    bench.change(Change::CreateKey(key(PROJECT, "k"))).await;
    is_not_found(&bench, update(other, no)).await;
    is_not_found(&bench, Change::DeleteSubscriber { project: other, no }).await;
    is_not_found(&bench, delete_key(other, "k")).await;
    let configuration = bench.store().configuration(0).await.unwrap();
    assert!(!configuration.subscribers[0].deleted && configuration.keys.len() == 1);
}

async fn the_order_changes_only_when_nothing_is_unfinished(bench: Bench) {
    let (no, other) = (bench.subscriber("s").await, bench.subscriber("other").await);
    let reorder = |project| {
        let update = SubscriberUpdate { reorders: true, ..Default::default() };
        Change::UpdateSubscriber { project, no, update }
    };
    bench.change(reorder(PROJECT)).await;
    bench.send([draft("1").to(no).to(other), draft("2").lane(no, 1)]).await;
    is_unfinished(&bench, reorder(PROJECT)).await;
    let jobs = bench.claim_all(no).await;
    bench.deliver(&jobs[0]).await;
    is_unfinished(&bench, reorder(PROJECT)).await;
    is_not_found(&bench, reorder(PROJECT + 1)).await;
    bench.exhaust(&jobs[1]).await;
    bench.change(reorder(PROJECT)).await;
}

async fn pausing_holds_and_resuming_lets_go(bench: Bench) {
    let no = bench.subscriber("s").await;
    bench.send([draft("1").to(no), draft("2").lane(no, 1), draft("3").lane(no, 1)]).await;
    let (jobs, _) = bench.refill(no, 1).await;
    bench.pause(no).await;
    assert_eq!(bench.status(no, "1").await, Status::Sending, "what is in flight is in flight");
    bench.release(&jobs[0]).await;
    bench.send([draft("4").to(no)]).await;
    for event in ["1", "2", "3", "4"] {
        assert_eq!(bench.status(no, event).await, Status::Held, "{event}");
    }
    let backlog = bench.store().backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.held), (0, 4));
    bench.resume(no).await;
    assert_eq!(bench.status(no, "3").await, Status::Pending);
    let events: Vec<i64> = bench.claim_all(no).await.iter().map(|job| job.event).collect();
    assert!(events.is_sorted() && events.len() == 3, "in order, heads only");
}

async fn deleting_cancels(bench: Bench) {
    let no = bench.subscriber("s").await;
    let names = ["done", "failed", "sent", "waiting"];
    bench.send(names.map(|name| draft(name).to(no))).await;
    let (jobs, _) = bench.refill(no, 3).await;
    bench.deliver(&jobs[0]).await;
    bench.exhaust(&jobs[1]).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no }).await;
    let expected = [Status::Delivered, Status::Exhausted, Status::Sending, Status::Cancelled];
    for (name, status) in names.into_iter().zip(expected) {
        assert_eq!(bench.status(no, name).await, status, "{name}");
    }
    bench.deliver(&jobs[2]).await;
    assert_eq!(bench.status(no, "sent").await, Status::Delivered, "the truth about it is kept");
    assert_eq!(bench.store().due().await.unwrap(), [], "nothing is due for nobody");
    assert_eq!(bench.store().backlog().await.unwrap().waiting, 0);
}

async fn the_configuration_survives_a_restart(mut bench: Bench) {
    bench.change(project("p")).await;
    bench.change(Change::CreateKey(key(1, "k"))).await;
    bench.subscriber("s").await;
    let before = bench.store().configuration(0).await.unwrap();
    bench.pass(1_000);
    bench.reopen().await;
    let after = bench.store().configuration(0).await.unwrap();
    assert_eq!((before.version, before.projects, before.keys), (after.version, after.projects, after.keys));
    assert_eq!(before.subscribers, after.subscribers);
}

async fn row(bench: &Bench, subscriber: SubscriberNo) -> SubscriberRow {
    let rows = bench.store().configuration(0).await.unwrap().subscribers;
    rows.into_iter().find(|row| row.no == subscriber).expect("it exists")
}

async fn former_conditions_of_a_fold_are_told(mut bench: Bench) {
    let (no, other) = (bench.subscriber("s").await, bench.subscriber("other").await);
    let define = |fold: serde_json::Value| {
        let definition = Some(serde_json::json!({ "name": "s", "fold": fold }).to_string());
        let update = SubscriberUpdate { definition, ..Default::default() };
        Change::UpdateSubscriber { project: PROJECT, no, update }
    };
    let folded = |condition: &str| serde_json::json!({ "mode": "window", "cancel_on": condition });
    for (fold, expected) in [
        (folded("a"), vec![]),
        (folded("b"), vec!["a"]),
        (serde_json::json!({ "mode": "window" }), vec!["b", "a"]),
        (folded("a"), vec!["b"]),
        (folded("c"), vec!["a", "b"]),
        (folded("d"), vec!["c", "a", "b"]),
        (folded("e"), vec!["d", "c", "a", "b"]),
        (folded("f"), vec!["e", "d", "c", "a"]),
    ] {
        let since = bench.version().await;
        bench.change(define(fold)).await;
        let changed = bench.store().configuration(since).await.unwrap().subscribers;
        assert_eq!(changed[0].former_conditions, expected, "incrementally");
        assert_eq!(row(&bench, no).await.former_conditions, expected);
    }
    bench.reopen().await;
    assert_eq!(row(&bench, no).await.former_conditions, ["e", "d", "c", "a"]);
    assert!(row(&bench, other).await.former_conditions.is_empty());
}

async fn failing_since(bench: &Bench, subscriber: SubscriberNo) -> Option<Timestamp> {
    row(bench, subscriber).await.failing_since
}

async fn keep_streak(bench: &Bench, subscriber: SubscriberNo, since: Option<Timestamp>) {
    bench.commit(Group { streaks: vec![(subscriber, since)], ..Group::default() }).await;
}

async fn a_streak_is_kept_until_it_ends(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let other = bench.subscriber("o").await;
    let version = bench.version().await;
    assert_eq!(failing_since(&bench, subscriber).await, None);
    let since = bench.now;
    keep_streak(&bench, subscriber, Some(since)).await;
    bench.pass(10);
    bench.reopen().await;
    assert_eq!(failing_since(&bench, subscriber).await, Some(since));
    assert_eq!(failing_since(&bench, other).await, None);
    assert_eq!(bench.version().await, version, "nobody routes by it");
    keep_streak(&bench, subscriber, None).await;
    assert_eq!(failing_since(&bench, subscriber).await, None);
}

async fn a_streak_ends_when_its_subscriber_resumes(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    keep_streak(&bench, subscriber, Some(bench.now)).await;
    bench.pause(subscriber).await;
    assert_eq!(failing_since(&bench, subscriber).await, Some(bench.now));
    bench.resume(subscriber).await;
    assert_eq!(failing_since(&bench, subscriber).await, None);
}
