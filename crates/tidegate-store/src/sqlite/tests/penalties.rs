//! Until when a gate was told to wait outlives the process, and not the gate.

use std::sync::Arc;

use tidegate_core::id::GateNo;
use tidegate_core::time::Timestamp;

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::sqlite::SqliteStore;
use crate::{Change, Group, Store};

async fn keep(store: &SqliteStore, gate: GateNo, ms: i64) {
    let penalties = vec![(gate, Timestamp::from_ms(ms))];
    store.commit(Arc::new(Group { now: NOW, penalties, ..Group::default() })).await.expect("it is kept");
}

async fn kept(store: &SqliteStore) -> Vec<(GateNo, i64)> {
    let kept = store.penalties().await.expect("they can be read");
    kept.into_iter().map(|(gate, until)| (gate, until.as_ms())).collect()
}

#[tokio::test]
async fn a_penalty_outlives_its_process_and_not_its_gate() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let put = |name: &str| Change::PutGate { project: 1, name: name.to_owned(), definition: "1".to_owned() };
    let a = store.change(put("a"), NOW).await.unwrap().no;
    let b = store.change(put("b"), NOW).await.unwrap().no;
    keep(&store, a, 5).await;
    keep(&store, b, 7).await;
    keep(&store, a, 9).await;
    keep(&store, a + b + 1, 9).await;
    drop(store);
    let store = open(&dir).unwrap();
    assert_eq!(kept(&store).await, [(a, 9), (b, 7)]);
    store.change(Change::DeleteGate { project: 1, name: "a".to_owned() }, NOW).await.unwrap();
    keep(&store, a, 11).await;
    assert_eq!(store.change(put("a"), NOW).await.unwrap().no, a, "it is made again");
    assert_eq!(kept(&store).await, [(b, 7)]);
}
