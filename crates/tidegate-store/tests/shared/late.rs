//! Late commits: eight processes write at once, two of them are held up for seconds in the middle of their transactions,
//! and a reader that follows meanwhile misses nothing and sees nothing twice.

use std::sync::Arc;

use tidegate_store::UnitStatus;
use tidegate_store::postgres::PostgresStore;

use super::schema::Schema;
use super::{NOW, connect, follow, hold, send, statuses, unit};

const WRITERS: usize = 8;
/// The first so many are held up, each again and again.
const LATE: usize = 2;
const GROUPS: usize = 60;
/// Which groups of a late writer are held up.
const HELD_EVERY: usize = 20;

fn id(writer: usize, group: usize, place: usize) -> String {
    format!("{writer}-{group}-{place}")
}

/// Writes all groups of one process. Before some of a late one somebody else takes an id that it needs, and keeps it for two
/// seconds: the group has drawn its numbers by then, and stands in the middle of its transaction.
async fn write(schema: Arc<Schema>, store: Arc<PostgresStore>, writer: usize) {
    let holder = connect(&schema).await;
    for group in 0..GROUPS {
        let ids: Vec<String> = (0..3).map(|place| id(writer, group, place)).collect();
        let is_held = writer < LATE && group % HELD_EVERY == HELD_EVERY / 2;
        if is_held {
            holder.client.batch_execute("BEGIN").await.unwrap();
            hold(&holder.client, &unit(&ids[1], Vec::new()).unit.events[0]).await;
        }
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let release = async {
            if is_held {
                holder.client.batch_execute("SELECT pg_sleep(2); ROLLBACK").await.unwrap();
            }
        };
        let (committed, ()) = tokio::join!(send(&store, &ids, &[]), release);
        assert_eq!(statuses(&committed), [UnitStatus::Accepted; 3]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_misses_nothing_of_eight_writers_that_hold_their_transactions_for_seconds() {
    let schema = Arc::new(Schema::new());
    let mut stores = Vec::new();
    for _ in 0..WRITERS {
        stores.push(Arc::new(schema.open(schema.url(), NOW).await));
    }
    let reader = schema.open(schema.url(), NOW).await;
    let writers: Vec<_> = stores
        .into_iter()
        .enumerate()
        .map(|(writer, store)| tokio::spawn(write(Arc::clone(&schema), store, writer)))
        .collect();
    let (mut from, mut seen, mut stretches) = (0, Vec::new(), 0);
    while writers.iter().any(|writer| !writer.is_finished()) {
        let before = seen.len();
        follow(&reader, &mut from, &mut seen).await;
        stretches += usize::from(seen.len() > before);
    }
    for writer in writers {
        writer.await.unwrap();
    }
    follow(&reader, &mut from, &mut seen).await;
    let mut expected: Vec<String> = (0..WRITERS)
        .flat_map(|writer| {
            (0..GROUPS).flat_map(move |group| (0..3).map(move |place| id(writer, group, place)))
        })
        .collect();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected, "each once, whenever it was committed");
    assert!(stretches > 10, "the reader followed while they wrote: {stretches}");
}
