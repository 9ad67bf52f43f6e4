//! The quarantine: a unit that is refused is kept with its reason, takes no id, and leaves only by request.

use bytes::Bytes;
use tidegate_core::catalog::{Finding, Mode, Reason};
use tidegate_core::limits::REQUEST_BYTES_MAX;
use tidegate_core::retention::Retention;

use super::bench::{Bench, Draft, PROJECT, draft, statuses, submission};
use super::{Case, named};
use crate::UnitStatus::{Accepted, Conflict, Duplicate, Gone, Quarantined};
use crate::{
    Admission, Change, Committed, Group, Picked, QuarantineFilter, QuarantineRow, RoutedUnit, Submission,
    Sweep,
};

pub(super) fn cases() -> Vec<Case> {
    named!["quarantine":
        a_refused_unit_is_kept_and_nothing_else_happens,
        a_repeat_stores_nothing,
        an_accepted_event_is_not_quarantined_again,
        its_id_is_free,
        a_released_unit_is_accepted_as_it_came,
        a_release_may_end_as_duplicate_or_conflict,
        what_is_gone_is_not_released,
        filters_and_pages,
        picking_is_bounded_and_goes_on,
        discarding_is_for_good,
        projects_do_not_see_each_other,
        it_survives_a_restart_and_shares_the_commit,
        it_goes_by_retention,
        a_number_that_was_used_again_is_another_unit,
    ]
}

const WRONG: Reason = Reason::SchemaViolation;

/// A draft with a body that tells what it is, as real ones do.
fn whole(id: &str) -> Draft {
    telling(draft(id), "1")
}

fn telling(draft: Draft, data: &str) -> Draft {
    let body = format!(
        r#"{{"id":"{}","source":"{}","type":"{}","time":"{}","data":{data}}}"#,
        draft.id, draft.source, draft.type_name, draft.time
    );
    draft.saying(body)
}

fn refused(draft: Draft, reason: Reason) -> Submission {
    let mut submission = submission([draft]);
    let finding = Finding { reason, detail: "data.total: expected number".to_owned() };
    submission.units[0].admission = Admission::Refused(Box::new(finding));
    submission
}

async fn refuse(bench: &Bench, drafts: impl IntoIterator<Item = Draft>) -> Committed {
    let submissions = drafts.into_iter().map(|draft| refused(draft, WRONG)).collect();
    bench.commit(Group { submissions, ..Group::default() }).await
}

fn any() -> QuarantineFilter {
    QuarantineFilter { limit: 100, ..QuarantineFilter::default() }
}

async fn list(bench: &Bench, filter: QuarantineFilter) -> Vec<QuarantineRow> {
    bench.store().quarantine(PROJECT, filter).await.expect("the quarantine can be read").items
}

async fn pick(bench: &Bench, filter: QuarantineFilter) -> Picked {
    bench.store().pick(PROJECT, filter).await.expect("the quarantine can be read")
}

fn ids(rows: &[QuarantineRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

async fn release(bench: &Bench, rows: Vec<QuarantineRow>) -> Committed {
    let units = rows.into_iter().map(|row| {
        let unit = row.unit.expect("picked units have their events");
        let key = |event: &tidegate_core::event::Event| {
            tidegate_core::event::lookup_key(PROJECT, &event.source, &event.id)
        };
        RoutedUnit {
            routes: vec![Vec::new(); unit.events.len()],
            keys: unit.events.iter().map(key).collect(),
            unit,
            admission: Admission::Released(row.no),
        }
    });
    let submissions = vec![Submission { project: PROJECT, units: units.collect() }];
    bench.commit(Group { submissions, ..Group::default() }).await
}

async fn a_refused_unit_is_kept_and_nothing_else_happens(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let committed = refuse(&bench, [whole("1").to(subscriber).with(whole("1~1").to(subscriber))]).await;
    assert_eq!(statuses(&committed), [Quarantined(WRONG)]);
    assert!(committed.jobs.is_empty() && committed.spilled.is_empty());
    assert!(bench.events(PROJECT).await.is_empty() && bench.claim_all(subscriber).await.is_empty());
    let [row] = &list(&bench, any()).await[..] else { panic!("one row") };
    assert_eq!((row.id.as_str(), row.source.as_str(), row.type_name.as_str()), ("1", "shop", "order.paid"));
    assert_eq!((row.reason, row.detail.as_str()), (WRONG, "data.total: expected number"));
    assert_eq!((row.at, &row.unit), (bench.now, &None));
}

async fn a_repeat_stores_nothing(mut bench: Bench) {
    refuse(&bench, [whole("1")]).await;
    bench.pass(1_000);
    let committed = refuse(&bench, [whole("1"), telling(draft("1"), "2")]).await;
    assert_eq!(statuses(&committed), [Quarantined(WRONG), Quarantined(WRONG)]);
    let rows = list(&bench, any()).await;
    assert_eq!(ids(&rows), ["1", "1"], "other content is another unit");
    assert!(rows[1].at < bench.now, "the first is as it was");
}

async fn an_accepted_event_is_not_quarantined_again(bench: Bench) {
    bench.send([whole("1")]).await;
    let committed = refuse(&bench, [whole("1"), telling(draft("1"), "2")]).await;
    assert_eq!(statuses(&committed), [Duplicate, Conflict]);
    assert!(list(&bench, any()).await.is_empty());
}

async fn its_id_is_free(bench: Bench) {
    refuse(&bench, [whole("1")]).await;
    assert_eq!(statuses(&bench.send([telling(draft("1"), "2")]).await), [Accepted]);
    assert_eq!(statuses(&bench.send([telling(draft("1"), "2")]).await), [Duplicate]);
}

async fn a_released_unit_is_accepted_as_it_came(mut bench: Bench) {
    let unit = whole("1").with(telling(draft("1~1").kind("step"), "1"));
    refuse(&bench, [unit.clone()]).await;
    bench.pass(1_000);
    let picked = pick(&bench, any()).await;
    assert_eq!((picked.remaining, picked.next), (0, None));
    assert_eq!(picked.units[0].unit, Some(unit.clone().unit().unit), "byte for byte");
    assert_eq!(statuses(&release(&bench, picked.units).await), [Accepted]);
    assert!(list(&bench, any()).await.is_empty());
    let events = bench.events(PROJECT).await;
    assert_eq!(events.len(), 2);
    assert!(events.iter().all(|event| event.accepted_at == bench.now && event.time < bench.now));
    assert_eq!(statuses(&bench.send([unit]).await), [Duplicate]);
}

async fn a_release_may_end_as_duplicate_or_conflict(bench: Bench) {
    refuse(&bench, [whole("1"), whole("2"), telling(draft("2"), "2")]).await;
    bench.send([whole("1")]).await;
    let committed = release(&bench, pick(&bench, any()).await.units).await;
    assert_eq!(statuses(&committed), [Duplicate, Accepted, Conflict]);
    assert_eq!(ids(&list(&bench, any()).await), ["2"], "what conflicts stays, to be seen and discarded");
}

async fn what_is_gone_is_not_released(bench: Bench) {
    refuse(&bench, [whole("1"), whole("2")]).await;
    let picked = pick(&bench, any()).await.units;
    assert_eq!(statuses(&release(&bench, picked.clone()).await), [Accepted, Accepted]);
    assert_eq!(statuses(&release(&bench, picked).await), [Duplicate, Duplicate]);
    refuse(&bench, [whole("3")]).await;
    let picked = pick(&bench, any()).await.units;
    bench.store().discard(PROJECT, any(), bench.now).await.unwrap();
    assert_eq!(statuses(&release(&bench, picked).await), [Gone]);
    assert_eq!(bench.events(PROJECT).await.len(), 2);
}

async fn filters_and_pages(bench: Bench) {
    let shop = (0..5).map(|n| whole(&format!("a{n}")));
    refuse(&bench, shop).await;
    let other = telling(draft("b").from("bar").kind("x"), "1");
    let submissions = vec![refused(other, Reason::FutureTime)];
    bench.commit(Group { submissions, ..Group::default() }).await;
    assert_eq!(ids(&list(&bench, any()).await), ["b", "a4", "a3", "a2", "a1", "a0"], "newest first");
    for filter in [
        QuarantineFilter { source: Some("bar".to_owned()), ..any() },
        QuarantineFilter { type_name: Some("x".to_owned()), ..any() },
        QuarantineFilter { reason: Some(Reason::FutureTime), ..any() },
    ] {
        assert_eq!(ids(&list(&bench, filter.clone()).await), ["b"]);
        assert_eq!(ids(&pick(&bench, filter).await.units), ["b"]);
    }
    let first = bench.store().quarantine(PROJECT, QuarantineFilter { limit: 4, ..any() }).await.unwrap();
    let second = QuarantineFilter { limit: 4, beyond: first.next, ..any() };
    let second = bench.store().quarantine(PROJECT, second).await.unwrap();
    assert_eq!((ids(&second.items), second.next), (vec!["a1", "a0"], None));
    let named = QuarantineFilter {
        ids: vec!["a3".to_owned(), "b".to_owned(), "a3".to_owned(), "z".to_owned()],
        ..any()
    };
    assert_eq!(ids(&pick(&bench, named.clone()).await.units), ["a3", "b"]);
    let narrowed = QuarantineFilter { source: Some("shop".to_owned()), ..named };
    assert_eq!(ids(&pick(&bench, narrowed).await.units), ["a3"]);
}

async fn picking_is_bounded_and_goes_on(bench: Bench) {
    refuse(&bench, (0..5).map(|n| whole(&format!("{n}")))).await;
    let first = pick(&bench, QuarantineFilter { limit: 2, ..any() }).await;
    assert_eq!((ids(&first.units), first.remaining), (vec!["0", "1"], 3));
    let second = pick(&bench, QuarantineFilter { limit: 2, beyond: first.next, ..any() }).await;
    assert_eq!((ids(&second.units), second.remaining), (vec!["2", "3"], 1));
    let named = QuarantineFilter { ids: vec!["4".into(), "0".into()], limit: 1, ..any() };
    let one = pick(&bench, named.clone()).await;
    assert_eq!((ids(&one.units), one.remaining), (vec!["0"], 1));
    let two = pick(&bench, QuarantineFilter { beyond: one.next, ..named }).await;
    assert_eq!((ids(&two.units), two.remaining, two.next), (vec!["4"], 0, None));
    let large = Bytes::from(vec![b'x'; REQUEST_BYTES_MAX]);
    let large = format!("\"{}\"", String::from_utf8_lossy(&large));
    refuse(&bench, [telling(draft("big"), &large), whole("last")]).await;
    let third = pick(&bench, QuarantineFilter { beyond: second.next, ..any() }).await;
    assert_eq!((ids(&third.units), third.remaining), (vec!["4"], 2));
    let fourth = pick(&bench, QuarantineFilter { beyond: third.next, ..any() }).await;
    assert_eq!((ids(&fourth.units), fourth.remaining), (vec!["big"], 1));
}

async fn discarding_is_for_good(mut bench: Bench) {
    refuse(&bench, (0..3).map(|n| whole(&format!("{n}")))).await;
    let filter = QuarantineFilter { limit: 2, ..any() };
    let discarded = bench.store().discard(PROJECT, filter, bench.now).await.unwrap();
    assert_eq!((ids(&discarded.units), discarded.remaining), (vec!["0", "1"], 1));
    bench.reopen().await;
    assert_eq!(ids(&list(&bench, any()).await), ["2"]);
    assert_eq!(statuses(&refuse(&bench, [whole("0")]).await), [Quarantined(WRONG)]);
    assert_eq!(ids(&list(&bench, any()).await), ["0", "2"]);
}

async fn projects_do_not_see_each_other(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    refuse(&bench, [whole("1"), telling(draft("1").of(other), "1")]).await;
    assert_eq!(list(&bench, any()).await.len(), 1);
    let theirs = bench.store().pick(other, any()).await.unwrap().units;
    assert_eq!(theirs.len(), 1);
    assert_eq!(statuses(&release(&bench, theirs).await), [Gone], "not with another project's number");
    let named = QuarantineFilter { ids: vec!["1".to_owned()], ..any() };
    bench.store().discard(other, named, bench.now).await.unwrap();
    assert_eq!(list(&bench, any()).await.len(), 1);
}

async fn it_survives_a_restart_and_shares_the_commit(mut bench: Bench) {
    let submissions = vec![submission([whole("1")]), refused(whole("2"), WRONG), submission([whole("3")])];
    let committed = bench.commit(Group { submissions, ..Group::default() }).await;
    assert_eq!(statuses(&committed), [Accepted, Quarantined(WRONG), Accepted]);
    bench.reopen().await;
    assert_eq!(ids(&list(&bench, any()).await), ["2"]);
    assert_eq!(bench.events(PROJECT).await.len(), 2);
    assert_eq!(statuses(&release(&bench, pick(&bench, any()).await.units).await), [Accepted]);
}

async fn it_goes_by_retention(mut bench: Bench) {
    let term = std::time::Duration::from_secs(40);
    let terms = Retention { deliveries: term, ..Retention::default() };
    refuse(&bench, (0..5).map(|n| whole(&format!("old{n}")))).await;
    bench.pass(30_000);
    refuse(&bench, [whole("young")]).await;
    let began = bench.now;
    bench.pass(9_999);
    let swept = bench.store().sweep(terms, Sweep::Rest, 100, bench.now).await.unwrap();
    assert_eq!(list(&bench, any()).await.len(), 6, "nothing goes before its time");
    assert_eq!(swept.due, Some(bench.later(1)), "it says when");
    bench.pass(1);
    let (mut steps, mut next) = (0, Some(Sweep::Rest));
    let mut due = None;
    while let Some(sweep) = next {
        let swept = bench.store().sweep(terms, sweep, 2, bench.now).await.unwrap();
        (next, due, steps) = (swept.next, swept.due, steps + 1);
        assert!(steps < 100, "a round ends");
    }
    assert_eq!(ids(&list(&bench, any()).await), ["young"]);
    assert!(steps > 2, "a few at a time");
    assert_eq!(due, Some(began.plus(term)));
    bench.pass(30_000);
    bench.store().sweep(terms, Sweep::Rest, 2, bench.now).await.unwrap();
    assert!(list(&bench, any()).await.is_empty());
    assert_eq!(statuses(&refuse(&bench, [whole("old0")]).await), [Quarantined(WRONG)], "as if it were new");
    assert_eq!(ids(&list(&bench, any()).await), ["old0"]);
}

async fn a_number_that_was_used_again_is_another_unit(bench: Bench) {
    refuse(&bench, [whole("1")]).await;
    let (first, second) = (pick(&bench, any()).await, pick(&bench, any()).await);
    assert_eq!(statuses(&release(&bench, first.units).await), [Accepted]);
    refuse(&bench, [whole("2")]).await;
    assert_eq!(statuses(&release(&bench, second.units).await), [Duplicate], "it was released before");
    assert_eq!(ids(&list(&bench, any()).await), ["2"], "and nothing else was");
}
