//! A flush that was made ready beside the writer adds to what is there when it is written, and one that came to nothing
//! half-way leaves nothing behind that would be counted twice.

use std::collections::BTreeMap;

use rusqlite::Connection;
use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::value::Stretch;
use tidegate_core::observe::{Cell, Grain, Slab, page};
use tidegate_core::time::Timestamp;

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::sqlite::{Calls, SqliteStore, postings};
use crate::{Advance, Buckets, Error, Flush, Store, ValueFilter};

const COUNTER: MetricNo = 1;
const INDEX: MetricNo = 2;

fn flush((after, through): (Seq, Seq), fill: impl FnOnce(&mut Slab)) -> Flush {
    let mut slab = Slab::new(7);
    fill(&mut slab);
    Flush { advance: Advance::Mark { of: 0, after, through, at: NOW }, delta: slab.into_delta() }
}

/// Every key of the counter, and how often it was counted.
async fn counted(store: &SqliteStore) -> BTreeMap<String, i64> {
    let week = Buckets { grain: Grain::D7, from: i64::MIN, to: i64::MAX };
    let rollups = store.rollups(COUNTER, vec![week]).await.unwrap();
    let names: BTreeMap<_, _> = rollups.keys.into_iter().collect();
    let mut counts = BTreeMap::new();
    for (_, _, packed) in &rollups.pages {
        for cell in page::cells(packed).unwrap() {
            let (key, cell) = cell.unwrap();
            let Cell::Count { count, .. } = cell.to_cell().unwrap() else { panic!("it is a counter") };
            *counts.entry(names[&key].to_string()).or_default() += count;
        }
    }
    counts
}

#[tokio::test]
async fn what_was_made_ready_before_somebody_else_wrote_is_made_anew() {
    let dir = Scratch::new();
    let store = SqliteStore::open(dir.path(), b"salt", 7, NOW, Calls::Blocking).unwrap();
    let metric = "INSERT INTO metrics (no, project, service, type, kind, name, shape, keys_max)
        VALUES (1, 1, 's', 't', 0, 'n', '', 1000)";
    Connection::open(dir.path().join("tidegate.db")).unwrap().execute(metric, []).unwrap();
    let count = |at: Seq| {
        flush((at, at + 1), |slab| {
            for key in ["[\"always\"]".to_owned(), format!("[\"{}\"]", at / 3)] {
                slab.count(COUNTER, Grain::S5, &key, Timestamp::from_ms(0), 0);
            }
        })
    };
    let mut expected = BTreeMap::from([("[\"always\"]".to_owned(), 100)]);
    for at in (0..100).step_by(2) {
        // Both are made ready at once, of the same: the second one must not believe it.
        let (first, second) = tokio::join!(store.observe(count(at), NOW), store.observe(count(at + 1), NOW));
        first.unwrap();
        match second {
            Ok(()) => {}
            Err(Error::Conflict(_)) => store.observe(count(at + 1), NOW).await.unwrap(),
            Err(error) => panic!("{error}"),
        }
        *expected.entry(format!("[\"{}\"]", at / 3)).or_default() += 1;
        *expected.entry(format!("[\"{}\"]", (at + 1) / 3)).or_default() += 1;
    }
    assert_eq!(counted(&store).await, expected);
}

#[tokio::test]
async fn lists_that_were_written_before_a_flush_failed_are_replaced() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let fill = |slab: &mut Slab, from: Seq, to: Seq| {
        for event in from..to {
            slab.post(INDEX, (event % 9_000).to_be_bytes(), event);
            slab.post(INDEX, b"all", event);
        }
    };
    let lost = flush((0, 20_000), |slab| fill(slab, 1, 20_001)).delta.postings;
    assert!(postings::parts(&lost) > 1);
    for part in 0..postings::parts(&lost) {
        postings::write(&mut store.writer.lock().unwrap(), &lost, part).unwrap();
    }
    for (after, through) in [(0, 9_500), (9_500, 25_000)] {
        let flush = flush((after, through), |slab| fill(slab, after + 1, through + 1));
        store.observe(flush, NOW).await.unwrap();
    }
    let filter = ValueFilter {
        indexes: vec![INDEX],
        stretches: vec![Stretch { from: Vec::new(), to: vec![u8::MAX] }],
        after: None,
        limit: 20_000,
    };
    let values: BTreeMap<Vec<u8>, u64> = store.values(filter).await.unwrap().into_iter().collect();
    assert_eq!(values[&b"all"[..]], 25_000);
    let each = |value: &Vec<u8>| 2 + u64::from((1..=7_000).any(|rest: Seq| value[..] == rest.to_be_bytes()));
    let wrong = values.iter().find(|(value, count)| value[..] != b"all"[..] && **count != each(value));
    assert_eq!((values.len(), wrong), (9_001, None));
}
