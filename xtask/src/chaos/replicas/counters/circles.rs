//! Deadlocks on purpose: a session that takes rows which a flush writes in the opposite order.
//!
//! It takes rows that a flush comes to late, waits until a flush waits for them, and asks for what that flush took first.
//! The flush finds out after PostgreSQL's usual second and is the one that is ended; this session would find out later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::bench::bare::connect;
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

/// Stands in its statements, so that its circles are known from others in PostgreSQL's log.
const SIGNATURE: &str = "/* on purpose */";
/// Rows that a flush writes when it holds its metrics: the counts of whole weeks, objects, and how far it came.
const TAKEN_LATE: [&str; 3] =
    ["rollups WHERE grain = (SELECT max(grain) FROM rollups)", "objects WHERE length(object) < 4", "marks"];
/// A flush comes along within this time, or there is nothing to count.
const PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The session at work.
pub(super) struct Circles {
    stop: Arc<AtomicBool>,
    closed: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
}

impl Circles {
    /// Begins, with so long a pause between two circles.
    pub(super) fn start(url: &str, schema: &str, every: Duration, prng: &mut Prng) -> Self {
        let (stop, closed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let session = Session {
            url: url.to_owned(),
            settings: format!(
                "SET search_path = {schema}; SET deadlock_timeout = '3s'; SET lock_timeout = '8s';"
            ),
            every,
            prng: Prng::new(prng.next()),
            stop: Arc::clone(&stop),
            closed: Arc::clone(&closed),
        };
        Self { stop, closed, task: tokio::spawn(session.run()) }
    }

    /// Ends; answers how many circles were closed.
    pub(super) async fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await??;
        Ok(self.closed.load(Ordering::Relaxed))
    }
}

struct Session {
    url: String,
    settings: String,
    every: Duration,
    prng: Prng,
    stop: Arc<AtomicBool>,
    closed: Arc<AtomicU64>,
}

impl Session {
    async fn run(mut self) -> Result<()> {
        let client = connect(&self.url).await?;
        client.batch_execute(&self.settings).await?;
        while !self.stop.load(Ordering::Relaxed) {
            client.batch_execute("BEGIN").await?;
            let rows = self.prng.pick(&TAKEN_LATE);
            // Whoever loses, us or them, begins anew.
            let is_closed = self.close(&client, rows).await.unwrap_or(true);
            self.closed.fetch_add(u64::from(is_closed), Ordering::Relaxed);
            client.batch_execute("ROLLBACK").await?;
            clock::rest(self.every).await;
        }
        Ok(())
    }

    /// Whether somebody came to wait for us before we waited for them.
    async fn close(&self, client: &Client, rows: &str) -> Result<bool> {
        let take =
            |rows: &str| format!("{SIGNATURE} SELECT count(*) FROM (SELECT 1 FROM {rows} FOR UPDATE) t");
        client.batch_execute(&take(rows)).await?;
        let watch = Stopwatch::start();
        while !is_waited_for(client).await? {
            if watch.elapsed() > PATIENCE || self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            clock::rest(LOOK_EVERY).await;
        }
        client.batch_execute(&take("metrics")).await?;
        Ok(true)
    }
}

async fn is_waited_for(client: &Client) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Circles in PostgreSQL's log that nobody closed on purpose.
pub(super) fn not_on_purpose(log: &str) -> u64 {
    let told = log.split("deadlock detected").skip(1);
    let is_ours = |told: &&str| told.split("HINT:").next().is_some_and(|detail| detail.contains(SIGNATURE));
    told.filter(|told| !is_ours(told)).count() as u64
}
