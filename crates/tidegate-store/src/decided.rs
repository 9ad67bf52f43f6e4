//! What a group comes to, where a store that many share must know it without going through it item by item: which results can
//! count, and what its requests are answered when the answer was lost. Used where PostgreSQL is written to, and by the simulation,
//! whose stand-in for it is to go wrong where that would.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::event::{Event, Fingerprint};
use tidegate_core::id::ProjectNo;

use crate::{Admission, Finished, RoutedUnit, Submission, UnitStatus};

/// Who has an id: the fingerprint of its unit.
pub type Holders<K> = BTreeMap<K, Option<Fingerprint>>;

/// Of results about one delivery the first by its newest claim: no other can hold. In the order of the deliveries' numbers.
pub fn newest(results: &[Finished]) -> Vec<&Finished> {
    let mut ordered: Vec<&Finished> = results.iter().collect();
    ordered.sort_by_key(|one| (one.claim.delivery, Reverse(one.claim.token)));
    ordered.dedup_by_key(|one| one.claim.delivery);
    ordered
}

/// What the requests of a group are answered, read from what it left: `before` has those who were there before it, `ours`
/// those it brought. Both need to know no more ids than the group has.
pub fn read_back<K: Ord>(
    submissions: &[Submission],
    key: impl Fn(ProjectNo, &Event) -> K,
    mut before: Holders<K>,
    ours: &Holders<K>,
) -> Vec<Vec<UnitStatus>> {
    let answers = submissions.iter().map(|submission| {
        let units = submission.units.iter().map(|routed| {
            let keys = routed.unit.events.iter().map(|event| key(submission.project, event)).collect();
            replay(routed, keys, &mut before, ours)
        });
        units.collect()
    });
    answers.collect()
}

/// Decides about one unit as its group did. What the group wrote came in with the first unit that has it; later ones met that
/// one.
fn replay<K: Ord>(
    routed: &RoutedUnit,
    keys: Vec<K>,
    before: &mut Holders<K>,
    ours: &Holders<K>,
) -> UnitStatus {
    if let Some(status) = known(routed, &keys, before) {
        return status;
    }
    let is_ours = known(routed, &keys, ours) == Some(UnitStatus::Duplicate);
    match &routed.admission {
        Admission::Refused(finding) => UnitStatus::Quarantined(finding.reason),
        _ if is_ours => {
            before.extend(keys.into_iter().map(|key| (key, Some(routed.unit.fingerprint))));
            UnitStatus::Accepted
        }
        Admission::Granted if !is_sound(&keys) => UnitStatus::Conflict,
        Admission::Granted | Admission::Released(_) => UnitStatus::Gone,
    }
}

/// A unit that names one id twice can not come in.
pub(crate) fn is_sound<K: Ord>(keys: &[K]) -> bool {
    keys.iter().collect::<BTreeSet<_>>().len() == keys.len()
}

/// Whether a unit with these keys is there already, and if so, how it compares.
pub(crate) fn known<K: Ord>(routed: &RoutedUnit, keys: &[K], holders: &Holders<K>) -> Option<UnitStatus> {
    for key in keys {
        match holders.get(key) {
            None => {}
            // Whichever of its events it is: the others may have gone before it.
            Some(print) if *print == Some(routed.unit.fingerprint) => {
                return Some(UnitStatus::Duplicate);
            }
            Some(_) => return Some(UnitStatus::Conflict),
        }
    }
    None
}
