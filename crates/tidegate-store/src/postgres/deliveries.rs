//! Deliveries: created with their event, claimed, finished. Those with a lane go through it one at a time, see
//! [`lanes`].

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidegate_core::attempt::{ErrorClass, Phases, ResponseHead};
use tidegate_core::delivery::{self, Job, Status};
use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, SubscriberNo};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::retry::Next;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::db::{Asked, Conn};
use super::folds::{self, Folding};
use super::held::{self, CLAIM, claim_value, in_order};
use super::lanes::{self, Lanes};
use super::write::Context;
use crate::decided::newest;
use crate::sabotage::{self, Line};
use crate::{BackfillStep, Claim, Finished, Refill, Refilled, RetryOutcome};

/// The states of a row that are spoken of outside SQL; see the schema.
pub(super) const DUE: i16 = 0;
pub(super) const CLAIMED: i16 = 1;
pub(super) const WAITING: i16 = 2;
pub(super) const DELIVERED: i16 = 3;
pub(super) const EXHAUSTED: i16 = 4;

/// Results of attempts, column by column, in the order of their deliveries' numbers.
#[derive(Default)]
pub(super) struct Results {
    now: i64,
    ids: Vec<i64>,
    claims: Vec<i64>,
    numbers: Vec<i32>,
    statuses: Vec<i16>,
    due_at: Vec<Option<i64>>,
    failures: Vec<i32>,
    ended_at: Vec<Option<i64>>,
    reasons: Vec<Option<String>>,
    at: Vec<i64>,
    codes: Vec<Option<i32>>,
    errors: Vec<Option<&'static str>>,
    records: Vec<Vec<u8>>,
}

/// What is kept of an attempt beside its outcome.
#[derive(Serialize, Deserialize)]
pub(super) struct Record<'a> {
    /// When it began and what was answered, where no columns say so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) began: Option<(i64, Option<u16>)>,
    pub(super) detail: Cow<'a, str>,
    pub(super) phases: Phases,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) response: Option<Cow<'a, ResponseHead>>,
}

/// Where a delivery's values stand: they are in the order of the deliveries' numbers, and `width_bucket` finds a number by
/// halves. A join would unfold every array first.
pub(super) const PLACE: &str = "width_bucket(d.id, $2::bigint[])";

/// Each result counts if its claim still holds.
fn holds() -> String {
    match sabotage::is(Line::Fencing) {
        false => format!("d.status = 1 AND d.incarnation = $1 AND {CLAIM} = ($3::bigint[])[{PLACE}]"),
        true => "$1::bigint > 0 AND cardinality($3::bigint[]) > 0".to_owned(),
    }
}

/// Writes results of attempts that all succeeded. A kept attempt would say no more than the delivery's row does.
pub(super) fn delivered() -> String {
    format!(
        "UPDATE deliveries d SET status = 3, attempts = ($4::int[])[{PLACE}], record = ($5::bytea[])[{PLACE}], lost = 0,
            incarnation = NULL, holder = NULL, written = NULL, finished_at = $6::bigint, reason = NULL
        WHERE d.id = ANY($2::bigint[]) AND {}",
        holds()
    )
}

/// Writes results of which some did not succeed; those attempts are kept. Says whose claim held.
pub(super) fn finished_somehow() -> String {
    let twice = if sabotage::is(Line::Fencing) { "ON CONFLICT DO NOTHING" } else { "" };
    format!(
        "WITH done AS (UPDATE deliveries d SET status = ($6::smallint[])[{PLACE}],
                due_at = coalesce(($7::bigint[])[{PLACE}], d.due_at), attempts = ($4::int[])[{PLACE}],
                tries = d.tries + ($8::int[])[{PLACE}], lost = 0, incarnation = NULL, holder = NULL, written = NULL,
                finished_at = ($9::bigint[])[{PLACE}], reason = ($10::text[])[{PLACE}],
                record = CASE WHEN ($6::smallint[])[{PLACE}] = 3 THEN ($5::bytea[])[{PLACE}] END
            WHERE d.id = ANY($2::bigint[]) AND {} RETURNING d.id, {PLACE} AS place),
        kept AS (INSERT INTO attempts (delivery, n, at, status, error, record)
            SELECT id, ($4::int[])[place], ($11::bigint[])[place], ($12::int[])[place], ($13::text[])[place],
                ($5::bytea[])[place]
            FROM done WHERE ($6::smallint[])[place] <> 3 {twice})
        SELECT coalesce(array_agg(id), '{{}}') FROM done",
        holds()
    )
}

impl Results {
    pub(super) fn of(finished: &[Finished], now: Timestamp) -> Self {
        let mut results = Self { now: now.as_ms(), ..Self::default() };
        newest(finished).into_iter().for_each(|one| results.push(one));
        results
    }

    fn push(&mut self, finished: &Finished) {
        let now = self.now;
        let (status, due_at, failure, ended_at, reason) = match &finished.next {
            Next::Delivered => (DELIVERED, None, 0, Some(now), None),
            Next::RetryAt(at) => (DUE, Some(*at), 1, None, None),
            Next::PostponedTo(at) => (DUE, Some(*at), 0, None, None),
            Next::Exhausted(reason) => (EXHAUSTED, None, 1, Some(now), Some(reason.clone())),
        };
        let attempt = &finished.attempt;
        let record = Record {
            began: (status == DELIVERED).then_some((attempt.at.as_ms(), attempt.status)),
            detail: Cow::Borrowed(&attempt.detail),
            phases: attempt.phases,
            response: attempt.response.as_ref().map(Cow::Borrowed),
        };
        self.ids.push(finished.claim.delivery);
        self.claims.push(claim_value(&finished.claim));
        self.numbers.push(finished.n.cast_signed());
        self.statuses.push(status);
        self.due_at.push(due_at.map(Timestamp::as_ms));
        self.failures.push(failure);
        self.ended_at.push(ended_at);
        self.reasons.push(reason);
        self.at.push(attempt.at.as_ms());
        self.codes.push(attempt.status.map(i32::from));
        self.errors.push(attempt.error.map(ErrorClass::name));
        self.records.push(serde_json::to_vec(&record).expect("a record is always JSON"));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether there is an attempt that did not succeed.
    pub(super) fn has_failures(&self) -> bool {
        self.statuses.iter().any(|status| *status != DELIVERED)
    }

    /// The values of [`delivered`].
    pub(super) fn values<'a>(&'a self, incarnation: &'a i64) -> [&'a (dyn ToSql + Sync); 6] {
        [incarnation, &self.ids, &self.claims, &self.numbers, &self.records, &self.now]
    }

    /// The values of [`finished_somehow`], behind the first five above.
    pub(super) fn rest(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.statuses,
            &self.due_at,
            &self.failures,
            &self.ended_at,
            &self.reasons,
            &self.at,
            &self.codes,
            &self.errors,
        ]
    }

    /// Writes them; says whose claim held.
    pub(super) async fn write(&self, conn: &Conn, incarnation: i64) -> Asked<Vec<DeliveryNo>> {
        let mut values = self.values(&incarnation)[..5].to_vec();
        values.extend(self.rest());
        Ok(conn.only(&finished_somehow(), &values).await?.get(0))
    }
}

/// What the results that counted led to beyond their rows; says in which lanes it is somebody else's turn now.
pub(super) fn finished(context: &mut Context<'_>, heard: &[&Finished]) -> Lanes {
    context.out.stale += (context.group.results.len() - heard.len()) as u64;
    let mut touched = Lanes::new();
    for finished in heard {
        if let Next::RetryAt(at) | Next::PostponedTo(at) = &finished.next {
            context.out.postponed.push((finished.subscriber, *at));
        }
        touched.extend(finished.lane.map(|lane| (finished.subscriber, lane)));
    }
    touched
}

pub(super) const FREEZE: &str = "INSERT INTO delivery_bodies (delivery, body)
    SELECT i.id, i.body FROM unnest($2::bigint[], $3::bigint[], $4::bytea[]) AS i(id, claim, body)
    CROSS JOIN LATERAL (SELECT 1 FROM deliveries WHERE id = i.id AND status = 1 AND incarnation = $1
        AND (claims::bigint << 32) + nonce = i.claim OFFSET 0) d
    ON CONFLICT DO NOTHING";

/// Keeps the bytes to send again, before the claims end that allow it. They are those of the first attempt.
pub(super) async fn freeze(context: &Context<'_>) -> Asked<()> {
    let frozen: Vec<(&Claim, &Bytes)> =
        context.group.results.iter().filter_map(|one| Some((&one.claim, one.body.as_ref()?))).collect();
    if frozen.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = frozen.iter().map(|(claim, _)| claim.delivery).collect();
    let claims: Vec<i64> = frozen.iter().map(|(claim, _)| claim_value(claim)).collect();
    let bodies: Vec<&[u8]> = frozen.iter().map(|(_, body)| &body[..]).collect();
    context.conn.execute(FREEZE, &[&context.incarnation, &ids, &claims, &bodies]).await?;
    Ok(())
}

const JOB: &str = "SELECT d.id, d.project, d.subscriber, d.event, d.lane, d.attempts, d.tries, d.claims + 1,
        CASE WHEN d.fold IS NULL THEN e.accepted_at ELSE d.created_at END,
        CASE WHEN d.fold IS NULL THEN coalesce(b.body, e.body) ELSE ''::bytea END, d.replay > 0, d.fold,
        d.out_of_order, d.nonce, d.lost
    FROM deliveries d JOIN events e ON e.seq = d.event LEFT JOIN delivery_bodies b ON b.delivery = d.id";

fn job(row: &Row) -> Job {
    Job {
        delivery: row.get(0),
        nonce: row.get::<_, i32>(13).cast_unsigned(),
        project: row.get(1),
        subscriber: row.get(2),
        event: row.get(3),
        lane: row.get(4),
        attempts: row.get::<_, i32>(5).cast_unsigned(),
        tries: row.get::<_, i32>(6).cast_unsigned(),
        token: row.get::<_, i32>(7).cast_unsigned(),
        life: 0,
        accepted_at: Timestamp::from_ms(row.get(8)),
        body: Bytes::copy_from_slice(row.get(9)),
        replay: row.get(10),
        out_of_order: row.get(12),
        is_suspect: delivery::is_suspect(row.get::<_, i32>(14).cast_unsigned()),
        fold: row.get(11),
    }
}

/// Claims these for memory, whose places there are taken already.
pub(super) async fn claim(context: &mut Context<'_>, ids: &[DeliveryNo]) -> Asked<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let rows = context.conn.rows(&format!("{JOB} WHERE d.id = ANY($1) ORDER BY d.id"), &[&ids]).await?;
    let jobs: Vec<Job> = rows.iter().map(job).collect();
    for job in &jobs {
        context.room.take_bytes(job.subscriber, job.body.len());
    }
    take(context, jobs).await
}

/// Claims those that somebody asked for, if they are due and memory has bytes for them; else they stay as they are.
pub(super) async fn ask(context: &mut Context<'_>) -> Asked<()> {
    let ids: Vec<DeliveryNo> = context.group.asked.iter().map(|(_, delivery)| *delivery).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "{JOB} WHERE d.id = ANY($1) AND d.status = 0 AND d.due_at <= $2 ORDER BY d.id FOR UPDATE OF d SKIP LOCKED"
    );
    let rows = context.conn.rows(&sql, &[&ids, &context.group.now.as_ms()]).await?;
    let mut jobs: Vec<Job> = rows.iter().map(job).collect();
    jobs.retain(|job| context.room.take_bytes(job.subscriber, job.body.len()));
    take(context, jobs).await
}

const TAKE: &str =
    "UPDATE deliveries SET status = 1, claims = claims + 1, incarnation = $2, holder = $2, written = $3
    WHERE id = ANY($1)";

async fn take(context: &mut Context<'_>, jobs: Vec<Job>) -> Asked<()> {
    if jobs.is_empty() {
        return Ok(());
    }
    let ids: Vec<DeliveryNo> = jobs.iter().map(|job| job.delivery).collect();
    context.conn.execute(TAKE, &[&ids, &context.incarnation, &context.written]).await?;
    context.out.jobs.extend(jobs);
    Ok(())
}

/// What a group claimed whose answer never came.
pub(super) async fn claimed_in(conn: &Conn, incarnation: i64, written: i64) -> Asked<Vec<Job>> {
    let row = conn.row("SELECT held FROM replicas WHERE incarnation = $1", &[&incarnation]).await?;
    let claims = held::claims(conn, incarnation, row.and_then(|row| row.get(0))).await?;
    let sql = format!("{JOB} WHERE d.id = ANY($1) AND d.written = $2 ORDER BY d.id");
    let mut jobs: Vec<Job> = conn.rows(&sql, &[&claims, &written]).await?.iter().map(job).collect();
    for job in &mut jobs {
        job.token -= 1;
    }
    Ok(jobs)
}

/// Gives claims back unsent: the deliveries are due as before, unless an older one of their lane came meanwhile.
pub(super) async fn release(context: &mut Context<'_>) -> Asked<()> {
    let released = &context.group.released;
    if released.is_empty() {
        return Ok(());
    }
    let (ids, claims) = in_order(released);
    let sql = format!(
        "UPDATE deliveries d SET status = 0, lost = least(d.lost, {CLAIMS_LOST_MAX}), incarnation = NULL, holder = NULL,
            written = NULL
         WHERE d.id = ANY($2::bigint[]) AND d.status = 1 AND d.incarnation = $1 AND {CLAIM} = ($3::bigint[])[{PLACE}]
         RETURNING d.subscriber, d.lane, d.due_at"
    );
    let rows = context.conn.rows(&sql, &[&context.incarnation, &ids, &claims]).await?;
    let mut touched = Lanes::new();
    for row in rows {
        let subscriber = row.get(0);
        context.out.postponed.push((subscriber, Timestamp::from_ms(row.get(2))));
        touched.extend(row.get::<_, Option<Lane>>(1).map(|lane| (subscriber, lane)));
    }
    lanes::let_next_go(context, &touched).await
}

/// The lanes of claims that are given back, to be locked first.
pub(super) async fn lanes_of(conn: &Conn, claims: &[Claim]) -> Asked<Lanes> {
    if claims.is_empty() {
        return Ok(Lanes::new());
    }
    let ids: Vec<i64> = claims.iter().map(|claim| claim.delivery).collect();
    let sql = "SELECT subscriber, lane FROM deliveries WHERE id = ANY($1) AND lane IS NOT NULL";
    Ok(conn.rows(sql, &[&ids]).await?.iter().map(|row| (row.get(0), row.get(1))).collect())
}

pub(super) fn refill_sql() -> String {
    format!(
        "{JOB} WHERE d.subscriber = $1 AND d.shelf = 0 AND d.due_at <= $2 ORDER BY d.due_at, d.id LIMIT $3
         FOR UPDATE OF d SKIP LOCKED"
    )
}

/// Claims what is due, oldest first, until the wish or memory's bytes are used up. What another process is claiming at
/// this instant is passed over.
pub(super) async fn refill(context: &mut Context<'_>, refill: Refill) -> Asked<()> {
    let now = context.group.now.as_ms();
    let limit = i64::try_from(refill.jobs).unwrap_or(i64::MAX - 1) + 1;
    let rows = context.conn.rows(&refill_sql(), &[&refill.subscriber, &now, &limit]).await?;
    let mut jobs = Vec::new();
    let mut drained = true;
    for row in &rows {
        let bytes = row.get::<_, &[u8]>(9).len();
        if jobs.len() == refill.jobs || !context.room.take_bytes(refill.subscriber, bytes) {
            drained = false;
            break;
        }
        jobs.push(job(row));
    }
    take(context, jobs).await?;
    let next_due = first_due(context.conn, refill.subscriber).await?;
    context.out.refilled.push(Refilled { subscriber: refill.subscriber, drained, next_due });
    Ok(())
}

pub(super) const FIRST_DUE: &str =
    "SELECT due_at FROM deliveries WHERE subscriber = $1 AND shelf = 0 ORDER BY due_at, id LIMIT 1";

async fn first_due(conn: &Conn, subscriber: SubscriberNo) -> Asked<Option<Timestamp>> {
    Ok(conn.row(FIRST_DUE, &[&subscriber]).await?.map(|row| Timestamp::from_ms(row.get(0))))
}

pub(super) const ANY_UNFINISHED: &str =
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM deliveries WHERE subscriber = $1 AND shelf = 0)
        OR EXISTS (SELECT 1 FROM deliveries WHERE subscriber = $1 AND lane IS NOT NULL AND shelf < 3)
        OR EXISTS (SELECT 1 FROM replicas r JOIN deliveries d ON d.holder = r.incarnation WHERE d.subscriber = $1)
        OR EXISTS (SELECT 1 FROM replicas r CROSS JOIN LATERAL unnest(r.held) AS b(block) JOIN deliveries d
            ON d.id >= b.block AND d.id < b.block + 1048576 WHERE d.status = 1 AND d.subscriber = $1)
        OR EXISTS (SELECT 1 FROM replicas r JOIN deliveries d ON d.incarnation = r.incarnation
            WHERE r.held IS NULL AND d.status = 1 AND d.subscriber = $1)
        OR EXISTS (SELECT 1 FROM windows WHERE subscriber = $1 AND stage < 2)
        OR EXISTS (SELECT 1 FROM subscribers WHERE no = $1 AND backfill_after IS NOT NULL)";

/// Whether anything of a subscriber is still on its way, or may be left to its backfill.
pub(super) async fn any_unfinished(conn: &Conn, subscriber: SubscriberNo) -> Asked<bool> {
    conn.exists(ANY_UNFINISHED, &[&subscriber]).await
}

/// For each subscriber with work in the store, when its first is due: one index look-up each.
pub(super) async fn due(conn: &Conn) -> Asked<Vec<(SubscriberNo, Timestamp)>> {
    let rows = conn
        .rows(
            "SELECT s.no, d.due_at FROM subscribers s CROSS JOIN LATERAL (SELECT due_at FROM deliveries
                WHERE subscriber = s.no AND shelf = 0 ORDER BY due_at, id LIMIT 1) d
             WHERE s.deleted_at IS NULL ORDER BY s.no",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| (row.get(0), Timestamp::from_ms(row.get(1)))).collect())
}

/// Creates the deliveries of one step of a backfill and moves its mark, or does nothing if the mark has moved.
pub(super) async fn backfill(
    context: &mut Context<'_>,
    folding: &mut Folding<'_>,
    step: &BackfillStep,
) -> Asked<()> {
    // Live events may have been left to it since the step was prepared.
    let moved = context
        .conn
        .row(
            "UPDATE subscribers SET backfill_after = CASE WHEN $5 AND backfill_until <= $3 THEN NULL ELSE $3 END
             WHERE no = $1 AND backfill_after = $2 AND version <= $4 AND deleted_at IS NULL
             RETURNING backfill_after IS NULL",
            &[&step.subscriber, &step.after, &step.through, &step.version, &context.may_end],
        )
        .await?;
    let Some(done) = moved.map(|row| row.get::<_, bool>(0)) else { return Ok(()) };
    let (_, alone) = folds::parted(&step.matched);
    let arriving = folds::arriving(&step.matched);
    folding.append_past(context.conn, context.space, step.project, &arriving, false).await?;
    let (events, lanes): (Vec<i64>, Vec<Option<Lane>>) =
        alone.iter().map(|(event, route)| (*event, route.lane)).unzip();
    super::sweep::hold_past(context.conn, context.space).await?;
    insert_past(context, step, &events, &lanes).await?;
    let touched = lanes.iter().flatten().chain(&step.passed);
    let touched: Lanes = touched.map(|lane| (step.subscriber, *lane)).collect();
    let now = context.group.now;
    lanes::make_next_due(context.conn, &touched, now).await?;
    if done {
        context.out.backfilled.push(step.subscriber);
        lanes::open_all(context.conn, step.subscriber, now).await?;
    }
    context.spilled.insert(step.subscriber);
    Ok(())
}

async fn insert_past(
    context: &Context<'_>,
    step: &BackfillStep,
    events: &[i64],
    lanes: &[Option<Lane>],
) -> Asked<()> {
    if events.is_empty() {
        return Ok(());
    }
    let (now, block) = (context.group.now.as_ms(), context.conn.only(super::write::DRAW, &[]).await?);
    let block: i64 = block.get(0);
    context
        .conn
        .execute(
            "INSERT INTO deliveries (id, project, subscriber, event, replay, lane, status, due_at, created_at,
                nonce)
             SELECT $1 + i.place, $2, $3, i.event, 0, i.lane, CASE WHEN i.lane IS NULL THEN 0 ELSE 2 END, $4, $4, $7
             FROM unnest($5::bigint[], $6::bigint[]) WITH ORDINALITY AS i(event, lane, place)
             JOIN events e ON e.seq = i.event
             ON CONFLICT (event, subscriber, replay) DO NOTHING",
            &[&block, &step.project, &step.subscriber, &now, &events, &lanes, &context.conn.nonce()],
        )
        .await?;
    Ok(())
}

/// A manual retry: due now with a fresh schedule, unless it is not its turn in its lane.
pub(super) async fn retry(
    conn: &Conn,
    space: i32,
    project: ProjectNo,
    delivery: DeliveryNo,
    now: Timestamp,
) -> Asked<RetryOutcome> {
    let sql = "SELECT d.subscriber, d.lane, s.deleted_at IS NOT NULL FROM deliveries d
        JOIN subscribers s ON s.no = d.subscriber WHERE d.id = $1 AND d.project = $2";
    let Some(row) = conn.row(sql, &[&delivery, &project]).await? else { return Ok(RetryOutcome::NotFound) };
    let (subscriber, lane, is_deleted): (SubscriberNo, Option<Lane>, bool) =
        (row.get(0), row.get(1), row.get(2));
    let lanes: Lanes = lane.map(|lane| (subscriber, lane)).into_iter().collect();
    lanes::lock(conn, space, &lanes).await?;
    conn.row("SELECT 1 FROM deliveries WHERE id = $1 FOR UPDATE", &[&delivery]).await?;
    let Some((found, _)) = super::read::one(conn, project, delivery).await? else {
        return Ok(RetryOutcome::NotFound);
    };
    let is_over =
        matches!(found.status, Status::Delivered | Status::Sending | Status::Cancelled | Status::Expired);
    if is_over || is_deleted {
        return Ok(RetryOutcome::Refused(found.status));
    }
    begin_anew(conn, &[delivery], now).await?;
    if lane.is_none() {
        return Ok(RetryOutcome::Due { subscriber });
    }
    let due = lanes::make_next_due(conn, &lanes, now).await?;
    Ok(if due.contains_key(&delivery) { RetryOutcome::Due { subscriber } } else { RetryOutcome::Queued })
}

/// Due now with a fresh schedule, or waiting for their turn in their lanes.
pub(super) async fn begin_anew(conn: &Conn, deliveries: &[DeliveryNo], now: Timestamp) -> Asked<()> {
    conn.execute(
        "UPDATE deliveries SET status = CASE WHEN lane IS NULL THEN 0 ELSE 2 END, due_at = $2, tries = 0, lost = 0,
            finished_at = NULL, reason = NULL WHERE id = ANY($1)",
        &[&deliveries, &now.as_ms()],
    )
    .await?;
    Ok(())
}
