//! The states of objects.

/// From which states a change counts as a transition.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// Instead of the state before.
    pub only: Option<Vec<Box<str>>>,
    /// Besides it.
    pub additional: Vec<Box<str>>,
}
