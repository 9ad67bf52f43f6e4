//! How fast events are found among very many: by an indexed value that many have, and by one that few have.
//!
//! One event is sent as usual. While no server runs, it is then written into the database again and again under other
//! numbers, ids and values, with its place in the index, as the product would have written it, batch by batch. Only the look-up
//! keys of ids are left out, which nobody asks for here.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, Transaction, params};
use serde_json::{Value, json};
use tidegate_core::observe::{posting, value};

use super::questions::{database, open, timed_ms};
use super::stage::Stage;
use super::table::Goal::AtMost;
use super::table::Row;
use crate::clock::Stopwatch;
use crate::prng::Prng;

const TYPE: &str = "/v1/catalog/services/bench/types/order.paid";
/// What stands in the first event, to be written over.
const ID: &str = "id-00000000000";
const SHOP: &str = "shop-000";
const ORDER: &str = "order-0000000";
const SHOPS: u64 = 100;
const ORDERS: u64 = 1_000_000;
/// Events of one flush.
const BATCH: u64 = 10_000;
/// A segment of the index has two to the power of this many events.
const SEGMENT_BITS: u32 = 17;
/// How often each search is made.
const TIMES: u32 = 20;

/// The first page for a common and for a rare value.
pub(super) fn search(stage: &mut Stage) -> Result<Vec<Row>> {
    let mut server = stage.empty_server("searched")?;
    server.api("PUT", TYPE, &json!({"index": ["data.shop", "data.order"]}))?;
    let event = json!({
        "id": ID, "source": "bench", "type": "order.paid",
        "data": {"shop": SHOP, "order": ORDER, "text": "abcdefghij".repeat(10)},
    });
    server.api("POST", "/v1/events", &event)?;
    // Whoever stops has counted what there is.
    server.stop()?;
    let events = stage.count(10_000_000);
    let watch = Stopwatch::start();
    fill(&database(&server), events)?;
    println!("wrote {events} events and their places in the index in {:.1} s", watch.seconds());
    server.resume()?;
    let find = |condition: &str| -> Result<f64> {
        let path = format!("/v1/events?where={}", encoded(condition));
        let page: Value = serde_json::from_slice(&server.ask("GET", &path, &Value::Null)?)?;
        ensure!(page["items"].as_array().is_some_and(|items| !items.is_empty()), "nothing was found");
        timed_ms(TIMES, || server.ask("GET", &path, &Value::Null).map(drop))
    };
    let common = find("data.shop == 'shop-042'")?;
    let rare = find("data.order == 'order-0424242'")?;
    let both = find("data.shop == 'shop-042' && data.order < 'order-0100000'")?;
    let what = |value: &str| format!("first page among {events} events, {value}");
    Ok(vec![
        Row::new("observe", what("a value of one in 100"), common, "ms", AtMost(30.0)),
        Row::new("observe", what("a value of one in 1 000 000"), rare, "ms", AtMost(30.0)),
        Row::new("observe", what("two conditions"), both, "ms", super::table::Goal::None),
    ])
}

/// As it may stand in a query.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// The first event, and where its values stand.
struct Template {
    seq: i64,
    body: Vec<u8>,
    places: [(usize, usize); 3],
    /// Everything by which it is found: which index, and the value's bytes.
    found_by: Vec<(i64, Vec<u8>)>,
}

impl Template {
    fn read(db: &Connection) -> Result<Self> {
        let sql = "SELECT seq, body FROM events ORDER BY seq DESC LIMIT 1";
        let (seq, body): (i64, Vec<u8>) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let place = |text: &str| -> Result<(usize, usize)> {
            let at = body.windows(text.len()).position(|window| window == text.as_bytes());
            Ok((at.context("the event is not as it was sent")?, text.len()))
        };
        let places = [place(ID)?, place(SHOP)?, place(ORDER)?];
        let mut read = db.prepare("SELECT metric, value FROM postings ORDER BY metric")?;
        let found_by = read.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let found_by = found_by.collect::<rusqlite::Result<Vec<_>>>()?;
        ensure!(found_by.len() >= 2, "the event is not indexed");
        Ok(Self { seq, body, places, found_by })
    }

    fn write(&mut self, numbers: [u64; 3]) {
        for ((at, length), number) in self.places.into_iter().zip(numbers) {
            write_number(&mut self.body[at..at + length], number);
        }
    }
}

fn write_number(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev().take_while(|digit| digit.is_ascii_digit()) {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// An event's place in the index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// Which of those by which the first event is found.
    path: u8,
    /// Which value of it.
    value: u32,
    batch: u32,
    event: i64,
}

fn fill(path: &Path, events: u64) -> Result<()> {
    let mut db = open(path)?;
    let mut template = Template::read(&db)?;
    let tx = db.transaction()?;
    let text = |text: &str| bytes_of(&format!("\"{text}\""));
    let kinds: Vec<u64> = template
        .found_by
        .iter()
        .map(|(_, value)| match value {
            value if *value == text(SHOP) => SHOPS,
            value if *value == text(ORDER) => ORDERS,
            _ => 1,
        })
        .collect();
    ensure!(kinds.contains(&SHOPS) && kinds.contains(&ORDERS), "the event is indexed otherwise");
    let sql = "INSERT INTO events (seq, project, incarnation, version, day, accepted_at, time, source, id, type, subject,
            fingerprint, body)
        SELECT ?1, project, incarnation, version, day, accepted_at, time, source, ?2, type, subject, fingerprint, ?3
        FROM events WHERE seq = ?4";
    let mut insert = tx.prepare(sql)?;
    let (mut prng, mut entries) = (Prng::new(1), Vec::new());
    let first = template.seq;
    for n in 1..events {
        let event = first + i64::try_from(n)?;
        let (shop, order) = (prng.next() % SHOPS, prng.next() % ORDERS);
        template.write([n, shop, order]);
        let (at, length) = template.places[0];
        let id = std::str::from_utf8(&template.body[at..at + length])?;
        insert.execute(params![event, id, template.body, first])?;
        let batch = u32::try_from(n / BATCH)?;
        for (path, values) in (0_u8..).zip(&kinds) {
            let value = match *values {
                SHOPS => shop,
                ORDERS => order,
                _ => 0,
            };
            entries.push(Entry { path, value: u32::try_from(value)?, batch, event });
        }
        if (event + 1) % (1 << SEGMENT_BITS) == 0 {
            index(&tx, &template, &mut entries)?;
        }
    }
    index(&tx, &template, &mut entries)?;
    let last = first + i64::try_from(events)? - 1;
    tx.execute("UPDATE marks SET seq = ?1", [last])?;
    // A run of look-up keys that holds none: else the next start would read all of them back.
    let run = "INSERT INTO dedupe_runs (run, through, filter, firsts) VALUES (1, ?1, zeroblob(64), x'')";
    tx.execute(run, [last])?;
    drop(insert);
    Ok(tx.commit()?)
}

/// Writes the entries of one segment, in order.
fn index(tx: &Transaction<'_>, template: &Template, entries: &mut Vec<Entry>) -> Result<()> {
    let sql =
        "INSERT INTO postings (segment, metric, value, first, count, events) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = tx.prepare_cached(sql)?;
    entries.sort_unstable();
    let of = |entry: &Entry| (entry.path, entry.value, entry.batch);
    for same in entries.chunk_by(|a, b| of(a) == of(b)) {
        let (metric, value) = &template.found_by[usize::from(same[0].path)];
        let mut value = value.clone();
        write_number(&mut value, same[0].value.into());
        let events: Vec<i64> = same.iter().map(|entry| entry.event).collect();
        let (first, rest) = posting::pack(&events);
        insert.execute(params![first >> SEGMENT_BITS, metric, value, first, events.len(), rest])?;
    }
    entries.clear();
    Ok(())
}

/// How the index writes a value.
fn bytes_of(json: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    value::each(Some(json), &mut Vec::new(), |value| bytes = value.to_vec());
    bytes
}
