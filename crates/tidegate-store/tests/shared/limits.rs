//! Limits of the server's own: what is beyond them is refused, and nobody else pays for it.

use super::*;
use tidegate_core::catalog::{Finding, Reason};

/// No index takes so long a text. Nothing that gets here from outside is as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_no_index_takes_is_refused_alone() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    // It must not get shorter when it is packed.
    let mut chance = 7_u64;
    let letter = || {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + u8::try_from((chance >> 33) % 90).unwrap())
    };
    let long: String = std::iter::repeat_with(letter).take(8_000).collect();
    let finding = Finding { reason: Reason::SchemaViolation, detail: String::new() };
    let bad = RoutedUnit { admission: Admission::Refused(Box::new(finding)), ..unit(&long, Vec::new()) };
    let units = [unit("1", Vec::new()), bad, unit("2", Vec::new())];
    let group = Group {
        submissions: units.map(|unit| Submission { project: 1, units: vec![unit] }).into(),
        ..group(&store, &[], &[]).await
    };
    let committed = store.commit(Arc::new(group)).await.expect("the others can be written");
    let answers: Vec<_> = committed.submissions.iter().map(|answer| answer.as_ref().ok()).collect();
    let accepted = vec![UnitStatus::Accepted];
    assert_eq!(answers, [Some(&accepted), None, Some(&accepted)]);
}

/// Beyond 2059 there are no numbers. A clock that shows such a time changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_without_numbers_is_refused() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    let good = group(&store, &["1"], &[]).await;
    for text in ["2059-09-18T00:00:00Z", "2059-12-31T00:00:00Z", "9999-01-01T00:00:00Z"] {
        let now = Timestamp::parse(text).unwrap();
        let refused = store.commit(Arc::new(Group { now, ..good.clone() })).await;
        let Err(Error::Unavailable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("no numbers"), "{why}");
    }
    let committed = store.commit(Arc::new(good)).await.expect("it goes on at a right time");
    assert_eq!(statuses(&committed), [UnitStatus::Accepted]);
    assert!(committed.numbers.iter().all(|number| *number > 0), "{:?}", committed.numbers);
    let (mut from, mut seen) = (0, Vec::new());
    follow(&store, &mut from, &mut seen).await;
    assert_eq!(seen, ["1"]);
}
