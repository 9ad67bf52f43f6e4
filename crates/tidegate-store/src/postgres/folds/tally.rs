//! How many windows there are, without counting them each time.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::fold::Decided;
use tidegate_core::id::{ProjectNo, WindowNo};

/// How many windows each project has, as far as this process knows.
pub(in crate::postgres) type Tally = BTreeMap<ProjectNo, Count>;

/// A count, and what has changed since.
#[derive(Clone, Copy, Default)]
pub(in crate::postgres) struct Count {
    pub(super) windows: usize,
    /// Opened since they were counted. Others open some too: after a hundredth of the limit they are counted again.
    pub(super) opened: usize,
}

/// What the project's windows are now, as far as this transaction knows.
pub(super) fn follow(tally: &mut Tally, decided: &Decided) {
    let opened: BTreeSet<WindowNo> = decided.opened().map(|(window, _)| window.no).collect();
    for window in decided.windows() {
        let Some(count) = tally.get_mut(&window.project) else { continue };
        let (is_new, stays) = (opened.contains(&window.no), window.takes_more());
        count.opened += usize::from(is_new);
        count.windows =
            (count.windows + usize::from(is_new && stays)).saturating_sub(usize::from(!is_new && !stays));
    }
}
