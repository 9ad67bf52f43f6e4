//! How fast questions are answered: a week in buckets of 5 s with 1 000 keys, every key in every bucket.
//!
//! Counting that many events would take hours, so the buckets are written into the database as the product would have written
//! them, with its own code, while no server runs. The questions go over HTTP.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, Transaction, params};
use serde_json::{Value, json};
use tidegate_core::id::KeyNo;
use tidegate_core::observe::{Cell, Grain, Kind, page};
use tidegate_core::time::Timestamp;

use super::stage::Stage;
use super::table::Goal::AtMost;
use super::table::{Row, median};
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::server::Server;

const TYPE: &str = "/v1/catalog/services/bench/types/order.paid";
const PATH: &str = "/v1/query/counters";
const SHOPS: u32 = 20;
const PLANS: u32 = 50;
const KEYS: u32 = SHOPS * PLANS;
const DAY: i64 = 24 * 3_600_000;
/// How often each question is asked.
const TIMES: u32 = 20;
/// A day at a minute by one dimension, and a week at an hour.
pub(super) fn ask(stage: &mut Stage) -> Result<Vec<Row>> {
    let mut server = stage.empty_server("asked")?;
    let counter = json!({"counters": {"sold": {"dimensions": ["data.shop", "data.plan"]}}});
    server.api("PUT", TYPE, &counter)?;
    server.stop()?;
    let now = i64::try_from(clock::wall_nanos() / 1_000_000)?;
    let end = now - now % DAY;
    // In a hurry there is only what is asked about by the minute.
    let days = if stage.quick { 1 } else { 7 };
    let watch = Stopwatch::start();
    let buckets = fill(&database(&server), (end - days * DAY, end))?;
    println!("wrote {buckets} buckets of {KEYS} keys in {:.1} s", watch.seconds());
    server.resume()?;
    let by_shop = json!({"group_by": ["data.shop"]});
    let week = |rest: &Value| question((end - days * DAY, end), "1h", rest);
    let (whole, hours) = (week(&json!({})), week(&by_shop));
    let minutes = question((end - DAY, end), "1m", &by_shop);
    Ok(vec![
        Row::new(
            "observe",
            format!("a day at 1 m by one of two dimensions, {} points", 1_440 * SHOPS),
            asked_ms(&server, &minutes)?,
            "ms",
            AtMost(50.0),
        ),
        Row::new("observe", format!("{days} days at 1 h"), asked_ms(&server, &whole)?, "ms", AtMost(20.0)),
        Row::new(
            "observe",
            format!("{days} days at 1 h by one of two dimensions"),
            asked_ms(&server, &hours)?,
            "ms",
            AtMost(20.0),
        ),
    ])
}

/// The file of a server that does not run.
pub(super) fn database(server: &Server) -> std::path::PathBuf {
    server.data().join("tidegate.db")
}

/// Opens it for writing very much at once: nobody needs it if this is cut short.
pub(super) fn open(path: &Path) -> Result<Connection> {
    let db = Connection::open(path)?;
    db.query_row("PRAGMA journal_mode = OFF", [], |_| Ok(()))?;
    db.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144")?;
    Ok(db)
}

fn question((from, to): (i64, i64), every: &str, rest: &Value) -> Value {
    let mut question = json!({
        "service": "bench", "type": "order.paid", "counter": "sold", "every": every,
        "from": Timestamp::from_ms(from), "to": Timestamp::from_ms(to),
    });
    if let (Some(question), Some(rest)) = (question.as_object_mut(), rest.as_object()) {
        question.extend(rest.clone());
    }
    question
}

fn asked_ms(server: &Server, question: &Value) -> Result<f64> {
    let first = server.api("POST", PATH, question)?;
    let counted = first["buckets"][0]["series"][0]["count"].as_i64();
    ensure!(counted.is_some_and(|count| count > 0), "nothing is counted");
    timed_ms(TIMES, || server.ask("POST", PATH, question).map(drop))
}

/// The median of how long something takes.
pub(super) fn timed_ms(times: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..times {
        let watch = Stopwatch::start();
        work()?;
        all.push(watch.seconds() * 1e3);
    }
    Ok(median(all))
}

/// Buckets of one length, summed up from shorter ones.
struct Level {
    grain: Grain,
    bucket: Option<i64>,
    cells: Vec<i64>,
}

/// Fills a range with buckets of every length; answers how many.
fn fill(path: &Path, (from, to): (i64, i64)) -> Result<u64> {
    let mut db = open(path)?;
    let tx = db.transaction()?;
    let metric = tx.query_row("SELECT no FROM metrics WHERE name = 'sold'", [], |row| row.get::<_, i64>(0));
    let metric = metric.context("the counter is not there")?;
    write_keys(&tx, metric)?;
    let mut levels = Grain::ALL.map(|grain| Level { grain, bucket: None, cells: vec![0; KEYS as usize] });
    let (mut prng, mut buckets) = (Prng::new(1), 0);
    for at in (from..to).step_by(usize::try_from(Grain::S5.length_ms())?) {
        let counts: Vec<i64> = (0..KEYS).map(|_| 1 + (prng.next() % 9) as i64).collect();
        for level in &mut levels {
            if level.bucket.is_some_and(|bucket| bucket != level.grain.start_ms(at)) {
                buckets += level.write(&tx, metric)?;
            }
            level.bucket = Some(level.grain.start_ms(at));
            level.cells.iter_mut().zip(&counts).for_each(|(sum, count)| *sum += count);
        }
    }
    for level in &mut levels {
        buckets += level.write(&tx, metric)?;
    }
    tx.commit()?;
    Ok(buckets)
}

fn write_keys(tx: &Transaction<'_>, metric: i64) -> Result<()> {
    let mut insert = tx.prepare("INSERT INTO rollup_keys (metric, key, no) VALUES (?1, ?2, ?3)")?;
    for no in 0..KEYS {
        let key = format!(r#"["shop {}","plan {}"]"#, no / PLANS, no % PLANS);
        insert.execute(params![metric, key, no + 1])?;
    }
    tx.execute("UPDATE metrics SET keys = ?2 WHERE no = ?1", params![metric, KEYS])?;
    Ok(())
}

impl Level {
    /// Writes the bucket and begins the next.
    fn write(&mut self, tx: &Transaction<'_>, metric: i64) -> Result<u64> {
        let Some(bucket) = self.bucket else { return Ok(0) };
        let cells: Vec<(KeyNo, Cell)> =
            (1..).zip(&self.cells).map(|(key, count)| (key, Cell::Count { count: *count, sum: 0 })).collect();
        let of_page = |key: KeyNo| page::of(Kind::Counter, key);
        let sql = "INSERT INTO rollups (metric, grain, bucket, page, cells) VALUES (?1, ?2, ?3, ?4, ?5)";
        let mut insert = tx.prepare_cached(sql)?;
        for cells in cells.chunk_by(|a, b| of_page(a.0) == of_page(b.0)) {
            let cells: Vec<(KeyNo, &Cell)> = cells.iter().map(|(key, cell)| (*key, cell)).collect();
            let packed = page::merge(None, &cells)?;
            insert.execute(params![metric, self.grain.code(), bucket, of_page(cells[0].0), packed])?;
        }
        self.cells.fill(0);
        Ok(1)
    }
}
