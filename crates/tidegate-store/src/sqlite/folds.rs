//! Windows: what gathers, in memory and on disk.
//!
//! The writer keeps every window that can be joined in a [`Book`]; a commit asks a draft of it and the book learns what was
//! decided once that is on disk. An arrival costs one appended row (`members`), however many windows there are; a window's
//! own row is written when it opens, closes or begins to leave. After a start the book is put together from both.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::fold::{
    Arrival, Book, Bundle, ClosedBy, Closing, Decided, Draft, Slot, Stage, Terms, Window,
};
use tidegate_core::id::{ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::limits::WINDOWS_PER_PROJECT_MAX;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::commit::Context;
use super::deliveries::{self, New};
use super::{Writer, stamp};
use crate::{ClosedWindow, EndWindows, Ended, FoldRow, Page, Seal, WindowFilter, WindowRow, WindowsEnd};

const LIVE: &str =
    "SELECT no, project, subscriber, key, lane, replay, terms, opened_at, due_at, count, bytes,
        first, last, stage, closed_at, closed_by, delivery
    FROM windows WHERE stage < 2";

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

/// The book as the file tells it.
pub(super) fn load(conn: &Connection) -> rusqlite::Result<Book> {
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
    recall_members(conn, &mut windows)?;
    let mut book = Book::default();
    for mut window in windows.into_values() {
        if let Some(last) = window.last {
            let at = conn
                .prepare_cached("SELECT accepted_at FROM events WHERE seq = ?1")?
                .query_row([last], |row| row.get(0).map(Timestamp::from_ms))
                .optional()?;
            window.recall(at.unwrap_or(window.opened_at));
        }
        book.insert(window);
    }
    Ok(book)
}

/// Adds what joined since the windows' own rows were written.
fn recall_members(conn: &Connection, windows: &mut BTreeMap<WindowNo, Window>) -> rusqlite::Result<()> {
    let Some(from) = windows.iter().map(|(no, window)| window.last.unwrap_or(*no)).min() else {
        return Ok(());
    };
    let mut statement = conn.prepare("SELECT event, window, bytes, prev FROM members WHERE event >= ?1")?;
    let mut rows = statement.query([from])?;
    while let Some(row) = rows.next()? {
        let Some(window) = windows.get_mut(&row.get(1)?) else { continue };
        // What the row counts already stands before its last member.
        if row.get::<_, Option<Seq>>(3)? == window.last && Some(row.get(0)?) != window.last {
            window.count_member(row.get(0)?, row.get(2)?);
        }
    }
    Ok(())
}

/// An event goes into its window. Windows that close because of it are deliveries at once.
pub(super) fn append(
    context: &mut Context<'_>,
    project: ProjectNo,
    (event, bytes): (Seq, usize),
    route: &Route,
    is_replay: bool,
) -> rusqlite::Result<()> {
    let Some(arrival) = arrival(project, (event, bytes), route, is_replay) else { return Ok(()) };
    let next_no = &mut context.next_no;
    let closings = context.draft.arrive(&arrival, &mut || draw(next_no));
    closings.iter().try_for_each(|closing| deliver(context, closing))
}

/// What a route that folds does with an event.
pub(super) fn arrival(
    project: ProjectNo,
    (event, bytes): (Seq, usize),
    route: &Route,
    replay: bool,
) -> Option<Arrival<'_>> {
    let Route { subscriber, lane, ref fold } = *route;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Some(Arrival { project, subscriber, lane, event, bytes, replay, appending: fold.as_deref()? })
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

/// A delivery begins to leave: nothing joins it any more.
pub(super) fn seal(context: &mut Context<'_>, seal: &Seal) {
    context.draft.seal(seal.project, seal.window);
}

/// Writes what was decided.
pub(super) fn write(conn: &Connection, decided: &Decided) -> rusqlite::Result<()> {
    if decided.is_empty() {
        return Ok(());
    }
    let mut insert = conn.prepare_cached("INSERT INTO members VALUES (?1, ?2, ?3, ?4)")?;
    for member in &decided.members {
        insert.execute(params![member.event, member.window, member.prev, member.bytes])?;
    }
    for (no, text) in &decided.opened {
        if let Some(window) = decided.windows.get(no) {
            insert_window(conn, window, text)?;
        }
    }
    let is_new = |no: &WindowNo| decided.opened.binary_search_by_key(no, |(no, _)| *no).is_ok();
    // What merely gathers is in the members; its row is written when it closes. But members that were accepted before
    // their window opened stand where nobody looks for them after a start.
    let past: BTreeSet<WindowNo> = decided
        .members
        .iter()
        .filter(|member| member.event < member.window)
        .map(|member| member.window)
        .collect();
    let is_told = |window: &Window| {
        !is_new(&window.no) && (window.stage != Stage::Gathering || past.contains(&window.no))
    };
    decided.windows.values().filter(|window| is_told(window)).try_for_each(|window| update(conn, window))
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

/// The windows that closed, for those who count them.
pub(super) fn closed(decided: &Decided) -> Vec<ClosedWindow> {
    let told = decided.windows.values().filter(|window| window.stage != Stage::Gathering);
    let told = told.filter_map(|window| {
        // One that waits was told when it closed.
        let (_, closed_by) = window.closed.filter(|(at, _)| *at == decided.at)?;
        let Window { subscriber, count, opened_at, due_at, .. } = *window;
        Some(ClosedWindow { subscriber, count, opened_at, due_at, due_by: window.due_by(), closed_by })
    });
    told.collect()
}

/// Everything that a folded delivery carries.
pub(super) fn bundle(conn: &Connection, no: WindowNo) -> rusqlite::Result<Option<Bundle>> {
    type Found = (String, String, i64, Option<i64>, Option<String>, Option<Seq>);
    let found: Option<Found> = conn
        .prepare_cached(
            "SELECT terms, key_text, opened_at, closed_at, closed_by, last FROM windows WHERE no = ?1",
        )?
        .query_row([no], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })
        .optional()?;
    let Some((terms, key, opened_at, Some(closed_at), closed_by, last)) = found else { return Ok(None) };
    let Some(terms) = Terms::from_text(&terms) else { return Ok(None) };
    let mut events = Vec::new();
    let mut member = conn.prepare_cached(
        "SELECT m.prev, e.body FROM members m JOIN events e ON e.seq = m.event WHERE m.event = ?1 AND m.window = ?2",
    )?;
    walk(last, |event| {
        let read = |row: &Row<'_>| Ok((row.get(0)?, Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?)));
        let (prev, body) = member.query_row([event, no], read)?;
        events.push((event, body));
        Ok(prev)
    })?;
    events.sort_unstable_by_key(|(event, _)| *event);
    Ok(Some(Bundle {
        terms,
        key,
        opened_at: Timestamp::from_ms(opened_at),
        closed_at: Timestamp::from_ms(closed_at),
        closed_by: closed_by.and_then(|name| ClosedBy::parse(&name)).unwrap_or(ClosedBy::Flush),
        events: events.into_iter().map(|(_, body)| body).collect(),
    }))
}

/// Follows a window's members back from its last.
fn walk(
    last: Option<Seq>,
    mut step: impl FnMut(Seq) -> rusqlite::Result<Option<Seq>>,
) -> rusqlite::Result<()> {
    let mut next = last;
    while let Some(event) = next {
        next = step(event)?;
    }
    Ok(())
}

/// The events of a window that are still kept, in order.
pub(super) fn events(conn: &Connection, no: WindowNo) -> rusqlite::Result<Vec<Seq>> {
    let last: Option<Seq> = conn
        .prepare_cached("SELECT last FROM windows WHERE no = ?1")?
        .query_row([no], |row| row.get(0))
        .optional()?
        .flatten();
    let mut events = Vec::new();
    let mut prev = conn.prepare_cached("SELECT prev FROM members WHERE event = ?1 AND window = ?2")?;
    walk(last, |event| {
        events.push(event);
        prev.query_row([event, no], |row| row.get(0)).optional().map(Option::flatten)
    })?;
    events.sort_unstable();
    Ok(events)
}

pub(super) const LIST: &str = "SELECT w.no, s.id, w.key, w.key_text, w.terms, w.opened_at, w.subscriber
    FROM windows w JOIN subscribers s ON s.no = w.subscriber
    WHERE w.stage < 2 AND w.project = ?1 AND w.no > ?2 AND s.deleted_at IS NULL ORDER BY w.no";

/// The windows that gather, oldest first.
pub(super) fn list(
    conn: &Connection,
    book: &std::sync::Mutex<Book>,
    project: ProjectNo,
    filter: &WindowFilter,
) -> rusqlite::Result<Page<WindowRow>> {
    let mut statement = conn.prepare_cached(LIST)?;
    let mut rows = statement.query(params![project, filter.after.unwrap_or(0)])?;
    let mut page = Page { items: Vec::new(), next: None };
    while let Some(row) = rows.next()? {
        let no: WindowNo = row.get(0)?;
        let subscriber: SubscriberNo = row.get(6)?;
        if filter.subscriber.is_some_and(|wanted| wanted != subscriber) {
            continue;
        }
        let slot: Slot = (subscriber, u128::from_be_bytes(row.get(2)?));
        let book = book.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_open = |window: &&Window| window.no == no && window.stage == Stage::Gathering;
        let Some(window) = book.get(slot).filter(is_open) else { continue };
        if page.items.len() == filter.limit {
            page.next = page.items.last().map(|row: &WindowRow| row.no);
            return Ok(page);
        }
        page.items.push(WindowRow {
            no,
            subscriber,
            subscriber_id: row.get(1)?,
            key: row.get(3)?,
            mode: window.terms.mode.name(),
            opened_at: window.opened_at,
            due_at: window.due_at,
            count: window.count,
            bytes: window.bytes,
        });
    }
    Ok(page)
}

/// Closes windows that gather, or ends them without a delivery, because somebody asked.
pub(super) fn end(
    writer: &mut Writer,
    project: ProjectNo,
    ask: &EndWindows,
    now: Timestamp,
) -> rusqlite::Result<Ended> {
    let shared = Arc::clone(&writer.book);
    let mut book = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let stretch = BTreeMap::new();
    let mut draft = Draft::new(&book, now, WINDOWS_PER_PROJECT_MAX, &stretch);
    let is_meant = |window: &&Window| {
        window.stage == Stage::Gathering
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
                draft.end((window.subscriber, window.key), ClosedBy::Cancelled);
                None
            }
            WindowsEnd::Close(why) => draft.close(window, why, &mut || draw(&mut next_no)),
        };
        if let Some(closing) = closing {
            deliveries::insert_closed(&tx, &writer.backfilling, &closing, now)?;
            ended.subscribers.push(closing.subscriber);
        }
        ended.windows += 1;
    }
    let decided = draft.decided();
    write(&tx, &decided)?;
    stamp(&tx, now)?;
    tx.commit()?;
    writer.next_no = next_no;
    book.apply(decided);
    ended.subscribers.sort_unstable();
    ended.subscribers.dedup();
    Ok(ended)
}

const ROW: &str =
    "SELECT w.no, w.subscriber, w.terms, w.key_text, w.opened_at, w.due_at, w.closed_at, w.closed_by,
        w.delivery FROM windows w";

fn fold_row(row: &Row<'_>) -> rusqlite::Result<FoldRow> {
    let terms: String = row.get(2)?;
    let closed_at: Option<i64> = row.get(6)?;
    let closed_by: Option<String> = row.get(7)?;
    let closed_by = closed_by.and_then(|name| ClosedBy::parse(&name));
    Ok(FoldRow {
        no: row.get(0)?,
        subscriber: row.get(1)?,
        mode: Terms::from_text(&terms).map_or("", |terms| terms.mode.name()),
        key: row.get(3)?,
        opened_at: Timestamp::from_ms(row.get(4)?),
        due_at: Timestamp::from_ms(row.get(5)?),
        closed: closed_at.map(Timestamp::from_ms).zip(closed_by),
        delivery: row.get(8)?,
    })
}

/// A window and what became of it.
pub(super) fn row(conn: &Connection, no: WindowNo) -> rusqlite::Result<Option<FoldRow>> {
    conn.prepare_cached(&format!("{ROW} WHERE w.no = ?1"))?.query_row([no], fold_row).optional()
}

/// The windows that an event joined.
pub(super) fn joined(conn: &Connection, event: Seq) -> rusqlite::Result<Vec<FoldRow>> {
    conn.prepare_cached(&format!("{ROW} JOIN members m ON m.window = w.no WHERE m.event = ?1 ORDER BY w.no"))?
        .query_map([event], fold_row)?
        .collect()
}
