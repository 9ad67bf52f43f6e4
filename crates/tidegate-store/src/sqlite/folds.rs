//! Windows: what gathers, in memory and on disk.
//!
//! The writer keeps every window that can be joined in a [`Book`]; a commit asks a draft of it and the book learns what was
//! decided once that is on disk. An arrival costs no row of its own, however many windows there are: the event's says
//! where it went, and `members_apart` what that has no room for. A window's own row is written when it opens, closes or
//! begins to leave, and now and then (see `telling`). After a start the book is put together from both (`members`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use tidegate_core::fold::{Arrival, Book, ClosedBy, Closing, Decided, Draft, Slot, Stage, Terms, Window};
use tidegate_core::id::{ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::deliveries::{self, New};
use super::lanes::{self, Backfilling};
use super::{Writer, stamp, telling};
use crate::window::CANCELLED;
use crate::{ClosedWindow, EndWindows, Ended, RoutedUnit, Seal, WindowsEnd};

const LIVE: &str =
    "SELECT no, project, subscriber, key, lane, replay, terms, opened_at, due_at, count, bytes,
        first, last, stage, closed_at, closed_by, delivery
    FROM windows WHERE stage < 2";

/// The first number of a transaction that lets no event join a window.
const NOBODY_JOINS: i64 = i64::MAX;

fn window(row: &Row<'_>, terms: Arc<Terms>) -> rusqlite::Result<Window> {
    let closed_at: Option<i64> = row.get(14)?;
    let closed_by: Option<String> = row.get(15)?;
    let closed_by = closed_by.and_then(|name| ClosedBy::parse(&name));
    Ok(Window {
        no: row.get(0)?,
        project: row.get(1)?,
        subscriber: row.get(2)?,
        key: u128::from_be_bytes(row.get(3)?),
        lane: row.get(4)?,
        replay: row.get(5)?,
        terms,
        opened_at: Timestamp::from_ms(row.get(7)?),
        due_at: Timestamp::from_ms(row.get(8)?),
        count: row.get(9)?,
        bytes: row.get(10)?,
        first: row.get(11)?,
        last: row.get(12)?,
        stage: if row.get::<_, i64>(13)? == 0 { Stage::Gathering } else { Stage::Ready },
        closed: closed_at.map(Timestamp::from_ms).zip(closed_by),
        delivery: row.get(16)?,
    })
}

/// The book as the file tells it, and the windows in it whose rows do not know all.
pub(super) fn load(conn: &Connection) -> rusqlite::Result<(Book, BTreeSet<WindowNo>)> {
    let mut kinds: HashMap<String, Arc<Terms>> = HashMap::new();
    let mut windows: BTreeMap<WindowNo, Window> = BTreeMap::new();
    let mut statement = conn.prepare(LIVE)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(6)?;
        let Some(terms) = kinds.get(&text).cloned().or_else(|| Terms::from_text(&text).map(Arc::new)) else {
            let what = format!("window {} has terms that can not be read", row.get::<_, i64>(0)?);
            return Err(rusqlite::Error::InvalidParameterName(what));
        };
        kinds.insert(text, Arc::clone(&terms));
        let window = window(row, terms)?;
        windows.insert(window.no, window);
    }
    let joined = recall_members(conn, &mut windows)?;
    let mut book = Book::default();
    for mut window in windows.into_values() {
        if let Some(last) = window.last.filter(|_| joined.contains(&window.no)) {
            let at = conn
                .prepare_cached("SELECT accepted_at FROM events WHERE seq = ?1")?
                .query_row([last], |row| row.get(0).map(Timestamp::from_ms))
                .optional()?;
            window.recall(at.unwrap_or(window.opened_at));
        }
        book.insert(window);
    }
    Ok((book, joined))
}

/// Like the view, but in order without sorting.
pub(super) const SINCE: &str =
    "SELECT seq AS event, fold, length(body), fold_prev FROM events WHERE seq > ?1 AND fold IS NOT NULL
    UNION ALL SELECT event, window, bytes, prev FROM members_apart WHERE event > ?1 ORDER BY event";

/// Adds what joined since the windows' own rows were written; says which windows that concerns. Only events that joined
/// in the transaction that accepted them, after the mark, are not in its row, so none of them has a lower number than the
/// window, and each names the one before it.
fn recall_members(
    conn: &Connection,
    windows: &mut BTreeMap<WindowNo, Window>,
) -> rusqlite::Result<BTreeSet<WindowNo>> {
    let mut joined = BTreeSet::new();
    let Some(oldest) = windows.keys().next().copied() else { return Ok(joined) };
    let from = oldest.max(telling::mark(conn)?);
    let mut statement = conn.prepare(SINCE)?;
    let mut rows = statement.query([from])?;
    while let Some(row) = rows.next()? {
        let Some(window) = windows.get_mut(&row.get(1)?) else { continue };
        if row.get::<_, Option<Seq>>(3)? == window.last {
            window.count_member(row.get(0)?, row.get(2)?);
            joined.insert(window.no);
        }
    }
    Ok(joined)
}

/// Where the events of some units go that are folded.
pub(super) fn slots(units: &[RoutedUnit], from: usize, count: usize) -> Vec<Slot> {
    let routes = units.iter().skip(from).take(count).flat_map(|unit| unit.routes.iter().flatten());
    routes.filter_map(|route| Some((route.subscriber, route.fold.as_ref()?.key.hash))).collect()
}

/// An event goes into its window, or passes it by. Windows that close because of it are deliveries at once.
pub(super) fn append(
    context: &mut Context<'_>,
    project: ProjectNo,
    (event, bytes): (Seq, usize),
    route: &Route,
    is_replay: bool,
) -> rusqlite::Result<()> {
    let Some(arrival) = arrival(project, (event, bytes), route, is_replay) else { return Ok(()) };
    if is_replay && is_member(context.conn, &context.draft, &arrival)? {
        return Ok(());
    }
    let next_no = &mut context.next_no;
    let closings = context.draft.arrive(&arrival, &mut || draw(next_no));
    closings.iter().try_for_each(|closing| deliver(context, closing))
}

/// Whether an event is in the window of its slot already: one that is replayed again before it was sent joins once.
pub(super) fn is_member(
    conn: &Connection,
    draft: &Draft<'_>,
    arrival: &Arrival<'_>,
) -> rusqlite::Result<bool> {
    let Some(window) = draft.get(arrival.slot()).map(|window| window.no) else { return Ok(false) };
    let mut member = conn.prepare_cached("SELECT 1 FROM members WHERE event = ?1 AND window = ?2")?;
    Ok(draft.has_joined(arrival) || member.exists([arrival.event, window])?)
}

/// What a route does with an event that has to do with a window.
pub(super) fn arrival(
    project: ProjectNo,
    (event, bytes): (Seq, usize),
    route: &Route,
    replay: bool,
) -> Option<Arrival<'_>> {
    let Route { subscriber, lane, .. } = *route;
    let (appending, passes) = route.window()?;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Some(Arrival { project, subscriber, lane, event, bytes, replay, passes, appending })
}

fn draw(next_no: &mut i64) -> i64 {
    *next_no += 1;
    *next_no - 1
}

/// Windows whose time has come become deliveries.
pub(super) fn close_due(context: &mut Context<'_>) -> rusqlite::Result<()> {
    let next_no = &mut context.next_no;
    let closings = context.draft.close_due(context.group.close, &mut || draw(next_no));
    closings.iter().try_for_each(|closing| deliver(context, closing))
}

fn deliver(context: &mut Context<'_>, closing: &Closing) -> rusqlite::Result<()> {
    let new = New {
        id: closing.delivery,
        project: closing.project,
        subscriber: closing.subscriber,
        event: closing.first,
        lane: closing.lane,
        replay: if closing.replay { closing.delivery } else { -closing.delivery },
        fold: Some(closing.window),
        is_late: true,
        body: &Bytes::new(),
    };
    deliveries::insert(context, &new)
}

pub(super) const IS_HELD: &str =
    "SELECT 1 FROM deliveries WHERE id = ?1 AND status = 1 AND incarnation = ?2 AND claims = ?3 AND fold = ?4
    AND nonce = ?5";

/// A delivery begins to leave: nothing joins it any more.
pub(super) fn seal(context: &mut Context<'_>, seal: &Seal) -> rusqlite::Result<()> {
    let Seal { project, window, claim } = *seal;
    let claim_values = params![claim.delivery, context.incarnation, claim.token, window, claim.nonce];
    if context.conn.prepare_cached(IS_HELD)?.exists(claim_values)? {
        context.draft.seal(project, window);
    } else {
        context.out.unsealed.push(claim);
    }
    Ok(())
}

/// Writes what was decided. `first_no` is the first number that this transaction could draw: events below it were accepted
/// before.
pub(super) fn write(conn: &Connection, decided: &Decided, first_no: i64) -> rusqlite::Result<()> {
    if decided.is_empty() {
        return Ok(());
    }
    let mut insert = conn.prepare_cached("INSERT INTO members_apart VALUES (?1, ?2, ?3, ?4)")?;
    for member in &decided.members {
        insert.execute(params![member.event, member.window, member.prev, member.bytes])?;
    }
    for (window, text) in decided.opened() {
        insert_window(conn, window, text)?;
    }
    // A start finds the members of an open window again by reading events in order, from a mark on. An event that was
    // accepted before this transaction may lie below that mark already, so the window's row must count it now.
    let past = decided.members.iter().filter(|member| member.event < first_no);
    let past: BTreeSet<WindowNo> = past.map(|member| member.window).collect();
    let is_told =
        |window: &&Window| window.stage != Stage::Gathering || window.replay || past.contains(&window.no);
    decided.changed().filter(is_told).try_for_each(|window| update(conn, window))
}

fn insert_window(conn: &Connection, window: &Window, key_text: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO windows (no, project, subscriber, key, key_text, terms, lane, replay, opened_at, due_at, count,
            bytes, first, last, stage, closed_at, closed_by, delivery)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)",
    )?
    .execute(params![
        window.no,
        window.project,
        window.subscriber,
        window.key.to_be_bytes(),
        key_text,
        window.terms.to_text(),
        window.lane,
        window.replay,
        window.opened_at.as_ms(),
        window.due_at.as_ms(),
        window.count,
        window.bytes,
        window.first,
        window.last,
        stage_no(window.stage),
        window.closed.map(|(at, _)| at.as_ms()),
        window.closed.map(|(_, by)| by.name()),
        window.delivery,
    ])?;
    Ok(())
}

fn stage_no(stage: Stage) -> i64 {
    match stage {
        Stage::Gathering => 0,
        Stage::Ready => 1,
        Stage::Sealed => 2,
        Stage::Ended => 3,
    }
}

fn update(conn: &Connection, window: &Window) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE windows SET due_at = ?2, count = ?3, bytes = ?4, first = ?5, last = ?6, stage = ?7, closed_at = ?8,
            closed_by = ?9, delivery = ?10 WHERE no = ?1",
    )?
    .execute(params![
        window.no,
        window.due_at.as_ms(),
        window.count,
        window.bytes,
        window.first,
        window.last,
        stage_no(window.stage),
        window.closed.map(|(at, _)| at.as_ms()),
        window.closed.map(|(_, by)| by.name()),
        window.delivery,
    ])?;
    Ok(())
}

/// What joined a window since its row was written. Whatever else changes is written at once; so is its stage, whose
/// index is left alone here.
pub(super) const TELL: &str =
    "UPDATE windows SET due_at = ?2, count = ?3, bytes = ?4, first = ?5, last = ?6 WHERE no = ?1";

pub(super) fn tell(statement: &mut CachedStatement<'_>, window: &Window) -> rusqlite::Result<()> {
    let (due_at, count, bytes) = (window.due_at.as_ms(), window.count, window.bytes);
    statement.execute(params![window.no, due_at, count, bytes, window.first, window.last])?;
    Ok(())
}

/// Nothing joins these any more: their deliveries have ended without having been sent. To be believed after the commit.
pub(super) fn seal_ended(
    conn: &Connection,
    book: &Book,
    ended: &[(ProjectNo, WindowNo)],
    now: Timestamp,
) -> rusqlite::Result<Decided> {
    let stretch = BTreeMap::new();
    let mut draft = Draft::new(book, now, usize::MAX, &stretch);
    ended.iter().for_each(|(project, window)| draft.seal(*project, *window));
    let decided = draft.decided();
    write(conn, &decided, NOBODY_JOINS)?;
    Ok(decided)
}

/// The same for all windows of a subscriber that is gone; what gathers is not sent.
pub(super) fn leave(
    conn: &Connection,
    book: &Book,
    (project, subscriber): (ProjectNo, SubscriberNo),
    now: Timestamp,
) -> rusqlite::Result<Decided> {
    let stretch = BTreeMap::new();
    let mut draft = Draft::new(book, now, usize::MAX, &stretch);
    draft.leave(project, subscriber);
    let decided = draft.decided();
    write(conn, &decided, NOBODY_JOINS)?;
    Ok(decided)
}

/// A delivery that has not begun to leave is not sent, whoever has claimed it: nobody seals it any more. Those behind it go.
fn cancel(
    conn: &Connection,
    backfilling: &Backfilling,
    window: &Window,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let cancel = "UPDATE deliveries SET status = 6, finished_at = ?2, reason = ?3, incarnation = NULL
        WHERE id = ?1 AND status < 3";
    conn.prepare_cached(cancel)?.execute(params![window.delivery, now.as_ms(), CANCELLED])?;
    if let Some(lane) = window.lane {
        lanes::make_next_due(conn, backfilling, window.subscriber, lane, now)?;
    }
    Ok(())
}

/// Closes windows that gather, or cancels those that have not begun to leave, because somebody asked.
pub(super) fn end(
    writer: &mut Writer,
    project: ProjectNo,
    ask: &EndWindows,
    now: Timestamp,
) -> rusqlite::Result<Ended> {
    let shared = Arc::clone(&writer.book);
    let mut book = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let stretch = BTreeMap::new();
    let mut draft = Draft::new(&book, now, writer.windows_max, &stretch);
    let is_meant = |window: &&Window| {
        (window.stage == Stage::Gathering || ask.end == WindowsEnd::Cancel)
            && ask.subscriber.is_none_or(|wanted| wanted == window.subscriber)
            && ask.key.is_none_or(|key| window.key == key || window.key == !key)
    };
    let meant: Vec<Window> = book.of_project(project).filter(is_meant).take(ask.limit + 1).cloned().collect();
    let mut ended = Ended { is_complete: meant.len() <= ask.limit, ..Ended::default() };
    let tx = writer.conn.transaction()?;
    let mut next_no = writer.next_no;
    for window in meant.iter().take(ask.limit) {
        let closing = match ask.end {
            WindowsEnd::Cancel => {
                if let Some(unsent) = draft.cancel((window.subscriber, window.key)) {
                    cancel(&tx, &writer.backfilling, unsent, now)?;
                    ended.unsent.extend(ClosedWindow::of(unsent));
                    ended.subscribers.push(unsent.subscriber);
                }
                None
            }
            WindowsEnd::Close(why) => draft.close(window, why, &mut || draw(&mut next_no)),
        };
        if let Some(closing) = closing {
            deliveries::insert_closed(&tx, &writer.backfilling, &closing, (writer.nonce, now))?;
            ended.subscribers.push(closing.subscriber);
        }
        ended.windows += 1;
    }
    let decided = draft.decided();
    ended.closed = ClosedWindow::all(&decided);
    write(&tx, &decided, NOBODY_JOINS)?;
    stamp(&tx, now)?;
    tx.commit()?;
    writer.next_no = next_no;
    book.apply(decided);
    ended.subscribers.sort_unstable();
    ended.subscribers.dedup();
    Ok(ended)
}
