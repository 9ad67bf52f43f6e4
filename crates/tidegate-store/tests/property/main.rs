//! Any history: random sequences of groups, retries, backfill steps and restarts against a small model.
//!
//! The model (`model.rs`) knows each delivery, who holds it and whose turn it is in its lane, and what went to the
//! subscribers that fold (`folds.rs`); it knows no SQL. After
//! every step the store's answers, its lists and its rows must be what the model says; in the end everything is
//! delivered, lane by lane in the order of acceptance. `PROPTEST_CASES` sets how many histories are tried.

mod folds;
#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod play;
#[path = "../harness/postgres.rs"]
mod postgres;
#[path = "../harness/schema.rs"]
mod schema;

use proptest::collection::vec;
use proptest::prelude::*;

use harness::Sqlite;
use play::play;
use postgres::Postgres;
use tidegate_store::sqlite::Calls;

/// Which of several: taken modulo their number.
type Pick = u16;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Group(GroupStep),
    Retry(Pick),
    Pass(u16),
    Restart,
    /// Everything that is due is claimed and lost, as often as makes a suspect of it.
    CrashLoop,
    /// The late subscriber appears, once; later ones only pass time.
    Subscribe,
}

/// One group commit.
#[derive(Clone, Debug, Default)]
struct GroupStep {
    results: Vec<(Pick, Outcome)>,
    released: Vec<Pick>,
    /// Which of the suspects in hand begin to be sent.
    begun: Vec<Pick>,
    backfill: Option<u8>,
    sent: Vec<Sent>,
    refills: Vec<(u8, u8)>,
    room: u8,
    folds: FoldStep,
}

/// What a group does with folds.
#[derive(Clone, Debug, Default)]
struct FoldStep {
    /// How many windows it closes at most.
    close: u8,
    /// Which of those in hand begin to leave.
    seals: Vec<Pick>,
    /// How attempts at those that have begun to leave end.
    results: Vec<(Pick, Outcome)>,
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Delivered,
    RetryIn(u16),
    PostponedBy(u16),
    Exhausted,
}

/// An event on its way in: few ids and contents, so that they meet.
#[derive(Clone, Copy, Debug)]
struct Sent {
    id: u8,
    content: bool,
    to: [bool; 3],
    /// To the subscribers that fold.
    folded: [bool; 2],
    lane: u8,
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        4 => Just(Outcome::Delivered),
        2 => (0u16..2_000).prop_map(Outcome::RetryIn),
        1 => (0u16..2_000).prop_map(Outcome::PostponedBy),
        2 => Just(Outcome::Exhausted),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let to = prop::array::uniform3(prop::bool::weighted(0.7));
    let folded = prop::array::uniform2(prop::bool::weighted(0.7));
    (0u8..60, prop::bool::weighted(0.9), to, folded, 0u8..3)
        .prop_map(|(id, content, to, folded, lane)| Sent { id, content, to, folded, lane })
}

fn folds() -> impl Strategy<Value = FoldStep> {
    (0u8..4, vec(any::<Pick>(), 0..3), vec((any::<Pick>(), outcome()), 0..3))
        .prop_map(|(close, seals, results)| FoldStep { close, seals, results })
}

fn group() -> impl Strategy<Value = GroupStep> {
    (
        vec((any::<Pick>(), outcome()), 0..3),
        vec(any::<Pick>(), 0..2),
        vec(any::<Pick>(), 0..3),
        prop::option::of(1u8..5),
        vec(sent(), 0..4),
        vec((0u8..5, 0u8..4), 0..3),
        0u8..3,
        folds(),
    )
        .prop_map(|(results, released, begun, backfill, sent, refills, room, folds)| GroupStep {
            results,
            released,
            begun,
            backfill,
            sent,
            refills,
            room,
            folds,
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => group().prop_map(Step::Group),
        6 => any::<Pick>().prop_map(Step::Retry),
        4 => (0u16..1_500).prop_map(Step::Pass),
        2 => Just(Step::Restart),
        1 => Just(Step::CrashLoop),
        2 => Just(Step::Subscribe),
    ]
}

proptest! {
    #![proptest_config(config(SQLITE_CASES))]

    #[test]
    fn any_history_keeps_the_promises(steps in vec(step(), 1..50)) {
        play(&Sqlite::new(Calls::Inline), &steps);
    }
}

proptest! {
    #![proptest_config(config(POSTGRES_CASES))]

    #[test]
    fn any_history_keeps_the_promises_on_postgresql(steps in vec(step(), 1..50)) {
        play(&Postgres::new(), &steps);
    }
}

/// Each history is some fifty commits to a real file: enough to find the bugs that were put in, in a few seconds.
const SQLITE_CASES: u32 = 32;
/// Here it is also a schema that is made and dropped.
const POSTGRES_CASES: u32 = 8;

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok());
    ProptestConfig { cases: asked.unwrap_or(cases), failure_persistence: None, ..ProptestConfig::default() }
}
