//! Goal: the delta at every grain equals a recount of the events, for any order of arrival and any division into slabs.
//! Method: random events, late ones included, counted plainly beside it; the slabs have different seeds.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::observe::delta::Rise;
use crate::observe::sketch::Sketch;

const COUNTER: MetricNo = 7;
const HISTOGRAM: MetricNo = 3;
const INDEX: MetricNo = 11;

#[derive(Clone, Debug)]
struct Event {
    seq: Seq,
    time: Timestamp,
    key: String,
    value: i32,
}

fn accuracy() -> Accuracy {
    Accuracy::new(0.01).unwrap()
}

fn observe(slab: &mut Slab, base: Grain, event: &Event) {
    slab.count(COUNTER, base, &event.key, event.time, i128::from(event.value));
    slab.count(COUNTER + 1, Grain::M5, "[]", event.time, 0);
    slab.sample(HISTOGRAM, base, &event.key, event.time, accuracy(), f64::from(event.value));
    slab.post(INDEX, event.key.as_bytes(), event.seq);
    slab.post(INDEX, Bytes::from(event.key.clone()), event.seq);
    if event.value > 0 {
        slab.sight(Sight {
            state: 1,
            transition: 2,
            object: event.key.as_str().into(),
            value: "s".into(),
            time: event.time,
            event: event.seq,
            policy: Arc::default(),
        });
    }
}

/// What [`Slab::into_delta`] must make of it, the plain way.
fn recount(base: Grain, events: &[Event]) -> (Vec<Rise>, Vec<Sight>, Vec<Posting>) {
    let mut cells: BTreeMap<(MetricNo, Grain, i64, String), Cell> = BTreeMap::new();
    let mut add = |metric, grain: Grain, event: &Event, key: &str, cell: Cell| {
        let place = (metric, grain, grain.start(event.time), key.to_owned());
        cells.entry(place).or_insert_with(|| Cell::nothing_like(&cell)).try_add(&cell).unwrap();
    };
    let mut postings: BTreeMap<&str, Vec<Seq>> = BTreeMap::new();
    for event in events {
        for grain in Grain::ALL.into_iter().filter(|grain| *grain >= base) {
            let mut sketch = Sketch::default();
            sketch.add(accuracy(), f64::from(event.value));
            add(COUNTER, grain, event, &event.key, Cell::Count { count: 1, sum: event.value.into() });
            add(HISTOGRAM, grain, event, &event.key, Cell::Sketch(sketch.into()));
        }
        for grain in [Grain::M5, Grain::H1, Grain::D1, Grain::D7] {
            add(COUNTER + 1, grain, event, "[]", Cell::Count { count: 1, sum: 0 });
        }
        postings.entry(&event.key).or_default().push(event.seq);
    }
    let rises = cells
        .into_iter()
        .map(|((metric, grain, bucket, key), cell)| Rise { metric, grain, bucket, key: key.into(), cell })
        .collect();
    let postings = postings
        .into_iter()
        .map(|(value, mut events)| {
            events.sort_unstable();
            Posting { index: INDEX, value: Bytes::copy_from_slice(value.as_bytes()), events }
        })
        .collect();
    let mut sighted: Vec<_> = events.iter().filter(|event| event.value > 0).collect();
    sighted.sort_by_key(|event| (&event.key, event.time, event.seq));
    let sights = sighted
        .into_iter()
        .map(|event| Sight {
            state: 1,
            transition: 2,
            object: event.key.as_str().into(),
            value: "s".into(),
            time: event.time,
            event: event.seq,
            policy: Arc::default(),
        })
        .collect();
    (rises, sights, postings)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let day = 24 * 3_600_000_i64;
    let time = prop_oneof![
        4 => (0..30_000_i64).prop_map(|ms| 1_800_000_000_000 + ms),
        2 => (-4_000_000..4_000_000_i64).prop_map(|ms| 1_800_000_000_000 + ms),
        1 => -40 * day..40 * day,
    ];
    proptest::collection::vec((time, "[a-d]{0,2}|long-enough-[ab]", -50_i32..50), 0..60).prop_map(|events| {
        let numbered = events.into_iter().enumerate();
        numbered
            .map(|(at, (ms, key, value))| Event { seq: at as Seq, time: Timestamp::from_ms(ms), key, value })
            .collect()
    })
}

proptest! {
    #[test]
    fn a_delta_equals_a_recount(
        events in events().prop_shuffle(),
        base in prop_oneof![Just(Grain::S5), Just(Grain::M1), Just(Grain::M5)],
        parts in proptest::collection::vec(0_usize..3, 60),
    ) {
        let mut slabs: Vec<_> = (0..3).map(Slab::new).collect();
        for (event, part) in events.iter().zip(parts) {
            observe(&mut slabs[part], base, event);
        }
        let mut merged = Slab::new(9);
        slabs.into_iter().for_each(|slab| merged.merge(slab));
        let (at_most, is_empty) = (merged.len(), merged.is_empty());
        let delta = merged.into_delta();
        prop_assert!(delta.rises().len() + delta.sights.len() + delta.postings.len() <= at_most);
        prop_assert_eq!(delta.is_empty(), is_empty);
        prop_assert_eq!((delta.rises(), delta.sights, delta.postings), recount(base, &events));
    }
}
