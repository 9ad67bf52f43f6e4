//! Ids that come again, among new ones: a group takes its ids as if all were new, and when one is not, nothing of what it
//! took until then stays behind. Nor do the groups after it, which look first, answer anything else.

use std::sync::Arc;

use tidegate_core::route::Route;
use tidegate_store::UnitStatus::{Accepted, Conflict, Duplicate};

use super::schema::Schema;
use super::{NOW, connect, follow, hold, send, statuses, subscriber, unit, until_somebody_waits};

/// More than the number of groups that look first.
const GROUPS: usize = 12;

#[tokio::test(flavor = "multi_thread")]
async fn known_ids_among_new_ones_are_answered_each_for_itself() {
    let schema = Schema::new();
    let (one, two) = (schema.open(schema.url(), NOW).await, schema.open(schema.url(), NOW).await);
    let to = [Route::alone(subscriber(&one).await, None)];
    assert_eq!(statuses(&send(&one, &["known"], &to).await), [Accepted]);
    for n in 0..GROUPS {
        let (new, newer, alone) = (format!("{n}-new"), format!("{n}-newer"), format!("{n}-alone"));
        let mixed = send(&two, &[&new, "known", &newer], &to).await;
        assert_eq!(statuses(&mixed), [Accepted, Duplicate, Accepted]);
        assert_eq!(mixed.jobs.len(), 2, "what is known is not sent again");
        for _ in 0..n {
            send(&two, &[], &[]).await;
        }
        assert_eq!(statuses(&send(&two, &[&alone], &to).await), [Accepted]);
    }
    let (mut from, mut seen) = (0, Vec::new());
    follow(&one, &mut from, &mut seen).await;
    assert_eq!(seen.len(), 1 + 3 * GROUPS, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_is_taken_while_a_group_waits_for_it_is_known() {
    let schema = Schema::new();
    let store = Arc::new(schema.open(schema.url(), NOW).await);
    assert_eq!(statuses(&send(&store, &["first"], &[]).await), [Accepted]);
    let (session, looker) = (connect(&schema).await, connect(&schema).await);
    session.client.batch_execute("BEGIN").await.unwrap();
    hold(&session.client, &unit("held", Vec::new()).unit.events[0]).await;
    let waiting = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { statuses(&send(&store, &["a", "b", "held", "c", "d"], &[]).await) })
    };
    until_somebody_waits(&looker.client).await;
    session.client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waiting.await.unwrap(), [Accepted, Accepted, Conflict, Accepted, Accepted]);
    let sql = "SELECT count(*) FROM dedupe d JOIN events e ON e.seq = d.event";
    let kept: i64 = looker.client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(kept, 5, "an id for each event, and no other");
}
