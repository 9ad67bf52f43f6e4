//! The group commit: one transaction for everybody who has something to write.
//!
//! Nothing that memory knows changes before COMMIT has returned. A submission that fails on its own account is
//! rerun alone, so that its neighbours never pay for it. When COMMIT itself fails, the file is opened anew and asked
//! whether the group is there: it is adopted or refused, never guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, ErrorCode, Transaction, TransactionBehavior};
use tidegate_core::fold::{Book, Decided, Draft, Member};
use tidegate_core::id::{Nonce, ProjectNo, Seq, SubscriberNo, Version};
use tidegate_core::route::Route;

use super::dedupe::{Dedupe, Delta};
use super::deliveries::New;
use super::lanes::Backfilling;
use super::recent::Joined;
use super::telling::Telling;
use super::{
    Writer, configuration, deliveries, events, failed, folds, gates, jobs, quarantine, stamp, suspects,
};
use crate::{Admission, ClosedWindow, Committed, Error, Group, Result, Room, Submission, UnitStatus};

/// What the statements of one group share.
pub(super) struct Context<'a> {
    pub(super) conn: &'a Connection,
    pub(super) group: &'a Group,
    pub(super) incarnation: i64,
    pub(super) nonce: Nonce,
    pub(super) version: Version,
    pub(super) backfilling: Backfilling,
    /// Whose backfills will bring live events, and up to which.
    deferred: BTreeMap<SubscriberNo, Seq>,
    pub(super) room: Room,
    pub(super) next_no: i64,
    pub(super) spilled: BTreeSet<SubscriberNo>,
    pub(super) out: Committed,
    pub(super) delta: Delta,
    pub(super) draft: Draft<'a>,
    joined: Vec<Joined<&'a Bytes>>,
    pub(super) statements: Statements<'a>,
}

/// The statements that run for every event and every result, looked up once per group instead of once per row.
pub(super) struct Statements<'a> {
    pub(super) insert_event: CachedStatement<'a>,
    pub(super) insert_delivery: CachedStatement<'a>,
    pub(super) finish: CachedStatement<'a>,
    pub(super) insert_attempt: CachedStatement<'a>,
}

impl<'a> Statements<'a> {
    fn prepare(conn: &'a Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            insert_event: conn.prepare_cached(events::INSERT)?,
            insert_delivery: conn.prepare_cached(deliveries::INSERT)?,
            finish: conn.prepare_cached(deliveries::FINISH)?,
            insert_attempt: conn.prepare_cached(deliveries::INSERT_ATTEMPT)?,
        })
    }
}

impl Context<'_> {
    pub(super) fn draw(&mut self) -> i64 {
        self.next_no += 1;
        self.next_no - 1
    }
}

pub(super) fn commit(writer: &mut Writer, group: &Group) -> Result<Committed> {
    if !group.submissions.is_empty() && group.version != writer.version {
        return Err(Error::Stale { routed: group.version, current: writer.version });
    }
    let life = writer.incarnation;
    let (own, stale) = group.of_life(life).unzip();
    let group = own.as_ref().unwrap_or(group);
    let committed = match run(writer, group, group.room.clone()) {
        Ok((committed, _)) => committed,
        Err(error) if is_storage_fault(&error) => return Err(failed(error)),
        Err(error) if group.submissions.is_empty() && !is_refusal(&error) => return Err(failed(error)),
        Err(_) => one_by_one(writer, group)?,
    };
    let mut all = std::mem::take(&mut writer.owed);
    all.absorb(committed);
    all.absorb(stale.unwrap_or_default());
    all.claimed_in(life);
    Ok(all)
}

/// Something can not be written, most likely a submission: each goes alone, after what comes before them and before the
/// refills, whose answers speak of what all of them left in the store.
fn one_by_one(writer: &mut Writer, group: &Group) -> Result<Committed> {
    let first = group.before_submissions();
    let (mut all, mut room) = match run(writer, &first, group.room.clone()) {
        Err(error) if is_refusal(&error) => in_pieces(writer, &first, group.room.clone())?,
        written => written.map_err(failed)?,
    };
    // From here on something is written: what fails is told where it belongs, never instead of what did not.
    for submission in &group.submissions {
        match run_after_faults(writer, &group.alone(submission), &room) {
            Err(error) => all.submissions.push(Err(error)),
            Ok((one, left)) => {
                all.absorb(one);
                room = left;
            }
        }
    }
    let refilled = run_after_faults(writer, &group.only_refills(), &room);
    Ok(all.end(group, refilled.ok().map(|(refilled, _)| refilled)))
}

/// It is none of the submissions: what can be written is, and the rest is left out.
fn in_pieces(writer: &mut Writer, group: &Group, mut room: Room) -> Result<(Committed, Room)> {
    let mut all = Committed::default();
    for piece in group.pieces() {
        match run(writer, &piece, room.clone()) {
            Ok((one, left)) => {
                all.absorb(one);
                room = left;
            }
            Err(error) if is_refusal(&error) => piece.leave_out(&failed(error), &mut all),
            Err(error) => {
                // What was claimed so far is handed over with the next group.
                writer.owed.absorb(all);
                return Err(failed(error));
            }
        }
    }
    Ok((all, room))
}

fn run_after_faults(writer: &mut Writer, group: &Group, room: &Room) -> Result<(Committed, Room)> {
    writer.recover()?;
    run(writer, group, room.clone()).map_err(failed)
}

/// Writes a group; what is left of the room comes back with what it did.
fn run(writer: &mut Writer, group: &Group, room: Room) -> rusqlite::Result<(Committed, Room)> {
    let result = transact(writer, group, room);
    writer.is_suspect |= result.as_ref().is_err_and(is_storage_fault);
    result
}

fn transact(writer: &mut Writer, group: &Group, room: Room) -> rusqlite::Result<(Committed, Room)> {
    let dedupe = Arc::clone(&writer.dedupe);
    let mut dedupe = dedupe.lock().unwrap_or_else(PoisonError::into_inner);
    let book = Arc::clone(&writer.book);
    let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
    let tx = Transaction::new_unchecked(&writer.conn, TransactionBehavior::Immediate)?;
    let Written { no, mut out, delta, next_no, backfilling, telling, room, decided, joined } =
        write_all(&tx, writer, group, room, (&dedupe, &book))?;
    let joined = writer.recent.lock().unwrap_or_else(PoisonError::into_inner).copies(joined);
    if let Err(error) = (writer.end)(tx)
        && !(is_storage_fault(&error) && is_there(writer, no, &mut out))
    {
        return Err(error);
    }
    writer.next_no = next_no;
    writer.backfilling = backfilling;
    writer.telling = telling;
    dedupe.apply(&delta);
    book.apply(decided);
    writer.recent.lock().unwrap_or_else(PoisonError::into_inner).add(joined);
    out.close_due = book.next_due();
    Ok((out, room))
}

/// What a group's statements did, to be believed after the commit.
struct Written<'a> {
    no: i64,
    out: Committed,
    delta: Delta,
    next_no: i64,
    backfilling: Backfilling,
    telling: Telling,
    room: Room,
    decided: Decided,
    joined: Vec<Joined<&'a Bytes>>,
}

fn write_all<'a>(
    tx: &'a Transaction<'_>,
    writer: &Writer,
    group: &'a Group,
    room: Room,
    (dedupe, book): (&Dedupe, &'a Book),
) -> rusqlite::Result<Written<'a>> {
    let mut context = Context {
        conn: tx,
        group,
        incarnation: writer.incarnation,
        nonce: writer.nonce,
        version: writer.version,
        backfilling: writer.backfilling.clone(),
        deferred: BTreeMap::new(),
        room,
        next_no: writer.next_no,
        spilled: BTreeSet::new(),
        out: Committed::default(),
        delta: Delta::default(),
        draft: Draft::new(book, group.now, writer.windows_max, &group.stretch),
        joined: Vec::new(),
        statements: Statements::prepare(tx)?,
    };
    let events = group.submissions.iter().map(|submission| submission.units.len()).sum();
    // Before anything else: the book is what the file holds.
    let mut telling = writer.telling.clone();
    telling.step(tx, book, events, writer.next_no - 1)?;
    write(&mut context, dedupe)?;
    let no = stamp(tx, group.now)?;
    let Context { mut out, delta, spilled, next_no, backfilling, room, draft, joined, .. } = context;
    let decided = draft.decided();
    folds::write(tx, &decided, writer.next_no)?;
    out.closed = ClosedWindow::all(&decided);
    out.spilled = spilled.into_iter().collect();
    Ok(Written { no, out, delta, next_no, backfilling, telling, room, decided, joined })
}

/// Whether a commit that reported an error is there all the same. If the file can not even be asked, that is found
/// out before anything else is written, and what the group would have handed over is kept until then.
fn is_there(writer: &mut Writer, no: i64, out: &mut Committed) -> bool {
    match writer.reopen().and_then(|()| writer.last_commit()) {
        Ok(last) => last == no,
        Err(_) => {
            writer.doubt = Some((no, std::mem::take(out)));
            false
        }
    }
}

fn write(context: &mut Context<'_>, dedupe: &Dedupe) -> rusqlite::Result<()> {
    let group = context.group;
    for finished in &group.results {
        deliveries::finish(context, finished)?;
    }
    for (subscriber, since) in &group.streaks {
        configuration::keep_streak(context.conn, *subscriber, *since)?;
    }
    for (gate, until) in &group.penalties {
        gates::keep_penalty(context.conn, *gate, *until)?;
    }
    for claim in &group.released {
        deliveries::release(context, claim)?;
    }
    for (_, delivery) in &group.asked {
        deliveries::ask(context, *delivery)?;
    }
    for seal in &group.seals {
        folds::seal(context, seal)?;
    }
    for claim in &group.begun {
        suspects::begin(context, claim)?;
    }
    if group.close > 0 {
        folds::close_due(context)?;
    }
    for step in &group.backfills {
        deliveries::backfill(context, step)?;
    }
    for step in &group.steps {
        jobs::step(context, step)?;
    }
    for submission in &group.submissions {
        let statuses = submit(context, dedupe, submission)?;
        context.out.submissions.push(Ok(statuses));
    }
    for (subscriber, event) in &context.deferred {
        deliveries::defer(context.conn, *subscriber, *event)?;
    }
    for refill in &group.refills {
        deliveries::refill(context, *refill)?;
    }
    dedupe.write_slice(context.conn, &mut context.delta)
}

/// Units whose windows are brought near at once: not so many that the first of them are far away again when the last come.
const LOOK_AHEAD_UNITS: usize = 64;

fn submit<'a>(
    context: &mut Context<'a>,
    dedupe: &Dedupe,
    submission: &'a Submission,
) -> rusqlite::Result<Vec<UnitStatus>> {
    let mut statuses = Vec::with_capacity(submission.units.len());
    for (index, routed) in submission.units.iter().enumerate() {
        if index % LOOK_AHEAD_UNITS == 0 {
            context.draft.expect(&folds::slots(&submission.units, index, LOOK_AHEAD_UNITS));
        }
        let known = events::known(context, dedupe, submission.project, routed)?;
        let status = match &routed.admission {
            Admission::Granted => known,
            Admission::Refused(finding) if known.is_none() => {
                Some(quarantine::insert(context, submission.project, &routed.unit, finding)?)
            }
            Admission::Refused(_) => known,
            Admission::Released(no) => {
                let unit = (*no, &routed.unit.fingerprint);
                quarantine::release(context, submission.project, unit, known)?
            }
        };
        if status.is_none() {
            accept(context, submission, routed)?;
        }
        statuses.push(status.unwrap_or(UnitStatus::Accepted));
    }
    Ok(statuses)
}

fn accept<'a>(
    context: &mut Context<'a>,
    submission: &Submission,
    routed: &'a crate::RoutedUnit,
) -> rusqlite::Result<()> {
    for (index, event) in routed.unit.events.iter().enumerate() {
        let is_once = routed.routes[index].is_sorted_by(|a, b| a.subscriber < b.subscriber);
        if !is_once {
            return Err(rusqlite::Error::InvalidParameterName("an event goes to a subscriber once".into()));
        }
        let seq = context.draw();
        context.out.numbers.push(seq);
        let routes = &routed.routes[index];
        let member = accept_routes(context, submission.project, (seq, &event.body), routes)?;
        context.joined.extend(member.and_then(|member| Joined::closely(&member, &event.body)));
        events::insert(context, submission.project, seq, event, &routed.unit.fingerprint, member)?;
        context.delta.add(routed.keys[index], seq);
    }
    Ok(())
}

/// What goes alone comes first: its numbers follow the event's. Answers what stands in the event's own row.
fn accept_routes(
    context: &mut Context<'_>,
    project: ProjectNo,
    (event, body): (Seq, &Bytes),
    routes: &[Route],
) -> rusqlite::Result<Option<Member>> {
    for route in routes.iter().filter(|route| route.fold.is_none()) {
        let Route { subscriber, lane, .. } = *route;
        let id = context.draw();
        let new = New { id, project, subscriber, event, lane, replay: 0, fold: None, is_late: false, body };
        deliveries::insert(context, &new)?;
        folds::append(context, project, (event, body.len()), route, false)?;
    }
    let mut member = None;
    for route in routes.iter().filter(|route| route.fold.is_some()) {
        // In a lane it would overtake what a backfill has still to bring; so it comes with that, in its turn.
        if route.lane.is_some() && context.backfilling.contains_key(&route.subscriber) {
            context.deferred.insert(route.subscriber, event);
            continue;
        }
        folds::append(context, project, (event, body.len()), route, false)?;
        member = member.or_else(|| context.draft.take_member());
    }
    Ok(member)
}

/// Whether what was to be written is at fault, whoever tries.
fn is_refusal(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig)
    )
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
