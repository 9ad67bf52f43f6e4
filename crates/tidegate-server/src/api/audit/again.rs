//! Who counts again: every event as the observer does it, and as backfills did.
//!
//! Counters and histograms are summed up and compared at the end. What an event says of objects and of values is compared as
//! it comes: of each object the latest that was said, of values only those since the index was last looked at. So what is
//! in memory is bounded by cells and objects, not by events. Only where other transitions than those from the state before count are
//! changes of objects kept, up to a limit, and told once more at the end.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::catalog::EventType;
use tidegate_core::id::{MetricNo, ProjectNo, Seq};
use tidegate_core::limits::AUDIT_CELLS_MAX;
use tidegate_core::observe::audit::{Comparison, Meant, compare_some};
use tidegate_core::observe::page::Torn;
use tidegate_core::observe::retell::{Doubts, Tale, retell};
use tidegate_core::observe::state::{Change, ObjectRow, Policy};
use tidegate_core::observe::{Grain, Kept, Kind, NONE, Posting, Rise, Sight, Slab, Switches};
use tidegate_core::time::Timestamp;
use tidegate_store::{BackfillRow, EventRow, Metric, Recounter, Rollups};

use super::super::App;
use super::super::problem::Problem;
use crate::observing::{Past, Terms, Types};

/// Events after which what they say of objects is gone through.
const STRIDE: u64 = 1_000;

/// How the key of an object's first transition begins.
const FIRST: &str = r#"["(none)","#;

/// Objects that are told one by one.
const WRONG_TOLD_MAX: usize = 100;

/// By state, then by object: the latest that an event said.
type Said = BTreeMap<MetricNo, BTreeMap<Arc<str>, (Timestamp, Seq, Arc<str>)>>;

pub(super) struct Again {
    project: ProjectNo,
    /// What adds up, and what is told of objects and values.
    sums: Counter,
    tellings: Counter,
    /// What is told of objects by events that come with their changes.
    followed: Counter,
    /// Changes of states whose transitions are not plain.
    tales: BTreeMap<MetricNo, Vec<Tale>>,
    tales_told: usize,
    type_name: String,
    /// What happened from then on is not asked about.
    to: i64,
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
    /// Of the others, what is not known; nothing, where there was too much to tell.
    pub(super) doubts: BTreeMap<MetricNo, Doubts>,
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
        (type_name, event_type): (&str, &EventType),
        to: i64,
    ) -> Result<Self, Problem> {
        let off = Some(false);
        let states = Switches { index: off, counters: off, histograms: off, ..Switches::default() };
        let followed = Counter::new(app, states).await?;
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
        Ok(Self {
            project,
            sums,
            tellings,
            followed,
            tales: BTreeMap::new(),
            tales_told: 0,
            type_name: type_name.to_owned(),
            to,
            transitions,
            said: Said::new(),
            objects_said: 0,
            events: 0,
            outcome,
        })
    }

    /// States whose changes have to be told with their events: others than the state before may count.
    pub(super) fn followed(&self) -> Vec<MetricNo> {
        let all = self.transitions.iter().filter(|(_, transition)| !self.outcome.plain.contains(transition));
        all.map(|(state, _)| *state).collect()
    }

    /// What a change of an object counted by, as its event says.
    fn policy(&mut self, change: &Change, event: &EventRow) -> Option<Arc<Policy>> {
        self.followed.event(self.project, event);
        let sights = self.followed.take().into_delta().sights;
        let is_this = |sight: &Sight| {
            sight.state == change.state && sight.object == change.object && sight.value == change.to
        };
        sights.into_iter().find(is_this).map(|sight| sight.policy)
    }

    /// Keeps a change, to be told with all others of its object.
    fn follow(&mut self, change: &Change, event: Option<&EventRow>) {
        if change.time.as_ms() >= self.to || self.tales_told > AUDIT_CELLS_MAX {
            return;
        }
        let policy = event.and_then(|event| self.policy(change, event));
        self.tales.entry(change.state).or_default().push(Tale { change: change.clone(), policy });
        self.tales_told += 1;
        if self.tales_told > AUDIT_CELLS_MAX {
            self.tales.clear();
        }
    }

    /// What the changes that were kept count as. Too many are left as they are.
    fn tell_tales(&mut self) {
        if self.tales_told > AUDIT_CELLS_MAX {
            return;
        }
        for state in self.followed() {
            let (tales, transition) =
                (self.tales.remove(&state).unwrap_or_default(), self.transitions[&state]);
            let slab = &mut self.sums.slab;
            let count = |key: &str, time| slab.shift(transition, Grain::S5, key, time, 1);
            self.outcome.doubts.insert(transition, retell(transition, tales, count));
        }
    }

    /// There was too much.
    pub(super) fn is_full(&self) -> bool {
        self.sums.slab.len() + self.objects_said > AUDIT_CELLS_MAX
    }

    /// How many events there were, and what they come to.
    pub(super) fn finish(mut self) -> (u64, Outcome) {
        self.tell_tales();
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
    fn begin(&mut self, mut backfills: Vec<BackfillRow>) {
        // What these have counted is nobody's.
        backfills.retain(|row| row.stopped.is_none());
        let own: Vec<BackfillRow> =
            backfills.iter().filter(|row| row.type_name == self.type_name).cloned().collect();
        self.sums.begin(&own);
        self.tellings.begin(&own);
        self.followed.begin(&backfills);
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
    fn change(&mut self, change: &Change, event: Option<&EventRow>) -> bool {
        let Some(transition) = self.transitions.get(&change.state).filter(|_| !change.is_late) else {
            return true;
        };
        let transition = *transition;
        if !self.outcome.plain.contains(&transition) {
            self.follow(change, event);
            if change.from.is_some() {
                return true;
            }
        }
        let from = change.from.as_deref().unwrap_or(NONE);
        let key = serde_json::to_string(&[from, &change.to]).expect("texts are always JSON");
        self.sums.slab.shift(transition, Grain::S5, &key, change.time, 1);
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
    /// Compares transitions, as far as it is known what they should be. Where there were too many changes to tell, those are that
    /// are the first of an object.
    pub(super) fn compare_transitions(
        &self,
        metric: MetricNo,
        expected: &[Rise],
        Rollups { keys, pages }: &Rollups,
        within: ((i64, i64), &Kept),
    ) -> Result<Comparison, Torn> {
        let is_first: Meant<'_> = &|_, _, key| key.starts_with(FIRST);
        let doubts = self.doubts.get(&metric);
        let is_known: Meant<'_> =
            &|grain, bucket, key| doubts.is_some_and(|doubts| doubts.is_known(grain, bucket, key));
        let is_meant = match doubts {
            _ if self.plain.contains(&metric) => None,
            None => Some(is_first),
            Some(doubts) => (!doubts.is_empty()).then_some(is_known),
        };
        compare_some(expected, keys, pages, within, is_meant)
    }

    /// How many objects were looked at, and those that are not as events said; older ones may have been forgotten.
    pub(super) fn wrong_objects(&mut self, state: MetricNo, since: i64) -> (usize, Vec<Wrong>) {
        let wrong = self.wrong.remove(&state).unwrap_or_default();
        let wrong = wrong.into_iter().filter(|(time, _)| time.as_ms() > since);
        let wrong = wrong.map(|(_, wrong)| wrong).take(WRONG_TOLD_MAX).collect();
        (self.looked.get(&state).copied().unwrap_or(0), wrong)
    }
}
