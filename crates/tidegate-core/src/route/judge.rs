//! A subscriber, ready to match: its definition with everything compiled that can be.

use std::sync::Arc;

use super::condition::{Condition, ConditionProblem};
use super::path::{Path, lane_of};
use super::pattern::Pattern;
use super::router::Route;
use super::view::View;
use crate::fold::{Appending, Fingerprint, Fold, Folded, Key, Terms, fingerprint};
use crate::id::{Lane, ProjectNo, SubscriberNo};
use crate::operator;
use crate::payload::Payload;
use crate::subscriber::{Definition, Missing, OrderBy};

/// A subscriber, ready to match.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscriber {
    /// Its number in the installation.
    pub no: SubscriberNo,
    /// Its project.
    pub project: ProjectNo,
    /// Its public id.
    pub id: String,
    /// What its owner says about it.
    pub definition: Definition,
    condition: Option<Condition>,
    folding: Option<Folding>,
    /// It asks by name for what operators must know.
    names_notices: bool,
}

/// What a subscriber makes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is delivered, this way.
    Matched(Route),
    /// The subscriber does not want it.
    Unmatched {
        /// Why, for people.
        reason: String,
    },
    /// The subscriber wants it but cannot put it in order.
    Skipped {
        /// Why, for people.
        reason: String,
    },
}

impl Subscriber {
    /// Compiles what the store keeps.
    pub fn compile(
        no: SubscriberNo,
        project: ProjectNo,
        id: String,
        definition: Definition,
    ) -> Result<Self, ConditionProblem> {
        let condition = definition.matching.condition.as_deref().map(Condition::compile).transpose()?;
        let folding = match &definition.fold {
            Fold::Each => None,
            Fold::Many(folded) => Some(Folding::compile(folded, definition.destination.payload)?),
        };
        let names_notices = operator::is_named_by(&definition.matching);
        Ok(Self { no, project, id, definition, condition, folding, names_notices })
    }

    /// The same subscriber, which had these for its `fold.cancel_on` before: windows that opened then keep to them.
    #[must_use]
    pub fn remembering(mut self, former: &[String]) -> Self {
        if let Some(folding) = &mut self.folding {
            folding.remember(former);
        }
        self
    }

    /// The same subscriber with a condition that is compiled already.
    #[cfg(test)]
    pub(super) fn with_condition(self, condition: Option<Condition>) -> Self {
        Self { condition, ..self }
    }

    /// Whether the event is for this subscriber and, if so, which way it goes. [`Self::judge`] without the words.
    pub fn matches(&self, view: &View<'_>) -> Option<Route> {
        let wanted = self.may_get(view)
            && any(&self.definition.matching.types, &view.event.type_name)
            && any(&self.definition.matching.sources, &view.event.source)
            && self.condition.as_ref().is_none_or(|condition| condition.judge(view) == Ok(true));
        if wanted { self.lane(view).map(|lane| self.route(view, lane)) } else { None }
    }

    /// What this subscriber makes of an event, and why.
    pub fn judge(&self, view: &View<'_>) -> Judgement {
        let unmatched = |reason: String| Judgement::Unmatched { reason };
        let matching = &self.definition.matching;
        if !self.may_get(view) {
            let reason =
                "events of source tidegate go to others that name them in match.types or match.sources";
            return unmatched(reason.to_owned());
        }
        if !any(&matching.types, &view.event.type_name) {
            return unmatched(format!("type {} is not among match.types", view.event.type_name));
        }
        if !any(&matching.sources, &view.event.source) {
            return unmatched(format!("source {} is not among match.sources", view.event.source));
        }
        match self.condition.as_ref().map(|condition| condition.judge(view)) {
            Some(Ok(false)) => return unmatched("where is false".to_owned()),
            Some(Err(reason)) => return unmatched(format!("where failed: {reason}")),
            Some(Ok(true)) | None => {}
        }
        match self.lane(view) {
            Some(lane) => Judgement::Matched(self.route(view, lane)),
            None => {
                Judgement::Skipped { reason: format!("order.by {} is missing", self.definition.order.by) }
            }
        }
    }

    /// What operators must know goes to those who name it, and not to the one it is about.
    fn may_get(&self, view: &View<'_>) -> bool {
        view.event.source != operator::SOURCE
            || (self.names_notices && view.event.subject.as_deref() != Some(self.id.as_str()))
    }

    fn route(&self, view: &View<'_>, lane: Option<Lane>) -> Route {
        let alone = Route::alone(self.no, lane);
        match &self.folding {
            Some(folding) => folding.route(view, alone),
            None => alone,
        }
    }

    /// The lane of a wanted event: `None` when it cannot be delivered for want of one.
    fn lane(&self, view: &View<'_>) -> Option<Option<Lane>> {
        let order = &self.definition.order;
        match &order.by {
            OrderBy::None => Some(None),
            OrderBy::Subscriber => Some(Some(0)),
            OrderBy::Path(path) => match (lane_of(view, path), order.missing) {
                (None, Missing::Skip) => None,
                (lane, _) => Some(lane),
            },
        }
    }
}

/// A fold, ready to take events.
#[derive(Clone, Debug, PartialEq)]
struct Folding {
    /// In order.
    by: Vec<Path>,
    /// What is done with all events, where nothing keeps them apart.
    only: Option<Arc<Appending>>,
    terms: Arc<Terms>,
    bypass: Option<Condition>,
    /// What ends windows: its condition, and former ones that windows may have been opened with.
    cancel_on: Vec<(Fingerprint, Condition)>,
}

impl Folding {
    fn compile(folded: &Folded, payload: Payload) -> Result<Self, ConditionProblem> {
        let compile = |source: &Option<String>| source.as_deref().map(Condition::compile).transpose();
        let terms = Arc::new(folded.terms(payload));
        let mut by = folded.by.clone();
        by.sort();
        by.dedup();
        let only = || {
            let terms = Arc::clone(&terms);
            Arc::new(Appending { key: Key::from_text("{}"), terms, cancels: Vec::new() })
        };
        Ok(Self {
            only: by.is_empty().then(only),
            by,
            terms,
            bypass: compile(&folded.bypass)?,
            cancel_on: compile(&folded.cancel_on)?.map(fingerprinted).into_iter().collect(),
        })
    }

    /// Judges by these as well. What can not be compiled any more ends nothing.
    fn remember(&mut self, former: &[String]) {
        for condition in former.iter().filter_map(|source| Condition::compile(source).ok()) {
            let former = fingerprinted(condition);
            if !self.cancel_on.contains(&former) {
                self.cancel_on.push(former);
            }
        }
    }

    /// Where the event gathers, unless it goes by itself; and then which window it ends. A condition that errs is not
    /// fulfilled.
    fn route(&self, view: &View<'_>, alone: Route) -> Route {
        let is_fulfilled = |condition: &Condition| condition.judge(view) == Ok(true);
        let passes = self.bypass.as_ref().is_some_and(is_fulfilled);
        let fulfilled = self.cancel_on.iter().filter(|(_, condition)| is_fulfilled(condition));
        let cancels: Vec<Fingerprint> = fulfilled.map(|(fingerprint, _)| *fingerprint).collect();
        if passes && cancels.is_empty() {
            return alone;
        }
        if let Some(only) = self.only.as_ref().filter(|_| cancels.is_empty()) {
            return Route { fold: Some(Arc::clone(only)), ..alone };
        }
        let terms = Arc::clone(&self.terms);
        let appending = Some(Arc::new(Appending { key: Key::of(view, &self.by), terms, cancels }));
        if passes { Route { ends: appending, ..alone } } else { Route { fold: appending, ..alone } }
    }
}

fn fingerprinted(condition: Condition) -> (Fingerprint, Condition) {
    (fingerprint(condition.source()), condition)
}

/// No patterns at all let everything through.
fn any(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}
