//! What the store is told and asked about metrics.

use std::any::Any;
use std::collections::BTreeMap;

use tidegate_core::id::{BackfillNo, Incarnation, KeyNo, MetricNo, ProjectNo, Seq, Version};
use tidegate_core::observe::search::{Leaf, Plan};
use tidegate_core::observe::state::{Change, ObjectRow};
use tidegate_core::observe::value::Stretch;
use tidegate_core::observe::{Delta, Grain, Key, Kind, Posting, Spec, Switches};
use tidegate_core::time::Timestamp;

use crate::rebuild::{self, Rebuild, Then, Wanted, is_rebuilt};
use crate::{Error, EventFilter, EventRow, Result};

/// A metric of a declared type: what it is, what it is called, and its number.
pub type Metric = (Kind, String, MetricNo);

/// Which type of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeName {
    /// Whose.
    pub project: ProjectNo,
    /// Their source.
    pub service: String,
    /// Their type.
    pub type_name: String,
}

/// A declared type as it was from one version on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeVersion {
    /// Whose.
    pub project: ProjectNo,
    /// The source of such events.
    pub service: String,
    /// Their type.
    pub type_name: String,
    /// Since which version.
    pub version: Version,
    /// What it is, as JSON; absent when it was taken back.
    pub definition: Option<String>,
    /// What is counted of it.
    pub metrics: Vec<Metric>,
}

impl TypeVersion {
    /// What the installation switches kinds off by from this version on. It is kept among what types were, under a project
    /// that nobody has.
    pub fn switches(&self) -> Option<Switches> {
        let is_installation = self.project == INSTALLATION;
        is_installation.then(|| read_switches(self.definition.as_deref().unwrap_or_default()))
    }
}

/// Whose versions say what is switched off.
pub(crate) const INSTALLATION: ProjectNo = 0;

/// What is switched off, as it is kept.
pub(crate) fn read_switches(text: &str) -> Switches {
    serde_json::from_str(text).unwrap_or_default()
}

pub(crate) fn written_switches(switches: Switches) -> String {
    serde_json::to_string(&switches).expect("truth values are always JSON")
}

/// How far the events of one life have been observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Whose events.
    pub of: Incarnation,
    /// Everything up to this event.
    pub seq: Seq,
    /// When the last of them was accepted.
    pub at: Timestamp,
    /// That life has ended: whoever finds this observes the rest.
    pub is_orphan: bool,
}

/// Events that follow a mark.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// The mark that stands behind them.
    pub through: Seq,
    /// When the last of them was accepted; absent when there is none.
    pub at: Option<Timestamp>,
    /// In order of acceptance, of all projects.
    pub events: Vec<(ProjectNo, EventRow)>,
    /// There were no more.
    pub is_end: bool,
}

/// What a slice of events adds, and what moves with it.
#[derive(Clone, Debug)]
pub struct Flush {
    /// What moves.
    pub advance: Advance,
    /// What the events add.
    pub delta: Delta,
}

/// A mark that moves on. Nothing happens if it is not where the slice began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// That of a life's events.
    Mark {
        /// Whose.
        of: Incarnation,
        /// Where it must stand.
        after: Seq,
        /// Where it stands then.
        through: Seq,
        /// When the last of the events was accepted.
        at: Timestamp,
    },
    /// That of a backfill.
    Backfill {
        /// Which.
        no: BackfillNo,
        /// Where it must stand.
        after: Seq,
        /// Where it stands then.
        through: Seq,
        /// How many events were looked at.
        looked: u64,
        /// It is the last step.
        is_last: bool,
    },
}

/// A wish to count what was accepted before a type declared some of its metrics.
#[derive(Clone, Debug)]
pub struct NewBackfill {
    /// Whose events.
    pub project: ProjectNo,
    /// Their source.
    pub service: String,
    /// Their type.
    pub type_name: String,
    /// What is counted; what has been backfilled already is left out.
    pub metrics: Vec<Metric>,
    /// What the type is, as JSON.
    pub definition: String,
}

/// A backfill of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackfillRow {
    /// Inside.
    pub no: BackfillNo,
    /// Whose events.
    pub project: ProjectNo,
    /// Their source.
    pub service: String,
    /// Their type.
    pub type_name: String,
    /// What is counted.
    pub metrics: Vec<Metric>,
    /// What the type was when it began.
    pub definition: String,
    /// Where it began.
    pub begin: Seq,
    /// Everything up to here has been looked at.
    pub after: Seq,
    /// Where it ends.
    pub until: Seq,
    /// How many events it has looked at.
    pub looked: u64,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Why it was stopped before its end, if it was.
    pub stopped: Option<String>,
    /// Which states are counted anew; then it ends where nothing has come since, not where it was to end.
    pub rebuild: Rebuild,
    /// By which configuration it began: what was accepted by a later one is none of its business.
    pub version: Version,
    /// Metrics that others have counted in what was accepted up to a configuration.
    pub behind: Vec<(MetricNo, Version)>,
}

/// A stretch of buckets of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// How long each is.
    pub grain: Grain,
    /// The first one begins here, in milliseconds.
    pub from: i64,
    /// And this one is not among them.
    pub to: i64,
}

/// What a metric has in some buckets.
#[derive(Clone, Debug, Default)]
pub struct Rollups {
    /// All its keys.
    pub keys: Vec<(KeyNo, Key)>,
    /// Packed cells: how long the bucket is, when it begins, and they.
    pub pages: Vec<(Grain, i64, Vec<u8>)>,
}

/// Which events are counted again, to be compared with what was counted.
#[derive(Clone, Debug)]
pub struct Recount {
    /// Whose.
    pub project: ProjectNo,
    /// Their source.
    pub service: String,
    /// Their type.
    pub type_name: String,
    /// Only those that happened in this range, in milliseconds: the second is not in it.
    pub range: (i64, i64),
    /// Whose rollups are read.
    pub metrics: Vec<MetricNo>,
    /// Whose objects and changes are told, and all of whose weeks are read.
    pub states: Vec<MetricNo>,
    /// Of these, the states whose changes are told with their events.
    pub followed: Vec<MetricNo>,
    /// Whose lists are told.
    pub indexes: Vec<MetricNo>,
}

/// Who counts again.
pub trait Recounter: Send {
    /// The backfills of the type's service: an event that came before one of its metrics counts as far as they have come.
    fn begin(&mut self, backfills: Vec<BackfillRow>);
    /// An event that has been observed; `false` ends the count. They come in order of acceptance.
    fn event(&mut self, event: &EventRow) -> bool;
    /// What the indexes have of the events since they were told last.
    fn listed(&mut self, lists: Vec<Posting>);
    /// Something that happened to an object, and its event if these are told and it is kept; `false` ends these.
    fn change(&mut self, change: &Change, event: Option<&EventRow>) -> bool;
    /// What is known of an object of a state; `false` ends these.
    fn object(&mut self, state: MetricNo, id: &str, known: &ObjectRow) -> bool;
    /// To get back what was lent.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// What the store has, as of the instant at which the events were read.
pub struct Recounted {
    /// Who counted.
    pub recounter: Box<dyn Recounter>,
    /// Events that happened later than this are all there; absent: all that ever came.
    pub kept_since: Option<Timestamp>,
    /// All that each metric has counted in the range, and of states all weeks.
    pub rollups: Vec<(MetricNo, Rollups)>,
}

impl Recount {
    /// All buckets that lie within the range, whatever their length.
    pub(crate) fn buckets(&self) -> Vec<Buckets> {
        let (from, to) = self.range;
        Grain::ALL.map(|grain| Buckets { grain, from, to }).to_vec()
    }

    /// The same of a state, and all weeks there are: the count of objects in it is the sum of everything before.
    pub(crate) fn buckets_of_states(&self) -> Vec<Buckets> {
        let weeks = Buckets { grain: Grain::D7, from: i64::MIN, to: i64::MAX };
        let shorter = self.buckets().into_iter().filter(|buckets| buckets.grain != Grain::D7);
        shorter.chain([weeks]).collect()
    }

    pub(crate) fn name(&self) -> TypeName {
        let (service, type_name) = (self.service.clone(), self.type_name.clone());
        TypeName { project: self.project, service, type_name }
    }
}

/// Events whose lists are told at once.
pub(crate) const LISTED_EVENTS: usize = 50_000;

/// A list of an index without what it has of other events than these, which are sorted.
pub(crate) fn listed(index: MetricNo, value: &[u8], mut list: Vec<Seq>, events: &[Seq]) -> Option<Posting> {
    list.retain(|event| events.binary_search(event).is_ok());
    (!list.is_empty()).then(|| Posting { index, value: value.to_vec().into(), events: list })
}

/// A search for events by the values of their attributes.
#[derive(Clone, Debug)]
pub struct Search {
    /// How they are found.
    pub plan: Plan,
    /// Where each path of the plan is indexed.
    pub indexes: BTreeMap<String, Vec<MetricNo>>,
    /// What else is asked of them.
    pub filter: EventFilter,
}

impl Search {
    pub(crate) fn of(&self, leaf: &Leaf) -> &[MetricNo] {
        self.indexes.get(&leaf.path).map_or(&[], Vec::as_slice)
    }
}

/// Values of an attribute.
#[derive(Clone, Debug)]
pub struct ValueFilter {
    /// Where it is indexed.
    pub indexes: Vec<MetricNo>,
    /// Which of them.
    pub stretches: Vec<Stretch>,
    /// Those behind this one.
    pub after: Option<Vec<u8>>,
    /// How many at most.
    pub limit: usize,
}

impl ValueFilter {
    /// The parts of the stretches that lie behind the last value.
    pub(crate) fn left(&self) -> impl Iterator<Item = (Vec<u8>, &Vec<u8>)> {
        self.stretches.iter().filter_map(|stretch| {
            let next = self.after.as_ref().map(|after| [&after[..], &[0]].concat()).unwrap_or_default();
            let from = stretch.from.clone().max(next);
            (from < stretch.to).then_some((from, &stretch.to))
        })
    }
}

/// A metric that is counted now.
#[derive(Clone, Debug)]
pub(crate) struct Living {
    pub(crate) no: MetricNo,
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) shape: String,
}

/// The metric that counts what a declaration asks for, if there is one, and the one it takes the place of.
pub(crate) fn fate(spec: &Spec, living: &[Living]) -> (Option<MetricNo>, Option<MetricNo>) {
    match living.iter().find(|metric| metric.kind == spec.kind && metric.name == spec.name) {
        Some(metric) if metric.shape == spec.shape => (Some(metric.no), None),
        found => (None, found.map(|metric| metric.no)),
    }
}

/// What nobody declares any more after a type's metrics changed; `others` are those of the service's other types.
pub(crate) fn dropped(old: &[Metric], new: &[Metric], others: &[Metric]) -> Vec<MetricNo> {
    let is_in = |metric: &Metric, list: &[Metric]| list.iter().any(|(.., no)| *no == metric.2);
    let gone = old.iter().filter(|metric| !is_in(metric, new) && !is_in(metric, others));
    gone.map(|(.., no)| *no).collect()
}

/// What a backfill counts, as it is kept: its metrics, by which configuration it began, and what others have counted.
pub(crate) type Covered = (Vec<Metric>, Version, Vec<(MetricNo, Version)>);

/// Of what somebody wants added up, what is not counted yet: nobody has asked for it, or the type has not counted it for a
/// while since somebody did. `versions` are those of the type.
pub(crate) fn not_yet(wanted: &[Metric], before: &[Covered], versions: &[Then], now: Version) -> Covered {
    let (mut metrics, mut behind) = (Vec::new(), Vec::new());
    for metric in wanted.iter().filter(|(kind, ..)| !is_rebuilt(*kind)) {
        let no = metric.2;
        let is_in = |list: &[Metric]| list.iter().any(|(.., of)| *of == no);
        let covering = before.iter().filter(|(metrics, ..)| is_in(metrics));
        match covering.map(|(_, version, _)| *version).max() {
            None => metrics.push(metric.clone()),
            Some(until) if versions.iter().any(|then| then.since > until && !is_in(&then.metrics)) => {
                metrics.push(metric.clone());
                behind.push((no, until));
            }
            Some(_) => {}
        }
    }
    (metrics, now, behind)
}

/// A conflict if nothing is left of what somebody wants counted.
pub(crate) fn some_left(added: &[Metric], anew: &Wanted) -> Result<()> {
    if !added.is_empty() || !anew.metrics.is_empty() {
        return Ok(());
    }
    Err(Error::Conflict(anew.why_not.unwrap_or(rebuild::COUNTED).to_owned()))
}

/// What a backfill counts, as it is kept.
pub(crate) fn written_covered(covered: &Covered) -> String {
    serde_json::to_string(covered).expect("names and numbers are always JSON")
}

/// Reads what [`written_covered`] wrote, or the metrics alone: then nobody knows what came later.
pub(crate) fn read_covered(text: &str) -> Covered {
    serde_json::from_str(text).unwrap_or_else(|_| (read(text), Version::MAX, Vec::new()))
}

/// The metrics of a type, as they are kept.
pub(crate) fn written(metrics: &[Metric]) -> String {
    serde_json::to_string(metrics).expect("names and numbers are always JSON")
}

/// Reads what [`written`] wrote; nothing if it is something else.
pub(crate) fn read(text: &str) -> Vec<Metric> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backfill_covers_is_read_back_also_where_only_metrics_are_known() {
        let metric = |no| (Kind::Counter, "all".to_owned(), no);
        let covered: Covered = (vec![metric(1), metric(2)], 7, vec![(2, 5)]);
        assert_eq!(read_covered(&written_covered(&covered)), covered);
        for many in 0..4 {
            let metrics: Vec<Metric> = (0..many).map(metric).collect();
            assert_eq!(read_covered(&written(&metrics)), (metrics, Version::MAX, Vec::new()));
        }
    }
}
