//! What the writer remembers of objects is what the store has, and their history is written as it was told.

use std::sync::Arc;

use rusqlite::Connection;
use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::state::Change;
use tidegate_core::observe::{Sight, Slab, history};
use tidegate_core::time::Timestamp;

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::sqlite::SqliteStore;
use crate::{Advance, Error, Flush, Result, Store};

const STATE: MetricNo = 7;

/// Moves the mark from one event to another, which says in which state an object is, and when.
async fn see(store: &SqliteStore, (after, event): (Seq, Seq), value: &str, time: i64) -> Result<()> {
    let mut slab = Slab::new(1);
    slab.sight(Sight {
        state: STATE,
        transition: STATE + 1,
        object: "o".into(),
        value: value.into(),
        time: Timestamp::from_ms(time),
        event,
        policy: Arc::default(),
    });
    let advance = Advance::Mark { of: 0, after, through: event, at: NOW };
    store.observe(Flush { advance, delta: slab.into_delta() }, NOW).await
}

fn told(dir: &Scratch) -> Vec<String> {
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    let mut rows = conn.prepare("SELECT changes FROM object_changes ORDER BY no").unwrap();
    let packed = rows.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let changes = packed.flat_map(|packed| history::unpack(STATE, &packed.unwrap()).unwrap());
    let tell = |Change { object, from, to, event, is_late, .. }: Change| {
        let late = if is_late { " late" } else { "" };
        format!("{object} {} {to} by {event}{late}", from.as_deref().unwrap_or("-"))
    };
    changes.map(tell).collect()
}

#[tokio::test]
async fn changes_are_decided_by_what_is_stored_and_told_in_order() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    see(&store, (0, 1), "NEW", 10).await.unwrap();
    see(&store, (1, 2), "PAID", 20).await.unwrap();
    let twice = see(&store, (1, 2), "LOST", 30).await;
    assert!(matches!(twice, Err(Error::Conflict(_))), "somebody else has counted it");
    see(&store, (2, 3), "NEW", 15).await.unwrap();
    see(&store, (3, 4), "SENT", 40).await.unwrap();
    let expected = ["o - NEW by 1", "o NEW PAID by 2", "o PAID NEW by 3 late", "o PAID SENT by 4"];
    assert_eq!(told(&dir), expected);
    drop(store);
    let store = open(&dir).unwrap();
    see(&store, (4, 5), "DONE", 50).await.unwrap();
    assert_eq!(told(&dir).last().map(String::as_str), Some("o SENT DONE by 5"));
}
