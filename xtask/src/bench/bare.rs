//! What the figures are compared with: the same work done by the bare pieces, without a product around them.
//!
//! A bare axum handler that parses an event and answers 202; a bare hyper client that posts deliveries; a plain
//! rusqlite loop that inserts rows, and one on PostgreSQL; a lone fdatasync. The first two are processes of their own, like the server.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::Json;
use axum::routing::post;
use axum::serve::ListenerExt;
use bytes::Bytes;
use clap::Args;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use super::histogram::Histogram;
use super::template::{self, EVENT_BYTES};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;

const ROWS_PER_COMMIT: u64 = 1_000;
const SYNC_BYTES: usize = 4096;
/// Pages that SQLite writes for one event and its delivery, seven of them.
const COMMIT_BYTES: usize = 7 * 4096;
/// A sync that takes longer waits for something else than its own bytes.
const STALL: Duration = Duration::from_millis(20);
/// Of five seconds each.
const CALM_WATCHES_MAX: u32 = 12;

/// Serves `POST /v1/events` until it is killed; prints its port first.
pub(crate) fn run_axum() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?.port());
        let router = axum::Router::new().route("/v1/events", post(accept));
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        Ok(axum::serve(listener, router).await?)
    })
}

async fn accept(Json(event): Json<Value>) -> (StatusCode, Json<Value>) {
    let result = json!({"id": event["id"], "status": "accepted"});
    (
        StatusCode::ACCEPTED,
        Json(json!({"accepted": 1, "duplicates": 0, "quarantined": 0, "results": [result]})),
    )
}

/// What the bare client posts where.
#[derive(Args, Clone)]
pub(crate) struct Posts {
    #[arg(long)]
    pub(crate) address: SocketAddr,
    #[arg(long)]
    pub(crate) requests: u64,
    #[arg(long, default_value_t = 64)]
    pub(crate) connections: u64,
}

/// Posts event bodies from one thread; prints how many per second.
pub(crate) fn run_hyper(posts: &Posts) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rate = LocalSet::new().block_on(&runtime, post_all(posts))?;
    println!("{rate}");
    Ok(())
}

async fn post_all(posts: &Posts) -> Result<f64> {
    let left = Rc::new(Cell::new(posts.requests));
    let watch = Stopwatch::start();
    let mut tasks = Vec::new();
    for _ in 0..posts.connections {
        let stream = TcpStream::connect(posts.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::task::spawn_local(connection);
        tasks.push(tokio::task::spawn_local(post_some(sender, Rc::clone(&left))));
    }
    for task in tasks {
        task.await??;
    }
    Ok(posts.requests as f64 / watch.seconds())
}

async fn post_some(mut sender: http1::SendRequest<Full<Bytes>>, left: Rc<Cell<u64>>) -> Result<()> {
    let body = Bytes::from(template::event());
    while let Some(rest) = left.get().checked_sub(1) {
        left.set(rest);
        let request = Request::post("/bare")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))?;
        let response = sender.send_request(request).await?;
        ensure!(response.status().is_success(), "the receiver answered {}", response.status());
        response.into_body().collect().await?;
    }
    Ok(())
}

/// Rows per second of a plain loop: a unique sequential id, an indexed time, 500 bytes of payload, 1 000 rows per
/// commit, as durable as the product. What an event store must find by id and by time needs no less.
pub(crate) fn sqlite_rate(folder: &Path, rows: u64) -> Result<f64> {
    insert_rows(
        folder,
        rows,
        "CREATE TABLE row (seq INTEGER PRIMARY KEY, id BLOB UNIQUE, at INTEGER, payload BLOB NOT NULL);
         CREATE INDEX row_at ON row (at)",
    )
}

/// The same rows, only appended: nothing can be found in them but by their number.
pub(crate) fn sqlite_append_rate(folder: &Path, rows: u64) -> Result<f64> {
    insert_rows(
        folder,
        rows,
        "CREATE TABLE row (seq INTEGER PRIMARY KEY, id BLOB, at INTEGER, payload BLOB NOT NULL)",
    )
}

fn insert_rows(folder: &Path, rows: u64, schema: &str) -> Result<f64> {
    let path = folder.join("plain.db");
    let mut connection = Connection::open(&path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(schema)?;
    let payload = vec![b'x'; EVENT_BYTES];
    let watch = Stopwatch::start();
    let mut seq = 0_i64;
    for _ in 0..rows / ROWS_PER_COMMIT {
        let transaction = connection.transaction()?;
        let mut insert = transaction.prepare_cached("INSERT INTO row VALUES (?1, ?2, ?3, ?4)")?;
        for _ in 0..ROWS_PER_COMMIT {
            seq += 1;
            insert.execute((seq, i128::from(seq).to_be_bytes(), seq / 50, &payload))?;
        }
        drop(insert);
        transaction.commit()?;
    }
    let rate = rows as f64 / watch.seconds();
    drop(connection);
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(folder.join(format!("plain.db{suffix}"))).ok();
    }
    Ok(rate)
}

/// The ids of a plain loop's rows.
#[derive(Clone, Copy)]
pub(crate) enum Ids {
    /// Random ones, like those that the generator sends: each goes somewhere else in an index.
    AsSent,
    /// Ascending ones: an index only grows at its end, and stays in the processor's cache.
    InOrder,
}

impl Ids {
    fn next(self, prng: &mut Prng, number: i64) -> Vec<u8> {
        match self {
            Self::AsSent => template::id(prng),
            Self::InOrder => i128::from(number).to_be_bytes().to_vec(),
        }
    }
}

/// Rows per second of a plain loop on PostgreSQL: a number, a unique id, an indexed time and an event as it is sent, 1 000
/// of them in one statement and one commit.
pub(crate) fn unnest_rate(url: &str, rows: u64, ids: Ids) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        client
            .batch_execute(
                "DROP TABLE IF EXISTS plain; CREATE TABLE plain (seq BIGINT PRIMARY KEY, id BYTEA UNIQUE, at BIGINT,
                    payload BYTEA NOT NULL); CREATE INDEX ON plain (at)",
            )
            .await?;
        let insert = client
            .prepare("INSERT INTO plain SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bytea[])")
            .await?;
        let payload = template::event();
        let payloads = vec![payload.as_bytes(); usize::try_from(ROWS_PER_COMMIT)?];
        let mut prng = Prng::new(1);
        let watch = Stopwatch::start();
        for commit in 0..i64::try_from(rows / ROWS_PER_COMMIT)? {
            let first = commit * i64::try_from(ROWS_PER_COMMIT)?;
            let numbers: Vec<i64> = (first..first + i64::try_from(ROWS_PER_COMMIT)?).collect();
            let ids: Vec<Vec<u8>> = numbers.iter().map(|number| ids.next(&mut prng, *number)).collect();
            let times: Vec<i64> = numbers.iter().map(|no| no / 50).collect();
            client.execute(&insert, &[&numbers, &ids, &times, &payloads]).await?;
        }
        let rate = rows as f64 / watch.seconds();
        client.batch_execute("DROP TABLE plain").await?;
        Ok(rate)
    })
}

/// How often PostgreSQL had to break a circle of waiting.
pub(crate) fn deadlocks(url: &str) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        let sql = "SELECT sum(deadlocks)::bigint FROM pg_stat_database";
        Ok(client.query_one(sql, &[]).await?.get::<_, i64>(0) as f64)
    })
}

/// Lets PostgreSQL finish what a bulk load left it to do, so that figures after it are not about that.
pub(crate) fn settle(url: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        client.batch_execute("VACUUM (ANALYZE)").await?;
        Ok(client.batch_execute("CHECKPOINT").await?)
    })
}

/// A session that ends with its client.
pub(crate) async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Milliseconds, p50 and p99, of writing what the commit of one event writes and syncing it, on a beat: a machine that
/// rests wakes up more slowly than one that works.
pub(crate) fn paced_commit_ms(folder: &Path, times: u32, beat: Duration) -> Result<(f64, f64)> {
    paced_syncs(folder, times, beat).map(|times| p50_and_p99_ms(&times))
}

fn paced_syncs(folder: &Path, times: u32, beat: Duration) -> Result<Histogram> {
    let path = folder.join("paced");
    let mut file = File::create(&path).context("can not create a file to sync")?;
    let block = [7; COMMIT_BYTES];
    let times = paced(times, beat, || {
        file.write_all(&block)?;
        Ok(file.sync_data()?)
    })?;
    std::fs::remove_file(path)?;
    Ok(times)
}

/// The same of a row with an event in it, which PostgreSQL inserts into a table with one index and commits.
pub(crate) fn paced_insert_ms(url: &str, times: u32, beat: Duration) -> Result<(f64, f64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(connect(url))?;
    let table =
        "DROP TABLE IF EXISTS paced; CREATE TABLE paced (id BYTEA PRIMARY KEY, payload BYTEA NOT NULL)";
    runtime.block_on(client.batch_execute(table))?;
    let insert = runtime.block_on(client.prepare("INSERT INTO paced VALUES ($1, $2)"))?;
    let (payload, mut prng) = (template::event(), Prng::new(1));
    let times = paced(times, beat, || {
        let id = template::id(&mut prng);
        runtime.block_on(client.execute(&insert, &[&id, &payload.as_bytes()]))?;
        Ok(())
    })?;
    runtime.block_on(client.batch_execute("DROP TABLE paced"))?;
    Ok(p50_and_p99_ms(&times))
}

/// How long each work takes from the moment at which it was due. One that comes late because the one before it stalled has
/// waited too, as an event would have.
fn paced(times: u32, beat: Duration, mut work: impl FnMut() -> Result<()>) -> Result<Histogram> {
    let mut histogram = Histogram::new();
    let watch = Stopwatch::start();
    for number in 0..times {
        let due = beat * number;
        let late = watch.elapsed().saturating_sub(due);
        clock::pause(due.saturating_sub(watch.elapsed()));
        let worked = Stopwatch::start();
        work()?;
        histogram.add(u64::try_from((late + worked.elapsed()).as_nanos())?);
    }
    Ok(histogram)
}

fn p50_and_p99_ms(times: &Histogram) -> (f64, f64) {
    let ms = |quantile| times.quantile(quantile).as_secs_f64() * 1e3;
    (ms(0.5), ms(0.99))
}

/// Waits until the disk syncs without stalling, for a minute at most; says whether it does. Gigabytes that were just written or
/// deleted keep a disk busy long after the call has returned.
pub(crate) fn wait_for_calm(folder: &Path) -> Result<bool> {
    let mut calm = 0;
    for _ in 0..CALM_WATCHES_MAX {
        let longest = paced_syncs(folder, 1_000, Duration::from_millis(5))?.max();
        calm = if longest < STALL { calm + 1 } else { 0 };
        if calm == 2 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Median milliseconds of appending 4 KiB and syncing it.
pub(crate) fn fdatasync_ms(folder: &Path, times: u32) -> Result<f64> {
    let path = folder.join("sync");
    let mut file = File::create(&path).context("can not create a file to sync")?;
    let block = [7; SYNC_BYTES];
    let mut histogram = Histogram::new();
    for _ in 0..times {
        let watch = Stopwatch::start();
        file.write_all(&block)?;
        file.sync_data()?;
        histogram.add(u64::try_from(watch.elapsed().as_nanos())?);
    }
    std::fs::remove_file(path)?;
    Ok(histogram.quantile(0.5).as_secs_f64() * 1e3)
}
