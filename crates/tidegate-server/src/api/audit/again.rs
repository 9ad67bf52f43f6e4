//! Who counts again: every event as the observer does it, and as backfills did.
//!
//! Counters and histograms are summed up and compared at the end. What an event says of objects and of values is compared as
//! it comes: of each object the latest that was said, of values only those since the index was last looked at. So what is
//! in memory is bounded by cells and objects, not by events.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::catalog::EventType;
use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::limits::AUDIT_CELLS_MAX;
use tidegate_core::observe::state::{Change, ObjectRow};
use tidegate_core::observe::{Grain, Kind, NONE, Posting, Rise, Slab, Switches};
use tidegate_core::time::Timestamp;
use tidegate_store::{BackfillRow, EventRow, Metric, Recounter};

use super::super::App;
use super::super::problem::Problem;
use crate::observing::{Past, Terms, Types};

/// Events after which what they say of objects is gone through.
const STRIDE: u64 = 1_000;

/// Objects that are told one by one.
const WRONG_TOLD_MAX: usize = 100;

/// By state, then by object: the latest that an event said.
type Said = BTreeMap<MetricNo, BTreeMap<Arc<str>, (Timestamp, Seq, Arc<str>)>>;

pub(super) struct Again {
    project: ProjectNo,
    /// What adds up, and what is told of objects and values.
    sums: Counter,
    tellings: Counter,
    /// The transitions beside each state.
    transitions: BTreeMap<MetricNo, MetricNo>,
    said: Said,
    objects_said: usize,
    events: u64,
    outcome: Outcome,
}

/// What came out of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// What each counter, histogram and transition should have.
    pub(super) expected: BTreeMap<MetricNo, Vec<Rise>>,
    /// Transitions that are counted from the state before and nothing else.
    pub(super) plain: BTreeSet<MetricNo>,
    /// How many objects are in each state.
    pub(super) objects: BTreeMap<MetricNo, BTreeMap<Arc<str>, i64>>,
    pub(super) lists: BTreeMap<MetricNo, Lists>,
    /// Of objects about which something was said: what was, and what is known.
    wrong: BTreeMap<MetricNo, Vec<(Timestamp, Wrong)>>,
    looked: BTreeMap<MetricNo, usize>,
}

/// An object, what an event said of it, and what is known if it is known at all.
type Wrong = (Arc<str>, Arc<str>, Option<Arc<str>>);

/// How an index compares with what the events say.
#[derive(Default)]
pub(super) struct Lists {
    /// Values of events that should be in it.
    pub(super) expected: u64,
    /// Those that are.
    pub(super) counted: u64,
    /// Those that are only in one of the two.
    pub(super) differences: u64,
}

/// One way to look at events.
struct Counter {
    terms: Terms,
    types: Types,
    pasts: Vec<(BackfillRow, Past)>,
    slab: Slab,
    seed: u64,
}

impl Counter {
    async fn new(app: &App, only: Switches) -> Result<Self, Problem> {
        let terms = Terms { switches: only, ..app.parts.observing };
        let mut types = Types::only(terms, only);
        types.refresh(&*app.parts.store).await?;
        let seed = app.parts.entropy.u64();
        Ok(Self { terms, types, pasts: Vec::new(), slab: Slab::new(seed), seed })
    }

    fn begin(&mut self, backfills: &[BackfillRow]) {
        let terms = self.terms;
        self.pasts = backfills.iter().map(|row| (row.clone(), Past::new(terms, row.clone()))).collect();
    }

    fn event(&mut self, project: ProjectNo, event: &EventRow) {
        self.types.observe(project, event, &mut self.slab);
        for (_, past) in self.pasts.iter_mut().filter(|(row, _)| event.seq <= row.after) {
            past.observe(&mut self.types, event, &mut self.slab);
        }
    }

    fn take(&mut self) -> Slab {
        std::mem::replace(&mut self.slab, Slab::new(self.seed))
    }
}

impl Again {
    pub(super) async fn new(
        app: &App,
        project: ProjectNo,
        service: &str,
        event_type: &EventType,
    ) -> Result<Self, Problem> {
        let off = Some(false);
        let sums = Counter::new(app, Switches { index: off, states: off, ..Switches::default() }).await?;
        let tellings = Counter::new(app, Switches { counters: off, histograms: off, ..Switches::default() });
        let tellings = tellings.await?;
        let of = |kind| event_type.metrics.iter().filter(move |metric| metric.0 == kind);
        let beside = |state: &Metric| of(Kind::Transition).find(|(_, name, _)| *name == state.1);
        let transitions: BTreeMap<MetricNo, MetricNo> =
            of(Kind::State).filter_map(|state| Some((state.2, beside(state)?.2))).collect();
        let is_plain = |metric: &&Metric| tellings.types.is_plain(project, service, metric);
        let plain = of(Kind::Transition).filter(is_plain).map(|(.., no)| *no).collect();
        let outcome = Outcome { plain, ..Outcome::default() };
        let (said, objects_said, events) = (Said::new(), 0, 0);
        Ok(Self { project, sums, tellings, transitions, said, objects_said, events, outcome })
    }

    /// There was too much.
    pub(super) fn is_full(&self) -> bool {
        self.sums.slab.len() + self.objects_said > AUDIT_CELLS_MAX
    }

    /// How many events there were, and what they come to.
    pub(super) fn finish(mut self) -> (u64, Outcome) {
        for (state, objects) in std::mem::take(&mut self.said) {
            let missing = objects.into_iter().map(|(object, (time, _, value))| (time, (object, value, None)));
            self.outcome.wrong.entry(state).or_default().extend(missing);
        }
        for rise in self.sums.slab.into_delta().rises() {
            self.outcome.expected.entry(rise.metric).or_default().push(rise);
        }
        (self.events, self.outcome)
    }

    /// Keeps the latest of what events said of objects; what they said of values is given back.
    fn sort_out(&mut self) -> Vec<Posting> {
        let told = self.tellings.take().into_delta();
        for sight in told.sights.into_iter().filter(|sight| self.transitions.contains_key(&sight.state)) {
            let of_state = self.said.entry(sight.state).or_default();
            let said = (sight.time, sight.event, sight.value);
            let before = of_state.get(&sight.object).map(|(time, event, _)| (*time, *event));
            if before.is_none_or(|before| before < (said.0, said.1)) {
                self.objects_said += usize::from(before.is_none());
                of_state.insert(sight.object, said);
            }
        }
        told.postings
    }
}

impl Recounter for Again {
    fn begin(&mut self, backfills: Vec<BackfillRow>) {
        self.sums.begin(&backfills);
        self.tellings.begin(&backfills);
    }

    fn event(&mut self, event: &EventRow) -> bool {
        self.events += 1;
        self.sums.event(self.project, event);
        self.tellings.event(self.project, event);
        if self.events.is_multiple_of(STRIDE) {
            let postings = self.sort_out();
            for Posting { index, value, events } in postings {
                events.into_iter().for_each(|event| self.tellings.slab.post(index, &value, event));
            }
        }
        !self.is_full()
    }

    fn listed(&mut self, lists: Vec<Posting>) {
        let expected = pairs(self.sort_out());
        let counted = pairs(lists);
        for pair in &expected {
            let list = self.outcome.lists.entry(pair.0).or_default();
            list.expected += 1;
            list.differences += u64::from(!counted.contains(pair));
        }
        for pair in &counted {
            let list = self.outcome.lists.entry(pair.0).or_default();
            list.counted += 1;
            list.differences += u64::from(!expected.contains(pair));
        }
    }

    /// The history tells each transition from the state before.
    fn change(&mut self, change: &Change) -> bool {
        let Some(transition) = self.transitions.get(&change.state).filter(|_| !change.is_late) else {
            return true;
        };
        if change.from.is_some() && !self.outcome.plain.contains(transition) {
            return true;
        }
        let from = change.from.as_deref().unwrap_or(NONE);
        let key = serde_json::to_string(&[from, &change.to]).expect("texts are always JSON");
        self.sums.slab.shift(*transition, Grain::S5, &key, change.time, 1);
        !self.is_full()
    }

    fn object(&mut self, state: MetricNo, id: &str, known: &ObjectRow) -> bool {
        let counts = self.outcome.objects.entry(state).or_default();
        *counts.entry(Arc::clone(&known.value)).or_default() += 1;
        *self.outcome.looked.entry(state).or_default() += 1;
        let Some((object, (time, event, value))) =
            self.said.get_mut(&state).and_then(|said| said.remove_entry(id))
        else {
            return true;
        };
        // Another type may have said something later.
        let is_right = (known.time, known.event) > (time, event)
            || (known.time, known.event) == (time, event) && known.value == value;
        if !is_right {
            let wrong = (time, (object, value, Some(Arc::clone(&known.value))));
            self.outcome.wrong.entry(state).or_default().push(wrong);
        }
        true
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

fn pairs(lists: Vec<Posting>) -> BTreeSet<(MetricNo, bytes::Bytes, Seq)> {
    let of = |list: Posting| {
        let Posting { index, value, events } = list;
        events.into_iter().map(move |event| (index, value.clone(), event))
    };
    lists.into_iter().flat_map(of).collect()
}

impl Outcome {
    /// How many objects were looked at, and those that are not as events said; older ones may have been forgotten.
    pub(super) fn wrong_objects(&mut self, state: MetricNo, since: i64) -> (usize, Vec<Wrong>) {
        let wrong = self.wrong.remove(&state).unwrap_or_default();
        let wrong = wrong.into_iter().filter(|(time, _)| time.as_ms() > since);
        let wrong = wrong.map(|(_, wrong)| wrong).take(WRONG_TOLD_MAX).collect();
        (self.looked.get(&state).copied().unwrap_or(0), wrong)
    }
}
