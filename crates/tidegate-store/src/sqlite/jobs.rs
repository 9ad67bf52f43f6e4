//! Jobs as rows: begun, stepped, stopped, listed; and the scans that feed their steps.
//!
//! Events and deliveries draw their numbers from one counter, so a span of time is a span of numbers: a job's scope is
//! found by bisection and costs nothing to go back to. A scan passes over a bounded number of rows.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::id::{DeliveryKey, DeliveryNo, JobNo, ProjectNo, SubscriberNo};
use tidegate_core::limits::{JOBS_RUNNING_PER_PROJECT_MAX, PAGE_ROWS_SCANNED_MAX, STEP_BYTES_MAX};
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::sweep::Numbered;
use super::{LAST_NO, Writer, deliveries, events, failed, folds, lanes, replay, stamp, windows};
use crate::{
    DeadLetter, Error, JobRow, JobStatus, JobStep, NewJob, Page, Past, Result, Scan, Scope, Selector,
    StopOutcome, What,
};

const RUNNING: i64 = 0;
const DONE: i64 = 1;
const STOPPED: i64 = 2;
const FAILED: i64 = 3;

/// What a selector means as of `now`.
pub(super) fn scope(
    conn: &Connection,
    project: ProjectNo,
    selector: Selector,
    now: Timestamp,
) -> rusqlite::Result<Scope> {
    let last: i64 = conn.query_row(LAST_NO, [], |row| row.get(0))?;
    let begin = selector.from.map_or(Ok(0), |from| last_before(conn, from, last))?;
    let until = selector.to.map_or(Ok(last), |to| last_before(conn, to, last))?;
    Ok(Scope { project, selector, begin, until: until.max(begin), asked_at: now })
}

/// The last number that was drawn before a time, as far as rows tell.
fn last_before(conn: &Connection, time: Timestamp, last: i64) -> rusqlite::Result<i64> {
    let events = "SELECT seq, accepted_at FROM events WHERE seq >= ?1 ORDER BY seq LIMIT 1";
    let deliveries = "SELECT id, created_at FROM deliveries WHERE id >= ?1 ORDER BY id LIMIT 1";
    Ok(first_since(conn, events, time, last)?.min(first_since(conn, deliveries, time, last)?) - 1)
}

/// The first row made at or after a time, by bisection: rows were made in the order of their numbers.
fn first_since(conn: &Connection, sql: &str, time: Timestamp, last: i64) -> rusqlite::Result<i64> {
    let mut statement = conn.prepare_cached(sql)?;
    let (mut low, mut high) = (0, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let found: Option<(i64, i64)> =
            statement.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        match found {
            Some((no, made)) if made < time.as_ms() => low = no + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// What lies behind `after` in a scope, up to `limit` of it.
pub(super) fn scan(conn: &Connection, scope: &Scope, after: i64, limit: usize) -> rusqlite::Result<Scan> {
    match &scope.selector.what {
        What::Replay { past: Past::Any, .. } => scan_events(conn, scope, after, limit),
        What::Replay { subscriber, past } => {
            let status = if *past == Past::Delivered { deliveries::DELIVERED } else { deliveries::EXHAUSTED };
            scan_past(conn, scope, (*subscriber, status), after, limit)
        }
        What::DeadLetters { subscriber, ids, .. } if ids.is_empty() => {
            scan_letters(conn, scope, *subscriber, after, limit)
        }
        What::DeadLetters { subscriber, ids, .. } => {
            named_letters(conn, scope, *subscriber, ids, after, limit)
        }
    }
}

fn scan_events(conn: &Connection, scope: &Scope, after: i64, limit: usize) -> rusqlite::Result<Scan> {
    let (through, events) = events::scan(conn, scope.project, after, scope.until, limit)?;
    Ok(Scan { through, looked: events.len() as u64, events, letters: Vec::new() })
}

pub(super) const PAST: &str = "SELECT id, event, status, replay, finished_at, fold FROM deliveries
    WHERE subscriber = ?1 AND id > ?2 AND id <= ?3 ORDER BY id LIMIT ?4";

/// The events whose own delivery to a subscriber ended in a certain way before the scope was made.
fn scan_past(
    conn: &Connection,
    scope: &Scope,
    (subscriber, status): (SubscriberNo, i64),
    after: i64,
    limit: usize,
) -> rusqlite::Result<Scan> {
    let mut scan = Scan { through: scope.until, ..Scan::default() };
    let mut statement = conn.prepare_cached(PAST)?;
    let mut rows = statement.query(params![subscriber, after, scope.until, PAGE_ROWS_SCANNED_MAX as i64])?;
    let (mut passed, mut taken, mut last) = (0, 0, after);
    while let Some(row) = rows.next()? {
        if scan.events.len() >= limit || taken >= STEP_BYTES_MAX {
            scan.through = last;
            return Ok(scan);
        }
        passed += 1;
        last = row.get(0)?;
        let ended: Option<i64> = row.get(4)?;
        let is_own = row.get::<_, i64>(3)? <= 0;
        let is_meant = ended.is_some_and(|at| at <= scope.asked_at.as_ms());
        if is_own && is_meant && row.get::<_, i64>(2)? == status {
            let carried = match row.get(5)? {
                Some(window) => windows::events(conn, window, usize::MAX)?,
                None => vec![row.get(1)?],
            };
            scan.looked += carried.len() as u64;
            for event in carried {
                let event = events::by_seq(conn, event)?;
                taken += event.as_ref().map_or(0, |event| event.body.len());
                scan.events.extend(event);
            }
        }
    }
    if passed == PAGE_ROWS_SCANNED_MAX {
        scan.through = last;
    }
    Ok(scan)
}

pub(super) const LETTERS: &str = "SELECT d.id, d.subscriber, e.type, d.finished_at FROM deliveries d
    JOIN events e ON e.seq = d.event
    WHERE d.project = ?1 AND d.status = 4 AND d.id > ?2 AND d.id <= ?3 ORDER BY d.id LIMIT ?4";

fn scan_letters(
    conn: &Connection,
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    after: i64,
    limit: usize,
) -> rusqlite::Result<Scan> {
    let mut scan = Scan { through: scope.until, ..Scan::default() };
    let mut statement = conn.prepare_cached(LETTERS)?;
    let mut rows =
        statement.query(params![scope.project, after, scope.until, PAGE_ROWS_SCANNED_MAX as i64])?;
    let (mut passed, mut last) = (0, after);
    while let Some(row) = rows.next()? {
        if scan.letters.len() == limit {
            scan.through = last;
            return Ok(scan);
        }
        passed += 1;
        last = row.get(0)?;
        let found = meant(scope, subscriber, letter(row)?);
        scan.looked += u64::from(found.is_some());
        scan.letters.extend(found);
    }
    if passed == PAGE_ROWS_SCANNED_MAX {
        scan.through = last;
    }
    Ok(scan)
}

fn letter(row: &Row<'_>) -> rusqlite::Result<Option<(DeadLetter, Timestamp)>> {
    let letter = DeadLetter { delivery: row.get(0)?, subscriber: row.get(1)?, type_name: row.get(2)? };
    Ok(row.get::<_, Option<i64>>(3)?.map(|ended| (letter, Timestamp::from_ms(ended))))
}

/// It ended before the scope was made, and is of the subscriber that is asked for, if one is.
fn meant(
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    found: Option<(DeadLetter, Timestamp)>,
) -> Option<DeadLetter> {
    let (letter, ended) = found?;
    let is_meant = ended <= scope.asked_at && subscriber.is_none_or(|wanted| wanted == letter.subscriber);
    is_meant.then_some(letter)
}

const NAMED: &str = "SELECT d.id, d.subscriber, e.type, d.finished_at FROM deliveries d
    JOIN events e ON e.seq = d.event WHERE d.id = ?1 AND d.project = ?2 AND d.status = 4";

fn named_letters(
    conn: &Connection,
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    ids: &[DeliveryNo],
    after: i64,
    limit: usize,
) -> rusqlite::Result<Scan> {
    let mut scan = Scan { through: scope.until, ..Scan::default() };
    let rest = ids.iter().filter(|id| **id > after && **id <= scope.until);
    let mut statement = conn.prepare_cached(NAMED)?;
    for (count, id) in rest.enumerate() {
        if count == limit {
            break;
        }
        scan.through = if count + 1 == limit { *id } else { scope.until };
        let found = statement.query_row([*id, scope.project], letter).optional()?.flatten();
        scan.letters.extend(meant(scope, subscriber, found));
        scan.looked += 1;
    }
    Ok(scan)
}

/// Begins a job, unless too many are running.
pub(super) fn start(writer: &mut Writer, new: &NewJob, now: Timestamp) -> Result<JobRow> {
    let tx = writer.conn.transaction().map_err(failed)?;
    let scope = &new.scope;
    let running: usize = tx
        .query_row("SELECT count(*) FROM jobs WHERE project = ?1 AND status = 0", [scope.project], |row| {
            row.get(0)
        })
        .map_err(failed)?;
    if running >= JOBS_RUNNING_PER_PROJECT_MAX {
        return Err(Error::Conflict(format!(
            "a project has at most {JOBS_RUNNING_PER_PROJECT_MAX} running jobs: wait for one to end, or stop one"
        )));
    }
    let subscriber = match &scope.selector.what {
        What::Replay { subscriber, .. } => Some(*subscriber),
        What::DeadLetters { subscriber, .. } => *subscriber,
    };
    let selector = serde_json::to_string(&scope.selector).expect("a selector is always JSON");
    let no = Numbered::Jobs.next(&tx).map_err(failed)?;
    tx.execute(
        "INSERT INTO jobs (no, project, id, selector, subscriber, status, begin, after, until, started_at)
         VALUES (?8, ?1, ?2, ?3, ?4, 0, ?5, ?5, ?6, ?7)",
        params![
            scope.project,
            new.id,
            selector,
            subscriber,
            scope.begin,
            scope.until,
            scope.asked_at.as_ms(),
            no
        ],
    )
    .map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    let row = by_no(&tx, no).map_err(failed)?.ok_or(Error::NotFound)?;
    tx.commit().map_err(failed)?;
    Ok(row)
}

/// Ends a job where it is.
pub(super) fn stop(writer: &mut Writer, project: ProjectNo, id: &str, now: Timestamp) -> Result<StopOutcome> {
    let tx = writer.conn.transaction().map_err(failed)?;
    let stopped = tx
        .execute(
            "UPDATE jobs SET status = ?3, finished_at = ?4 WHERE project = ?1 AND id = ?2 AND status = 0",
            params![project, id, STOPPED, now.as_ms()],
        )
        .map_err(failed)?;
    let found = by_id(&tx, project, id).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    Ok(match found {
        None => StopOutcome::NotFound,
        Some(row) if stopped > 0 => StopOutcome::Stopped(row),
        Some(row) => StopOutcome::Ended(row),
    })
}

/// Writes what a step led to and moves the job's mark, or does nothing if the mark has moved, the job has ended, or the
/// step was routed by another configuration.
pub(super) fn step(context: &mut Context<'_>, step: &JobStep) -> rusqlite::Result<()> {
    let is_next = context
        .conn
        .prepare_cached("SELECT 1 FROM jobs WHERE no = ?1 AND status = 0 AND after = ?2")?
        .exists([step.job, step.after])?;
    if !is_next || step.version != context.version {
        return Ok(());
    }
    let mut matched = 0_u64;
    for (event, route) in &step.replays {
        let now = context.group.now;
        if route.fold.is_some() {
            let Some(bytes) = events::size(context.conn, step.project, *event)? else { continue };
            folds::append(context, step.project, (*event, bytes), route, true)?;
            matched += 1;
            continue;
        }
        let key = DeliveryKey { no: context.draw(), nonce: context.nonce };
        if replay::insert(context.conn, &context.backfilling, key, (step.project, *event), route, now)? {
            context.spilled.insert(route.subscriber);
            matched += 1;
        }
    }
    for delivery in &step.retries {
        matched += u64::from(retry(context, step.project, *delivery)?);
    }
    let status = match &step.failure {
        Some(_) => FAILED,
        None if step.through >= step.until => DONE,
        None => RUNNING,
    };
    let ended = (status != RUNNING).then_some(context.group.now.as_ms());
    context
        .conn
        .prepare_cached(
            "UPDATE jobs SET after = ?2, looked = looked + ?3, matched = matched + ?4, status = ?5,
                finished_at = ?6, reason = ?7 WHERE no = ?1",
        )?
        .execute(params![step.job, step.through, step.looked, matched, status, ended, step.failure])?;
    context.out.stepped.push(step.job);
    Ok(())
}

/// Tries a dead letter again under its own id, if it is still one and its subscriber is still there.
fn retry(context: &mut Context<'_>, project: ProjectNo, delivery: DeliveryNo) -> rusqlite::Result<bool> {
    let found: Option<(SubscriberNo, Option<i64>)> = context
        .conn
        .prepare_cached(
            "SELECT d.subscriber, d.lane FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
             WHERE d.id = ?1 AND d.project = ?2 AND d.status = 4 AND s.deleted_at IS NULL",
        )?
        .query_row([delivery, project], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((subscriber, lane)) = found else { return Ok(false) };
    let now = context.group.now;
    deliveries::begin_anew(context.conn, delivery, lane, now)?;
    if let Some(lane) = lane {
        lanes::make_next_due(context.conn, &context.backfilling, subscriber, lane, now)?;
    }
    context.spilled.insert(subscriber);
    Ok(true)
}

const COLUMNS: &str = "no, project, id, selector, status, begin, after, until, looked, matched, started_at,
    finished_at, reason";

fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let selector = serde_json::from_str(row.get_ref(3)?.as_str()?).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(3, rusqlite::types::Type::Text, Box::new(error))
    })?;
    Ok(JobRow {
        no: row.get(0)?,
        id: row.get(2)?,
        scope: Scope {
            project: row.get(1)?,
            selector,
            begin: row.get(5)?,
            until: row.get(7)?,
            asked_at: Timestamp::from_ms(row.get(10)?),
        },
        after: row.get(6)?,
        status: match row.get(4)? {
            RUNNING => JobStatus::Running,
            DONE => JobStatus::Done,
            STOPPED => JobStatus::Stopped,
            _ => JobStatus::Failed,
        },
        looked: row.get(8)?,
        matched: row.get(9)?,
        finished_at: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_ms),
        reason: row.get(12)?,
    })
}

pub(super) fn by_no(conn: &Connection, no: JobNo) -> rusqlite::Result<Option<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE no = ?1");
    conn.prepare_cached(&sql)?.query_row([no], job_row).optional()
}

pub(super) fn by_id(conn: &Connection, project: ProjectNo, id: &str) -> rusqlite::Result<Option<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE project = ?1 AND id = ?2");
    conn.prepare_cached(&sql)?.query_row(params![project, id], job_row).optional()
}

/// A project's jobs, newest first.
pub(super) fn list(
    conn: &Connection,
    project: ProjectNo,
    before: Option<JobNo>,
    limit: usize,
) -> rusqlite::Result<Page<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE project = ?1 AND no < ?2 ORDER BY no DESC LIMIT ?3");
    let mut items = conn
        .prepare_cached(&sql)?
        .query_map(params![project, before.unwrap_or(JobNo::MAX), limit as i64 + 1], job_row)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let is_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|row| row.no).filter(|_| is_more);
    Ok(Page { items, next })
}

/// The jobs that a start goes on with.
pub(super) fn running(conn: &Connection) -> rusqlite::Result<Vec<JobNo>> {
    conn.prepare_cached("SELECT no FROM jobs WHERE status = 0 ORDER BY no")?
        .query_map([], |row| row.get(0))?
        .collect()
}
