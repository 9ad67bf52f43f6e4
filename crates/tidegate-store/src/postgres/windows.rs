//! Windows as they are read and steered: what a folded delivery carries, what gathers, where an event went, and windows
//! that end because somebody asks.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_core::fold::{Bundle, ClosedBy, Stage, Terms};
use tidegate_core::id::{DeliveryKey, DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::folds::{Folding, Numbers, Reach};
use super::lanes::{self, Lanes};
use super::write::DRAW;
use crate::window::CANCELLED;
use crate::{
    Bundled, ClosedWindow, EndWindows, Ended, Error, FoldRow, Page, WindowFilter, WindowRow, WindowsEnd,
};

/// In this order, as everybody names these tables: whoever drops a period of one of them is not waited for in a circle.
const CARRIED: &str = "SELECT e.body FROM events e JOIN members m ON m.event = e.seq WHERE m.\"window\" = $1
    ORDER BY e.seq";

/// Everything that a folded delivery carries, if it is not too large. A window that got its number later is another's.
pub(super) async fn bundle(
    conn: &Conn,
    no: WindowNo,
    carrier: DeliveryKey,
    bytes_max: usize,
) -> Asked<Option<Bundled>> {
    let sql = "SELECT terms, key_text, opened_at, closed_at, closed_by, count, bytes
        FROM windows w JOIN deliveries d ON d.id = $2 AND d.nonce = $3 AND d.fold = w.no WHERE w.no = $1";
    let Some(row) = conn.row(sql, &[&no, &carrier.no, &carrier.nonce.cast_signed()]).await? else {
        return Ok(None);
    };
    let (Some(closed_at), Some(terms)) = (row.get::<_, Option<i64>>(3), Terms::from_text(row.get(0))) else {
        return Ok(None);
    };
    let bytes = usize::try_from(row.get::<_, i64>(6)).unwrap_or(usize::MAX);
    if bytes > bytes_max {
        return Ok(Some(Bundled::Larger(bytes)));
    }
    let events = conn.rows(CARRIED, &[&no]).await?;
    if events.len() != row.get::<_, i32>(5).unsigned_abs() as usize {
        return Err(Error::Unavailable(format!("window {no} does not hold what it counts")).into());
    }
    Ok(Some(Bundled::Whole(Bundle {
        terms,
        key: row.get(1),
        opened_at: Timestamp::from_ms(row.get(2)),
        closed_at: Timestamp::from_ms(closed_at),
        closed_by: row.get::<_, Option<&str>>(4).and_then(ClosedBy::parse).unwrap_or(ClosedBy::Flush),
        events: events.iter().map(|event| Bytes::copy_from_slice(event.get(0))).collect(),
    })))
}

const LIST: &str = "SELECT w.no, w.subscriber, s.id, w.key_text, w.terms, w.opened_at, w.due_at, w.count, w.bytes,
        w.closed_at, w.closed_by, w.delivery
    FROM windows w JOIN subscribers s ON s.no = w.subscriber
    WHERE w.stage < 2 AND (w.stage = 0 OR $5) AND w.project = $1 AND w.no > $2 AND ($3::bigint IS NULL OR w.subscriber = $3)
        AND s.deleted_at IS NULL
    ORDER BY w.no LIMIT $4";

/// The windows that gather, and if they are wanted those that wait in their lanes, oldest first.
pub(super) async fn list(conn: &Conn, project: ProjectNo, filter: &WindowFilter) -> Asked<Page<WindowRow>> {
    let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX - 1) + 1;
    let after = filter.after.unwrap_or(0);
    let rows = conn.rows(LIST, &[&project, &after, &filter.subscriber, &limit, &filter.waiting]).await?;
    let mut items: Vec<WindowRow> = rows.iter().map(window_row).collect();
    let is_more = items.len() > filter.limit;
    items.truncate(filter.limit);
    let next = items.last().map(|row| row.no).filter(|_| is_more);
    Ok(Page { items, next })
}

fn mode(terms: &str) -> &'static str {
    Terms::from_text(terms).map_or("", |terms| terms.mode.name())
}

fn window_row(row: &Row) -> WindowRow {
    let closed_by = row.get::<_, Option<&str>>(10).and_then(ClosedBy::parse);
    WindowRow {
        no: row.get(0),
        subscriber: row.get(1),
        subscriber_id: row.get(2),
        key: row.get(3),
        mode: mode(row.get(4)),
        opened_at: Timestamp::from_ms(row.get(5)),
        due_at: Timestamp::from_ms(row.get(6)),
        count: row.get::<_, i32>(7).cast_unsigned(),
        bytes: row.get::<_, i64>(8).unsigned_abs(),
        closed: row.get::<_, Option<i64>>(9).map(Timestamp::from_ms).zip(closed_by),
        delivery: row.get(11),
    }
}

const ROW: &str =
    "SELECT w.no, w.subscriber, w.terms, w.key_text, w.opened_at, w.due_at, w.closed_at, w.closed_by,
    w.delivery, w.count FROM windows w";

fn fold_row(row: &Row) -> FoldRow {
    let closed_by = row.get::<_, Option<&str>>(7).and_then(ClosedBy::parse);
    FoldRow {
        no: row.get(0),
        subscriber: row.get(1),
        mode: mode(row.get(2)),
        key: row.get(3),
        opened_at: Timestamp::from_ms(row.get(4)),
        due_at: Timestamp::from_ms(row.get(5)),
        closed: row.get::<_, Option<i64>>(6).map(Timestamp::from_ms).zip(closed_by),
        delivery: row.get(8),
        count: row.get::<_, i32>(9).cast_unsigned(),
    }
}

/// How many windows gather.
pub(super) async fn open(conn: &Conn) -> Asked<u64> {
    let row = conn.only("SELECT count(*) FROM windows WHERE stage = 0", &[]).await?;
    Ok(row.get::<_, i64>(0).unsigned_abs())
}

const NEXT_DUE: &str = "SELECT due_at FROM windows WHERE stage = 0 ORDER BY due_at LIMIT 1";

/// When the next window closes by itself.
pub(super) async fn next_due(conn: &Conn) -> Asked<Option<Timestamp>> {
    Ok(conn.row(NEXT_DUE, &[]).await?.map(|row| Timestamp::from_ms(row.get(0))))
}

/// Windows, and what became of them.
pub(super) async fn rows(conn: &Conn, numbers: &[WindowNo]) -> Asked<BTreeMap<WindowNo, FoldRow>> {
    if numbers.is_empty() {
        return Ok(BTreeMap::new());
    }
    let found = conn.rows(&format!("{ROW} WHERE w.no = ANY($1)"), &[&numbers]).await?;
    Ok(found.iter().map(fold_row).map(|row| (row.no, row)).collect())
}

/// The windows that an event joined.
pub(super) async fn joined(conn: &Conn, event: Seq) -> Asked<Vec<FoldRow>> {
    let sql = format!("{ROW} JOIN members m ON m.\"window\" = w.no WHERE m.event = $1 ORDER BY w.no");
    Ok(conn.rows(&sql, &[&event]).await?.iter().map(fold_row).collect())
}

/// The events that windows carried, in order, as far as they are kept.
pub(super) async fn events(conn: &Conn, windows: &[WindowNo]) -> Asked<BTreeMap<WindowNo, Vec<Seq>>> {
    let mut carried: BTreeMap<WindowNo, Vec<Seq>> = BTreeMap::new();
    if !windows.is_empty() {
        let sql = "SELECT \"window\", event FROM members WHERE \"window\" = ANY($1) ORDER BY event";
        for row in conn.rows(sql, &[&windows]).await? {
            carried.entry(row.get(0)).or_default().push(row.get(1));
        }
    }
    Ok(carried)
}

const MEANT: &str =
    "SELECT subscriber, key, lane FROM windows WHERE project = $1 AND stage < 2 AND (stage = 0 OR $6)
        AND ($2::bigint IS NULL OR subscriber = $2) AND ($3::bytea IS NULL OR key IN ($3, $4))
    ORDER BY no LIMIT $5";

/// Whoever has claimed it: nobody seals it any more.
const CANCEL: &str =
    "UPDATE deliveries SET status = 6, finished_at = $2, reason = $3, incarnation = NULL, holder = NULL,
        written = NULL
    WHERE id = ANY($1) AND status < 3";

/// Closes windows that gather, or cancels those that have not begun to leave, because somebody asked.
pub(super) async fn end(
    conn: &Conn,
    space: i32,
    project: ProjectNo,
    ask: &EndWindows,
    now: Timestamp,
) -> Asked<Ended> {
    let limit = i64::try_from(ask.limit).unwrap_or(i64::MAX - 1) + 1;
    let key = ask.key.map(|key| key.to_be_bytes().to_vec());
    let replays = ask.key.map(|key| (!key).to_be_bytes().to_vec());
    let cancels = ask.end == WindowsEnd::Cancel;
    let mut meant = conn.rows(MEANT, &[&project, &ask.subscriber, &key, &replays, &limit, &cancels]).await?;
    let is_complete = meant.len() <= ask.limit;
    meant.truncate(ask.limit);
    let mut ended = Ended { is_complete, ..Ended::default() };
    if meant.is_empty() {
        return Ok(ended);
    }
    let mut reach = Reach::default();
    for row in &meant {
        let key = u128::from_be_bytes(row.get::<_, &[u8]>(1).try_into().unwrap_or_default());
        reach.add_slot(project, (row.get(0), key), row.get(2));
    }
    let (book, _) = reach.load(conn, space, &lanes::locks(&reach.locks()), false).await?;
    let stretch = BTreeMap::new();
    let mut folding = Folding::new(&book, now, usize::MAX, &stretch);
    let mut numbers = Numbers::from(conn.only(DRAW, &[]).await?.get(0));
    let (mut unsent, mut freed) = (Vec::new(), Lanes::new());
    for window in book.of_project(project).filter(|window| window.stage == Stage::Gathering || cancels) {
        let is_due = match ask.end {
            WindowsEnd::Close(why) => folding.close(window, why, &mut numbers),
            WindowsEnd::Cancel => match folding.cancel(window) {
                Some(window) => {
                    unsent.extend(window.delivery);
                    freed.extend(window.lane.map(|lane| (window.subscriber, lane)));
                    ended.unsent.extend(ClosedWindow::of(window));
                    true
                }
                None => false,
            },
        };
        ended.subscribers.extend(is_due.then_some(window.subscriber));
        ended.windows += 1;
    }
    ended.closed = folding.settle_alone(conn, now).await?;
    cancel(conn, unsent, &freed, now).await?;
    ended.subscribers.sort_unstable();
    ended.subscribers.dedup();
    Ok(ended)
}

/// Deliveries that have not begun to leave are not sent, and those behind them go. Their lanes are locked.
async fn cancel(conn: &Conn, mut unsent: Vec<DeliveryNo>, freed: &Lanes, now: Timestamp) -> Asked<()> {
    if !unsent.is_empty() {
        unsent.sort_unstable();
        conn.execute(CANCEL, &[&unsent, &now.as_ms(), &CANCELLED]).await?;
        lanes::make_next_due(conn, freed, now).await?;
    }
    Ok(())
}

/// A subscriber is gone: nothing joins its windows any more, and what gathers is not sent. No group is under way.
pub(super) async fn leave(conn: &Conn, subscriber: SubscriberNo, now: Timestamp) -> Asked<()> {
    conn.execute(
        "UPDATE windows SET stage = CASE stage WHEN 0 THEN 3 ELSE 2 END, closed_at = coalesce(closed_at, $2),
            closed_by = coalesce(closed_by, $3) WHERE subscriber = $1 AND stage < 2",
        &[&subscriber, &now.as_ms(), &ClosedBy::Deleted.name()],
    )
    .await?;
    Ok(())
}

/// The deliveries of these windows have ended without having been sent: nothing joins them any more.
pub(super) async fn seal_ended(conn: &Conn, windows: &[WindowNo]) -> Asked<()> {
    if !windows.is_empty() {
        let sql = "UPDATE windows SET stage = 2 WHERE no = ANY($1) AND stage = 1";
        conn.execute(sql, &[&windows]).await?;
    }
    Ok(())
}

impl Reach {
    fn add_slot(&mut self, project: ProjectNo, slot: (SubscriberNo, u128), lane: Option<Lane>) {
        self.slots.insert(slot, project);
        self.lanes.extend(lane.map(|lane| (slot.0, lane)));
    }
}
