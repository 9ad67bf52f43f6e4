//! Deliveries: created with their event, claimed, finished. Those with a lane go through it one at a time, see
//! [`lanes`].

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use tidegate_core::attempt::ErrorClass;
use tidegate_core::delivery::{self, Job, Status};
use tidegate_core::fold::Closing;
use tidegate_core::id::{DeliveryNo, Incarnation, Lane, Nonce, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::retry::Next;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::{Writer, events, folds, lanes, stamp};
use crate::{BackfillStep, Claim, Finished, Refill, Refilled, RetryOutcome};

/// The states of a row; see the schema.
pub(super) const DUE: i64 = 0;
pub(super) const CLAIMED: i64 = 1;
pub(super) const WAITING: i64 = 2;
pub(super) const DELIVERED: i64 = 3;
pub(super) const EXHAUSTED: i64 = 4;

pub(super) const INSERT: &str = "INSERT INTO deliveries
    (id, project, subscriber, event, late, replay, lane, status, due_at, claims, incarnation, created_at, fold, nonce)
    VALUES (?1, ?2, ?3, ?4, ?10, ?11, ?5, ?6, ?7, ?8, ?9, ?7, ?12, ?13)";

/// A delivery that comes into being.
pub(super) struct New<'a> {
    pub(super) id: DeliveryNo,
    pub(super) project: ProjectNo,
    pub(super) subscriber: SubscriberNo,
    /// The first event it carries.
    pub(super) event: Seq,
    pub(super) lane: Option<Lane>,
    /// See the schema.
    pub(super) replay: i64,
    pub(super) fold: Option<WindowNo>,
    /// Its number does not follow its event's.
    pub(super) is_late: bool,
    pub(super) body: &'a Bytes,
}

/// Creates a delivery: straight into memory if there is room and its lane is free.
pub(super) fn insert(context: &mut Context<'_>, new: &New<'_>) -> rusqlite::Result<()> {
    let New { id, project, subscriber, event, lane, replay, fold, is_late, body } = *new;
    let status = match lane {
        Some(lane) if lanes::must_wait(context, subscriber, lane, fold.is_some() && replay <= 0)? => WAITING,
        _ if context.room.take(subscriber, body.len()) => CLAIMED,
        _ => DUE,
    };
    let claimed = status == CLAIMED;
    let now = context.group.now;
    context.statements.insert_delivery.execute(params![
        id,
        project,
        subscriber,
        event,
        lane,
        status,
        now.as_ms(),
        u32::from(claimed),
        claimed.then_some(context.incarnation),
        is_late,
        replay,
        fold,
        context.nonce,
    ])?;
    if claimed {
        context.out.jobs.push(Job {
            delivery: id,
            nonce: context.nonce,
            project,
            subscriber,
            event,
            lane,
            attempts: 0,
            tries: 0,
            token: 1,
            life: 0,
            accepted_at: now,
            replay: replay > 0,
            out_of_order: false,
            is_suspect: false,
            fold,
            body: body.clone(),
        });
    } else if status == DUE {
        context.spilled.insert(subscriber);
    }
    Ok(())
}

/// The delivery of a window that somebody asked to close: due, or waiting for its turn in its lane.
pub(super) fn insert_closed(
    conn: &Connection,
    backfilling: &lanes::Backfilling,
    closing: &Closing,
    (nonce, now): (Nonce, Timestamp),
) -> rusqlite::Result<()> {
    let Closing { delivery, project, subscriber, first, lane, window, replay } = *closing;
    let status = if lane.is_some() { WAITING } else { DUE };
    let place = if replay { delivery } else { -delivery };
    let holder = None::<Incarnation>;
    conn.prepare_cached(INSERT)?.execute(params![
        delivery,
        project,
        subscriber,
        first,
        lane,
        status,
        now.as_ms(),
        0,
        holder,
        1,
        place,
        window,
        nonce
    ])?;
    if let Some(lane) = lane {
        lanes::make_next_due(conn, backfilling, subscriber, lane, now)?;
    }
    Ok(())
}

pub(super) const FINISH: &str =
    "UPDATE deliveries SET status = ?5, due_at = coalesce(?6, due_at), attempts = ?4,
        tries = tries + ?7, lost = 0, incarnation = NULL, finished_at = ?8, reason = ?9
    WHERE id = ?1 AND status = 1 AND incarnation = ?2 AND claims = ?3 AND nonce = ?10";

/// Records the result of an attempt, if its claim still holds, and lets the next of its lane go.
pub(super) fn finish(context: &mut Context<'_>, finished: &Finished) -> rusqlite::Result<()> {
    let now = context.group.now.as_ms();
    let (status, due_at, failure, ended_at, reason) = match &finished.next {
        Next::Delivered => (DELIVERED, None, 0, Some(now), None),
        Next::RetryAt(at) => (DUE, Some(*at), 1, None, None),
        Next::PostponedTo(at) => (DUE, Some(*at), 0, None, None),
        Next::Exhausted(reason) => (EXHAUSTED, None, 1, Some(now), Some(reason)),
    };
    let changed = context.statements.finish.execute(params![
        finished.claim.delivery,
        context.incarnation,
        finished.claim.token,
        finished.n,
        status,
        due_at.map(Timestamp::as_ms),
        failure,
        ended_at,
        reason,
        finished.claim.nonce,
    ])?;
    if changed == 0 {
        context.out.stale += 1;
        return Ok(());
    }
    insert_attempt(&mut context.statements.insert_attempt, finished)?;
    if let Some(body) = &finished.body {
        freeze(context.conn, finished.claim.delivery, body)?;
    }
    context.out.postponed.extend(due_at.map(|at| (finished.subscriber, at)));
    if finished.steps_aside {
        lanes::step_aside(context.conn, finished.claim.delivery)?;
    }
    match finished.lane {
        Some(lane) => lanes::let_next_go(context, finished.subscriber, lane),
        None => Ok(()),
    }
}

/// Keeps the bytes to send again. They are those of the first attempt, whatever comes later.
fn freeze(conn: &Connection, delivery: DeliveryNo, body: &[u8]) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE deliveries SET body = coalesce(body, ?2) WHERE id = ?1")?
        .execute(params![delivery, body])?;
    Ok(())
}

pub(super) const INSERT_ATTEMPT: &str = "INSERT INTO attempts
    (delivery, n, at, status, error, detail, dns_us, connect_us, tls_us, wait_us, total_us, response)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

fn insert_attempt(insert: &mut CachedStatement<'_>, finished: &Finished) -> rusqlite::Result<()> {
    let attempt = &finished.attempt;
    let response = attempt
        .response
        .as_ref()
        .map(|head| serde_json::to_string(head).expect("a response head is always JSON"));
    insert.execute(params![
        finished.claim.delivery,
        finished.n,
        attempt.at.as_ms(),
        attempt.status,
        attempt.error.map(ErrorClass::name),
        attempt.detail,
        attempt.phases.dns_us,
        attempt.phases.connect_us,
        attempt.phases.tls_us,
        attempt.phases.wait_us,
        attempt.phases.total_us,
        response,
    ])?;
    Ok(())
}

pub(super) fn set_due(conn: &Connection, id: DeliveryNo, at: Timestamp) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE deliveries SET status = 0, due_at = ?2 WHERE id = ?1")?
        .execute(params![id, at.as_ms()])?;
    Ok(())
}

const JOB: &str = "SELECT d.id, d.project, d.subscriber, d.event, d.lane, d.attempts, d.tries, d.claims + 1,
        iif(d.fold IS NULL, e.accepted_at, d.created_at),
        iif(d.fold IS NULL, coalesce(d.body, e.body), x''), d.replay > 0, d.fold, d.out_of_order, d.nonce, d.lost
    FROM deliveries d JOIN events e ON e.seq = d.event";

fn job(row: &Row<'_>) -> rusqlite::Result<Job> {
    Ok(Job {
        delivery: row.get(0)?,
        nonce: row.get(13)?,
        project: row.get(1)?,
        subscriber: row.get(2)?,
        event: row.get(3)?,
        lane: row.get(4)?,
        attempts: row.get(5)?,
        tries: row.get(6)?,
        token: row.get(7)?,
        life: 0,
        accepted_at: Timestamp::from_ms(row.get(8)?),
        body: Bytes::copy_from_slice(row.get_ref(9)?.as_blob()?),
        replay: row.get(10)?,
        fold: row.get(11)?,
        out_of_order: row.get(12)?,
        is_suspect: delivery::is_suspect(row.get(14)?),
    })
}

/// Claims one for memory, whose place there is taken already.
pub(super) fn claim(context: &mut Context<'_>, id: DeliveryNo) -> rusqlite::Result<()> {
    let job = context.conn.prepare_cached(&format!("{JOB} WHERE d.id = ?1"))?.query_row([id], job)?;
    context.room.take_bytes(job.subscriber, job.body.len());
    take(context, job)
}

/// Claims one that somebody asked for, if it is due and memory has bytes for it; else it stays as it is.
pub(super) fn ask(context: &mut Context<'_>, id: DeliveryNo) -> rusqlite::Result<()> {
    let now = context.group.now.as_ms();
    let job = context
        .conn
        .prepare_cached(&format!("{JOB} WHERE d.id = ?1 AND d.status = 0 AND d.due_at <= ?2"))?
        .query_row([id, now], job)
        .optional()?;
    match job {
        Some(job) if context.room.take_bytes(job.subscriber, job.body.len()) => take(context, job),
        _ => Ok(()),
    }
}

fn take(context: &mut Context<'_>, job: Job) -> rusqlite::Result<()> {
    context
        .conn
        .prepare_cached("UPDATE deliveries SET status = 1, claims = ?2, incarnation = ?3 WHERE id = ?1")?
        .execute(params![job.delivery, job.token, context.incarnation])?;
    context.out.jobs.push(job);
    Ok(())
}

/// Gives a claim back unsent: the delivery is due as before, unless an older one of its lane came meanwhile. Memory
/// is told, in case its subscriber takes part again by now.
pub(super) fn release(context: &mut Context<'_>, claim: &Claim) -> rusqlite::Result<()> {
    let released: Option<(SubscriberNo, Option<Lane>, i64)> = context
        .conn
        .prepare_cached(
            "UPDATE deliveries SET status = 0, lost = min(lost, ?5), incarnation = NULL
             WHERE id = ?1 AND status = 1 AND incarnation = ?2 AND claims = ?3 AND nonce = ?4
             RETURNING subscriber, lane, due_at",
        )?
        .query_row(
            params![claim.delivery, context.incarnation, claim.token, claim.nonce, CLAIMS_LOST_MAX],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let Some((subscriber, lane, due_at)) = released else { return Ok(()) };
    context.out.postponed.push((subscriber, Timestamp::from_ms(due_at)));
    match lane {
        Some(lane) => lanes::let_next_go(context, subscriber, lane),
        None => Ok(()),
    }
}

pub(super) fn refill_sql() -> String {
    format!(
        "{JOB} WHERE d.subscriber = ?1 AND d.status = 0 AND d.due_at <= ?2 ORDER BY d.due_at, d.id LIMIT ?3"
    )
}

/// Claims what is due, oldest first, until the wish or memory's bytes are used up.
pub(super) fn refill(context: &mut Context<'_>, refill: Refill) -> rusqlite::Result<()> {
    let now = context.group.now.as_ms();
    let mut jobs = Vec::new();
    let mut drained = true;
    {
        let mut statement = context.conn.prepare_cached(&refill_sql())?;
        let mut rows = statement.query(params![refill.subscriber, now, refill.jobs as i64 + 1])?;
        while let Some(row) = rows.next()? {
            let bytes = row.get_ref(9)?.as_blob()?.len();
            if jobs.len() == refill.jobs || !context.room.take_bytes(refill.subscriber, bytes) {
                drained = false;
                break;
            }
            jobs.push(job(row)?);
        }
    }
    for job in jobs {
        take(context, job)?;
    }
    let next_due = first_due(context.conn, refill.subscriber)?;
    context.out.refilled.push(Refilled { subscriber: refill.subscriber, drained, next_due });
    Ok(())
}

pub(super) const FIRST_DUE: &str =
    "SELECT due_at FROM deliveries WHERE subscriber = ?1 AND status = 0 ORDER BY due_at, id LIMIT 1";

fn first_due(conn: &Connection, subscriber: SubscriberNo) -> rusqlite::Result<Option<Timestamp>> {
    conn.prepare_cached(FIRST_DUE)?
        .query_row([subscriber], |row| row.get(0).map(Timestamp::from_ms))
        .optional()
}

/// The plus keeps the last question away from the subscriber's whole history: few are claimed.
pub(super) const ANY_UNFINISHED: &str =
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM deliveries WHERE subscriber = ?1 AND status = 0)
        OR EXISTS (SELECT 1 FROM deliveries WHERE subscriber = ?1 AND lane IS NOT NULL AND status < 3)
        OR EXISTS (SELECT 1 FROM deliveries WHERE status = 1 AND +subscriber = ?1)
        OR EXISTS (SELECT 1 FROM windows WHERE stage < 2 AND subscriber = ?1)
        OR EXISTS (SELECT 1 FROM subscribers WHERE no = ?1 AND backfill_after IS NOT NULL)";

/// Whether anything of a subscriber is still on its way, or may be left to its backfill.
pub(super) fn any_unfinished(conn: &Connection, subscriber: SubscriberNo) -> rusqlite::Result<bool> {
    conn.prepare_cached(ANY_UNFINISHED)?.exists([subscriber])
}

/// For each subscriber with work in the store, when its first is due: one index look-up each.
pub(super) fn due(conn: &Connection) -> rusqlite::Result<Vec<(SubscriberNo, Timestamp)>> {
    let mut statement = conn.prepare("SELECT no FROM subscribers WHERE deleted_at IS NULL ORDER BY no")?;
    let subscribers = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let mut due = Vec::new();
    for subscriber in subscribers {
        due.extend(first_due(conn, subscriber)?.map(|at| (subscriber, at)));
    }
    Ok(due)
}

/// Creates the deliveries of one step of a backfill and moves its mark, or does nothing if the mark has moved or the
/// subscriber has changed.
pub(super) fn backfill(context: &mut Context<'_>, step: &BackfillStep) -> rusqlite::Result<()> {
    let has_changed = "SELECT 1 FROM subscribers WHERE no = ?1 AND version > ?2";
    if context.backfilling.get(&step.subscriber) != Some(&step.after)
        || context.conn.prepare_cached(has_changed)?.exists([step.subscriber, step.version])?
    {
        return Ok(());
    }
    let last = events::last_step(context.conn, step)?;
    let step = last.as_ref().unwrap_or(step);
    // The events of this step may go from here on; younger ones still wait for the next step.
    context.backfilling.insert(step.subscriber, step.through);
    for (event, route) in &step.matched {
        insert_past(context, step, *event, route)?;
    }
    for lane in &step.passed {
        lanes::make_next_due(context.conn, &context.backfilling, step.subscriber, *lane, context.group.now)?;
    }
    // Live events may have been left to it since the step was prepared.
    let done: bool = context
        .conn
        .prepare_cached(
            "UPDATE subscribers SET backfill_after = iif(backfill_until <= ?2, NULL, ?2) WHERE no = ?1
             RETURNING backfill_after IS NULL",
        )?
        .query_row(params![step.subscriber, step.through], |row| row.get(0))?;
    if done {
        context.backfilling.remove(&step.subscriber);
        context.out.backfilled.push(step.subscriber);
        lanes::open_all(context, step.subscriber)?;
    }
    context.spilled.insert(step.subscriber);
    Ok(())
}

/// A live event is left to a backfill that is under way.
pub(super) fn defer(conn: &Connection, subscriber: SubscriberNo, event: Seq) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE subscribers SET backfill_until = max(backfill_until, ?2) WHERE no = ?1")?
        .execute([subscriber, event])?;
    Ok(())
}

/// Nothing is made of an event that retention has taken since the step was prepared.
fn insert_past(
    context: &mut Context<'_>,
    step: &BackfillStep,
    event: Seq,
    route: &Route,
) -> rusqlite::Result<()> {
    let Some(bytes) = events::size(context.conn, step.project, event)? else { return Ok(()) };
    folds::append(context, step.project, (event, bytes), route, false)?;
    if route.fold.is_some() {
        return Ok(());
    }
    let id = context.draw();
    let lane = route.lane;
    let status = if lane.is_some() { WAITING } else { DUE };
    let now = context.group.now;
    let (holder, fold) = (None::<Incarnation>, None::<WindowNo>);
    context.statements.insert_delivery.execute(params![
        id,
        step.project,
        step.subscriber,
        event,
        lane,
        status,
        now.as_ms(),
        0,
        holder,
        1,
        0,
        fold,
        context.nonce
    ])?;
    if let Some(lane) = lane {
        lanes::make_next_due(context.conn, &context.backfilling, step.subscriber, lane, now)?;
    }
    Ok(())
}

/// A manual retry: due now with a fresh schedule, unless it is not its turn in its lane.
pub(super) fn retry(
    writer: &mut Writer,
    project: ProjectNo,
    delivery: DeliveryNo,
    now: Timestamp,
) -> rusqlite::Result<RetryOutcome> {
    let tx = writer.conn.transaction()?;
    let Some((row, _)) = super::read::one(&tx, project, delivery)? else { return Ok(RetryOutcome::NotFound) };
    let is_over =
        matches!(row.status, Status::Delivered | Status::Sending | Status::Cancelled | Status::Expired);
    if is_over || is_deleted(&tx, row.subscriber)? {
        return Ok(RetryOutcome::Refused(row.status));
    }
    begin_anew(&tx, delivery, row.lane, now)?;
    let due = match row.lane {
        None => Some(delivery),
        Some(lane) => lanes::make_next_due(&tx, &writer.backfilling, row.subscriber, lane, now)?,
    };
    stamp(&tx, now)?;
    tx.commit()?;
    let is_due = due == Some(delivery);
    Ok(if is_due { RetryOutcome::Due { subscriber: row.subscriber } } else { RetryOutcome::Queued })
}

/// Due now with a fresh schedule, or waiting for its turn in its lane.
pub(super) fn begin_anew(
    conn: &Connection,
    delivery: DeliveryNo,
    lane: Option<Lane>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE deliveries SET status = ?2, due_at = ?3, tries = 0, lost = 0, finished_at = NULL, reason = NULL
         WHERE id = ?1",
    )?
    .execute(params![delivery, if lane.is_some() { WAITING } else { DUE }, now.as_ms()])?;
    Ok(())
}

fn is_deleted(conn: &Connection, subscriber: SubscriberNo) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT deleted_at IS NOT NULL FROM subscribers WHERE no = ?1")?
        .query_row([subscriber], |row| row.get(0))
}
