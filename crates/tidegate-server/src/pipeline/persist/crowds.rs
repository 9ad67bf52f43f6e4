//! Projects that have as many windows as they may, told to whoever runs the server: what comes then is delivered, but folded
//! less than its owner wanted.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::fold::ClosedBy;
use tidegate_core::id::ProjectNo;
use tidegate_core::time::Timestamp;
use tidegate_store::ClosedWindow;

use crate::roster::Roster;

/// A project is told of once in this time, however many of its windows close early.
const LOG_EVERY: Duration = Duration::from_secs(600);
/// Projects whose last line is remembered; when there are more, some are told of earlier than they need be.
const REMEMBERED_MAX: usize = 1_000;

/// Who was told of when.
#[derive(Default)]
pub(super) struct Crowds(Mutex<BTreeMap<ProjectNo, Timestamp>>);

impl Crowds {
    /// Warns of windows that closed because there were too many.
    pub(super) fn tell(&self, roster: &Roster, closed: &[ClosedWindow], now: Timestamp) {
        for window in closed.iter().filter(|window| window.closed_by == ClosedBy::Limit) {
            let Some(endpoint) = roster.endpoint(window.subscriber) else { continue };
            let no = endpoint.rule.project;
            if !self.is_news(no, now) {
                continue;
            }
            let project = roster.projects.values().find(|project| project.no == no);
            tracing::warn!(
                project = project.map(|project| project.id.as_str()),
                subscriber = endpoint.rule.id,
                "a project has as many windows as it may, so its oldest close early, of this subscriber first: fold by \
                 fewer values (fold.by) or for a shorter time; see what is open with: tidegate windows"
            );
        }
    }

    fn is_news(&self, project: ProjectNo, now: Timestamp) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(&project).is_some_and(|last| last.plus(LOG_EVERY) > now) {
            return false;
        }
        if told.len() >= REMEMBERED_MAX {
            told.clear();
        }
        told.insert(project, now);
        true
    }
}
