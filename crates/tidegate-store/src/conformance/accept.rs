//! Accepted, repeated, contradicted: what a sender is told about an id (P1, and the sender's half of P3).

use tidegate_core::catalog::Mode;
use tidegate_core::event::lookup_key;

use super::bench::{Bench, Draft, PROJECT, draft, statuses, submission};
use super::{Case, named};
use crate::UnitStatus::{Accepted, Conflict, Duplicate};
use crate::{Change, Group};

pub(super) fn cases() -> Vec<Case> {
    named!["accept":
        the_same_content_again_is_a_duplicate,
        other_content_under_a_known_id_is_a_conflict,
        an_id_belongs_to_its_source,
        an_id_belongs_to_its_project,
        a_unit_is_accepted_and_repeated_as_one,
        a_unit_conflicts_as_one,
        a_sub_event_collides_with_a_plain_event,
        a_plain_event_collides_with_a_sub_event,
        an_id_twice_in_one_group_is_accepted_once,
        an_id_twice_in_one_submission_is_accepted_once,
        a_shared_look_up_key_is_no_duplicate,
        duplicates_are_known_after_a_restart,
    ]
}

async fn the_same_content_again_is_a_duplicate(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let event = draft("1").to(subscriber);
    assert_eq!(statuses(&bench.send([event.clone()]).await), [Accepted]);
    assert_eq!(statuses(&bench.send([event.clone(), event]).await), [Duplicate, Duplicate]);
    assert_eq!(bench.events(PROJECT).await.len(), 1);
    assert_eq!(bench.rows(subscriber).await.len(), 1, "a duplicate is not delivered again");
}

async fn other_content_under_a_known_id_is_a_conflict(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").saying("one").to(subscriber)]).await;
    let committed = bench.send([draft("1").saying("two").to(subscriber), draft("2")]).await;
    assert_eq!(statuses(&committed), [Conflict, Accepted]);
    assert_eq!(bench.events(PROJECT).await[0].body, "one", "nothing changes");
    assert_eq!(bench.rows(subscriber).await.len(), 1);
    assert_eq!(statuses(&bench.send([draft("1").saying("one")]).await), [Duplicate]);
}

async fn an_id_belongs_to_its_source(bench: Bench) {
    let committed = bench.send([draft("1"), draft("1").from("depot"), draft("1")]).await;
    assert_eq!(statuses(&committed), [Accepted, Accepted, Duplicate]);
    let mut sources: Vec<String> = bench
        .store()
        .event(PROJECT, "1".to_owned())
        .await
        .unwrap()
        .into_iter()
        .map(|row| row.source)
        .collect();
    sources.sort();
    assert_eq!(sources, ["depot", "shop"]);
}

async fn an_id_belongs_to_its_project(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let committed = bench.send([draft("1"), draft("1").of(other).saying("else")]).await;
    assert_eq!(statuses(&committed), [Accepted, Accepted]);
    for (project, body) in [(PROJECT, "{\"id\":\"1\"}"), (other, "else")] {
        let found = bench.store().event(project, "1".to_owned()).await.unwrap();
        assert_eq!(found.iter().map(|row| &row.body[..]).collect::<Vec<_>>(), [body.as_bytes()]);
        assert_eq!(bench.events(project).await, found);
    }
    assert_eq!(bench.store().event(other + 1, "1".to_owned()).await.unwrap(), []);
}

fn family(last: &str) -> Draft {
    draft("1").with(draft("1~1")).with(draft("1~2").saying(last.to_owned()))
}

async fn a_unit_is_accepted_and_repeated_as_one(bench: Bench) {
    assert_eq!(statuses(&bench.send([family("x")]).await), [Accepted]);
    let ids: Vec<String> = bench.events(PROJECT).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["1", "1~1", "1~2"], "in the order they stand");
    assert_eq!(statuses(&bench.send([family("x")]).await), [Duplicate]);
    assert_eq!(bench.events(PROJECT).await.len(), 3);
}

async fn a_unit_conflicts_as_one(bench: Bench) {
    bench.send([family("x")]).await;
    assert_eq!(statuses(&bench.send([family("y")]).await), [Conflict], "a sub-event differs");
    assert_eq!(statuses(&bench.send([draft("1")]).await), [Conflict], "the sub-events are missing");
    let more = family("x").with(draft("1~3"));
    assert_eq!(statuses(&bench.send([more]).await), [Conflict], "there is one more");
    assert_eq!(bench.events(PROJECT).await.len(), 3);
}

async fn a_sub_event_collides_with_a_plain_event(bench: Bench) {
    bench.send([draft("1~2").saying("x")]).await;
    assert_eq!(statuses(&bench.send([family("x")]).await), [Conflict]);
    let ids: Vec<String> = bench.events(PROJECT).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["1~2"], "nothing of the unit is kept");
    assert_eq!(statuses(&bench.send([draft("1")]).await), [Accepted], "and its own id is still free");
}

async fn a_plain_event_collides_with_a_sub_event(bench: Bench) {
    bench.send([family("x")]).await;
    assert_eq!(statuses(&bench.send([draft("1~2").saying("x")]).await), [Conflict]);
    assert_eq!(bench.events(PROJECT).await.len(), 3);
}

async fn an_id_twice_in_one_group_is_accepted_once(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let event = draft("1").to(subscriber);
    let committed = bench.send([event.clone(), event.clone(), event.saying("other")]).await;
    assert_eq!(statuses(&committed), [Accepted, Duplicate, Conflict]);
    assert_eq!(bench.rows(subscriber).await.len(), 1);
}

async fn an_id_twice_in_one_submission_is_accepted_once(bench: Bench) {
    let request = submission([draft("1"), draft("2"), draft("1"), draft("2").saying("other")]);
    let committed = bench.commit(Group { submissions: vec![request], ..Group::default() }).await;
    assert_eq!(statuses(&committed), [Accepted, Accepted, Duplicate, Conflict]);
    assert_eq!(bench.events(PROJECT).await.len(), 2);
}

/// The key is a hash: two ids may share one, and are told apart all the same.
async fn a_shared_look_up_key_is_no_duplicate(bench: Bench) {
    let mut request = submission([draft("1"), draft("2")]);
    request.units[1].keys = vec![lookup_key(PROJECT, "shop", "1")];
    let group = Group { submissions: vec![request], ..Group::default() };
    assert_eq!(statuses(&bench.commit(group.clone()).await), [Accepted, Accepted]);
    assert_eq!(statuses(&bench.commit(group).await), [Duplicate, Duplicate]);
    let found = bench.store().event(PROJECT, "1".to_owned()).await.unwrap();
    assert_eq!(found.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["1"]);
}

async fn duplicates_are_known_after_a_restart(mut bench: Bench) {
    bench.send([draft("1"), family("x").saying("f").from("depot")]).await;
    bench.reopen().await;
    let again = [draft("1"), family("x").saying("f").from("depot"), draft("1").saying("other"), draft("2")];
    assert_eq!(statuses(&bench.send(again).await), [Duplicate, Duplicate, Conflict, Accepted]);
    assert_eq!(bench.store().event(PROJECT, "1".to_owned()).await.unwrap().len(), 2);
}
