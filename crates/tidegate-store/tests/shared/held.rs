//! What a life claimed as it made it has no entry in an index of claims; it is found all the same when the life ends.

use super::*;

/// More groups than a life's row names blocks.
const GROUPS: usize = 100;

/// One event per group; every third is delivered at once.
async fn send_many(store: &PostgresStore, to: &Route) -> u64 {
    let mut held = 0;
    for number in 0..GROUPS {
        let jobs = send(store, &[&number.to_string()], std::slice::from_ref(to)).await.jobs;
        held += jobs.len() as u64;
        if number % 3 == 0 {
            let results = jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
            store.commit(Arc::new(Group { now: NOW, results, ..Group::default() })).await.unwrap();
            held -= jobs.len() as u64;
        }
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_dead_held_for_long_is_found() {
    let schema = Schema::new();
    let (dead, alive) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = Route::alone(subscriber(&alive).await, None);
    let held = send_many(&dead, &to).await;
    assert_eq!(held, 66);
    let session = connect(&schema).await;
    let named = "SELECT cardinality(held) FROM replicas WHERE incarnation = $1";
    let named: i32 = session.client.query_one(named, &[&dead.incarnation()]).await.unwrap().get(0);
    assert!((1..=64).contains(&named), "{named} blocks are named");
    expire(&schema, dead.incarnation()).await;
    assert_eq!(alive.take_over(dead.incarnation(), NOW).await.unwrap().due, held);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_of_an_earlier_release_held_is_found() {
    let schema = Schema::new();
    let (dead, alive) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = Route::alone(subscriber(&alive).await, None);
    send(&dead, &["1", "2", "3"], std::slice::from_ref(&to)).await;
    let session = connect(&schema).await;
    session.client.batch_execute("UPDATE replicas SET held = NULL").await.unwrap();
    expire(&schema, dead.incarnation()).await;
    assert_eq!(alive.take_over(dead.incarnation(), NOW).await.unwrap().due, 3);
}

/// A row whose indexed columns keep their values is rewritten on its page, and no index hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn no_index_looks_at_what_changes_when_a_delivery_ends() {
    let schema = Schema::new();
    let store = schema.open(schema.url(), NOW).await;
    let to = Route::alone(subscriber(&store).await, None);
    let session = connect(&schema).await;
    let sql = "SELECT DISTINCT a.attname::text FROM pg_index i
        JOIN pg_depend d ON d.objid = i.indexrelid AND d.refobjid = i.indrelid
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND (a.attnum = d.refobjsubid OR a.attnum = ANY(i.indkey))
        WHERE i.indrelid = 'deliveries'::regclass ORDER BY 1";
    let rows = session.client.query(sql, &[]).await.unwrap();
    let indexed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(indexed.len() > 5, "{indexed:?}");
    let columns = format!("SELECT ROW({}) :: text FROM deliveries", indexed.join(", "));
    let jobs = send(&store, &["1"], std::slice::from_ref(&to)).await.jobs;
    let before: String = session.client.query_one(&columns, &[]).await.unwrap().get(0);
    let results = jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    store.commit(Arc::new(Group { now: NOW, results, ..Group::default() })).await.unwrap();
    let after: String = session.client.query_one(&columns, &[]).await.unwrap().get(0);
    assert_eq!(before, after, "{indexed:?}");
}
