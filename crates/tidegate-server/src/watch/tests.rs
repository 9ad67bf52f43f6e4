//! Goal: those who look on learn of every change or of a gap, and nobody else pays. Method: groups as persist hands
//! them over, one after the other.

use tidegate_core::attempt::Attempt;
use tidegate_store::Claim;

use super::*;

fn group(deliveries: std::ops::Range<i64>) -> Group {
    let finished = |delivery| Finished {
        claim: Claim { delivery, nonce: 0, token: 1, life: 0 },
        subscriber: 1,
        lane: None,
        n: 1,
        attempt: Attempt {
            at: Timestamp::from_ms(0),
            status: Some(200),
            error: None,
            detail: String::new(),
            phases: Phases::default(),
            response: None,
        },
        next: Next::Delivered,
        steps_aside: false,
        body: None,
    };
    Group { results: deliveries.map(finished).collect(), ..Group::default() }
}

fn after(watch: &Watch, mark: u64) -> (Vec<i64>, u64, bool) {
    let recent = watch.changes(mark, u64::MAX, 10_000);
    (recent.changes.iter().map(|change| change.delivery).collect(), recent.through, recent.has_gap)
}

#[test]
fn nothing_is_kept_while_nobody_watches() {
    let watch = Arc::new(Watch::default());
    watch.committed(&group(0..10), 0);
    assert_eq!(after(&watch, 0), (vec![], 0, false));
    let _seat = watch.join(1).unwrap();
    watch.committed(&group(10..12), 0);
    assert_eq!(after(&watch, 0), (vec![10, 11], 2, false));
}

#[test]
fn a_mark_is_gone_on_from_in_steps() {
    let watch = Arc::new(Watch::default());
    let _seat = watch.join(1).unwrap();
    watch.committed(&group(0..5), 0);
    let first = watch.changes(0, 5, 2);
    assert_eq!((first.changes.len(), first.through), (2, 2));
    assert_eq!(watch.changes(2, 4, 10).changes.len(), 2);
    assert_eq!(after(&watch, 5), (vec![], 5, false));
}

#[test]
fn what_is_forgotten_is_a_gap() {
    let watch = Arc::new(Watch::default());
    let _seat = watch.join(1).unwrap();
    let most = STREAM_CHANGES_MAX as i64;
    watch.committed(&group(0..most), 0);
    assert!(!after(&watch, 0).2);
    watch.committed(&group(most..most + 1), 0);
    let (changes, through, has_gap) = after(&watch, 0);
    assert_eq!((changes[0], changes.len(), has_gap), (1, STREAM_CHANGES_MAX, true));
    assert_eq!(after(&watch, through), (vec![], through, false));
}

#[test]
fn a_refused_result_is_not_told_as_true() {
    let watch = Arc::new(Watch::default());
    let _seat = watch.join(1).unwrap();
    watch.committed(&group(0..2), 0);
    watch.committed(&group(2..4), 1);
    watch.committed(&group(4..5), 0);
    assert_eq!(after(&watch, 2), (vec![4], 4, true));
}

#[test]
fn whoever_comes_back_soon_has_missed_nothing_and_late_is_told() {
    let watch = Arc::new(Watch::default());
    drop(watch.join(1).unwrap());
    watch.committed(&group(0..3), 0);
    assert_eq!(after(&watch, 0), (vec![0, 1, 2], 3, false));
    let most = STREAM_CHANGES_MAX as i64;
    watch.committed(&group(3..most), 0);
    assert!(!watch.is_watched.load(Ordering::Relaxed), "nobody came back: nothing is kept any more");
    watch.committed(&group(0..9), 0);
    let _seat = watch.join(1).unwrap();
    let (changes, _, has_gap) = after(&watch, 3);
    assert_eq!((changes, has_gap), (vec![], true));
}

#[test]
fn places_are_few_and_come_back() {
    let watch = Arc::new(Watch::default());
    let mine: Vec<Seat> = (0..STREAMS_PER_PROJECT_MAX).map(|_| watch.join(1).unwrap()).collect();
    assert!(watch.join(1).is_none());
    let mut others = Vec::new();
    for project in 2.. {
        match watch.join(project) {
            Some(seat) => others.push(seat),
            None => break,
        }
    }
    assert_eq!(mine.len() + others.len(), STREAMS_MAX);
    drop(mine);
    assert_eq!(watch.open(), others.len());
    assert!(watch.join(1).is_some());
}
