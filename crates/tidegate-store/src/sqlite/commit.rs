//! The group commit: one transaction for everybody who has something to write.
//!
//! Nothing that memory knows changes before COMMIT has returned. A submission that fails on its own account is
//! rerun alone, so that its neighbours never pay for it. When COMMIT itself fails, the file is opened anew and asked
//! whether the group is there: it is adopted or refused, never guessed.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use tidegate_core::id::SubscriberNo;

use super::dedupe::{Dedupe, Delta};
use super::lanes::Backfilling;
use super::{Writer, deliveries, events, failed};
use crate::{Committed, Error, Group, Result, Room, Submission, UnitStatus};

/// What the statements of one group share.
pub(super) struct Context<'a> {
    pub(super) conn: &'a Connection,
    pub(super) group: &'a Group,
    pub(super) incarnation: i64,
    pub(super) backfilling: Backfilling,
    pub(super) room: Room,
    pub(super) next_no: i64,
    pub(super) spilled: BTreeSet<SubscriberNo>,
    pub(super) out: Committed,
    pub(super) delta: Delta,
}

impl Context<'_> {
    pub(super) fn draw(&mut self) -> i64 {
        self.next_no += 1;
        self.next_no - 1
    }
}

pub(super) fn commit(writer: &mut Writer, group: &Arc<Group>) -> Result<Committed> {
    if !group.submissions.is_empty() && group.version != writer.version {
        return Err(Error::Stale { routed: group.version, current: writer.version });
    }
    match run(writer, group, &group.submissions) {
        Err(error) if is_storage_fault(&error) => {
            writer.reopen()?;
            Err(failed(error))
        }
        Err(error) if group.submissions.is_empty() => Err(failed(error)),
        Err(_) => one_by_one(writer, group),
        Ok(committed) => Ok(committed),
    }
}

/// Some submission can not be written. Everything else goes first, then each submission on its own.
fn one_by_one(writer: &mut Writer, group: &Group) -> Result<Committed> {
    let mut all = run(writer, group, &[]).map_err(failed)?;
    let bare = Group { now: group.now, version: group.version, room: group.room.clone(), ..Group::default() };
    for submission in &group.submissions {
        match run(writer, &bare, std::slice::from_ref(submission)) {
            Err(error) => all.submissions.push(Err(failed(error))),
            Ok(mut one) => {
                all.submissions.append(&mut one.submissions);
                all.jobs.append(&mut one.jobs);
                all.spilled.append(&mut one.spilled);
            }
        }
    }
    Ok(all)
}

fn run(writer: &mut Writer, group: &Group, submissions: &[Submission]) -> rusqlite::Result<Committed> {
    let dedupe = Arc::clone(&writer.dedupe);
    let mut dedupe = dedupe.lock().unwrap_or_else(PoisonError::into_inner);
    let first_no = writer.next_no;
    writer.conn.execute_batch("BEGIN IMMEDIATE")?;
    let mut context = Context {
        conn: &writer.conn,
        group,
        incarnation: writer.incarnation,
        backfilling: writer.backfilling.clone(),
        room: group.room.clone(),
        next_no: first_no,
        spilled: BTreeSet::new(),
        out: Committed::default(),
        delta: Delta::default(),
    };
    if let Err(error) = write(&mut context, &dedupe, submissions) {
        // The first error is the one to report; a failed rollback only repeats it.
        let _ = writer.conn.execute_batch("ROLLBACK");
        return Err(error);
    }
    let witness = witness(&context, first_no);
    let Context { mut out, delta, spilled, next_no, backfilling, .. } = context;
    if let Err(error) = writer.conn.execute_batch("COMMIT") {
        let _ = writer.conn.execute_batch("ROLLBACK");
        if !is_storage_fault(&error) || !is_committed(writer, &witness)? {
            return Err(error);
        }
    }
    writer.next_no = next_no;
    writer.backfilling = backfilling;
    dedupe.apply(delta);
    out.spilled = spilled.into_iter().collect();
    Ok(out)
}

fn write(context: &mut Context<'_>, dedupe: &Dedupe, submissions: &[Submission]) -> rusqlite::Result<()> {
    let group = context.group;
    for finished in &group.results {
        deliveries::finish(context, finished)?;
    }
    for claim in &group.released {
        deliveries::release(context, claim)?;
    }
    for step in &group.backfills {
        deliveries::backfill(context, step)?;
    }
    for submission in submissions {
        let statuses = submit(context, dedupe, submission)?;
        context.out.submissions.push(Ok(statuses));
    }
    for refill in &group.refills {
        deliveries::refill(context, *refill)?;
    }
    dedupe.merge_slice(context.conn, &mut context.delta)
}

fn submit(
    context: &mut Context<'_>,
    dedupe: &Dedupe,
    submission: &Submission,
) -> rusqlite::Result<Vec<UnitStatus>> {
    let mut statuses = Vec::with_capacity(submission.units.len());
    for routed in &submission.units {
        let known = events::known(context, dedupe, submission.project, routed)?;
        if known.is_none() {
            accept(context, submission, routed)?;
        }
        statuses.push(known.unwrap_or(UnitStatus::Accepted));
    }
    Ok(statuses)
}

fn accept(
    context: &mut Context<'_>,
    submission: &Submission,
    routed: &crate::RoutedUnit,
) -> rusqlite::Result<()> {
    for (index, event) in routed.unit.events.iter().enumerate() {
        let seq = context.draw();
        events::insert(context, submission.project, seq, event, &routed.unit.fingerprint)?;
        context.delta.add(routed.keys[index], seq);
        for route in &routed.routes[index] {
            deliveries::insert(context, submission.project, seq, &event.body, route)?;
        }
    }
    Ok(())
}

/// Errors after which the connection's cached pages may not be what the disk holds.
fn is_storage_fault(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
        )
    )
}

/// Something only this group wrote, by which a commit of unknown outcome is recognised.
enum Witness {
    /// An event or delivery with this number.
    Row(i64),
    /// This attempt at this delivery.
    Attempt(i64, u32),
    /// This claim.
    Claim(i64, u32),
    /// Nothing that would be wrong to write twice.
    None,
}

fn witness(context: &Context<'_>, first_no: i64) -> Witness {
    if context.next_no > first_no {
        return Witness::Row(first_no);
    }
    if let Some(finished) = context.group.results.first() {
        return Witness::Attempt(finished.claim.delivery, finished.n);
    }
    context.out.jobs.first().map_or(Witness::None, |job| Witness::Claim(job.delivery, job.token))
}

/// Whether a commit that reported an error is there all the same.
fn is_committed(writer: &mut Writer, witness: &Witness) -> rusqlite::Result<bool> {
    if writer.reopen().is_err() {
        return Ok(false);
    }
    let (sql, a, b) = match *witness {
        Witness::Row(no) => (
            "SELECT 1 FROM events WHERE seq = ?1 UNION ALL SELECT 1 FROM deliveries WHERE id = ?1 AND ?2 = 0",
            no,
            0,
        ),
        Witness::Attempt(delivery, n) => {
            ("SELECT 1 FROM attempts WHERE delivery = ?1 AND n = ?2", delivery, n)
        }
        Witness::Claim(delivery, token) => {
            ("SELECT 1 FROM deliveries WHERE id = ?1 AND claims = ?2", delivery, token)
        }
        Witness::None => return Ok(false),
    };
    Ok(writer.conn.query_row(sql, params![a, b], |_| Ok(())).optional()?.is_some())
}
