//! A configuration that moves whenever certain events are about to be written, as it does while somebody changes it all the time
//! and these take long to be routed. Nobody else may pay for that, and it must come to an end.

use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_core::event::{Unit, lookup_key};
use tidegate_store::NewKey;

use super::*;

/// Groups in a row that were stale and are still no accident: all the rounds of a few requests.
const STALE_MAX: u32 = 200;

/// When that is so, and how often it was in vain.
pub(crate) struct Restless {
    time: Option<(i64, i64)>,
    changes: AtomicU32,
    stale: AtomicU32,
}

impl Restless {
    pub(super) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "restless");
        let from = dice.between(500, END_T / 2);
        let time = dice.percent(30).then(|| (from, from + dice.between(1_000, END_T / 3)));
        Self { time, changes: AtomicU32::new(0), stale: AtomicU32::new(0) }
    }
}

/// Whether an event is one of those.
fn is_slow(key: i64) -> bool {
    key.rem_euclid(5) == 0
}

/// Whether one of a request is.
pub(crate) fn is_any_slow(project: ProjectNo, units: &[Unit]) -> bool {
    let mut events = units.iter().filter_map(|unit| unit.events.first());
    events.any(|event| is_slow(lookup_key(project, &event.source, &event.id)))
}

impl FaultyStore {
    /// The configuration moves, if one of these is in the group.
    pub(super) async fn stir(&self, group: &Group) {
        let t = self.life.t();
        let is_time = self.restless.time.is_some_and(|(from, to)| (from..to).contains(&t));
        let mut units = group.submissions.iter().flat_map(|submission| &submission.units);
        if self.membership.is_some() || !is_time || !units.any(|unit| is_slow(unit.keys[0])) {
            return;
        }
        let no = self.restless.changes.fetch_add(1, Ordering::Relaxed);
        let name = format!("restless-{}-{no}", self.life.no());
        let mut hash = name.clone().into_bytes();
        hash.resize(32, 0);
        let (id, role) = (name.clone(), "viewer".to_owned());
        let change = Change::CreateKey(NewKey { project: 0, id, role, name, prefix: String::new(), hash });
        let changed = self.inner.change(change.clone(), group.now).await.expect("a key can be made");
        self.note_change(&change, changed);
    }

    /// A group came to nothing because the configuration had moved.
    pub(super) fn note_stale(&self) {
        let mut history = self.history.lock();
        history.reach("a stale group rerouted");
        if self.restless.stale.fetch_add(1, Ordering::Relaxed) + 1 == STALE_MAX {
            history.violation(format!("liveness: {STALE_MAX} groups in a row were stale"));
            self.life.end();
        }
    }

    /// One did not.
    pub(super) fn note_progress(&self) {
        self.restless.stale.store(0, Ordering::Relaxed);
    }
}
