//! What a commit did with new events, written down where the store is.

use tidegate_store::{Committed, Group, UnitStatus};

use super::catalog;
use super::history::{Fact, History};
use super::spec::Content;

/// Takes over what became of every unit of a group.
pub(crate) fn note(history: &mut History, group: &Group, committed: &Committed, t: i64) {
    for (submission, result) in group.submissions.iter().zip(&committed.submissions) {
        let Ok(statuses) = result else {
            history.violation("a submission failed on its own account".to_owned());
            continue;
        };
        for (routed, status) in submission.units.iter().zip(statuses) {
            catalog::note_unit(history, submission.project, routed, *status);
            match status {
                UnitStatus::Duplicate => history.reach("a duplicate event"),
                UnitStatus::Conflict => history.reach("a conflicting event"),
                _ => {}
            }
            if *status != UnitStatus::Accepted {
                continue;
            }
            for event in &routed.unit.events {
                let key = (submission.project, event.source.clone(), event.id.clone());
                let value = serde_json::from_slice(&event.body).expect("bodies are JSON");
                let fact = Fact {
                    key: key.clone(),
                    content: Content::of(&value),
                    body: event.body.clone(),
                    version: history.version,
                    t,
                    now: group.now.as_ms(),
                    place: history.accepted.len(),
                };
                history.line(t, format_args!("accepts {}", event.id));
                history.accepted.push(fact);
                let index = history.accepted.len() - 1;
                if history.index.insert(key, index).is_some() {
                    history.violation(format!("P3 event {} was accepted twice", event.id));
                }
            }
        }
    }
}
