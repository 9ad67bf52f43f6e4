//! Counting in the simulation: in some runs types declare a counter, a histogram, a state and an index, declare others and
//! take them back, while everything else happens. Flushes are repeated as a process would that was only believed to be gone,
//! and the answers of some are lost.
//!
//! At the end everything accepted is counted again, by arithmetic of its own and by the catalog of each event's day, and compared
//! with what the store has under each number: every length of bucket, every state and transition, and a search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::catalog::Definition;
use tidegate_core::id::{MetricNo, ProjectNo};
use tidegate_core::observe::page::{CellRef, cells};
use tidegate_core::observe::search::Plan as Condition;
use tidegate_core::observe::{Grain, Kind, Sketch};
use tidegate_core::time::Timestamp;
use tidegate_server::observing::Terms;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{Buckets, Change, Error, EventFilter, Flush, Metric, Result, Search, Store};

use super::acts::Site;
use super::catalog::Edit;
use super::dice::Dice;
use super::history::{Fact, Histories, History};
use super::pasts::{self, Counting};
use super::plan::{Act, END_T, KEYS, Plan, TYPES};

/// What a campaign must have seen.
pub(crate) const RARE_PATHS: [&str; 7] = [
    "a flush repeated",
    "a flush whose answer was lost",
    "a metric that ended",
    "a past counted",
    "a state counted anew",
    "an event counted",
    "somebody told up to when all is counted",
];

const DAY_MS: i64 = 24 * 3_600_000;
const NONE: &str = "(none)";
/// Units of a sum.
const UNIT: i128 = 1_000_000_000;

/// How a type is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// By key, with sums.
    ByKey,
    /// Some of them, all together.
    Some,
}

impl Shape {
    fn definition(self) -> Value {
        let mut definition = json!({
            "index": ["data.key"],
            "states": [{"object": "thing", "id": "data.key", "attributes": ["type"]}],
        });
        let (counter, histogram) = match self {
            Self::ByKey => (
                json!({"dimensions": ["data.key"], "sum": "data.n"}),
                json!({"value": "data.n", "dimensions": ["data.key"]}),
            ),
            Self::Some => (json!({"where": "data.n > 20"}), json!({"value": "data.n"})),
        };
        definition["counters"] = json!({"c": counter});
        definition["histograms"] = json!({"h": histogram});
        definition
    }
}

/// Plans a run that counts, in some of the seeds.
pub(crate) fn plan(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "counting");
    if !dice.percent(30) {
        return;
    }
    let interval = Duration::from_millis(dice.pick(&[20, 400, 5_000]));
    plan.counting = Terms { interval, batch: dice.pick(&[1, 4, 10_000]), ..Terms::default() };
    let shapes = [Shape::ByKey, Shape::ByKey, Shape::Some];
    for project in plan.projects.clone() {
        for name in TYPES {
            let t = if dice.percent(60) { dice.between(1, 50) } else { dice.between(50, END_T / 2) };
            if dice.percent(80) {
                let edit = Edit::Count(name, dice.pick(&shapes));
                plan.acts.push((t, Act::Catalog { project, edit }));
            }
        }
        for _ in 0..dice.below(4) {
            let (t, name) = (dice.between(1_000, END_T - 1_000), dice.pick(&TYPES));
            let counted = Edit::Count(name, dice.pick(&shapes));
            let edit = dice.pick(&[counted, counted, Edit::Declare(name)]);
            plan.acts.push((t, Act::Catalog { project, edit }));
        }
    }
    for _ in 0..dice.below(10) {
        plan.acts.push((dice.between(100, END_T - 500), Act::Ask));
    }
    // After all other rolls of this die, so that runs without a past are what they were.
    for project in plan.projects.clone() {
        for _ in 0..dice.below(6) {
            let edit = Edit::CountPast(dice.pick(&TYPES));
            plan.acts.push((dice.between(1_000, END_T - 1_000), Act::Catalog { project, edit }));
        }
    }
    // Somebody asks while events are being written.
    let posts = plan.acts.iter().filter(|(_, act)| matches!(act, Act::Post { .. }));
    let asks: Vec<i64> = posts.flat_map(|(t, _)| [t + dice.between(0, 5), t + dice.between(0, 40)]).collect();
    plan.acts.extend(asks.into_iter().map(|t| (t, Act::Ask)));
}

impl Site {
    /// What the API does before it answers a question.
    pub(crate) async fn ask(&self) {
        let Ok(until) = self.pipeline.observe.catch_up().await else { return };
        let mark = self.parts.store.marks().await.ok().and_then(|marks| marks.into_iter().next());
        let Some(mark) = mark else { return };
        let mut behind = Vec::new();
        for project in self.parts.rosters.current().projects.values().map(|row| row.no) {
            let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
            let events =
                self.parts.store.events(project, filter).await.map_or_else(|_| Vec::new(), |page| page.items);
            behind
                .extend(events.into_iter().filter(|event| event.seq > mark.seq && event.accepted_at < until));
        }
        let mut history = self.history.lock();
        history.complete_until = history.complete_until.max(until.as_ms());
        history.reach("somebody told up to when all is counted");
        for event in behind {
            let (id, at) = (event.id, event.accepted_at);
            history.violation(format!("P4 all up to {until} is said to be counted, and {id} of {at} is not"));
        }
    }

    /// Declares that events of a type are counted.
    pub(crate) async fn count(&self, project: ProjectNo, name: &str, shape: Shape) {
        let definition = shape.definition().to_string();
        let definition = Definition::parse(definition.as_bytes()).expect("it is one");
        self.change(Change::PutType {
            project,
            service: "shop".to_owned(),
            type_name: name.to_owned(),
            definition: serde_json::to_string(&definition).expect("a definition is JSON"),
            metrics: definition.specs(),
            keep_ms: None,
        })
        .await;
    }
}

/// Who speaks for the dead and loses answers, with chance of its own.
pub(crate) struct Flushes {
    dice: Mutex<Dice>,
}

impl Flushes {
    pub(crate) fn new(seed: u64, life: usize) -> Self {
        Self { dice: Mutex::new(Dice::new(seed, &format!("flushes/{life}"))) }
    }

    /// A flush was written: it may be written again, which must come to nothing, and its answer may be lost.
    pub(crate) async fn written(
        &self,
        store: &SqliteStore,
        histories: &Histories,
        (flush, now, t): (Flush, Timestamp, i64),
    ) -> Result<()> {
        let (is_repeated, is_lost) = {
            let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
            (dice.percent(20), dice.percent(10))
        };
        if is_repeated {
            let again = store.observe(flush, now).await;
            let mut history = histories.lock();
            history.reach("a flush repeated");
            if !matches!(again, Err(Error::Conflict(_))) {
                history.violation(format!("P4 events that were counted before were taken again: {again:?}"));
            }
        }
        if is_lost && t < END_T {
            histories.lock().reach("a flush whose answer was lost");
            return Err(Error::Unavailable("nobody heard the answer".to_owned()));
        }
        Ok(())
    }
}

/// What a type was from each change on, with the numbers that the store gave its metrics.
pub(crate) async fn note_change(store: &SqliteStore, histories: &Histories, change: &Change) {
    if !matches!(change, Change::PutType { .. } | Change::DeleteType { .. }) {
        return;
    }
    let known = histories.lock().types.last().map_or(0, |last| last.version);
    let newer = store.type_versions(known).await.expect("it was written");
    histories.lock().types.extend(newer.into_iter().filter(|newer| newer.version > known));
}

/// Grain, bucket and key.
type Place = (Grain, i64, String);
/// How many, and their sum.
type Table = BTreeMap<Place, (i64, i128)>;

/// What must have been counted under each number.
#[derive(Default)]
struct Counted {
    tables: BTreeMap<MetricNo, Table>,
    /// State and transition number, object: what is known of it.
    objects: BTreeMap<(MetricNo, String), (String, i64)>,
    /// States whose objects were told of out of order: what became of those depends on when they were counted.
    disordered: BTreeSet<MetricNo>,
}

impl Counted {
    fn of(history: &History) -> Self {
        let mut counted = Self::default();
        for (place, fact) in history.accepted.iter().enumerate() {
            for counting in pasts::counted(history, type_of(history, fact), place) {
                counted.add(fact, &counting);
            }
        }
        for table in counted.tables.values_mut() {
            table.retain(|_, cell| *cell != (0, 0));
        }
        counted
    }

    fn add(&mut self, fact: &Fact, counting: &Counting) {
        let Counting { metric: (kind, _, no), transition, is_by_key } = counting;
        let (kind, no, is_by_key) = (*kind, *no, *is_by_key);
        let n = fact.content.n;
        let key = fact.content.key.as_deref().unwrap_or(NONE);
        let key = if is_by_key { json!([key]) } else { json!([]) }.to_string();
        match kind {
            Kind::Counter if is_by_key => self.put(no, time(fact), &key, (1, i128::from(n) * UNIT)),
            Kind::Counter if n > 20 => self.put(no, time(fact), &key, (1, 0)),
            Kind::Histogram => self.put(no, time(fact), &key, (1, i128::from(n) * UNIT)),
            Kind::State => {
                if let (Some(object), Some(transition)) = (&fact.content.key, transition) {
                    self.see(fact, object, (no, *transition));
                }
            }
            _ => {}
        }
    }

    /// An object is said to be in a state.
    fn see(&mut self, fact: &Fact, object: &str, (state, transition): (MetricNo, MetricNo)) {
        let (now, to) = (time(fact), fact.content.type_name.clone());
        let place = (state, object.to_owned());
        if self.objects.get(&place).is_some_and(|(_, before)| *before > now) {
            self.disordered.extend([state, transition]);
            return;
        }
        let from = match self.objects.insert(place, (to.clone(), now)) {
            Some((from, _)) if from == to => return,
            Some((from, _)) => {
                self.put(state, now, &json!([from]).to_string(), (-1, 0));
                from
            }
            None => NONE.to_owned(),
        };
        self.put(state, now, &json!([to]).to_string(), (1, 0));
        self.put(transition, now, &json!([from, to]).to_string(), (1, 0));
    }

    fn put(&mut self, no: MetricNo, time: i64, key: &str, (count, sum): (i64, i128)) {
        for grain in Grain::ALL {
            let place = (grain, start(grain, time), key.to_owned());
            let cell = self.tables.entry(no).or_default().entry(place).or_default();
            (cell.0, cell.1) = (cell.0 + count, cell.1 + sum);
        }
    }
}

/// When the bucket of an instant begins, reckoned apart from the product. Weeks begin on Mondays, as 1970-01-05 was one.
fn start(grain: Grain, ms: i64) -> i64 {
    let (length, origin) = match grain {
        Grain::S5 => (5_000, 0),
        Grain::M1 => (60_000, 0),
        Grain::M5 => (300_000, 0),
        Grain::H1 => (3_600_000, 0),
        Grain::D1 => (DAY_MS, 0),
        Grain::D7 => (7 * DAY_MS, 4 * DAY_MS),
    };
    ms - (ms - origin).rem_euclid(length)
}

/// When an event happened, as its own bytes say.
fn time(fact: &Fact) -> i64 {
    let body: Value = serde_json::from_slice(&fact.body).expect("bodies are JSON");
    body["time"].as_str().and_then(Timestamp::parse).expect("events have a time").as_ms()
}

fn type_of<'h>(history: &'h History, fact: &Fact) -> Option<&'h tidegate_store::TypeVersion> {
    let is_its = |known: &&tidegate_store::TypeVersion| {
        (known.project, &known.service, &known.type_name)
            == (fact.key.0, &fact.key.1, &fact.content.type_name)
    };
    history.types.iter().filter(is_its).take_while(|known| known.version <= fact.version).last()
}

/// Numbers that some type still declares: those that nobody does are forgotten with all they counted.
fn living(history: &History) -> BTreeMap<MetricNo, Kind> {
    let mut last = BTreeMap::new();
    for known in &history.types {
        last.insert((known.project, &known.service, &known.type_name), &known.metrics);
    }
    last.values().flat_map(|metrics| metrics.iter()).map(|(kind, _, no)| (*no, *kind)).collect()
}

/// Compares what is counted with what was accepted.
pub(crate) async fn check(site: &Site, found: &mut Vec<String>) {
    let (counted, living) = {
        let history = site.history.lock();
        (Counted::of(&history), living(&history))
    };
    let blank = Table::new();
    for (no, kind) in living.iter().filter(|(_, kind)| **kind != Kind::Index) {
        let table = read(site, *no).await;
        let expected = counted.tables.get(no).unwrap_or(&blank);
        if counted.disordered.contains(no) {
            continue;
        }
        let wrong = expected.iter().find(|(place, cell)| table.get(*place) != Some(*cell));
        if let Some((place, cell)) = wrong {
            let has = table.get(place);
            found.push(format!("P4 {kind:?} {no} should have {cell:?} at {place:?}, and has {has:?}"));
        } else if table.len() > expected.len() {
            let more = table.keys().find(|place| !expected.contains_key(*place));
            found.push(format!("P4 {kind:?} {no} has something at {more:?}, where nothing happened"));
        }
    }
    check_objects(site, &counted, &living, found).await;
    check_search(site, found).await;
    let mut history = site.history.lock();
    if counted.tables.values().any(|table| !table.is_empty()) {
        history.reach("an event counted");
    }
    if counted.tables.keys().any(|no| !living.contains_key(no)) {
        history.reach("a metric that ended");
    }
}

/// Everything that is stored under a number.
async fn read(site: &Site, no: MetricNo) -> Table {
    let all = Grain::ALL.map(|grain| Buckets { grain, from: i64::MIN, to: i64::MAX }).to_vec();
    let rollups = site.parts.store.rollups(no, all).await.expect("the store works again");
    let names: BTreeMap<_, _> = rollups.keys.into_iter().collect();
    let mut table = Table::new();
    for (grain, bucket, page) in rollups.pages {
        for cell in cells(&page).expect("a page is whole") {
            let (key, cell) = cell.expect("a page is whole");
            let name = names.get(&key).map_or_else(|| "(other)".to_owned(), ToString::to_string);
            let total = match cell {
                CellRef::Count { count, sum } => (count, sum),
                CellRef::Sketch(packed) => {
                    let mut sketch = Sketch::default();
                    packed.read(&mut sketch).expect("a sketch is whole");
                    (sketch.count().cast_signed(), sketch.sum())
                }
            };
            table.insert((grain, bucket, name), total);
        }
    }
    table
}

/// How many are in each state is known whatever was told late: each is where it was last seen.
async fn check_objects(
    site: &Site,
    counted: &Counted,
    living: &BTreeMap<MetricNo, Kind>,
    found: &mut Vec<String>,
) {
    let states = living.iter().filter(|(_, kind)| **kind == Kind::State).map(|(no, _)| *no);
    for no in states {
        let mut expected: BTreeMap<String, i64> = BTreeMap::new();
        for ((_, _), (state, _)) in counted.objects.iter().filter(|((state, _), _)| *state == no) {
            *expected.entry(json!([state]).to_string()).or_default() += 1;
        }
        let mut standing: BTreeMap<String, i64> = BTreeMap::new();
        for ((_, _, key), (count, _)) in read(site, no).await.iter().filter(|(place, _)| place.0 == Grain::D7)
        {
            *standing.entry(key.clone()).or_default() += count;
        }
        standing.retain(|_, count| *count != 0);
        if expected != standing {
            found.push(format!("P4 objects are in states {standing:?}, and should be in {expected:?}"));
        }
    }
}

/// What is found by a value is what has it, was indexed when it came, and is still kept.
async fn check_search(site: &Site, found: &mut Vec<String>) {
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let index = {
            let history = site.history.lock();
            let own = history.types.iter().filter(|known| known.project == project);
            let numbers = own.flat_map(|known| known.metrics.iter());
            let is_key = |metric: &&Metric| metric.0 == Kind::Index && metric.1 == "data.key";
            let living = living(&history);
            numbers.filter(is_key).map(|metric| metric.2).find(|no| living.contains_key(no))
        };
        let Some(index) = index else { continue };
        let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
        let kept = site.parts.store.events(project, filter).await.expect("the store works again").items;
        for key in KEYS {
            let condition = Condition::compile(&format!("data.key == '{key}'"), &|path| path == "data.key");
            let search = Search {
                plan: condition.expect("it can be searched by"),
                indexes: [("data.key".to_owned(), vec![index])].into(),
                filter: EventFilter { limit: 10_000, ..EventFilter::default() },
            };
            let page = site.parts.store.search(project, search).await.expect("the store works again");
            let ids: Vec<String> = page.items.into_iter().map(|row| row.id).collect();
            let history = site.history.lock();
            let is_meant = |id: &&String| {
                let place = history.index.get(&(project, "shop".to_owned(), (*id).clone()));
                place.is_some_and(|place| {
                    let fact = &history.accepted[*place];
                    let counted = pasts::counted(&history, type_of(&history, fact), *place);
                    let is_indexed = counted.iter().any(|counting| counting.metric.2 == index);
                    is_indexed && fact.content.key.as_deref() == Some(key)
                })
            };
            let expected: Vec<String> = kept.iter().map(|row| &row.id).filter(is_meant).cloned().collect();
            if ids != expected {
                found.push(format!("P4 a search for {key} found {ids:?} and should have found {expected:?}"));
            }
        }
    }
}
