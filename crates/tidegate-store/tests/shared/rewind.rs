//! A database that goes back in time under living processes, as after a failover that loses commits: all its rows and
//! sequences are put back to what they were. What is lost is never taken for what came after, and a process that had it acknowledged notices.

use tidegate_core::delivery::Job;
use tidegate_core::id::Mint;
use url::Url;

use super::grounds::{forget, guest};
use super::*;

/// A schema that is written by a role of its own, and what it goes back to.
struct Database {
    server: Session,
    role: String,
    url: Url,
    schema: String,
    removed_at_the_end: Schema,
}

impl Database {
    async fn new(label: &str) -> Self {
        let removed = Schema::new();
        let server = connect(&removed).await;
        let (role, url) = guest(&server.client, &removed, &format!("rewind_{label}")).await;
        let schema = Target::parse(removed.url()).unwrap().schema().to_owned();
        let database = Self { server, role, url, schema, removed_at_the_end: removed };
        database.run(&format!("CREATE SCHEMA {} AUTHORIZATION {}", database.schema, database.role)).await;
        database
    }

    async fn open(&self) -> PostgresStore {
        Schema::open_at(self.url.as_str(), NOW).await
    }

    async fn run(&self, sql: &str) {
        self.server.client.batch_execute(sql).await.unwrap();
    }

    /// What every table and every sequence holds.
    async fn keep(&self) {
        let kept = format!("{}_kept", self.schema);
        let mut sql = format!("BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE SCHEMA {kept};");
        for table in self.named("relkind IN ('r', 'p') AND NOT relispartition").await {
            sql += &format!("CREATE TABLE {kept}.{table} AS TABLE {}.{table};", self.schema);
        }
        for sequence in self.named("relkind = 'S'").await {
            sql += &format!("CREATE TABLE {kept}.{sequence} AS SELECT * FROM {}.{sequence};", self.schema);
        }
        self.run(&format!("{sql} COMMIT")).await;
    }

    /// What came since is lost, and every session ends.
    async fn go_back(&self) {
        let end = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = $1";
        self.server.client.query(end, &[&self.role]).await.unwrap();
        let (schema, kept) = (&self.schema, format!("{}_kept", self.schema));
        let tables = self.named("relkind IN ('r', 'p') AND NOT relispartition").await;
        let all: Vec<_> = tables.iter().map(|table| format!("{schema}.{table}")).collect();
        let mut sql = format!("BEGIN; TRUNCATE {};", all.join(", "));
        for table in &tables {
            let columns = self.columns(table).await;
            sql += &format!(
                "INSERT INTO {schema}.{table} ({columns}) OVERRIDING SYSTEM VALUE SELECT {columns} FROM {kept}.{table};"
            );
        }
        for sequence in self.named("relkind = 'S'").await {
            let from = format!("FROM {kept}.{sequence}");
            sql += &format!("SELECT setval('{schema}.{sequence}', last_value, is_called) {from};");
        }
        // A standby that takes over begins another history.
        sql += &format!("UPDATE {schema}.installation SET lineage = 'that of the one before';");
        self.run(&format!("{sql} COMMIT")).await;
    }

    async fn named(&self, which: &str) -> Vec<String> {
        let of = format!("relnamespace = '{}'::regnamespace AND {which}", self.schema);
        let sql = format!("SELECT quote_ident(relname) FROM pg_class WHERE {of} ORDER BY relname");
        self.server.client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
    }

    /// Those that are not made from others.
    async fn columns(&self, table: &str) -> String {
        let sql = format!(
            "SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute WHERE attrelid = '{}.{table}'::regclass
                AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
            self.schema
        );
        self.server.client.query_one(&sql, &[]).await.unwrap().get(0)
    }

    async fn remove(&self) {
        self.run(&format!("DROP SCHEMA {}_kept CASCADE", self.schema)).await;
        forget(&self.server.client, &self.role).await;
    }
}

/// Writes results, again where a session was cut; says how it ended.
async fn finish(store: &PostgresStore, jobs: &[Job]) -> Result<Committed, Error> {
    let results: Vec<_> = jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    loop {
        let group = Group { now: NOW, results: results.clone(), ..Group::default() };
        match store.commit(Arc::new(group)).await {
            Err(Error::Unavailable(_)) => {}
            ended => return ended,
        }
    }
}

/// Reads the configuration, again where a session was cut.
async fn configuration(store: &PostgresStore, since: i64) -> Configuration {
    loop {
        match store.configuration(since).await {
            Err(Error::Unavailable(_)) => {}
            read => return read.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_never_taken_for_what_comes_after() {
    let database = Database::new("own").await;
    let store = database.open().await;
    let to = vec![Route::alone(subscriber(&store).await, None)];
    send(&store, &["kept"], &to).await;
    database.keep().await;
    let lost = send(&store, &["lost-1", "lost-2"], &to).await.jobs;
    database.go_back().await;
    // The answer of a receiver to what is lost comes when the database has gone back.
    let refused = finish(&store, &lost).await;
    assert!(matches!(refused, Err(Error::Fenced)), "{refused:?}");
    assert_eq!(store.rewinds(), 1, "it was noticed");
    let life = store.incarnation();
    assert_ne!(store.join(NOW).await.unwrap(), life, "a new life begins");
    let after = send(&store, &["after-1", "after-2", "after-3"], &to).await.jobs;
    assert_eq!(after.len(), 3);
    let lowest = after.iter().map(|job| job.delivery).min().unwrap();
    assert!(lost.iter().all(|job| job.delivery < lowest), "numbers that were seen are not drawn again");
    assert_eq!(
        finish(&store, &lost).await.unwrap().stale,
        2,
        "the results of what is lost count for nothing"
    );
    assert_eq!(finish(&store, &after).await.unwrap().stale, 0);
    database.remove().await;
}

/// A process that knows nothing of what was lost draws the same numbers again: the ids differ all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_drawn_again_is_another_id() {
    let database = Database::new("other").await;
    let (writer, other) = (database.open().await, database.open().await);
    let to = vec![Route::alone(subscriber(&writer).await, None)];
    database.keep().await;
    let lost = send(&writer, &["lost"], &to).await.jobs;
    database.go_back().await;
    let _ = finish(&other, &[]).await;
    let after = send(&other, &["after"], &to).await.jobs;
    assert_eq!(after[0].delivery, lost[0].delivery, "else this shows nothing");
    let ids = Mint::new(b"salt");
    assert_ne!(ids.delivery(after[0].key()), ids.delivery(lost[0].key()));
    // The one that lost something notices, and its result does not end the other's delivery.
    assert!(matches!(finish(&writer, &lost).await, Err(Error::Fenced)));
    writer.join(NOW).await.unwrap();
    assert_eq!(finish(&writer, &lost).await.unwrap().stale, 1);
    assert_eq!(finish(&other, &after).await.unwrap().stale, 0);
    database.remove().await;
}

/// A process that has nothing to write hears it with its next beat, and writes nothing of that life any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_beat_tells_that_the_database_went_back() {
    let database = Database::new("beat").await;
    let store = database.open().await;
    let to = vec![Route::alone(subscriber(&store).await, None)];
    database.keep().await;
    send(&store, &["lost"], &to).await;
    database.go_back().await;
    let told = loop {
        match store.beat(Load::default()).await {
            Err(Error::Unavailable(_)) => {}
            told => break told.map(|_| ()),
        }
    };
    assert!(matches!(told, Err(Error::Fenced)), "{told:?}");
    assert_eq!(store.rewinds(), 1);
    assert!(matches!(finish(&store, &[]).await, Err(Error::Fenced)));
    store.join(NOW).await.unwrap();
    store.beat(Load::default()).await.unwrap();
    assert_eq!(store.rewinds(), 1, "it is told once");
    database.remove().await;
}

/// A fold that waits in its lane may be joined. If it left in what is lost, what it is sent with later has another id.
#[tokio::test(flavor = "multi_thread")]
async fn a_fold_that_may_have_left_before_gets_another_id() {
    for is_held in [false, true] {
        let database = Database::new(if is_held { "held" } else { "waiting" }).await;
        let (writer, other) = (database.open().await, database.open().await);
        let to = folds::into(subscriber(&writer).await, "k", Some(7), &folds::terms(10, 1_000));
        let no = to.subscriber;
        let to = std::slice::from_ref(&to);
        folds::commit(&writer, Group { room: Room::new(0), ..group(&writer, &["a"], to).await }).await;
        folds::commit(&writer, Group { now: folds::later(1_000), close: 10, ..Group::default() }).await;
        let mut lost = Vec::new();
        if is_held {
            lost = folds::claim(&writer, no, folds::later(1_000)).await;
        }
        database.keep().await;
        if !is_held {
            lost = folds::claim(&writer, no, folds::later(1_000)).await;
        }
        assert!(folds::seal(&writer, &lost[0]).await);
        assert_eq!(folds::carried(&writer, &lost[0]).await, ["a"]);
        database.go_back().await;
        while finish(&other, &[]).await.is_err() {}
        folds::commit(&other, Group { room: Room::new(0), ..group(&other, &["b"], to).await }).await;
        assert!(matches!(finish(&writer, &[]).await, Err(Error::Fenced)));
        if is_held {
            expire(&database.removed_at_the_end, writer.incarnation()).await;
            let taken_over = other.take_over(writer.incarnation(), folds::later(9_000)).await.unwrap();
            assert_eq!(taken_over.due, 1);
        }
        let again = folds::claim(&other, no, folds::later(9_000)).await;
        assert!(folds::seal(&other, &again[0]).await);
        assert_eq!(folds::carried(&other, &again[0]).await, ["a", "b"]);
        assert_eq!(again[0].delivery, lost[0].delivery, "else this shows nothing");
        assert_ne!(again[0].nonce, lost[0].nonce);
        database.remove().await;
    }
}

/// A configuration that was lost is not mistaken for another one with its number.
#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_was_lost_routes_nothing() {
    let database = Database::new("version").await;
    let (writer, other) = (database.open().await, database.open().await);
    let kept = writer.configuration(0).await.unwrap().version;
    database.keep().await;
    let lost = writer.change(new_subscriber("lost"), NOW).await.unwrap();
    assert!(writer.configuration(kept).await.unwrap().subscribers.len() == 1);
    database.go_back().await;
    let news = configuration(&writer, lost.version).await;
    assert!(news.is_whole && news.subscribers.is_empty(), "all of it is told again");
    let refused = finish(&writer, &[]).await;
    assert!(matches!(refused, Err(Error::Fenced)), "the reader noticed, the writer obeys: {refused:?}");
    let after = loop {
        match other.change(new_subscriber("after"), NOW).await {
            Err(Error::Unavailable(_)) => {}
            changed => break changed.unwrap(),
        }
    };
    assert_eq!(after.no, lost.no, "else this shows nothing");
    assert_ne!(after.version, lost.version);
    let route = vec![Route::alone(lost.no, None)];
    let units = vec![unit("1", route)];
    let group = Group {
        now: NOW,
        version: lost.version,
        submissions: vec![Submission { project: 1, units }],
        ..Group::default()
    };
    let refused = loop {
        match other.commit(Arc::new(group.clone())).await {
            Err(Error::Unavailable(_)) => {}
            ended => break ended,
        }
    };
    assert!(matches!(refused, Err(Error::Stale { .. })), "{refused:?}");
    let news = configuration(&writer, lost.version).await;
    assert!(news.is_whole);
    assert_eq!(news.subscribers.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["after"]);
    writer.join(NOW).await.unwrap();
    assert!(writer.version().await.unwrap() > lost.version, "no later change gets a number that was seen");
    database.remove().await;
}
