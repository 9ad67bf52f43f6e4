//! Many ids: what is known stays known while a store reorganises what it remembers, and through a restart in the
//! middle of that. The numbers are chosen so that the embedded store merges its keys several times.

use super::bench::{Bench, Draft, PROJECT, draft, statuses, submission};
use super::{Case, named};
use crate::UnitStatus::{Accepted, Conflict, Duplicate};
use crate::{Group, UnitStatus};

/// Events of one request here: few requests, so that the case is about the ids.
const PER_REQUEST: usize = 4_096;
/// More than the embedded store gathers before it begins to merge.
const MANY: usize = 70_000;

pub(super) fn cases() -> Vec<Case> {
    named!["ids":
        duplicates_are_found_before_during_and_after_a_merge,
        duplicates_are_found_after_a_restart_during_a_merge,
    ]
}

fn numbered(range: std::ops::Range<usize>) -> impl Iterator<Item = Draft> {
    range.map(|number| draft(format!("e{number}")))
}

async fn fill(bench: &Bench, range: std::ops::Range<usize>) {
    for start in range.clone().step_by(PER_REQUEST) {
        let request = submission(numbered(start..range.end.min(start + PER_REQUEST)));
        let committed = bench.commit(Group { submissions: vec![request], ..Group::default() }).await;
        assert!(statuses(&committed).iter().all(|status| *status == Accepted));
    }
}

/// Repeats and contradictions of events here and there are told as such; each asking moves a merge a little.
async fn probe(bench: &Bench, through: usize) {
    let picks: Vec<usize> = (0..through).step_by(through / 97).chain([0, through - 1]).collect();
    for chunk in picks.chunks(10) {
        let repeats = chunk.iter().map(|number| draft(format!("e{number}")));
        let others = chunk.iter().map(|number| draft(format!("e{number}")).saying("other"));
        let committed = bench.send(repeats.chain(others)).await;
        let expected: Vec<UnitStatus> =
            chunk.iter().map(|_| Duplicate).chain(chunk.iter().map(|_| Conflict)).collect();
        assert_eq!(statuses(&committed), expected);
    }
    for number in [0, through / 2, through - 1] {
        let found = bench.store().event(PROJECT, format!("e{number}")).await.unwrap();
        assert_eq!(found.len(), 1, "e{number} is found by its id");
    }
    assert_eq!(bench.store().event(PROJECT, format!("e{through}")).await.unwrap(), []);
}

async fn duplicates_are_found_before_during_and_after_a_merge(bench: Bench) {
    fill(&bench, 0..60_000).await;
    probe(&bench, 60_000).await;
    fill(&bench, 60_000..MANY).await;
    for _ in 0..4 {
        probe(&bench, MANY).await;
    }
    for _ in 0..150 {
        bench.commit(Group::default()).await;
    }
    probe(&bench, MANY).await;
    fill(&bench, MANY..2 * MANY).await;
    probe(&bench, 2 * MANY).await;
}

async fn duplicates_are_found_after_a_restart_during_a_merge(mut bench: Bench) {
    fill(&bench, 0..MANY).await;
    for _ in 0..5 {
        bench.commit(Group::default()).await;
    }
    bench.reopen().await;
    probe(&bench, MANY).await;
    fill(&bench, MANY..MANY + 5_000).await;
    bench.reopen().await;
    probe(&bench, MANY + 5_000).await;
    for _ in 0..200 {
        bench.commit(Group::default()).await;
    }
    bench.reopen().await;
    probe(&bench, MANY + 5_000).await;
}
