//! Questions about what was counted: `POST /v1/query/counters`, `histograms`, `states` and `transitions`.
//!
//! An [`Ask`] is what somebody wants to know. With what its metric is (a [`Subject`]) it becomes a [`Plan`]: which stored
//! buckets to read, the coarsest that fit. The [`Plan`] folds their pages into an [`Answer`], which is then written as JSON.
//!
//! Promises: an answer equals a recount of the events at any interval, grouped and filtered in any way; dimensions that are
//! not asked for are summed; pages of an answer together are the whole answer. Memory is bounded by the points of an answer.
//! Does not: read the store or know the catalog.

mod answer;
mod ask;
mod fold;
#[cfg(test)]
mod kept_tests;
mod plan;
#[cfg(test)]
mod recount_tests;
#[cfg(test)]
mod tests;

pub use answer::{Answer, Resume};
pub use ask::{Ask, Fill, Form, Named};
pub use fold::{Fold, Unanswered};
pub use plan::{Plan, Stretch, cover, plan, take};

use super::definition::Observing;
use super::grain::Grain;
use super::metric::Kind;
use super::sketch::Accuracy;
use crate::limits::ACCURACY_DEFAULT;

/// What a question is about, as its definition has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// What it is.
    pub kind: Kind,
    /// Its shortest buckets.
    pub base: Grain,
    /// What keeps its series apart, in the order of its keys.
    pub dimensions: Vec<String>,
    /// Of a histogram.
    pub accuracy: Option<Accuracy>,
    /// Of a counter: whether it adds something up.
    pub has_sum: bool,
}

impl Subject {
    /// The one dimension of a state.
    pub const STATE: &'static str = "state";
    /// Where a transition comes from.
    pub const FROM_STATE: &'static str = "from_state";
    /// Where a transition leads.
    pub const TO_STATE: &'static str = "to_state";

    /// A counter or histogram that a type of events declares.
    pub fn declared(kind: Kind, name: &str, observing: &Observing) -> Option<Self> {
        let (granularity, dimensions, accuracy, has_sum) = match kind {
            Kind::Counter => {
                let counter = observing.counters.as_ref()?.get(name)?;
                (counter.granularity, &counter.dimensions, None, counter.sum.is_some())
            }
            Kind::Histogram => {
                let histogram = observing.histograms.as_ref()?.get(name)?;
                let accuracy = histogram.accuracy.unwrap_or(ACCURACY_DEFAULT);
                (histogram.granularity, &histogram.dimensions, Accuracy::new(accuracy), true)
            }
            Kind::State | Kind::Transition | Kind::Index => return None,
        };
        let dimensions = dimensions.iter().flatten().map(|path| path.as_str().to_owned()).collect();
        Some(Self { kind, base: granularity.unwrap_or_default().into(), dimensions, accuracy, has_sum })
    }

    /// A state, or the transitions beside it: the same for all of them.
    pub fn of_objects(kind: Kind) -> Self {
        let names: &[&str] =
            if kind == Kind::State { &[Self::STATE] } else { &[Self::FROM_STATE, Self::TO_STATE] };
        let dimensions = names.iter().copied().map(str::to_owned).collect();
        Self { kind, base: Grain::S5, dimensions, accuracy: None, has_sum: false }
    }
}
