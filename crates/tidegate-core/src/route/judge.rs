//! A subscriber, ready to match: its definition with everything compiled that can be.

use super::condition::{Condition, ConditionProblem};
use super::path::lane_of;
use super::pattern::Pattern;
use super::view::View;
use crate::id::{Lane, ProjectNo, SubscriberNo};
use crate::operator;
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
    /// It asks by name for what operators must know.
    names_notices: bool,
}

/// What a subscriber makes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is delivered.
    Matched {
        /// In this lane; `None` outside the lanes.
        lane: Option<Lane>,
    },
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
        let names_notices = operator::is_named_by(&definition.matching);
        Ok(Self { no, project, id, definition, condition, names_notices })
    }

    /// The same subscriber with a condition that is compiled already.
    #[cfg(test)]
    pub(super) fn with_condition(self, condition: Option<Condition>) -> Self {
        Self { condition, ..self }
    }

    /// Whether the event is for this subscriber and, if so, its lane. [`Self::judge`] without the words.
    pub fn matches(&self, view: &View<'_>) -> Option<Option<Lane>> {
        let wanted = self.may_get(view)
            && any(&self.definition.matching.types, &view.event.type_name)
            && any(&self.definition.matching.sources, &view.event.source)
            && self.condition.as_ref().is_none_or(|condition| condition.judge(view) == Ok(true));
        if wanted { self.lane(view) } else { None }
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
            Some(lane) => Judgement::Matched { lane },
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

/// No patterns at all let everything through.
fn any(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}
