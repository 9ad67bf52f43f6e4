//! What was decided about windows, as rows: one statement for all that changed, one for all that opened, one for their
//! members, one for their deliveries, and one round trip for all of them.

use tidegate_core::fold::{Closing, Decided, Stage, Window};
use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;
use tokio_postgres::types::ToSql;

use crate::postgres::db::{Asked, Conn, needed};

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
    fn of(windows: &[&Window]) -> Self {
        let mut columns = Self::default();
        windows.iter().for_each(|window| columns.push(window));
        columns
    }

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

/// What a transaction has decided about windows.
pub(super) struct Outcome<'a> {
    pub(super) decided: &'a Decided,
    /// Per member, the number that was drawn for it, if it was accepted before.
    pub(super) past: &'a [Option<i64>],
    pub(super) closings: &'a [Closing],
    /// Per closing, what becomes of its delivery.
    pub(super) statuses: &'a [i16],
}

/// Writes it: first what leaves its slot, then what takes its place, their members, and the deliveries of those that closed;
/// what is claimed is claimed by this life.
pub(super) async fn write(conn: &Conn, outcome: &Outcome<'_>, now: Timestamp, life: (i64, i64)) -> Asked<()> {
    let Outcome { decided, past, closings, statuses } = outcome;
    // In the order of their numbers, as everybody locks them.
    let mut there: Vec<&Window> = decided.changed().collect();
    there.sort_unstable_by_key(|window| window.no);
    let known = Columns::of(&there);
    let opened = Opened::of(decided);
    let events: Vec<Seq> = decided.members.iter().map(|member| member.event).collect();
    let windows: Vec<WindowNo> = decided.members.iter().map(|member| member.window).collect();
    let bytes: Vec<i32> = decided.members.iter().map(|member| member.bytes.cast_signed()).collect();
    let deliveries = Deliveries::of(closings);
    let (now, nonce) = (now.as_ms(), conn.nonce());
    let (known, opened) = (known.values(), opened.values());
    let members: [&(dyn ToSql + Sync); 4] = [&events, &windows, past, &bytes];
    let deliveries = deliveries.values(statuses, &now, &life, &nonce);
    conn.together(&needed([
        (!there.is_empty(), (UPDATE, &known)),
        (decided.opened().next().is_some(), (INSERT, &opened)),
        (!events.is_empty(), (INSERT_MEMBERS, &members)),
        (!closings.is_empty(), (INSERT_DELIVERIES, &deliveries)),
    ]))
    .await
    .map(drop)
}

/// What a new window's row has beside that.
struct Opened<'a> {
    columns: Columns,
    projects: Vec<ProjectNo>,
    subscribers: Vec<SubscriberNo>,
    keys: Vec<Vec<u8>>,
    lanes: Vec<Option<Lane>>,
    opened_at: Vec<i64>,
    replays: Vec<bool>,
    texts: Vec<&'a str>,
    terms: Vec<String>,
}

impl<'a> Opened<'a> {
    fn of(decided: &'a Decided) -> Self {
        let (new, texts): (Vec<&Window>, Vec<&str>) = decided.opened().unzip();
        Self {
            columns: Columns::of(&new),
            projects: new.iter().map(|window| window.project).collect(),
            subscribers: new.iter().map(|window| window.subscriber).collect(),
            keys: new.iter().map(|window| window.key.to_be_bytes().to_vec()).collect(),
            lanes: new.iter().map(|window| window.lane).collect(),
            opened_at: new.iter().map(|window| window.opened_at.as_ms()).collect(),
            replays: new.iter().map(|window| window.replay).collect(),
            texts,
            terms: new.iter().map(|window| window.terms.to_text()).collect(),
        }
    }

    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut values = self.columns.values().to_vec();
        let own: [&(dyn ToSql + Sync); 8] = [
            &self.projects,
            &self.subscribers,
            &self.keys,
            &self.lanes,
            &self.opened_at,
            &self.replays,
            &self.texts,
            &self.terms,
        ];
        values.extend(own);
        values
    }
}

const INSERT_DELIVERIES: &str = "INSERT INTO deliveries (id, project, subscriber, event, replay, lane, status, fold,
        due_at, created_at, incarnation, holder, written, claims, nonce)
    SELECT i.*, $9, $9, CASE WHEN i.status = 1 THEN $10::bigint END, CASE WHEN i.status = 1 THEN $10::bigint END,
        CASE WHEN i.status = 1 THEN $11::bigint END, CASE WHEN i.status = 1 THEN 1 ELSE 0 END, $12
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::smallint[],
        $8::bigint[]) AS i(id, project, subscriber, event, replay, lane, status, fold)";

/// The deliveries of windows that closed.
struct Deliveries {
    ids: Vec<DeliveryNo>,
    projects: Vec<ProjectNo>,
    subscribers: Vec<SubscriberNo>,
    events: Vec<Seq>,
    places: Vec<i64>,
    lanes: Vec<Option<Lane>>,
    windows: Vec<WindowNo>,
}

impl Deliveries {
    fn of(closings: &[Closing]) -> Self {
        let column = |value: fn(&Closing) -> i64| closings.iter().map(value).collect::<Vec<i64>>();
        Self {
            ids: column(|closing| closing.delivery),
            projects: column(|closing| closing.project),
            subscribers: column(|closing| closing.subscriber),
            events: column(|closing| closing.first),
            places: column(|closing| if closing.replay { closing.delivery } else { -closing.delivery }),
            lanes: closings.iter().map(|closing| closing.lane).collect(),
            windows: column(|closing| closing.window),
        }
    }

    fn values<'a>(
        &'a self,
        statuses: &'a &[i16],
        now: &'a i64,
        (incarnation, written): &'a (i64, i64),
        nonce: &'a i32,
    ) -> [&'a (dyn ToSql + Sync); 12] {
        [
            &self.ids,
            &self.projects,
            &self.subscribers,
            &self.events,
            &self.places,
            &self.lanes,
            statuses,
            &self.windows,
            now,
            incarnation,
            written,
            nonce,
        ]
    }
}
