//! From one period to the next, and from one version to the next: nobody who reads for long, such as a dump, keeps the others
//! from writing.

use std::sync::Arc;
use std::time::Duration;

use tidegate_store::{Group, Store, UnitStatus};

use super::schema::Schema;
use super::{NOW, connect, group, send, statuses, until_somebody_waits_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_long_reader_keeps_nobody_from_the_next_period() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    send(&store, &["today"], &[]).await;
    let reader = connect(&schema).await;
    // Made beside the first group of today.
    let newest = "SELECT period FROM installation";
    let today = NOW.as_ms() / 1_000;
    while reader.client.query_one(newest, &[]).await.unwrap().get::<_, i64>(0) <= today {
        tokio::task::yield_now().await;
    }
    let read = "BEGIN; LOCK TABLE events, attempts, members IN ACCESS SHARE MODE";
    reader.client.batch_execute(read).await.unwrap();
    for (days, id) in [(1, "tomorrow"), (1, "tomorrow, later")] {
        let now = NOW.plus(Duration::from_secs(days));
        let group = Group { now, ..group(&store, &[id], &[]).await };
        assert_eq!(statuses(&store.commit(Arc::new(group)).await.unwrap()), [UnitStatus::Accepted]);
    }
    let row = reader.client.query_one("SELECT count(DISTINCT tableoid) FROM events", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 2, "each period has its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_waits_for_a_long_reader_keeps_nobody_waiting() {
    let schema = Schema::new();
    drop(schema.open(schema.url(), NOW).await);
    let (reader, other) = (connect(&schema).await, connect(&schema).await);
    let undo = "ALTER TABLE beats DROP COLUMN divides, DROP COLUMN busy, DROP COLUMN leaving;
        DELETE FROM migrations WHERE number = 21";
    reader.client.batch_execute(undo).await.unwrap();
    reader.client.batch_execute("BEGIN; LOCK TABLE beats IN ACCESS SHARE MODE").await.unwrap();
    let url = schema.url().to_owned();
    let opening = tokio::spawn(async move { Schema::open_at(&url, NOW).await });
    until_somebody_waits_for(&reader.client, &other.client).await;
    other.client.batch_execute("SET lock_timeout = '5s'; UPDATE beats SET at = at").await.unwrap();
    reader.client.batch_execute("COMMIT").await.unwrap();
    opening.await.unwrap();
}
