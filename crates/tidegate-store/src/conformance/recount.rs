//! What whoever counts again is told: the events, and what the store has of them.

use std::any::Any;
use std::sync::Arc;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{Change, ObjectRow};
use tidegate_core::observe::{Kind, Posting, Sight, Spec};

use super::bench::{Bench, PROJECT, draft};
use super::observe::{declare, observe};
use super::{Case, named};
use crate::{BackfillRow, EventRow, Recount, Recounter};

pub(super) fn cases() -> Vec<Case> {
    named!("recount": all_that_the_store_has_of_the_events_is_told)
}

/// Writes everything down.
#[derive(Default)]
struct Told {
    events: Vec<String>,
    lists: Vec<(MetricNo, Vec<u8>, usize)>,
    changes: Vec<(String, Option<String>, String)>,
    objects: Vec<(String, String)>,
}

impl Recounter for Told {
    fn begin(&mut self, backfills: Vec<BackfillRow>) {
        assert!(backfills.is_empty(), "nobody asked for one");
    }

    fn event(&mut self, event: &EventRow) -> bool {
        self.events.push(event.id.clone());
        true
    }

    fn listed(&mut self, lists: Vec<Posting>) {
        let list = |list: Posting| (list.index, list.value.to_vec(), list.events.len());
        self.lists.extend(lists.into_iter().map(list));
    }

    fn change(&mut self, change: &Change, event: Option<&EventRow>) -> bool {
        let event = event.expect("it is followed, and kept");
        assert_eq!((event.seq, event.time), (change.event, change.time));
        let from = change.from.as_deref().map(str::to_owned);
        self.changes.push((change.object.to_string(), from, change.to.to_string()));
        true
    }

    fn object(&mut self, _: MetricNo, id: &str, known: &ObjectRow) -> bool {
        self.objects.push((id.to_owned(), known.value.to_string()));
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

async fn all_that_the_store_has_of_the_events_is_told(bench: Bench) {
    let spec = |kind, name: &str| Spec {
        kind,
        name: name.to_owned(),
        shape: String::new(),
        keys_max: 50,
        keep_ms: None,
    };
    let specs = || {
        let state = "order data.status";
        vec![spec(Kind::State, state), spec(Kind::Transition, state), spec(Kind::Index, "data.country")]
    };
    let metrics = declare(&bench, "order.paid", specs()).await;
    declare(&bench, "other", specs()).await;
    let of = |kind| metrics.iter().find(|metric| metric.0 == kind).expect("it is declared").2;
    let (state, transition, index) = (of(Kind::State), of(Kind::Transition), of(Kind::Index));
    let rounds: [&[(&str, &str)]; 2] =
        [&[("a:NEW:1", "order.paid"), ("b:NEW:2", "other")], &[("a:PAID:3", "order.paid")]];
    for some in rounds {
        bench.send(some.iter().map(|(id, kind)| draft(*id).kind(kind))).await;
        observe(&bench, |event, slab| {
            let (object, rest) = event.id.split_once(':').expect("made here");
            let value: Arc<str> = rest.split(':').next().expect("made here").into();
            slab.post(index, value.as_bytes(), event.seq);
            slab.post(index, b"all", event.seq);
            let (object, policy, time, event) = (object.into(), Arc::default(), event.time, event.seq);
            slab.sight(Sight { state, transition, object, value, time, event, policy });
        })
        .await;
    }
    bench.send([draft("late")]).await;
    let recount = Recount {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        range: (i64::MIN, i64::MAX),
        metrics: vec![transition],
        states: vec![state],
        followed: vec![state],
        indexes: vec![index],
    };
    let found = bench.store().recount(recount, Box::<Told>::default()).await.expect("the store works");
    let mut told = found.recounter.into_any().downcast::<Told>().expect("it was lent");
    assert_eq!(told.events, ["a:NEW:1", "a:PAID:3"], "what is observed, of this type");
    told.lists.sort();
    let list = |value: &str, events| (index, value.as_bytes().to_vec(), events);
    let sum: usize =
        told.lists.iter().filter(|(_, value, _)| value == b"all").map(|(.., events)| events).sum();
    assert_eq!(sum, 2, "of these events: {:?}", told.lists);
    assert!(
        told.lists.contains(&list("NEW", 1)) && told.lists.contains(&list("PAID", 1)),
        "{:?}",
        told.lists
    );
    told.changes.sort();
    let change = |object: &str, from: Option<&str>, to: &str| {
        (object.to_owned(), from.map(str::to_owned), to.to_owned())
    };
    let changes = [change("a", None, "NEW"), change("a", Some("NEW"), "PAID"), change("b", None, "NEW")];
    assert_eq!(told.changes, changes);
    let objects = [("a", "PAID"), ("b", "NEW")].map(|(id, value)| (id.to_owned(), value.to_owned()));
    assert_eq!(told.objects, objects);
    let lengths = |metric| {
        let (_, rollups) = found.rollups.iter().find(|(no, _)| *no == metric).expect("it was read");
        let mut grains: Vec<_> = rollups.pages.iter().map(|(grain, ..)| *grain).collect();
        grains.dedup();
        grains.len()
    };
    assert_eq!((lengths(state), lengths(transition)), (6, 6), "buckets of all lengths");
}
