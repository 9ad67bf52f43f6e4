//! The history of objects told once more: which transitions their changes count as.
//!
//! A change says from which state an object came. Where a policy lets other states count too, these are the ones that the object
//! was in before, so its changes are gone through in order, by the code that counted them.
//!
//! Promises: what is counted here is exactly what was counted when the changes happened. Changes of which that can not be known,
//! because their event or what came before them is not kept any more, are [`Doubts`].
//! Does not: count first sights, which are what they are whatever the policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::delta::Sight;
use super::extract::NONE;
use super::grain::Grain;
use super::state::{Change, Ledger, ObjectRow, Policy};
use crate::id::MetricNo;
use crate::time::Timestamp;

/// A change that was not late, and what it counted by, if that is known.
#[derive(Clone, Debug)]
pub struct Tale {
    /// What happened.
    pub change: Change,
    /// That of its event.
    pub policy: Option<Arc<Policy>>,
}

/// Cells of which it is not known what they should be: a bucket, and the state after a change in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts(BTreeSet<(Grain, i64, Arc<str>)>);

impl Doubts {
    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it is known what should be counted under this key.
    pub fn is_known(&self, grain: Grain, bucket: i64, key: &str) -> bool {
        match serde_json::from_str::<[Arc<str>; 2]>(key) {
            Ok([from, to]) => &*from == NONE || !self.0.contains(&(grain, bucket, to)),
            Err(_) => false,
        }
    }

    fn add(&mut self, time: Timestamp, to: &Arc<str>) {
        let places = Grain::ALL.map(|grain| (grain, grain.start_ms(time.as_ms()), Arc::clone(to)));
        self.0.extend(places);
    }
}

/// An object as it is known so far.
struct Past {
    row: ObjectRow,
    /// All states that it was in are known.
    is_whole: bool,
}

/// Tells what changes count as, other than first sights: under which key, and when. They come in any order.
pub fn retell(transition: MetricNo, mut tales: Vec<Tale>, mut count: impl FnMut(&str, Timestamp)) -> Doubts {
    tales.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut doubts = Doubts::default();
    let mut ledger = Ledger::new(|metric, key: &str, time, _| {
        if metric == transition {
            count(key, time);
        }
    });
    let mut silent = Ledger::new(|_, _: &str, _, _| {});
    for of_object in tales.chunk_by(|a, b| a.change.object == b.change.object) {
        let mut past: Option<Past> = None;
        for Tale { change, policy } in of_object {
            let Some(from) = &change.from else {
                past = Some(Past { row: silent.begin(&sight(change, transition, None)), is_whole: true });
                continue;
            };
            let mut known =
                past.take().filter(|past| past.row.value == *from).unwrap_or_else(|| unknown(change, from));
            let is_told = policy.as_ref().is_some_and(|policy| known.is_whole || !policy.looks_back());
            let sight = sight(change, transition, policy.as_ref());
            if is_told {
                ledger.apply(&mut known.row, &[sight]);
                ledger.changes.clear();
            } else {
                doubts.add(change.time, &change.to);
                silent.apply(&mut known.row, &[sight]);
            }
            silent.changes.clear();
            past = Some(known);
        }
    }
    doubts
}

fn order(tale: &Tale) -> (&str, Timestamp, i64) {
    (&tale.change.object, tale.change.time, tale.change.event)
}

/// What came before is not there any more.
fn unknown(change: &Change, from: &Arc<str>) -> Past {
    let (time, event) = (change.time, change.event.saturating_sub(1));
    let row = ObjectRow { value: Arc::clone(from), time, event, visited: Default::default() };
    Past { row, is_whole: false }
}

fn sight(change: &Change, transition: MetricNo, policy: Option<&Arc<Policy>>) -> Sight {
    let Change { state, time, event, .. } = *change;
    let (object, value) = (Arc::clone(&change.object), Arc::clone(&change.to));
    Sight { state, transition, object, value, time, event, policy: policy.cloned().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATE: MetricNo = 1;
    const TRANSITION: MetricNo = 2;

    fn policy(additional: &[&str], only: Option<&[&str]>) -> Arc<Policy> {
        let boxed = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect();
        Arc::new(Policy { only: only.map(boxed), additional: boxed(additional) })
    }

    fn policies() -> [Arc<Policy>; 4] {
        [policy(&[], None), policy(&["*"], None), policy(&["A"], None), policy(&[], Some(&["?", "B"]))]
    }

    /// What a store would have after these sights of one object: its history, with policies, and what was counted.
    fn lived(sights: &[(i64, usize, usize)]) -> (Vec<Tale>, Vec<(String, Timestamp)>) {
        let mut counted = Vec::new();
        let mut ledger = Ledger::new(|metric, key: &str, time, _| {
            if metric == TRANSITION && !key.contains(NONE) {
                counted.push((key.to_owned(), time));
            }
        });
        let mut row: Option<ObjectRow> = None;
        let of: Vec<Sight> = sights
            .iter()
            .enumerate()
            .map(|(event, (ms, value, by))| Sight {
                state: STATE,
                transition: TRANSITION,
                object: "x".into(),
                value: ["A", "B", "C", "D"][*value].into(),
                // No two at once.
                time: Timestamp::from_ms(*ms * 64 + event as i64),
                event: event as i64,
                policy: Arc::clone(&policies()[*by]),
            })
            .collect();
        for sight in &of {
            match &mut row {
                None => row = Some(ledger.begin(sight)),
                Some(row) => ledger.apply(row, std::slice::from_ref(sight)),
            }
        }
        let changes = ledger.changes.into_iter().filter(|change| !change.is_late);
        let by = |change: &Change| Some(Arc::clone(&of[usize::try_from(change.event).unwrap()].policy));
        let tales = changes.map(|change| Tale { policy: by(&change), change }).collect();
        (tales, counted)
    }

    fn told(tales: Vec<Tale>) -> (Vec<(String, Timestamp)>, Doubts) {
        let mut told = Vec::new();
        let doubts = retell(TRANSITION, tales, |key, time| told.push((key.to_owned(), time)));
        (told, doubts)
    }

    proptest! {
        #[test]
        fn what_was_counted_is_told_again(
            sights in prop::collection::vec((0_i64..100_000, 0_usize..4, 0_usize..4), 1..60),
            shuffle in 0_usize..60,
        ) {
            let (mut tales, counted) = lived(&sights);
            let place = shuffle % tales.len();
            tales.rotate_left(place);
            prop_assert_eq!(told(tales), (counted, Doubts::default()));
        }

        /// Whatever is gone, nothing is told that was not counted, and what is missing is in doubt.
        #[test]
        fn what_is_gone_is_doubted(
            sights in prop::collection::vec((0_i64..100_000, 0_usize..4, 0_usize..4), 2..60),
            gone in 0_usize..60,
            nameless in 0_usize..60,
        ) {
            let (mut tales, mut counted) = lived(&sights);
            let nameless = nameless % tales.len();
            tales[nameless].policy = None;
            let kept = tales.split_off(gone % tales.len());
            let since = kept[0].change.time;
            let (told, doubts) = told(kept);
            counted.retain(|(_, time)| *time >= since);
            let is_sure = |(key, time): &&(String, Timestamp)| {
                doubts.is_known(Grain::S5, Grain::S5.start_ms(time.as_ms()), key)
            };
            let sure = |all: &[(String, Timestamp)]| all.iter().filter(is_sure).cloned().collect::<Vec<_>>();
            prop_assert_eq!(sure(&told), sure(&counted));
        }
    }

    #[test]
    fn first_sights_are_never_doubted() {
        let mut doubts = Doubts::default();
        doubts.add(Timestamp::from_ms(7_000), &Arc::from("B"));
        let known = |grain, bucket, key: &str| doubts.is_known(grain, bucket, key);
        assert!(
            !known(Grain::S5, 5_000, r#"["A","B"]"#)
                && !known(Grain::D7, Grain::D7.start_ms(0), r#"["A","B"]"#)
        );
        assert!(known(Grain::S5, 5_000, r#"["(none)","B"]"#) && known(Grain::S5, 5_000, r#"["A","C"]"#));
        assert!(known(Grain::S5, 0, r#"["A","B"]"#));
    }
}
