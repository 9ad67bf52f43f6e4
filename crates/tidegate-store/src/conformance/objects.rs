//! Objects: what is known of one, and what happened to them, is what a recount says.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::Change;
use tidegate_core::observe::{Kind, Sight, Spec};
use tidegate_core::time::Timestamp;

use super::bench::{Bench, Draft, START, draft};
use super::observe::{declare, observe};
use super::rebuilds::Chance;
use super::{Case, named};
use crate::{ChangeFilter, ChangePlace, EventRow, Told};

pub(super) fn cases() -> Vec<Case> {
    named!("objects":
        what_is_known_and_what_happened_is_what_a_recount_says,
        nothing_is_known_of_others,
    )
}

/// What an event says: of which object, and its state.
type Says = (String, String);

/// A recount: what is known, and what each flush told.
#[derive(Default)]
struct Model {
    known: BTreeMap<String, (String, EventRow)>,
    flushes: Vec<Vec<Told<Change>>>,
}

impl Model {
    /// In the order in which a flush takes them.
    fn flush(&mut self, state: MetricNo, mut events: Vec<(EventRow, Says)>) {
        events.sort_by_key(|(event, _)| (event.time, event.seq));
        let mut told = Vec::new();
        for (event, (object, to)) in events {
            let before = self.known.get(&object);
            let is_late = before.is_some_and(|(_, last)| (last.time, last.seq) > (event.time, event.seq));
            let from = before.map(|(state, _)| state.clone());
            if !is_late {
                self.known.insert(object.clone(), (to.clone(), event.clone()));
            }
            if from.as_deref() != Some(&to) {
                let (object, from, to) = (object.into(), from.map(Arc::from), to.into());
                let (time, seq) = (event.time, event.seq);
                told.push((Change { state, object, from, to, time, event: seq, is_late }, Some(event.id)));
            }
        }
        told.sort_by_key(|(change, _)| Reverse((change.time, change.event)));
        if !told.is_empty() {
            self.flushes.push(told);
        }
    }

    /// All that is asked for: flush by flush, the one with the latest change first.
    fn changes(&self, is_wanted: impl Fn(&Change) -> bool) -> Vec<Told<Change>> {
        let mut flushes: Vec<_> = self.flushes.iter().enumerate().collect();
        flushes.sort_by_key(|(no, told)| Reverse((told[0].0.time, *no)));
        let all = flushes.into_iter().flat_map(|(_, told)| told);
        all.filter(|(change, _)| is_wanted(change)).cloned().collect()
    }
}

fn specs() -> Vec<Spec> {
    let spec = |kind| Spec {
        kind,
        name: "order data.status".to_owned(),
        shape: String::new(),
        keys_max: 10,
        keep_ms: None,
    };
    vec![spec(Kind::State), spec(Kind::Transition)]
}

/// Sends some events and counts them in one flush.
async fn tell(bench: &Bench, states: [MetricNo; 2], says: Vec<(Draft, Says)>) -> Vec<(EventRow, Says)> {
    let (drafts, mut says): (Vec<Draft>, Vec<Says>) = says.into_iter().unzip();
    says.reverse();
    bench.send(drafts).await;
    let mut told = Vec::new();
    observe(bench, |event, slab| {
        let (object, value) = says.pop().expect("one for each event");
        let [state, transition] = states;
        let (time, policy) = (event.time, Arc::default());
        let sight = (Arc::from(&*object), Arc::from(&*value));
        told.push((event.clone(), (object, value)));
        let (object, value) = sight;
        slab.sight(Sight { state, transition, object, value, time, event: event.seq, policy });
    })
    .await;
    told
}

fn at(ms: u64) -> Timestamp {
    START.plus(Duration::from_millis(ms))
}

/// All pages, and the place behind each.
async fn pages(bench: &Bench, filter: ChangeFilter) -> Vec<Told<Change>> {
    let (mut all, mut after) = (Vec::new(), None::<ChangePlace>);
    loop {
        let page = bench.store().changes(ChangeFilter { after, ..filter.clone() }).await;
        let page = page.expect("the store works");
        assert!(page.items.len() <= filter.limit);
        all.extend(page.items);
        match page.next {
            Some(next) => after = Some(next),
            None => return all,
        }
    }
}

async fn what_is_known_and_what_happened_is_what_a_recount_says(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", specs()).await;
    let states = [metrics[0].2, metrics[1].2];
    let (mut chance, mut model) = (Chance(7), Model::default());
    for round in 0..60 {
        let says = (0..chance.below(6)).map(|n| {
            let time = at(1_000 * round + chance.below(4_000));
            let says = (format!("o{}", chance.below(5)), format!("S{}", chance.below(3)));
            (Draft { time, ..draft(format!("{round}-{n}")) }, says)
        });
        let told = tell(&bench, states, says.collect()).await;
        model.flush(states[0], told);
        if round % 20 == 19 {
            bench.reopen().await;
        }
    }
    for (object, (value, event)) in &model.known {
        let found = bench.store().object(states.to_vec(), object.clone()).await.expect("the store works");
        let [(state, (row, id))] = &found[..] else { panic!("it is known of one state: {found:?}") };
        assert_eq!((*state, &*row.value, row.time, row.event), (states[0], &**value, event.time, event.seq));
        assert_eq!(id.as_ref(), Some(&event.id));
        assert_eq!(row.visited.states().last().map(|state| &**state), Some(&**value));
    }
    let state = states[0];
    assert!(model.changes(|change| change.is_late).len() > 5, "some came late");
    for limit in [1, 7, 1_000] {
        let all = ChangeFilter { state, limit, ..ChangeFilter::default() };
        assert_eq!(pages(&bench, all.clone()).await, model.changes(|_| true));
        let one = ChangeFilter { object: Some("o3".to_owned()), ..all.clone() };
        assert_eq!(pages(&bench, one).await, model.changes(|change| &*change.object == "o3"));
        for is_late in [true, false] {
            let some = ChangeFilter { is_late: Some(is_late), ..all.clone() };
            assert_eq!(pages(&bench, some).await, model.changes(|change| change.is_late == is_late));
        }
        let (from, to) = (at(20_000), at(40_000));
        let some = ChangeFilter { from: Some(from), to: Some(to), ..all };
        let expected = model.changes(|change| change.time >= from && change.time < to);
        assert!(expected.len() > 10);
        assert_eq!(pages(&bench, some).await, expected);
    }
}

async fn nothing_is_known_of_others(bench: Bench) {
    let metrics = declare(&bench, "order.paid", specs()).await;
    let states = [metrics[0].2, metrics[1].2];
    tell(&bench, states, vec![(draft("a"), ("o5".to_owned(), "NEW".to_owned()))]).await;
    let known = async |state, id: &str| {
        bench.store().object(vec![state], id.to_owned()).await.expect("the store works").len()
    };
    assert_eq!(known(states[0], "o5").await, 1);
    for id in ["", "o", "o4", "o50", "p"] {
        assert_eq!(known(states[0], id).await, 0, "{id}");
    }
    assert_eq!(known(states[0] + 9, "o5").await, 0, "another state");
    let none = ChangeFilter { state: states[0] + 9, limit: 9, ..ChangeFilter::default() };
    assert!(pages(&bench, none).await.is_empty());
}
