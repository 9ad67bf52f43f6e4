//! What was decided about windows, as rows: one statement for all that changed, one for all that opened, one for their
//! members, one for their deliveries.

use tidegate_core::fold::{Closing, Decided, Stage, Window};
use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;
use tokio_postgres::types::ToSql;

use crate::postgres::db::{Asked, Conn};

const UPDATE: &str = "UPDATE windows w SET due_at = i.due_at, count = i.count, bytes = i.bytes, first = i.first,
        last = i.last, stage = i.stage, closed_at = i.closed_at, closed_by = i.closed_by, delivery = i.delivery
    FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[],
        $8::bigint[], $9::text[], $10::bigint[])
        AS i(no, due_at, count, bytes, first, last, stage, closed_at, closed_by, delivery)
    WHERE w.no = i.no";
const INSERT: &str =
    "INSERT INTO windows (no, due_at, count, bytes, first, last, stage, closed_at, closed_by, delivery,
        project, subscriber, key, lane, opened_at, replay, key_text, terms)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[],
        $7::smallint[], $8::bigint[], $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[],
        $14::bigint[], $15::bigint[], $16::boolean[], $17::text[], $18::text[])";
const INSERT_MEMBERS: &str = "INSERT INTO members (event, \"window\", past, bytes)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::int[])";

/// What changes in a window's row, column by column.
#[derive(Default)]
struct Columns {
    numbers: Vec<WindowNo>,
    due_at: Vec<i64>,
    counts: Vec<i32>,
    bytes: Vec<i64>,
    first: Vec<Option<Seq>>,
    last: Vec<Option<Seq>>,
    stages: Vec<i16>,
    closed_at: Vec<Option<i64>>,
    closed_by: Vec<Option<&'static str>>,
    deliveries: Vec<Option<DeliveryNo>>,
}

impl Columns {
    fn push(&mut self, window: &Window) {
        self.numbers.push(window.no);
        self.due_at.push(window.due_at.as_ms());
        self.counts.push(window.count.cast_signed());
        self.bytes.push(i64::try_from(window.bytes).unwrap_or(i64::MAX));
        self.first.push(window.first);
        self.last.push(window.last);
        self.stages.push(stage_no(window.stage));
        self.closed_at.push(window.closed.map(|(at, _)| at.as_ms()));
        self.closed_by.push(window.closed.map(|(_, by)| by.name()));
        self.deliveries.push(window.delivery);
    }

    fn values(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.numbers,
            &self.due_at,
            &self.counts,
            &self.bytes,
            &self.first,
            &self.last,
            &self.stages,
            &self.closed_at,
            &self.closed_by,
            &self.deliveries,
        ]
    }
}

fn stage_no(stage: Stage) -> i16 {
    match stage {
        Stage::Gathering => 0,
        Stage::Ready => 1,
        Stage::Sealed => 2,
        Stage::Ended => 3,
    }
}

/// Writes what was decided: first what leaves its slot, then what takes its place.
pub(super) async fn write(conn: &Conn, decided: &Decided, past: &[Option<i64>]) -> Asked<()> {
    if decided.is_empty() {
        return Ok(());
    }
    // In the order of their numbers, as everybody locks them.
    let mut there: Vec<&Window> = decided.changed().collect();
    there.sort_unstable_by_key(|window| window.no);
    let mut known = Columns::default();
    there.iter().for_each(|window| known.push(window));
    if !known.numbers.is_empty() {
        conn.execute(UPDATE, &known.values()).await?;
    }
    insert_windows(conn, decided).await?;
    if decided.members.is_empty() {
        return Ok(());
    }
    let events: Vec<Seq> = decided.members.iter().map(|member| member.event).collect();
    let windows: Vec<WindowNo> = decided.members.iter().map(|member| member.window).collect();
    let bytes: Vec<i32> = decided.members.iter().map(|member| member.bytes.cast_signed()).collect();
    conn.execute(INSERT_MEMBERS, &[&events, &windows, &past, &bytes]).await?;
    Ok(())
}

async fn insert_windows(conn: &Conn, decided: &Decided) -> Asked<()> {
    let (new, texts): (Vec<&Window>, Vec<&str>) = decided.opened().unzip();
    if new.is_empty() {
        return Ok(());
    }
    let mut columns = Columns::default();
    new.iter().for_each(|window| columns.push(window));
    let projects: Vec<ProjectNo> = new.iter().map(|window| window.project).collect();
    let subscribers: Vec<SubscriberNo> = new.iter().map(|window| window.subscriber).collect();
    let keys: Vec<[u8; 16]> = new.iter().map(|window| window.key.to_be_bytes()).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let lanes: Vec<Option<Lane>> = new.iter().map(|window| window.lane).collect();
    let opened_at: Vec<i64> = new.iter().map(|window| window.opened_at.as_ms()).collect();
    let replays: Vec<bool> = new.iter().map(|window| window.replay).collect();
    let terms: Vec<String> = new.iter().map(|window| window.terms.to_text()).collect();
    let mut values = columns.values().to_vec();
    let own: [&(dyn ToSql + Sync); 8] =
        [&projects, &subscribers, &keys, &lanes, &opened_at, &replays, &texts, &terms];
    values.extend(own);
    conn.execute(INSERT, &values).await?;
    Ok(())
}

const INSERT_DELIVERIES: &str = "INSERT INTO deliveries (id, project, subscriber, event, replay, lane, status, fold,
        due_at, created_at, incarnation, holder, written, claims)
    SELECT i.*, $9, $9, CASE WHEN i.status = 1 THEN $10::bigint END, CASE WHEN i.status = 1 THEN $10::bigint END,
        CASE WHEN i.status = 1 THEN $11::bigint END, CASE WHEN i.status = 1 THEN 1 ELSE 0 END
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[],
        $8::bigint[]) AS i(id, project, subscriber, event, replay, lane, status, fold)";

/// Makes the deliveries of windows that closed; what is claimed is claimed by this life.
pub(super) async fn insert(
    conn: &Conn,
    closings: &[Closing],
    statuses: &[i16],
    now: Timestamp,
    (incarnation, written): (i64, i64),
) -> Asked<()> {
    if closings.is_empty() {
        return Ok(());
    }
    let column = |value: fn(&Closing) -> i64| closings.iter().map(value).collect::<Vec<i64>>();
    let place = |closing: &Closing| if closing.replay { closing.delivery } else { -closing.delivery };
    let lanes: Vec<Option<Lane>> = closings.iter().map(|closing| closing.lane).collect();
    conn.execute(
        INSERT_DELIVERIES,
        &[
            &column(|closing| closing.delivery),
            &column(|closing| closing.project),
            &column(|closing| closing.subscriber),
            &column(|closing| closing.first),
            &column(place),
            &lanes,
            &statuses,
            &column(|closing| closing.window),
            &now.as_ms(),
            &incarnation,
            &written,
        ],
    )
    .await?;
    Ok(())
}
