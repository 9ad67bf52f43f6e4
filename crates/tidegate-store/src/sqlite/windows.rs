//! Windows as they are read: what a folded delivery carries, what gathers, and where an event went.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::fold::{Book, Bundle, ClosedBy, Key, Slot, Stage, Terms, Window};
use tidegate_core::id::{DeliveryKey, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;

use super::recent::Recent;
use crate::{Bundled, FoldRow, Page, WindowFilter, WindowRow};

/// Everything that a folded delivery carries, if it is not too large. A window that got its number later is another's.
pub(super) fn bundle(
    conn: &Connection,
    recent: &Mutex<Recent>,
    (no, carrier): (WindowNo, DeliveryKey),
    bytes_max: usize,
) -> rusqlite::Result<Option<Bundled>> {
    type Found = (String, String, i64, Option<i64>, Option<String>);
    let mut closed = conn.prepare_cached(
        "SELECT terms, key_text, opened_at, closed_at, closed_by, no, count, bytes, first, last
         FROM windows w WHERE no = ?1
            AND EXISTS (SELECT 1 FROM deliveries d WHERE d.id = ?2 AND d.nonce = ?3 AND d.fold = w.no)",
    )?;
    let read = |row: &Row<'_>| {
        let found: Found = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?);
        let extent = Extent {
            no: row.get(5)?,
            count: row.get(6)?,
            bytes: row.get(7)?,
            first: row.get(8)?,
            last: row.get(9)?,
        };
        Ok((found, extent))
    };
    let found = closed.query_row(params![no, carrier.no, carrier.nonce], read).optional()?;
    let Some(((terms, key, opened_at, Some(closed_at), closed_by), extent)) = found else { return Ok(None) };
    let Some(terms) = Terms::from_text(&terms) else { return Ok(None) };
    if extent.bytes > bytes_max {
        return Ok(Some(Bundled::Larger(extent.bytes)));
    }
    let events = match recent.lock().unwrap_or_else(PoisonError::into_inner).bodies(&extent) {
        Some(events) => events,
        None => bodies(conn, &extent)?,
    };
    Ok(Some(Bundled::Whole(Bundle {
        terms,
        key,
        opened_at: Timestamp::from_ms(opened_at),
        closed_at: Timestamp::from_ms(closed_at),
        closed_by: closed_by.and_then(|name| ClosedBy::parse(&name)).unwrap_or(ClosedBy::Flush),
        events,
    })))
}

/// Where the members of a window lie.
pub(super) struct Extent {
    pub(super) no: WindowNo,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) first: Option<Seq>,
    pub(super) last: Option<Seq>,
}

fn bodies(conn: &Connection, extent: &Extent) -> rusqlite::Result<Vec<Bytes>> {
    match bodies_in_a_row(conn, extent)? {
        Some(events) => Ok(events),
        None => bodies_one_by_one(conn, extent),
    }
}

/// Up to so many numbers per member, going through all of them is cheaper than looking each member up.
pub(super) const NUMBERS_PER_MEMBER_MAX: i64 = 4;

pub(super) const IN_A_ROW: &str =
    "SELECT body FROM events WHERE seq BETWEEN ?1 AND ?2 AND fold = ?3 ORDER BY seq";

/// The bodies of members that follow each other closely; nothing if they do not, or if some joined in another way.
fn bodies_in_a_row(conn: &Connection, extent: &Extent) -> rusqlite::Result<Option<Vec<Bytes>>> {
    let (Some(first), Some(last)) = (extent.first, extent.last) else { return Ok(None) };
    let count = i64::try_from(extent.count).unwrap_or(i64::MAX);
    if !(0..count.saturating_mul(NUMBERS_PER_MEMBER_MAX)).contains(&last.saturating_sub(first)) {
        return Ok(None);
    }
    // One piece of memory for all: a body of its own for each would cost more than reading it.
    let mut bodies = Vec::with_capacity(extent.bytes);
    let mut ends = Vec::with_capacity(extent.count);
    let mut statement = conn.prepare_cached(IN_A_ROW)?;
    let mut rows = statement.query([first, last, extent.no])?;
    while let Some(row) = rows.next()? {
        bodies.extend_from_slice(row.get_ref(0)?.as_blob()?);
        ends.push(bodies.len());
    }
    if ends.len() != extent.count {
        return Ok(None);
    }
    let bodies = Bytes::from(bodies);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    Ok(Some(starts.zip(&ends).map(|(start, end)| bodies.slice(start..*end)).collect()))
}

pub(super) const ONE: &str = "SELECT fold_prev, body FROM events WHERE seq = ?1 AND fold = ?2";
pub(super) const ONE_APART: &str =
    "SELECT m.prev, e.body FROM members_apart m JOIN events e ON e.seq = m.event
    WHERE m.event = ?1 AND m.window = ?2";

fn bodies_one_by_one(conn: &Connection, extent: &Extent) -> rusqlite::Result<Vec<Bytes>> {
    let mut events = Vec::with_capacity(extent.count);
    let (mut one, mut apart) = (conn.prepare_cached(ONE)?, conn.prepare_cached(ONE_APART)?);
    let read = |row: &Row<'_>| Ok((row.get(0)?, Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?)));
    walk(extent.last, |event| {
        let member = [event, extent.no];
        let (prev, body) = match one.query_row(member, read).optional()? {
            Some(found) => found,
            None => apart.query_row(member, read)?,
        };
        events.push((event, body));
        Ok(prev)
    })?;
    events.sort_unstable_by_key(|(event, _)| *event);
    Ok(events.into_iter().map(|(_, body)| body).collect())
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

/// The events of a window, in order, as far as they are kept; of more than `at_most` those that joined last.
pub(super) fn events(conn: &Connection, no: WindowNo, at_most: usize) -> rusqlite::Result<Vec<Seq>> {
    let last: Option<Seq> = conn
        .prepare_cached("SELECT last FROM windows WHERE no = ?1")?
        .query_row([no], |row| row.get(0))
        .optional()?
        .flatten();
    let (mut events, mut is_whole) = (Vec::new(), true);
    let mut prev = conn.prepare_cached("SELECT prev FROM members WHERE event = ?1 AND window = ?2")?;
    walk(last, |event| {
        let Some(prev) = prev.query_row([event, no], |row| row.get(0)).optional()? else {
            is_whole = false;
            return Ok(None);
        };
        events.push(event);
        Ok(if events.len() == at_most { None } else { prev })
    })?;
    if !is_whole {
        events = conn
            .prepare_cached(KEPT)?
            .query_map(
                params![no, i64::try_from(at_most).unwrap_or(i64::MAX), at_most == usize::MAX],
                |row| row.get(0),
            )?
            .collect::<rusqlite::Result<_>>()?;
    }
    events.sort_unstable();
    Ok(events)
}

/// The members that are left where retention has taken others from between them. What joined as it was accepted was the first, or
/// came after the window opened and before it left. Only a backfill or a replay brings what lies elsewhere: that is looked for
/// where all are wanted.
pub(super) const KEPT: &str =
    "WITH w AS (SELECT w.no, w.first, max(w.last, coalesce(w.delivery, w.last)) AS high,
        ?3 AND (w.replay OR s.backfill_until IS NOT NULL) AS is_past
    FROM windows w JOIN subscribers s ON s.no = w.subscriber WHERE w.no = ?1)
    SELECT e.seq AS event FROM w JOIN events e ON e.seq = w.first AND e.fold = w.no
    UNION SELECT e.seq FROM w JOIN events e ON e.seq BETWEEN w.no AND w.high AND e.fold = w.no
    UNION SELECT m.event FROM w JOIN members_apart m ON m.event = w.first AND m.window = w.no
    UNION SELECT m.event FROM w JOIN members_apart m ON m.window = w.no
        AND m.event BETWEEN iif(w.is_past, 0, w.no) AND iif(w.is_past, 0x7fffffffffffffff, w.high)
    ORDER BY event DESC LIMIT ?2";

pub(super) const LIST: &str = "SELECT w.no, s.id, w.key, w.key_text, w.terms, w.opened_at, w.subscriber
    FROM windows w JOIN subscribers s ON s.no = w.subscriber
    WHERE w.stage < 2 AND w.project = ?1 AND w.no > ?2 AND s.deleted_at IS NULL ORDER BY w.no";

/// The windows that gather, and if they are wanted those that wait in their lanes, oldest first.
pub(super) fn list(
    conn: &Connection,
    book: &Mutex<Book>,
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
        let book = book.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open =
            |window: &&Window| window.no == no && (filter.waiting || window.stage == Stage::Gathering);
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
            closed: window.closed,
            delivery: window.delivery,
        });
    }
    Ok(page)
}

const ROW: &str =
    "SELECT w.no, w.subscriber, w.terms, w.key_text, w.opened_at, w.due_at, w.closed_at, w.closed_by,
        w.delivery, w.count FROM windows w";

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
        count: row.get(9)?,
    })
}

/// While a window is open, memory knows more than its row.
pub(super) fn update_open(rows: &mut [FoldRow], book: &Book) {
    for row in rows.iter_mut().filter(|row| row.closed.is_none()) {
        let key = Key::from_text(&row.key);
        let found = [key.hash, key.for_replay().hash].map(|hash| book.get((row.subscriber, hash)));
        if let Some(window) = found.into_iter().flatten().find(|window| window.no == row.no) {
            (row.due_at, row.count) = (window.due_at, window.count);
        }
    }
}

/// A window and what became of it.
pub(super) fn row(conn: &Connection, no: WindowNo) -> rusqlite::Result<Option<FoldRow>> {
    conn.prepare_cached(&format!("{ROW} WHERE w.no = ?1"))?.query_row([no], fold_row).optional()
}

pub(super) fn joined_sql() -> String {
    format!("{ROW} JOIN members m ON m.window = w.no WHERE m.event = ?1 ORDER BY w.no")
}

/// The windows that an event joined.
pub(super) fn joined(conn: &Connection, event: Seq) -> rusqlite::Result<Vec<FoldRow>> {
    conn.prepare_cached(&joined_sql())?.query_map([event], fold_row)?.collect()
}
