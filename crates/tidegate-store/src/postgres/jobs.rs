//! Jobs as rows: begun, stepped, stopped, listed; and the scans that feed their steps.
//!
//! Events and deliveries draw their numbers from one sequence, so a span of time is nearly a span of numbers: where a
//! job's scope begins and ends is found by bisection, a little too wide, since two processes may draw in another order
//! than their clocks say. The rows' own times make it exact. A scan passes over a bounded number of rows.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::id::{DeliveryNo, JobNo, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::limits::{JOBS_RUNNING_PER_PROJECT_MAX, PAGE_ROWS_SCANNED_MAX, STEP_BYTES_MAX};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::folds::Folding;
use super::lanes::{self, Lanes};
use super::quarantine::storable;
use super::write::Context;
use super::{Shared, configuration, deliveries, events, folds, replay, windows};
use crate::{
    DeadLetter, Error, EventRow, JobRow, JobStatus, JobStep, NewJob, Page, Past, Scan, Scope, Selector,
    StopOutcome, What,
};

const RUNNING: i16 = 0;
const DONE: i16 = 1;
const STOPPED: i16 = 2;
const FAILED: i16 = 3;

/// A group carries the time when it was gathered and may be written this much later, behind others.
const SKEW_MAX: Duration = Duration::from_secs(60);

/// What a selector means as of `now`.
pub(super) async fn scope(
    conn: &Conn,
    _shared: &Shared,
    project: ProjectNo,
    selector: Selector,
    now: Timestamp,
) -> Asked<Scope> {
    let row = conn
        .only(
            "SELECT ((n.last_value + 1) << 20) - 1, least((SELECT seq FROM events ORDER BY seq LIMIT 1),
                (SELECT id FROM deliveries ORDER BY id LIMIT 1)) FROM numbers n",
            &[],
        )
        .await?;
    // What draws its number from here on was not there; what has drawn one and is not written yet was not either.
    let last: i64 = row.get(0);
    let first = row.get::<_, Option<i64>>(1).unwrap_or(last + 1);
    let begin = match selector.from {
        Some(from) => last_before(conn, minus(from, SKEW_MAX), first, last).await?,
        None => first - 1,
    };
    let until = match selector.to {
        Some(to) => last_before(conn, to.plus(SKEW_MAX), first, last).await?,
        None => last,
    };
    Ok(Scope { project, selector, begin, until: until.max(begin), asked_at: now })
}

fn minus(time: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_ms(time.as_ms().saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
}

/// The last number that was drawn before a time, as far as rows tell.
async fn last_before(conn: &Conn, time: Timestamp, first: i64, last: i64) -> Asked<i64> {
    let events = "SELECT seq, accepted_at FROM events WHERE seq >= $1 ORDER BY seq LIMIT 1";
    let deliveries = "SELECT id, created_at FROM deliveries WHERE id >= $1 ORDER BY id LIMIT 1";
    let event = first_since(conn, events, time, first, last).await?;
    Ok(event.min(first_since(conn, deliveries, time, first, last).await?) - 1)
}

/// The first row made at or after a time, by bisection: rows were made nearly in the order of their numbers.
async fn first_since(conn: &Conn, sql: &str, time: Timestamp, first: i64, last: i64) -> Asked<i64> {
    let (mut low, mut high) = (first, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match conn.row(sql, &[&middle]).await? {
            Some(row) if row.get::<_, i64>(1) < time.as_ms() => low = row.get::<_, i64>(0) + 1,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// From when to when the rows of a scope were made.
fn span(scope: &Scope) -> (i64, i64) {
    let (from, to) = (scope.selector.from, scope.selector.to);
    (from.map_or(i64::MIN, Timestamp::as_ms), to.map_or(i64::MAX, Timestamp::as_ms))
}

/// What lies behind `after` in a scope, up to `limit` of it.
pub(super) async fn scan(conn: &Conn, scope: &Scope, after: i64, limit: usize) -> Asked<Scan> {
    match &scope.selector.what {
        What::Replay { past: Past::Any, .. } => scan_events(conn, scope, after, limit).await,
        What::Replay { subscriber, past } => {
            let status = if *past == Past::Delivered { deliveries::DELIVERED } else { deliveries::EXHAUSTED };
            scan_past(conn, scope, (*subscriber, status), after, limit).await
        }
        What::DeadLetters { subscriber, ids, .. } if ids.is_empty() => {
            scan_letters(conn, scope, *subscriber, after, limit).await
        }
        What::DeadLetters { subscriber, ids, .. } => {
            named_letters(conn, scope, *subscriber, ids, after, limit).await
        }
    }
}

async fn scan_events(conn: &Conn, scope: &Scope, after: i64, limit: usize) -> Asked<Scan> {
    let (through, mut events) = events::scan(conn, scope.project, after, scope.until, limit).await?;
    let (from, to) = span(scope);
    events.retain(|event| (from..to).contains(&event.accepted_at.as_ms()));
    Ok(Scan { through, looked: events.len() as u64, events, letters: Vec::new() })
}

/// A walk through deliveries, from one number to another: the first so many that are meant of the first so many there.
struct Walk {
    /// Which deliveries it is about, with its first value.
    narrow: &'static str,
    key: i64,
    /// What it asks of each, with its ninth value and what [`Walk::MEANT`] knows.
    wanted: &'static str,
    wanted_value: Option<i64>,
}

impl Walk {
    const MEANT: &str = "d.finished_at <= $6 AND d.created_at >= $7 AND d.created_at < $8";

    pub(super) fn sql(&self) -> String {
        format!(
            "SELECT d.id, d.subscriber, d.event, d.fold FROM (SELECT * FROM deliveries
                WHERE {} AND id > $2 AND id <= $3 ORDER BY id LIMIT $4) d
             WHERE {} AND {} ORDER BY d.id LIMIT $5",
            self.narrow,
            Self::MEANT,
            self.wanted
        )
    }

    fn end_sql(&self) -> String {
        format!(
            "SELECT id FROM deliveries WHERE {} AND id > $2 AND id <= $3 ORDER BY id OFFSET $4 LIMIT 1",
            self.narrow
        )
    }

    /// What it found, and how far it came.
    async fn go(&self, conn: &Conn, scope: &Scope, after: i64, limit: usize) -> Asked<(i64, Vec<Row>)> {
        let ((from, to), looked) = (span(scope), PAGE_ROWS_SCANNED_MAX as i64);
        let values: super::db::Values<'_> = &[
            &self.key,
            &after,
            &scope.until,
            &looked,
            &(limit as i64),
            &scope.asked_at.as_ms(),
            &from,
            &to,
            &self.wanted_value,
        ];
        let rows = conn.rows(&self.sql(), values).await?;
        if let Some(last) = rows.last().filter(|_| rows.len() == limit) {
            return Ok((last.get(0), rows));
        }
        let end = conn.row(&self.end_sql(), &[&self.key, &after, &scope.until, &(looked - 1)]).await?;
        Ok((end.map_or(scope.until, |row| row.get(0)), rows))
    }
}

fn past_walk(subscriber: SubscriberNo, status: i16) -> Walk {
    Walk {
        narrow: "subscriber = $1",
        key: subscriber,
        wanted: "d.replay <= 0 AND d.status = $9::bigint",
        wanted_value: Some(status.into()),
    }
}

fn letters_walk(project: ProjectNo, subscriber: Option<SubscriberNo>) -> Walk {
    Walk {
        narrow: "project = $1 AND shelf = 4",
        key: project,
        wanted: "($9::bigint IS NULL OR d.subscriber = $9)",
        wanted_value: subscriber,
    }
}

/// The events whose own delivery to a subscriber ended in a certain way before the scope was made.
async fn scan_past(
    conn: &Conn,
    scope: &Scope,
    (subscriber, status): (SubscriberNo, i16),
    after: i64,
    limit: usize,
) -> Asked<Scan> {
    let (mut through, mut rows) = past_walk(subscriber, status).go(conn, scope, after, limit).await?;
    let within = within(conn, &rows, limit).await?;
    if within < rows.len() {
        rows.truncate(within);
        through = rows.last().map_or(after, |row| row.get(0));
    }
    let folds: Vec<WindowNo> = rows.iter().filter_map(|row| row.get(3)).collect();
    let mut carried = windows::events(conn, &folds).await?;
    let seqs = rows.iter().flat_map(|row| match row.get::<_, Option<WindowNo>>(3) {
        Some(window) => carried.remove(&window).unwrap_or_default(),
        None => vec![row.get(2)],
    });
    let seqs: Vec<Seq> = seqs.collect();
    let found = events::by_seqs(conn, &seqs).await?;
    let mut found: BTreeMap<Seq, EventRow> = found.into_iter().map(|event| (event.seq, event)).collect();
    let events = seqs.iter().filter_map(|seq| found.remove(seq)).collect();
    Ok(Scan { through, looked: seqs.len() as u64, events, letters: Vec::new() })
}

/// How many of these deliveries one step takes: the next is taken as long as there is room, whatever it carries. So there is
/// always one.
async fn within(conn: &Conn, rows: &[Row], limit: usize) -> Asked<usize> {
    let folds: Vec<WindowNo> = rows.iter().filter_map(|row| row.get(3)).collect();
    let alone = rows.iter().filter(|row| row.get::<_, Option<WindowNo>>(3).is_none());
    let alone: Vec<Seq> = alone.map(|row| row.get(2)).collect();
    // The size of a body is known without reading it.
    let alone = ("SELECT seq, 1, octet_length(body)::bigint FROM events WHERE seq = ANY($1)", alone);
    let folds = ("SELECT no, count, bytes FROM windows WHERE no = ANY($1)", folds);
    let mut sizes: BTreeMap<i64, (i32, i64)> = BTreeMap::new();
    for (sql, numbers) in [alone, folds] {
        let found = conn.rows(sql, &[&numbers]).await?;
        sizes.extend(found.iter().map(|row| (row.get::<_, i64>(0), (row.get(1), row.get(2)))));
    }
    let (mut carried, mut bytes) = (0, 0);
    for (taken, row) in rows.iter().enumerate() {
        if carried >= limit || bytes >= STEP_BYTES_MAX {
            return Ok(taken);
        }
        let no: i64 = row.get::<_, Option<WindowNo>>(3).unwrap_or_else(|| row.get(2));
        let (count, size) = sizes.get(&no).copied().unwrap_or_default();
        carried += usize::try_from(count).unwrap_or(0);
        bytes += usize::try_from(size).unwrap_or(0);
    }
    Ok(rows.len())
}

async fn scan_letters(
    conn: &Conn,
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    after: i64,
    limit: usize,
) -> Asked<Scan> {
    let (through, rows) = letters_walk(scope.project, subscriber).go(conn, scope, after, limit).await?;
    let ids: Vec<DeliveryNo> = rows.iter().map(|row| row.get(0)).collect();
    let letters = letters(conn, scope, None, &ids).await?;
    Ok(Scan { through, looked: letters.len() as u64, events: Vec::new(), letters })
}

pub(super) const LETTERS: &str =
    "SELECT d.id, d.subscriber, e.type FROM deliveries d JOIN events e ON e.seq = d.event
    WHERE d.id = ANY($1) AND d.project = $2 AND d.status = 4 AND ($3::bigint IS NULL OR d.subscriber = $3)
        AND d.finished_at <= $4 AND d.created_at >= $5 AND d.created_at < $6 ORDER BY d.id";

/// Those of these deliveries that are dead letters and meant.
async fn letters(
    conn: &Conn,
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    ids: &[DeliveryNo],
) -> Asked<Vec<DeadLetter>> {
    let (from, to) = span(scope);
    let values: super::db::Values<'_> =
        &[&ids, &scope.project, &subscriber, &scope.asked_at.as_ms(), &from, &to];
    let rows = conn.rows(LETTERS, values).await?;
    let letter = |row: &Row| DeadLetter {
        delivery: row.get(0),
        subscriber: row.get(1),
        type_name: events::text(row, 2),
    };
    Ok(rows.iter().map(letter).collect())
}

async fn named_letters(
    conn: &Conn,
    scope: &Scope,
    subscriber: Option<SubscriberNo>,
    ids: &[DeliveryNo],
    after: i64,
    limit: usize,
) -> Asked<Scan> {
    let rest = ids.iter().copied().filter(|id| *id > after && *id <= scope.until);
    let next: Vec<DeliveryNo> = rest.take(limit).collect();
    let through = next.last().copied().filter(|_| next.len() == limit).unwrap_or(scope.until);
    let letters = letters(conn, scope, subscriber, &next).await?;
    Ok(Scan { through, looked: next.len() as u64, events: Vec::new(), letters })
}

/// Begins a job, unless too many are running.
pub(super) async fn start(conn: &Conn, new: &NewJob, _now: Timestamp) -> Asked<JobRow> {
    let scope = &new.scope;
    // Whoever else begins one for this project waits: so they are counted.
    conn.row("SELECT 1 FROM projects WHERE no = $1 FOR UPDATE", &[&scope.project]).await?;
    let all = "SELECT count(*) FROM jobs WHERE project = $1 AND status = 0";
    if configuration::count(conn, all, scope.project).await? >= JOBS_RUNNING_PER_PROJECT_MAX {
        return Err(Error::Conflict(format!(
            "a project has at most {JOBS_RUNNING_PER_PROJECT_MAX} running jobs: wait for one to end, or stop one"
        ))
        .into());
    }
    let subscriber = match &scope.selector.what {
        What::Replay { subscriber, .. } => Some(*subscriber),
        What::DeadLetters { subscriber, .. } => *subscriber,
    };
    let selector = serde_json::to_string(&scope.selector).expect("a selector is always JSON");
    let sql = format!(
        "INSERT INTO jobs (project, id, selector, subscriber, status, begin, after, until, started_at)
         VALUES ($1, $2, $3, $4, 0, $5, $5, $6, $7) RETURNING {COLUMNS}"
    );
    let asked_at = scope.asked_at.as_ms();
    let values: super::db::Values<'_> =
        &[&scope.project, &new.id, &selector, &subscriber, &scope.begin, &scope.until, &asked_at];
    job_row(&conn.only(&sql, values).await?)
}

/// Ends a job where it is.
pub(super) async fn stop(conn: &Conn, project: ProjectNo, id: &str, now: Timestamp) -> Asked<StopOutcome> {
    let sql = "UPDATE jobs SET status = $3, finished_at = $4 WHERE project = $1 AND id = $2 AND status = 0";
    let stopped = conn.execute(sql, &[&project, &storable(id), &STOPPED, &now.as_ms()]).await?;
    Ok(match by_id(conn, project, id).await? {
        None => StopOutcome::NotFound,
        Some(row) if stopped > 0 => StopOutcome::Stopped(row),
        Some(row) => StopOutcome::Ended(row),
    })
}

/// The lanes that steps of a group may touch, to be locked first.
pub(super) async fn lanes_of(conn: &Conn, steps: &[JobStep]) -> Asked<Lanes> {
    let mut touched: Lanes = steps.iter().flat_map(|step| replay::lanes_of(&step.replays)).collect();
    let retries: Vec<DeliveryNo> = steps.iter().flat_map(|step| &step.retries).copied().collect();
    if !retries.is_empty() {
        let sql = "SELECT subscriber, lane FROM deliveries WHERE id = ANY($1) AND lane IS NOT NULL";
        touched.extend(conn.rows(sql, &[&retries]).await?.iter().map(|row| (row.get(0), row.get(1))));
    }
    Ok(touched)
}

/// Writes what a step led to and moves the job's mark, or does nothing if the mark has moved, the job has ended, or the
/// step was routed by another configuration. Its lanes are locked.
pub(super) async fn step(context: &mut Context<'_>, folding: &mut Folding<'_>, step: &JobStep) -> Asked<()> {
    let (conn, now) = (context.conn, context.group.now);
    let next = "SELECT 1 FROM jobs WHERE no = $1 AND status = 0 AND after = $2 FOR UPDATE";
    let is_next = conn.exists(next, &[&step.job, &step.after]).await?;
    if !is_next || step.version != configuration::version(conn).await? {
        return Ok(());
    }
    let (folded, alone) = folds::parted(&step.replays);
    let made = replay::insert(conn, context.space, step.project, &alone, now).await?;
    let joined = folding.append_past(conn, context.space, step.project, &folded, true).await?;
    let retried = retry(conn, step, now).await?;
    let matched = i64::try_from(made.len() + joined + retried.len()).unwrap_or(i64::MAX);
    context.spilled.extend(made.into_iter().map(|(_, subscriber)| subscriber));
    context.spilled.extend(retried);
    let status = match &step.failure {
        Some(_) => FAILED,
        None if step.through >= step.until => DONE,
        None => RUNNING,
    };
    let ended = (status != RUNNING).then_some(now.as_ms());
    let looked = i64::try_from(step.looked).unwrap_or(i64::MAX);
    conn.execute(
        "UPDATE jobs SET after = $2, looked = looked + $3, matched = matched + $4, status = $5,
            finished_at = $6, reason = $7 WHERE no = $1",
        &[&step.job, &step.through, &looked, &matched, &status, &ended, &step.failure],
    )
    .await?;
    context.out.stepped.push(step.job);
    Ok(())
}

/// Tries dead letters again under their own ids, if they are still dead and their subscribers still there. Says whose.
async fn retry(conn: &Conn, step: &JobStep, now: Timestamp) -> Asked<Vec<SubscriberNo>> {
    if step.retries.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT d.id, d.subscriber, d.lane FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
        WHERE d.id = ANY($1) AND d.project = $2 AND d.status = 4 AND s.deleted_at IS NULL
        ORDER BY d.id FOR UPDATE OF d";
    let rows = conn.rows(sql, &[&step.retries, &step.project]).await?;
    let ids: Vec<DeliveryNo> = rows.iter().map(|row| row.get(0)).collect();
    deliveries::begin_anew(conn, &ids, now).await?;
    let lanes: Lanes =
        rows.iter().filter_map(|row| Some((row.get(1), row.get::<_, Option<i64>>(2)?))).collect();
    lanes::make_next_due(conn, &lanes, now).await?;
    Ok(rows.iter().map(|row| row.get(1)).collect())
}

const COLUMNS: &str = "no, project, id, selector, status, begin, after, until, looked, matched, started_at,
    finished_at, reason";

fn job_row(row: &Row) -> Asked<JobRow> {
    let selector = serde_json::from_str(row.get(3))
        .map_err(|error| Error::Unavailable(format!("what a job shall do can not be read: {error}")))?;
    let count = |column| row.get::<_, i64>(column).unsigned_abs();
    Ok(JobRow {
        no: row.get(0),
        id: row.get(2),
        scope: Scope {
            project: row.get(1),
            selector,
            begin: row.get(5),
            until: row.get(7),
            asked_at: Timestamp::from_ms(row.get(10)),
        },
        after: row.get(6),
        status: match row.get(4) {
            RUNNING => JobStatus::Running,
            DONE => JobStatus::Done,
            STOPPED => JobStatus::Stopped,
            _ => JobStatus::Failed,
        },
        looked: count(8),
        matched: count(9),
        finished_at: row.get::<_, Option<i64>>(11).map(Timestamp::from_ms),
        reason: row.get(12),
    })
}

pub(super) async fn by_no(conn: &Conn, no: JobNo) -> Asked<Option<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE no = $1");
    conn.row(&sql, &[&no]).await?.as_ref().map(job_row).transpose()
}

pub(super) async fn by_id(conn: &Conn, project: ProjectNo, id: &str) -> Asked<Option<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE project = $1 AND id = $2");
    conn.row(&sql, &[&project, &storable(id)]).await?.as_ref().map(job_row).transpose()
}

/// A project's jobs, newest first.
pub(super) async fn list(
    conn: &Conn,
    project: ProjectNo,
    before: Option<JobNo>,
    limit: usize,
) -> Asked<Page<JobRow>> {
    let sql = format!("SELECT {COLUMNS} FROM jobs WHERE project = $1 AND no < $2 ORDER BY no DESC LIMIT $3");
    let rows = conn.rows(&sql, &[&project, &before.unwrap_or(JobNo::MAX), &(limit as i64 + 1)]).await?;
    let mut items = rows.iter().map(job_row).collect::<Asked<Vec<_>>>()?;
    let is_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().map(|row| row.no).filter(|_| is_more);
    Ok(Page { items, next })
}

/// The jobs that a start goes on with.
pub(super) async fn running(conn: &Conn) -> Asked<Vec<JobNo>> {
    let rows = conn.rows("SELECT no FROM jobs WHERE status = 0 ORDER BY no", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
