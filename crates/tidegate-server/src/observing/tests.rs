//! However many read the events of a slice, what they add is the same.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;
use tidegate_core::observe::{Delta, Kind};
use tidegate_core::time::Timestamp;

use super::*;

fn types(workers: usize) -> Types {
    let definition = json!({
        "index": ["data.tags"],
        "counters": {"all": {}, "by": {"dimensions": ["data.key"], "sum": "data.n", "where": "data.n != 3"}},
        "histograms": {"n": {"value": "data.n", "dimensions": ["data.key"]}},
        "states": [{"object": "thing", "id": "data.key", "attributes": ["data.n"]}],
    });
    let metrics = [
        (Kind::Counter, "all"),
        (Kind::Counter, "by"),
        (Kind::Histogram, "n"),
        (Kind::State, "thing data.n"),
        (Kind::Transition, "thing data.n"),
        (Kind::Index, "data.tags"),
    ];
    let metrics = (1..).zip(metrics).map(|(no, (kind, name))| (kind, name.to_owned(), no)).collect();
    let mut types = Types::new(Terms { workers, ..Terms::default() });
    types.put(TypeVersion {
        project: 1,
        service: "shop".to_owned(),
        type_name: "order".to_owned(),
        version: 1,
        definition: Some(definition.to_string()),
        metrics,
    });
    types
}

fn event(seq: i64, (key, n, second, is_other): (u8, i32, i64, bool)) -> (ProjectNo, EventRow) {
    let time = Timestamp::from_ms(second * 1_000);
    let body = json!({"data": {"key": format!("k{key}"), "n": n, "tags": [n, key, "x"]}}).to_string();
    let row = EventRow {
        seq,
        version: 1,
        accepted_at: time,
        time,
        id: seq.to_string(),
        source: "shop".to_owned(),
        type_name: if is_other { "other" } else { "order" }.to_owned(),
        subject: None,
        body: Bytes::from(body),
    };
    (1, row)
}

fn read(events: &[(ProjectNo, EventRow)], workers: usize, seed: u64) -> Delta {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be built");
    runtime.block_on(types(workers).observe_together(events.to_vec(), seed)).into_delta()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_number_of_workers_counts_the_same(
        said in prop::collection::vec((0_u8..40, -5_i32..5, 0_i64..100, any::<bool>()), 0..300),
    ) {
        let events: Vec<_> = (1..).zip(said).map(|(seq, said)| event(seq, said)).collect();
        let (mut alone, mut slab) = (types(1), Slab::new(1));
        events.iter().for_each(|(project, event)| alone.observe(*project, event, &mut slab));
        let expected = slab.into_delta();
        for workers in [1, 2, 3, 4, 64] {
            prop_assert_eq!(&read(&events, workers, 7), &expected, "{} workers", workers);
        }
    }
}

/// What was accepted after a backfill began and does not declare its metrics is none of its business, though another type
/// still has the index.
#[test]
fn a_backfill_counts_nothing_that_came_after_it_began() {
    let mut types = types(1);
    let index = (Kind::Index, "data.tags".to_owned(), 6);
    let row = BackfillRow {
        no: 1,
        project: 1,
        service: "shop".to_owned(),
        type_name: "order".to_owned(),
        metrics: vec![index],
        definition: json!({"index": ["data.tags"]}).to_string(),
        begin: 0,
        after: 0,
        until: 2,
        looked: 0,
        started_at: Timestamp::from_ms(0),
        finished_at: None,
        stopped: None,
        rebuild: tidegate_store::Rebuild::default(),
        version: 1,
        behind: Vec::new(),
    };
    let mut past = Past::new(Terms::default(), row);
    let mut slab = Slab::new(1);
    for (seq, version) in [(1, 1), (2, 0), (3, 0)] {
        let (_, row) = event(seq, (1, 1, 1, false));
        past.observe(&mut types, &EventRow { version, ..row }, &mut slab);
    }
    let found: Vec<_> = slab.into_delta().postings.into_iter().map(|posting| posting.events).collect();
    assert!(!found.is_empty() && found.iter().all(|events| *events == [2]), "{found:?}");
}
