//! A caller that goes away neither stops a change half-way nor leaves its session inside a transaction, wherever it is at
//! that moment. Somebody else's lock on a table says where: whoever needs the table is stuck there when its caller goes.
//!
//! The store comes in by a role of its own, by which its sessions are told from those of the tests beside this one.

use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms as Fold};
use tidegate_core::payload::Payload;
use tidegate_core::time::Span;

use super::grounds::{forget, guest};
use super::*;

/// What the statements of a group that goes step by step need one after the other, and the last of them for its refill.
const STEPS: [&str; 7] =
    ["replicas", "installation", "windows", "subscribers", "dedupe", "events", "deliveries"];

/// What a change of the configuration needs.
const CHANGES: [&str; 3] = ["installation", "projects", "subscribers"];

/// Nobody waits longer for what was under way; a session that stands still in a group is ended after four seconds.
const END_MAX_MS: u32 = 3_500;

/// A store, and what looks at it from outside.
struct Stage {
    store: Arc<PostgresStore>,
    schema: Schema,
    role: String,
    /// Has a table locked while somebody is stuck.
    holder: Session,
    looker: Session,
}

impl Stage {
    async fn new(name: &str) -> Self {
        let schema = Schema::new();
        let (holder, looker) = (connect(&schema).await, connect(&schema).await);
        let (role, url) = guest(&looker.client, &schema, name).await;
        let target = Target::parse(schema.url()).unwrap();
        let own = format!("CREATE SCHEMA {} AUTHORIZATION {role}", target.schema());
        looker.client.batch_execute(&own).await.unwrap();
        let store = Arc::new(schema.open(url.as_str(), NOW).await);
        Self { store, schema, role, holder, looker }
    }

    /// Lets `work` come to where it needs `table`, and its caller go away there.
    async fn cancel_at(&self, table: &str, work: impl Future<Output = ()> + Send + 'static) {
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        self.holder.client.batch_execute(&lock).await.unwrap();
        let caller = tokio::spawn(work);
        until_somebody_waits_for(&self.holder.client, &self.looker.client).await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled(), "it was still waiting for {table}");
        self.holder.client.batch_execute("ROLLBACK").await.unwrap();
    }

    /// What was under way comes to its end, before the server would end it for standing still, and no session of the store
    /// stays inside a transaction. Asked before anybody else borrows the session, whose work would end the one before.
    async fn at_rest(&self, table: &str) {
        let lock = format!(
            "SET lock_timeout = {END_MAX_MS}; BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; ROLLBACK"
        );
        let ended = self.looker.client.batch_execute(&lock).await;
        assert!(ended.is_ok(), "a session stays inside a transaction: {ended:?}");
        let sql =
            "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND state LIKE 'idle in transaction%'";
        let open: i64 = self.looker.client.query_one(sql, &[&self.role]).await.unwrap().get(0);
        assert_eq!(open, 0, "sessions inside a transaction in which nothing happens");
    }

    async fn end(self) {
        assert!(tidegate_store::postgres::audit(self.schema.url()).await.unwrap().is_empty());
        drop(self.store);
        forget(&self.looker.client, &self.role).await;
    }
}

/// Into a window that takes two events, in a lane.
fn folded(subscriber: i64) -> Route {
    let terms = Fold {
        mode: Mode::Window { window: Span::from_ms(60_000) },
        max_events: 2,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    };
    let fold = Appending { key: Key::from_text("one"), terms: Arc::new(terms), cancels: Vec::new() };
    Route::folded(subscriber, Some(7), fold)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_caller_goes_away_is_written_to_its_end() {
    let stage = Stage::new("stepping").await;
    let route = folded(subscriber(&stage.store).await);
    let refill = Refill { subscriber: route.subscriber, jobs: 10 };
    let stepping = async |id: &str| {
        let routed = group(&stage.store, &[id], std::slice::from_ref(&route)).await;
        Arc::new(Group { refills: vec![refill], ..routed })
    };
    stage.store.commit(stepping("first").await).await.unwrap();
    for table in STEPS {
        let (store, group) = (Arc::clone(&stage.store), stepping(table).await);
        stage.cancel_at(table, async move { drop(store.commit(group).await) }).await;
        stage.at_rest(table).await;
        assert_eq!(
            statuses(&send(&stage.store, &[&format!("after {table}")], &[]).await),
            [UnitStatus::Accepted]
        );
        let again = stage.store.commit(stepping(table).await).await.unwrap();
        assert_eq!(
            statuses(&again),
            [UnitStatus::Duplicate],
            "it was written although its caller left at {table}"
        );
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_caller_goes_away_is_made() {
    let stage = Stage::new("changing").await;
    for table in CHANGES {
        let (store, change) = (Arc::clone(&stage.store), new_subscriber(table));
        stage.cancel_at(table, async move { drop(store.change(change, NOW).await) }).await;
        stage.at_rest(table).await;
        stage.store.change(new_subscriber(&format!("after-{table}")), NOW).await.unwrap();
        let known = stage.store.configuration(0).await.unwrap().subscribers;
        assert!(known.iter().any(|row| row.id == table), "it was made although its caller left at {table}");
        assert_eq!(statuses(&send(&stage.store, &[table], &[]).await), [UnitStatus::Accepted]);
    }
    stage.end().await;
}
