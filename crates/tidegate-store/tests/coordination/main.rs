//! Coordination keeps its contract in all three ways, on real servers.

mod losing_redis;
mod proxy;
mod servers;

use std::sync::Arc;

use async_trait::async_trait;
use servers::{Database, RedisServer};
use tidegate_core::subscriber::Rate;
use tidegate_store::coordination::conformance::{self, Fixture};
use tidegate_store::coordination::{BucketKey, Coordination, Hub, Postgres};

/// Replicas in this process.
struct Here(Arc<Hub>);

#[async_trait]
impl Fixture for Here {
    async fn join(&self) -> Arc<dyn Coordination> {
        Arc::new(self.0.join())
    }

    fn has_connections(&self) -> bool {
        false
    }

    async fn cut(&self) {}

    async fn wipe(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local() {
    conformance::run(&Here(Hub::new())).await;
}

/// Replicas around a database.
struct Sharing(Database);

#[async_trait]
impl Fixture for Sharing {
    async fn join(&self) -> Arc<dyn Coordination> {
        let replica = Postgres::start(self.0.target(), servers::number());
        assert!(replica.hear().await.everything);
        Arc::new(replica)
    }

    fn has_connections(&self) -> bool {
        true
    }

    async fn cut(&self) {
        self.0.cut().await;
    }

    async fn wipe(&self) {
        self.0.run("TRUNCATE tidegate.basins").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let sharing = Sharing(Database::create().await);
    conformance::run(&sharing).await;
    sharing.0.drop().await;
}

/// Replicas around a database and a Redis.
struct Both {
    database: Database,
    redis: RedisServer,
}

#[async_trait]
impl Fixture for Both {
    async fn join(&self) -> Arc<dyn Coordination> {
        Arc::new(servers::join(&self.database, &self.redis.url, &self.redis.prefix).await)
    }

    fn has_connections(&self) -> bool {
        true
    }

    async fn cut(&self) {
        self.redis.run(&["CLIENT", "KILL", "TYPE", "PUBSUB"]).await;
    }

    async fn wipe(&self) {
        self.redis.run(&["FLUSHALL"]).await;
        self.redis.run(&["SCRIPT", "FLUSH"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let _alone = servers::REDIS.lock().await;
    let both = Both { database: Database::create().await, redis: RedisServer::connect().await };
    conformance::run(&both).await;
    both.database.drop().await;
}
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_server_that_never_answers_keeps_no_tokens_back() {
    let database = Database::create().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let target = database.target_behind(silent.local_addr().expect("an address"));
    let replica = Postgres::start(target, servers::number());
    let rate = Rate::parse("100/s").expect("a rate");
    // Each that is in vain is followed by a wait of half a second: many times what is needed.
    for _ in 0..20 {
        let grant = replica.take(&BucketKey::subscriber(1), rate.into(), 1).await;
        if grant.granted == 1 {
            drop(replica);
            return database.drop().await;
        }
        tokio::time::timeout(grant.next_in, std::future::pending::<()>()).await.ok();
    }
    panic!("no tokens");
}
