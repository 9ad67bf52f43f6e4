//! Rebuilds: how states are backfilled.
//!
//! What an event changes about an object depends on what is known of it, so the past can not be added to a state as it is
//! added to a counter. A state is counted anew instead, under another number: every kept event of the types that tell of
//! it, in order of acceptance and a step at a time, each step like a flush. Meanwhile the old number is counted and shown
//! as before. At the end the few events that are left are counted while nobody may accept any, and in that same
//! transaction the types declare the new number. So every event of an older configuration was counted by the backfill,
//! every other one is counted as it comes, and neither needs to know of the other.
//!
//! Promises: an event that was there when the backfill began counts by what its type was then, if that told of the state,
//! and otherwise by what it was in its day; one that came later the other way round. So what was declared in another way
//! is counted as it is declared now. Nothing is lost: a state that has counted events which are gone is not counted anew,
//! and no event goes before a rebuild has reached it.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::{MetricNo, Version};
use tidegate_core::observe::{Delta, Kind, Switches, telling};

use crate::observe::written_covered;
use crate::{BackfillRow, Error, Metric, Result, Slice};

/// What is counted anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuild {
    /// Types that told of the states when it began, and what each was, as JSON.
    pub types: Vec<(String, String)>,
    /// Numbers of states and of the transitions beside them, and those that take their place.
    pub replaced: Vec<(MetricNo, MetricNo)>,
}

impl Rebuild {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.replaced.is_empty()
    }

    /// What takes the place of a metric.
    pub fn instead_of(&self, no: MetricNo) -> Option<MetricNo> {
        self.replaced.iter().find(|(old, _)| *old == no).map(|(_, new)| *new)
    }

    /// Whether it takes the place of one.
    pub fn makes(&self, no: MetricNo) -> bool {
        self.replaced.iter().any(|(_, new)| *new == no)
    }

    /// As it is kept.
    pub(crate) fn written(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        serde_json::to_string(&(&self.types, &self.replaced)).expect("names and numbers are always JSON")
    }

    /// Reads what [`Rebuild::written`] wrote; nothing if it is something else.
    pub(crate) fn read(text: &str) -> Self {
        let (types, replaced) = serde_json::from_str(text).unwrap_or_default();
        Self { types, replaced }
    }

    /// What is kept in its place when it is stopped.
    pub(crate) fn written_stopped(why: &str) -> String {
        serde_json::json!({ "stopped": why }).to_string()
    }

    /// Why it was stopped, if it was.
    pub(crate) fn read_stopped(text: &str) -> Option<String> {
        serde_json::from_str::<BTreeMap<String, String>>(text).ok()?.remove("stopped")
    }

    /// The metrics of a type with the new numbers, if any of them gets one.
    pub(crate) fn renumbered(&self, metrics: &[Metric]) -> Option<Vec<Metric>> {
        let new = |(kind, name, no): &Metric| (*kind, name.clone(), self.instead_of(*no).unwrap_or(*no));
        let renumbered: Vec<Metric> = metrics.iter().map(new).collect();
        (renumbered != metrics).then_some(renumbered)
    }
}

/// Why a rebuild ends before its time.
const SWITCHED_OFF: &str = "what it counts was switched off";
const UNDECLARED: &str = "no type declares the state any more";
pub(crate) const ASKED: &str = "somebody stopped it";

impl BackfillRow {
    /// Why it can never put new numbers in the place of the old ones, if so. `living` are those of the old ones that are
    /// still counted.
    pub(crate) fn is_in_vain(&self, switches: Switches, living: &[MetricNo]) -> Option<&'static str> {
        let is_off = self.metrics.iter().any(|(kind, ..)| !switches.is_on(*kind));
        let is_declared = self.rebuild.replaced.iter().any(|(old, _)| living.contains(old));
        is_off.then_some(SWITCHED_OFF).or((!is_declared).then_some(UNDECLARED))
    }

    /// What becomes of it when it counts states no longer. Counters, histograms and indexes beside them are counted to
    /// their end, as if nobody had asked for the states.
    pub(crate) fn stopped(&self, why: &str) -> Stopped {
        let beside = self.metrics.iter().filter(|(.., no)| !self.rebuild.makes(*no));
        let beside: Vec<Metric> = beside.cloned().collect();
        let (metrics, rebuild, is_over) = if beside.is_empty() {
            (self.metrics.clone(), Rebuild::written_stopped(why), true)
        } else {
            (beside, String::new(), self.after >= self.until)
        };
        let metrics = written_covered(&(metrics, self.version, self.behind.clone()));
        let ended = self.rebuild.replaced.iter().map(|(_, new)| *new).collect();
        Stopped { ended, metrics, rebuild, is_over }
    }
}

/// A backfill that counts states no longer.
pub(crate) struct Stopped {
    /// Metrics that end.
    pub(crate) ended: Vec<MetricNo>,
    /// What is left of its columns.
    pub(crate) metrics: String,
    pub(crate) rebuild: String,
    /// Nothing is left to count.
    pub(crate) is_over: bool,
}

/// Why a backfill cannot be stopped by hand, if it cannot.
pub(crate) fn check_stop(row: &BackfillRow) -> Result<()> {
    if row.finished_at.is_some() {
        return Err(Error::Conflict("the backfill has ended before".to_owned()));
    }
    if row.rebuild.is_empty() {
        let detail =
            "only a backfill of states can be stopped: what others have counted is part of their metrics";
        return Err(Error::Conflict(detail.to_owned()));
    }
    Ok(())
}

/// Makes of the last events of a rebuild what they add; nothing if some were judged by a configuration that is not known
/// here yet.
pub type LastStep = Box<dyn FnOnce(&Slice) -> Option<Delta> + Send>;

/// What a type was from some version on.
#[derive(Clone, Debug)]
pub(crate) struct Then {
    pub(crate) of: String,
    pub(crate) since: Version,
    /// What it counted for.
    pub(crate) metrics: Vec<Metric>,
    /// As JSON; absent when it was taken back.
    pub(crate) definition: Option<String>,
}

impl Then {
    /// The same from another version on, where the installation has switched kinds off.
    fn switched(&self, since: Version, switches: Switches) -> Self {
        let is_on = |(kind, ..): &&Metric| switches.is_on(*kind);
        let metrics = self.metrics.iter().filter(is_on).cloned().collect();
        Self { of: self.of.clone(), since, metrics, definition: self.definition.clone() }
    }
}

/// What types counted for, where also the installation switches kinds off and on. Both are sorted by version.
pub(crate) fn switched(versions: Vec<Then>, switches: &[(Version, Switches)]) -> Vec<Then> {
    let (mut merged, mut known): (_, BTreeMap<String, Then>) = (Vec::new(), BTreeMap::new());
    let (mut now, mut switches) = (Switches::default(), switches.iter().peekable());
    for then in versions {
        while let Some((since, next)) = switches.next_if(|(since, _)| *since < then.since) {
            now = *next;
            merged.extend(known.values().map(|known| known.switched(*since, now)));
        }
        merged.push(then.switched(then.since, now));
        known.insert(then.of.clone(), then);
    }
    for (since, next) in switches {
        merged.extend(known.values().map(|known| known.switched(*since, *next)));
    }
    merged
}

/// What a store knows of a service whose states are to be counted anew.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Declared types: what each is, and the metrics that it counts for.
    pub(crate) declared: Vec<(String, String, Vec<Metric>)>,
    /// What types were and counted for from each version on, oldest first.
    pub(crate) versions: Vec<Then>,
    /// By which version the oldest event of each declared type was judged.
    pub(crate) oldest: BTreeMap<String, Version>,
    /// Up to when events are gone; of types with a term of their own, and of all others.
    pub(crate) swept: (BTreeMap<String, i64>, Option<i64>),
    /// Since when each metric has counted.
    pub(crate) since: BTreeMap<MetricNo, i64>,
    /// Metrics that are being counted anew.
    pub(crate) under_way: BTreeSet<MetricNo>,
    /// What was counted anew before.
    pub(crate) done: Vec<Rebuild>,
}

/// What of the states that somebody wants backfilled can be counted anew.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// States and transitions, by their old numbers.
    pub(crate) metrics: Vec<Metric>,
    /// The types that tell of them.
    pub(crate) types: Vec<(String, String)>,
    /// Why one is left out.
    pub(crate) why_not: Option<&'static str>,
}

/// Whether a metric is backfilled by counting it anew.
pub(crate) fn is_rebuilt(kind: Kind) -> bool {
    matches!(kind, Kind::State | Kind::Transition)
}

const UNDER_WAY: &str = "the state is being backfilled already";
pub(crate) const COUNTED: &str =
    "nothing is left to count: every kept event of the type is counted by what the type declares now";
const LOST: &str = "the state has counted events that are no longer kept: to count it anew would lose them";

impl Known {
    pub(crate) fn decide(&self, asked: &[Metric]) -> Wanted {
        let mut wanted = Wanted::default();
        let (mut names, mut types) = (BTreeSet::new(), BTreeMap::new());
        for (_, name, no) in asked.iter().filter(|(kind, ..)| *kind == Kind::State) {
            let why_not = if self.under_way.contains(no) {
                Some(UNDER_WAY)
            } else if !self.has_missed(*no, name) {
                Some(COUNTED)
            } else if self.swept_until(*no) >= self.since.get(no).copied() {
                Some(LOST)
            } else {
                names.insert(name);
                types.extend(self.tellers(*no).map(|(name, definition, _)| (name, definition)));
                None
            };
            wanted.why_not = wanted.why_not.or(why_not);
        }
        let is_wanted = |(kind, name, _): &&Metric| is_rebuilt(*kind) && names.contains(name);
        wanted.metrics = asked.iter().filter(is_wanted).cloned().collect();
        wanted.types =
            types.into_iter().map(|(name, definition)| (name.clone(), definition.clone())).collect();
        wanted
    }

    /// Up to when events are gone that a metric may have counted.
    pub(crate) fn swept_until(&self, no: MetricNo) -> Option<i64> {
        let ((own, others), line) = (&self.swept, self.line(no));
        let told = self.versions.iter().filter(|then| has(&then.metrics, &line));
        told.filter_map(|then| own.get(&then.of)).copied().max().max(*others)
    }

    fn tellers(&self, no: MetricNo) -> impl Iterator<Item = &(String, String, Vec<Metric>)> {
        self.declared.iter().filter(move |(.., metrics)| has(metrics, &[no]))
    }

    /// A metric and those whose place it has taken.
    fn line(&self, no: MetricNo) -> Vec<MetricNo> {
        let mut line = vec![no];
        let before = |no| self.done.iter().flat_map(|done| &done.replaced).find(move |(_, new)| *new == no);
        while let Some((old, _)) = before(line[line.len() - 1]).filter(|(old, _)| !line.contains(old)) {
            line.push(*old);
        }
        line
    }

    /// Whether a kept event was judged by a version of its type that did not tell of the state, or told of it in another
    /// way, though the type does now.
    fn has_missed(&self, no: MetricNo, state: &str) -> bool {
        let line = self.line(no);
        let made = self.done.iter().find(|done| done.makes(no));
        self.tellers(no).any(|(name, definition, _)| {
            let Some(oldest) = self.oldest.get(name) else { return false };
            let now = telling(Some(definition), state);
            let is_as_now = |definition: Option<&str>| telling(definition, state) == now;
            let versions: Vec<(Version, bool)> = self
                .versions
                .iter()
                .filter(|then| then.of == *name)
                .map(|then| {
                    let tells = has(&then.metrics, &line) && is_as_now(then.definition.as_deref());
                    (then.since, tells)
                })
                .collect();
            // All that came before was counted by a backfill, if the type told of the state like that when it began.
            let began = made.and_then(|made| made.types.iter().find(|(of, _)| of == name));
            let is_made = began.is_some_and(|(_, definition)| is_as_now(Some(definition)));
            let told = |(since, tells): &(Version, bool)| *tells || is_made && *since < self.first(name, no);
            let is_before = !is_made && versions.first().is_none_or(|(first, _)| oldest < first);
            is_before || versions.windows(2).any(|pair| !told(&pair[0]) && pair[1].0 > *oldest)
        })
    }

    /// Since which version a type declares a number.
    fn first(&self, name: &str, no: MetricNo) -> Version {
        let mut of = self.versions.iter().filter(|then| then.of == name && has(&then.metrics, &[no]));
        of.next().map_or(Version::MAX, |then| then.since)
    }
}

fn has(metrics: &[Metric], any: &[MetricNo]) -> bool {
    metrics.iter().any(|(.., of)| any.contains(of))
}

/// Types of which a rebuild looks at events: those that told of it when it began, and those that told of what it takes the
/// place of, in any version.
pub(crate) fn types_of(rebuild: &Rebuild, versions: Vec<(String, Vec<Metric>)>) -> Vec<String> {
    let tells = |metrics: &[Metric]| metrics.iter().any(|(.., no)| rebuild.instead_of(*no).is_some());
    let told = versions.into_iter().filter(|(_, metrics)| tells(metrics)).map(|(name, _)| name);
    let began = rebuild.types.iter().map(|(name, _)| name.clone());
    told.chain(began).collect::<BTreeSet<_>>().into_iter().collect()
}

/// One slice out of those of several types, each of which is there up to where it was cut off. `until` is where the last
/// ends.
pub(crate) fn merged(slices: Vec<Slice>, until: i64) -> Slice {
    let cut = slices.iter().filter(|slice| !slice.is_end).map(|slice| slice.through).min();
    let is_in = |seq: i64| cut.is_none_or(|cut| seq <= cut);
    let events = slices.into_iter().flat_map(|slice| slice.events);
    let mut events: Vec<_> = events.filter(|(_, event)| is_in(event.seq)).collect();
    events.sort_by_key(|(_, event)| event.seq);
    let at = events.last().map(|(_, event)| event.accepted_at);
    Slice { through: cut.unwrap_or(until), at, events, is_end: cut.is_none() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_of_the_installation_is_another_version_of_every_type() {
        let counter = (Kind::Counter, "all".to_owned(), 1);
        let then = |of: &str, since| Then {
            of: of.to_owned(),
            since,
            metrics: vec![counter.clone()],
            definition: None,
        };
        let off = Switches { counters: Some(false), ..Switches::default() };
        let versions = vec![then("a", 2), then("b", 5)];
        let switched = switched(versions, &[(1, Switches::default()), (3, off), (7, Switches::default())]);
        let told: Vec<(&str, Version, usize)> =
            switched.iter().map(|then| (then.of.as_str(), then.since, then.metrics.len())).collect();
        assert_eq!(told, [("a", 2, 1), ("a", 3, 0), ("b", 5, 0), ("a", 7, 1), ("b", 7, 1)]);
    }
}
