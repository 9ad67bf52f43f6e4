//! Units of one group that share an id, when the answer to its COMMIT is lost: what is read back is what was decided, for each
//! of them.

use super::*;
use tidegate_core::catalog::{Finding, Reason};
use tidegate_store::{QuarantineFilter, UnitStatus::*};

const WRONG: Reason = Reason::SchemaViolation;

/// An event with this content.
fn saying(id: &str, content: &str) -> RoutedUnit {
    let mut said = unit(id, Vec::new());
    let mut print = Fingerprinter::default();
    print.field(Some(content.as_bytes()));
    said.unit.events[0].body = Bytes::from(format!("{{\"v\":\"{content}\"}}"));
    said.unit.fingerprint = print.finish();
    said
}

fn refused(id: &str, content: &str) -> RoutedUnit {
    let finding = Finding { reason: WRONG, detail: "wrong".to_owned() };
    RoutedUnit { admission: Admission::Refused(Box::new(finding)), ..saying(id, content) }
}

fn released(no: i64, id: &str, content: &str) -> RoutedUnit {
    RoutedUnit { admission: Admission::Released(no), ..saying(id, content) }
}

/// An event with a sub-event.
fn with(mut unit: RoutedUnit, sub_event: RoutedUnit) -> RoutedUnit {
    unit.unit.events.extend(sub_event.unit.events);
    unit.routes.extend(sub_event.routes);
    unit.keys.extend(sub_event.keys);
    unit
}

/// Each unit is a request of its own. It goes step by step, so that its COMMIT can be told from others.
async fn commit(store: &PostgresStore, units: &[RoutedUnit]) -> Vec<UnitStatus> {
    let version = store.version().await.unwrap();
    let submissions = units.iter().map(|unit| Submission { project: 1, units: vec![unit.clone()] }).collect();
    let group = Group { now: NOW, version, submissions, close: 1, ..Group::default() };
    statuses(&store.commit(Arc::new(group)).await.expect("the group can be written"))
}

/// A store behind a proxy that loses the answer to every group.
struct Losing {
    proxy: Proxy,
    store: PostgresStore,
}

impl Losing {
    async fn open(schema: &Schema) -> Self {
        let proxy = Proxy::to(schema.url()).await;
        let store = schema.open(&proxy.url(), NOW).await;
        Self { proxy, store }
    }

    async fn commit(&self, units: &[RoutedUnit]) -> Vec<UnitStatus> {
        self.proxy.cut_at_next_commit(true);
        let answers = commit(&self.store, units).await;
        assert!(self.proxy.has_cut(), "the answer was lost");
        answers
    }

    async fn content(&self, id: &str) -> String {
        let rows = self.store.event(1, id.to_owned()).await.unwrap();
        assert_eq!(rows.len(), 1, "{id} is there once");
        String::from_utf8(rows[0].body.to_vec()).unwrap()
    }

    async fn quarantined(&self) -> Vec<i64> {
        let filter = QuarantineFilter { limit: 100, ..QuarantineFilter::default() };
        self.store.pick(1, filter).await.unwrap().units.iter().map(|row| row.no).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twins_one_is_accepted_though_the_answer_is_lost() {
    let schema = Schema::new();
    let losing = Losing::open(&schema).await;
    let other = losing.commit(&[saying("a", "1"), saying("a", "2"), saying("a", "1")]).await;
    assert_eq!(other, [Accepted, Conflict, Duplicate]);
    assert_eq!(losing.content("a").await, "{\"v\":\"1\"}");
    let same = losing.commit(&[saying("b", "1"), saying("b", "1"), saying("a", "1"), saying("a", "2")]).await;
    assert_eq!(same, [Accepted, Duplicate, Duplicate, Conflict]);
    // Units of several events: one shares the id of a sub-event, one names its own twice.
    let units = [
        with(saying("c", "1"), saying("d", "1")),
        saying("d", "2"),
        with(saying("e", "1"), saying("e", "1")),
        with(saying("f", "9"), saying("c", "1")),
        saying("f", "2"),
    ];
    assert_eq!(losing.commit(&units).await, [Accepted, Conflict, Conflict, Conflict, Accepted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn twins_in_and_out_of_the_quarantine_though_the_answer_is_lost() {
    let schema = Schema::new();
    let losing = Losing::open(&schema).await;
    let units = [refused("a", "1"), saying("a", "2"), refused("a", "3"), refused("b", "1")];
    let answers = losing.commit(&units).await;
    assert_eq!(answers, [Quarantined(WRONG), Accepted, Conflict, Quarantined(WRONG)]);
    let [a, b] = losing.quarantined().await[..] else { panic!("two are kept") };
    let units = [released(a, "a", "1"), released(b, "b", "1"), released(b, "b", "1"), released(b, "c", "1")];
    assert_eq!(losing.commit(&units).await, [Conflict, Accepted, Duplicate, Gone]);
    assert_eq!(losing.quarantined().await, [a], "its id is another's");
    // What is refused and released at once has been in the quarantine in between.
    assert_eq!(losing.commit(&[refused("d", "1")]).await, [Quarantined(WRONG)]);
    let d = losing.quarantined().await[1];
    let units = [refused("d", "1"), released(d, "d", "1"), refused("d", "1")];
    assert_eq!(losing.commit(&units).await, [Quarantined(WRONG), Accepted, Duplicate]);
}

/// Groups by chance, of few ids and contents: a store that hears the answers and one that never does say the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_changes_no_answer() {
    let (heard, lost) = (Schema::new(), Schema::new());
    let hearing = heard.open(heard.url(), NOW).await;
    let losing = Losing::open(&lost).await;
    let mut chance = 7_u64;
    let mut below = |end: u64| {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (chance >> 33) % end
    };
    for round in 0..20 {
        let units: Vec<RoutedUnit> = (0..2 + below(5))
            .map(|_| {
                let (id, content) = (format!("{}", round / 4 * 3 + below(5)), below(3).to_string());
                match below(6) {
                    0 => refused(&id, &content),
                    // What a number in the quarantine stands for does not change.
                    1 => {
                        let no = below(20);
                        released(no.cast_signed(), &format!("q{no}"), "q")
                    }
                    2 => with(saying(&id, &content), saying(&below(20).to_string(), &content)),
                    _ => saying(&id, &content),
                }
            })
            .collect();
        let told: Vec<_> = units.iter().map(|unit| (&unit.unit.events[0].id, &unit.admission)).collect();
        assert_eq!(losing.commit(&units).await, commit(&hearing, &units).await, "{round}: {told:?}");
    }
}
