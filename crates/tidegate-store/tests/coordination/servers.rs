//! The servers of a test: a database of its own on the PostgreSQL, and the Redis, that the environment names.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tidegate_core::subscriber::Rate;
use tidegate_store::coordination::{BucketKey, Coordination, Postgres, Redis};
use tidegate_store::postgres::connect::{Session, Target};

/// Who flushes Redis takes from all.
pub(crate) static REDIS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A number that no other replica of this run has.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn named(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("set {variable}, or run through cargo xtask test"))
}

/// A database that is dropped at the end.
pub(crate) struct Database {
    admin: Session,
    name: String,
    url: String,
}

impl Database {
    pub(crate) async fn create() -> Self {
        let server = named("TIDEGATE_TEST_POSTGRES");
        let admin = Target::parse(&server).expect("a URL").connect_plain().await.expect("PostgreSQL answers");
        let name = format!("coordination_{}_{}", std::process::id(), number());
        admin.client.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("a new database");
        let mut url = url::Url::parse(&server).expect("a URL");
        url.set_path(&name);
        Self { admin, name, url: url.to_string() }
    }

    pub(crate) fn target(&self) -> Target {
        Target::parse(&self.url).expect("a URL")
    }

    /// The same database, behind a server that is tried first.
    pub(crate) fn target_behind(&self, first: SocketAddr) -> Target {
        let at = self.url.rfind('@').map_or_else(|| self.url.find("://").expect("a URL") + 3, |at| at + 1);
        Target::parse(&format!("{}{first},{}", &self.url[..at], &self.url[at..])).expect("a URL")
    }

    /// Ends all sessions.
    pub(crate) async fn cut(&self) {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
        self.admin.client.execute(cut, &[&self.name]).await.expect("sessions can be ended");
    }

    /// Runs a statement.
    pub(crate) async fn run(&self, statement: &str) {
        let session = self.target().connect_plain().await.expect("PostgreSQL answers");
        session.client.batch_execute(statement).await.expect("a statement");
    }

    pub(crate) async fn drop(self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        self.admin.client.batch_execute(&drop).await.expect("a database can be dropped");
    }
}

/// The Redis, and a part of it that is this test's.
pub(crate) struct RedisServer {
    connection: MultiplexedConnection,
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl RedisServer {
    pub(crate) async fn connect() -> Self {
        let url = named("TIDEGATE_TEST_REDIS");
        let client = redis::Client::open(url.as_str()).expect("a URL");
        let connection = client.get_multiplexed_async_connection().await.expect("Redis answers");
        Self { connection, url, prefix: format!("{}-{}", std::process::id(), number()) }
    }

    pub(crate) async fn run(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query_async::<redis::Value>(&mut self.connection.clone()).await.expect("a command");
    }
}

/// A replica that hears through both, and takes tokens from Redis.
pub(crate) async fn join(database: &Database, url: &str, prefix: &str) -> Redis {
    let replica = connect(database, url, prefix).await;
    takes_from_redis(&replica).await;
    replica
}

/// A replica that hears through both.
pub(crate) async fn connect(database: &Database, url: &str, prefix: &str) -> Redis {
    let postgres = Postgres::start(database.target(), number());
    let replica = Redis::start(url, prefix, number(), postgres).expect("a URL");
    while replica.tally().gaps < 2 {
        assert!(replica.hear().await.everything);
    }
    replica
}

/// Waits until the buckets are in Redis.
pub(crate) async fn takes_from_redis(replica: &Redis) {
    let (bucket, rate) = (BucketKey::subscriber(0), Rate::parse("1000/s").expect("a rate"));
    loop {
        let fallbacks = replica.tally().fallbacks;
        let grant = replica.take(&bucket, rate.into(), 1).await;
        if grant.standing.is_some() && replica.tally().fallbacks == fallbacks {
            return;
        }
        tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await.ok();
    }
}
