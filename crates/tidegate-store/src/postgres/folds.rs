//! Windows: what gathers, in rows that any process may add to.
//!
//! A transaction that has to do with windows fills a [`Book`] with those it may touch, asks a draft of it what happens, and
//! writes what was decided with a few statements for all rows. Groups that fold nothing do nothing of this.
//!
//! Nobody else may touch a window meanwhile, and nobody waits in a circle. In this order: the locks of lanes and slots
//! together (whoever joins or opens a window holds its slot's, whoever joins or seals one that waits in a lane holds the
//! lane's), then the rows of the slots it waits for, then the rows of others that it closes, of which it takes those that
//! nobody holds. Ids come after that.

pub(super) mod behind;
mod past;
mod rows;
mod tally;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::delivery::Job;
use tidegate_core::fold::{Appending, Arrival, Book, ClosedBy, Closing, Draft, Slot, Stage, Terms, Window};
use tidegate_core::id::{DeliveryNo, Lane, Nonce, ProjectNo, Seq, SubscriberNo, WindowNo};
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;
use tokio_postgres::Row;

use self::past::Past;
pub(super) use self::past::{arriving, parted};
use self::rows::{Outcome, write};
pub(super) use self::tally::{Count, Tally};
use super::db::{Asked, Conn, needed};
use super::deliveries::{CLAIMED, DUE, WAITING};
use super::held::claim_value;
use super::lanes::{self, Lanes};
use super::windows::next_due;
use super::write::{Context, DRAW};
use crate::{BackfillStep, ClosedWindow, Error, Group};

/// How long nobody looks for windows that are due when all of them were in others' hands.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The windows that a transaction may touch.
#[derive(Default)]
pub(super) struct Reach {
    /// Where events may go, and of which project.
    pub(super) slots: BTreeMap<Slot, ProjectNo>,
    /// Others that may close.
    others: Vec<WindowNo>,
    /// The lanes of all of them.
    pub(super) lanes: Lanes,
}

impl Reach {
    /// What a route needs.
    pub(super) fn add(&mut self, project: ProjectNo, route: &Route, is_replay: bool) {
        let Some((appending, passes)) = route.window() else { return };
        // What is sent again ends nothing.
        if !(passes && is_replay) {
            self.slots.insert((route.subscriber, hash(appending, is_replay)), project);
        }
        // And what ends without a delivery never comes into its lane.
        if !passes {
            self.lanes.extend(route.lane.map(|lane| (route.subscriber, lane)));
        }
    }

    /// What the routes of a group need.
    fn of(group: &Group, backfills: &[BackfillStep]) -> Self {
        let mut reach = Self::default();
        for submission in &group.submissions {
            let routes = submission.units.iter().flat_map(|unit| unit.routes.iter().flatten());
            routes.for_each(|route| reach.add(submission.project, route, false));
        }
        for step in backfills {
            step.matched.iter().for_each(|(_, route)| reach.add(step.project, route, false));
        }
        for step in &group.steps {
            step.replays.iter().for_each(|(_, route)| reach.add(step.project, route, true));
        }
        reach
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.others.is_empty()
    }

    /// The locks to take: lanes, and slots as if each were a lane.
    pub(super) fn locks(&self) -> Lanes {
        let slots = self.slots.keys().map(|(subscriber, key)| (*subscriber, as_lane(*key)));
        self.lanes.iter().copied().chain(slots).collect()
    }

    /// Takes locks, reads the windows and holds their rows; then it draws the first number of a block, if that is wanted.
    pub(super) async fn load(
        &self,
        conn: &Conn,
        space: i32,
        locks: &[i32],
        draws: bool,
    ) -> Asked<(Book, Option<i64>)> {
        let (subscribers, keys): (Vec<SubscriberNo>, Vec<[u8; 16]>) =
            self.slots.keys().map(|(subscriber, key)| (*subscriber, key.to_be_bytes())).unzip();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let (slots, others) = (load_sql(), others_sql());
        let mut answers = conn
            .together(&needed([
                (!locks.is_empty(), (lanes::LOCK, &[&space, &locks])),
                (!keys.is_empty(), (&slots, &[&subscribers, &keys])),
                (!self.others.is_empty(), (&others, &[&self.others])),
                (draws, (DRAW, &[])),
            ]))
            .await?;
        let drawn = if draws { answers.pop() } else { None };
        let mut book = Book::default();
        for rows in answers.iter().skip(usize::from(!locks.is_empty())) {
            read_into(&mut book, rows)?;
        }
        Ok((book, drawn.and_then(|rows| Some(rows.first()?.get(0)))))
    }
}

/// Which of the lanes' locks a slot has.
fn as_lane(key: u128) -> Lane {
    Lane::from_be_bytes(key.to_be_bytes()[..8].try_into().expect("a key has sixteen bytes"))
}

fn hash(appending: &Appending, is_replay: bool) -> u128 {
    if is_replay { appending.key.for_replay().hash } else { appending.key.hash }
}

const COLUMNS: &str =
    "w.no, w.project, w.subscriber, w.key, w.lane, w.replay, w.terms, w.opened_at, w.due_at, w.count,
    w.bytes, w.first, w.last, w.stage, w.closed_at, w.closed_by, w.delivery";

/// Each slot is one look at its index: joined, the planner might read all windows.
pub(super) fn load_sql() -> String {
    format!(
        "SELECT {COLUMNS} FROM unnest($1::bigint[], $2::bytea[]) AS i(subscriber, key) CROSS JOIN LATERAL
            (SELECT * FROM windows w WHERE w.subscriber = i.subscriber AND w.key = i.key AND w.stage < 2
             LIMIT 1 FOR UPDATE) w"
    )
}

/// What somebody else has in hand is not waited for.
fn others_sql() -> String {
    format!("SELECT {COLUMNS} FROM windows w WHERE w.no = ANY($1) AND w.stage < 2 FOR UPDATE SKIP LOCKED")
}

fn read_into(book: &mut Book, rows: &[Row]) -> Asked<()> {
    let mut kinds: HashMap<String, Arc<Terms>> = HashMap::new();
    for row in rows {
        let text: &str = row.get(6);
        let Some(terms) = kinds.get(text).cloned().or_else(|| Terms::from_text(text).map(Arc::new)) else {
            let what = format!("window {} has terms that can not be read", row.get::<_, i64>(0));
            return Err(Error::Unavailable(what).into());
        };
        kinds.entry(text.to_owned()).or_insert_with(|| Arc::clone(&terms));
        book.insert(window(row, terms));
    }
    Ok(())
}

fn window(row: &Row, terms: Arc<Terms>) -> Window {
    let closed_by: Option<&str> = row.get(15);
    Window {
        no: row.get(0),
        project: row.get(1),
        subscriber: row.get(2),
        key: u128::from_be_bytes(row.get::<_, &[u8]>(3).try_into().unwrap_or_default()),
        lane: row.get(4),
        replay: row.get(5),
        terms,
        opened_at: Timestamp::from_ms(row.get(7)),
        due_at: Timestamp::from_ms(row.get(8)),
        count: row.get::<_, i32>(9).cast_unsigned(),
        bytes: row.get::<_, i64>(10).unsigned_abs(),
        first: row.get(11),
        last: row.get(12),
        stage: if row.get::<_, i16>(13) == 0 { Stage::Gathering } else { Stage::Ready },
        closed: row
            .get::<_, Option<i64>>(14)
            .map(Timestamp::from_ms)
            .zip(closed_by.and_then(ClosedBy::parse)),
        delivery: row.get(16),
    }
}

const DUE_WINDOWS: &str = "SELECT no, subscriber, lane FROM windows WHERE stage = 0 AND due_at <= $1
    ORDER BY due_at, no LIMIT $2";
const OLDEST: &str =
    "SELECT no, subscriber, lane FROM windows WHERE project = $1 AND stage < 2 ORDER BY no LIMIT $2";
const COUNT: &str = "SELECT count(*) FROM windows WHERE project = $1 AND stage < 2";

/// Finds out what a group may touch, before it locks anything.
pub(super) async fn foresee(context: &mut Context<'_>) -> Asked<Reach> {
    let (conn, group) = (context.conn, context.group);
    let mut reach = Reach::of(group, &context.backfills);
    if group.close > 0 {
        let limit = i64::try_from(group.close).unwrap_or(i64::MAX);
        reach.also(&conn.rows(DUE_WINDOWS, &[&group.now.as_ms(), &limit]).await?);
    }
    let mut wanted: BTreeMap<ProjectNo, usize> = BTreeMap::new();
    for project in reach.slots.values() {
        *wanted.entry(*project).or_default() += 1;
    }
    for (project, slots) in wanted {
        let known =
            context.tally.get(&project).filter(|count| count.opened < (context.windows_max / 100).max(1));
        let windows = match known {
            Some(count) => count.windows,
            None => {
                let windows = conn.only(COUNT, &[&project]).await?.get::<_, i64>(0);
                let windows = usize::try_from(windows).unwrap_or(0);
                context.tally.insert(project, Count { windows, opened: 0 });
                windows
            }
        };
        let excess = (windows + slots).saturating_sub(context.windows_max);
        if excess > 0 {
            reach.also(&conn.rows(OLDEST, &[&project, &i64::try_from(excess).unwrap_or(i64::MAX)]).await?);
        }
    }
    Ok(reach)
}

impl Reach {
    fn also(&mut self, rows: &[Row]) {
        for row in rows {
            self.others.push(row.get(0));
            self.lanes.extend(row.get::<_, Option<Lane>>(2).map(|lane| (row.get(1), lane)));
        }
    }

    /// Says of how many windows the book does not know.
    pub(super) fn count_elsewhere(&self, book: &mut Book, tally: &Tally) {
        for project in self.slots.values().collect::<BTreeSet<_>>() {
            let known = book.of_project(*project).count();
            let windows = tally.get(project).map_or(0, |count| count.windows);
            book.count_elsewhere(*project, windows.saturating_sub(known));
        }
    }
}

/// The numbers that an arrival may draw.
pub(super) struct Numbers {
    next: i64,
    end: i64,
    rest: i64,
}

impl Numbers {
    pub(super) fn from(rest: i64) -> Self {
        Self { next: 0, end: 0, rest }
    }

    /// These first.
    pub(super) fn reserve(&mut self, from: i64, count: i64) {
        (self.next, self.end) = (from, from + count);
    }

    fn draw(&mut self) -> i64 {
        let drawn = if self.next < self.end { &mut self.next } else { &mut self.rest };
        *drawn += 1;
        *drawn - 1
    }
}

/// What a transaction does with windows, on its way.
pub(super) struct Folding<'a> {
    draft: Draft<'a>,
    closings: Vec<Closing>,
    /// Per event that joined: the number that was drawn for it, if it was accepted before.
    past: Vec<Option<i64>>,
    /// Whose backfills bring live events of lanes too, in their turn; and up to which.
    pub(super) deferring: behind::Deferring,
}

impl<'a> Folding<'a> {
    pub(super) fn new(
        book: &'a Book,
        now: Timestamp,
        limit: usize,
        stretch: &'a BTreeMap<SubscriberNo, u32>,
    ) -> Self {
        let draft = Draft::new(book, now, limit, stretch);
        Self { draft, closings: Vec::new(), past: Vec::new(), deferring: behind::Deferring::new() }
    }

    /// An event that comes now goes into its window, or passes it by.
    pub(super) fn append(&mut self, arrival: &Arrival<'_>, numbers: &mut Numbers) {
        let is_laned = arrival.lane.is_some() && !arrival.passes;
        if let Some(until) = self.deferring.get_mut(&arrival.subscriber).filter(|_| is_laned) {
            *until = (*until).max(Some(arrival.event));
            return;
        }
        let closings = self.draft.arrive(arrival, &mut || numbers.draw());
        self.closings.extend(closings);
        self.past.resize(self.draft.joined(), None);
    }

    /// Events that were accepted before go into their windows, unless they are there already. Says how many there were;
    /// those that retention has taken are passed over.
    pub(super) async fn append_past(
        &mut self,
        conn: &Conn,
        space: i32,
        project: ProjectNo,
        wanted: &[(Seq, &Route)],
        is_replay: bool,
    ) -> Asked<usize> {
        if wanted.is_empty() {
            return Ok(0);
        }
        let past = Past::find(conn, space, project, wanted, is_replay, &self.draft).await?;
        let mut numbers = Numbers::from(past.block);
        let mut count = 0;
        for arrival in past.arrivals(wanted, is_replay) {
            count += 1;
            if !past.is_there(&self.draft, &arrival) {
                let closings = self.draft.arrive(&arrival, &mut || numbers.draw());
                self.closings.extend(closings);
                self.past.resize(self.draft.joined(), Some(past.block));
            }
        }
        Ok(count)
    }

    /// Past events go at once, in the form of folds. Says which delivery carries each; `None` for those that are gone.
    pub(super) async fn send_past(
        &mut self,
        conn: &Conn,
        space: i32,
        project: ProjectNo,
        wanted: &[(Seq, &Route)],
    ) -> Asked<Vec<DeliveryNo>> {
        let past = Past::find(conn, space, project, wanted, true, &self.draft).await?;
        let mut numbers = Numbers::from(past.block);
        let mut carriers = Vec::new();
        for arrival in past.arrivals(wanted, true) {
            let is_there = past.is_there(&self.draft, &arrival);
            let (closings, carrier) = self.draft.send_now(&arrival, is_there, &mut || numbers.draw());
            self.closings.extend(closings);
            self.past.resize(self.draft.joined(), Some(past.block));
            carriers.extend(carrier);
        }
        Ok(carriers)
    }

    /// Windows whose time has come become deliveries.
    pub(super) async fn close_due(&mut self, conn: &Conn, group: &Group) -> Asked<()> {
        if group.close > 0 && self.draft.is_due() {
            let mut numbers = Numbers::from(conn.only(DRAW, &[]).await?.get(0));
            self.closings.extend(self.draft.close_due(group.close, &mut || numbers.draw()));
        }
        Ok(())
    }

    /// Writes what was decided, and makes the deliveries.
    pub(super) async fn settle(self, context: &mut Context<'_>, lanes: &Lanes) -> Asked<()> {
        let Self { draft, closings, past, deferring } = self;
        let decided = draft.decided();
        let (conn, group) = (context.conn, context.group);
        behind::defer(conn, &deferring).await?;
        let statuses = place(context, &closings);
        let outcome = Outcome { decided: &decided, past: &past, closings: &closings, statuses: &statuses };
        write(conn, &outcome, group.now, (context.incarnation, context.written)).await?;
        let lanes = lanes.iter().copied().chain(lanes_of(&closings)).collect();
        lanes::let_next_go(context, &lanes).await?;
        tally::follow(&mut context.tally, &decided);
        context.out.closed.extend(ClosedWindow::all(&decided));
        context.out.close_due = if group.close > 0 {
            // What is due and did not close is in somebody else's hands for a moment.
            let is_held = |due: &Timestamp| decided.closed().next().is_none() && *due <= group.now;
            next_due(conn).await?.map(|due| if is_held(&due) { group.now.plus(LOOK_AGAIN) } else { due })
        } else {
            let open = decided.windows().filter(|window| window.stage == Stage::Gathering);
            open.map(|window| window.due_at).min()
        };
        Ok(())
    }

    /// The same outside a group.
    pub(super) async fn settle_alone(self, conn: &Conn, now: Timestamp) -> Asked<Vec<ClosedWindow>> {
        let Self { draft, closings, past, .. } = self;
        let decided = draft.decided();
        let statuses = closings.iter().map(|closing| if closing.lane.is_some() { WAITING } else { DUE });
        let statuses: Vec<i16> = statuses.collect();
        let outcome = Outcome { decided: &decided, past: &past, closings: &closings, statuses: &statuses };
        write(conn, &outcome, now, (0, 0)).await?;
        lanes::make_next_due(conn, &lanes_of(&closings), now).await?;
        Ok(ClosedWindow::all(&decided))
    }

    /// A window closes because somebody asks. Says whether that makes a delivery.
    pub(super) fn close(&mut self, window: &Window, why: ClosedBy, numbers: &mut Numbers) -> bool {
        let closing = self.draft.close(window, why, &mut || numbers.draw());
        self.closings.extend(closing);
        closing.is_some()
    }

    /// A window is not sent because somebody asks. Answers it if it is a delivery already, which ends as well.
    pub(super) fn cancel(&mut self, window: &Window) -> Option<&Window> {
        self.draft.cancel((window.subscriber, window.key))
    }

    /// How many windows there are that numbers may be drawn for beyond those of arrivals.
    pub(super) fn windows(&self) -> i64 {
        i64::try_from(self.draft.book().len()).unwrap_or(i64::MAX)
    }

    /// A delivery leaves: what the book knows of its window follows.
    fn seal(&mut self, project: ProjectNo, window: WindowNo) {
        self.draft.seal(project, window);
    }
}

/// What a route does with an event that has to do with a window.
pub(super) fn arrival(
    project: ProjectNo,
    (event, bytes): (Seq, u32),
    route: &Route,
    replay: bool,
) -> Option<Arrival<'_>> {
    let Route { subscriber, lane, .. } = *route;
    let (appending, passes) = route.window()?;
    Some(Arrival { project, subscriber, lane, event, bytes, replay, passes, appending })
}

const SEAL: &str = "UPDATE windows w SET stage = 2 FROM unnest($2::bigint[], $3::bigint[], $4::bigint[])
        AS i(no, delivery, claim) JOIN deliveries d ON d.id = i.delivery
    WHERE w.no = i.no AND w.stage IN (1, 2) AND d.fold = w.no AND d.status = 1 AND d.incarnation = $1
        AND (d.claims::bigint << 32) + d.nonce = i.claim
    RETURNING i.delivery, i.claim";

/// Deliveries begin to leave, if this life still holds them: nothing joins them any more. Their lanes are locked.
pub(super) async fn seal(context: &mut Context<'_>, folding: &mut Folding<'_>) -> Asked<()> {
    let seals = &context.group.seals;
    if seals.is_empty() {
        return Ok(());
    }
    let windows: Vec<WindowNo> = seals.iter().map(|seal| seal.window).collect();
    let ids: Vec<DeliveryNo> = seals.iter().map(|seal| seal.claim.delivery).collect();
    let claims: Vec<i64> = seals.iter().map(|seal| claim_value(&seal.claim)).collect();
    let rows = context.conn.rows(SEAL, &[&context.incarnation, &windows, &ids, &claims]).await?;
    let sealed: BTreeSet<(DeliveryNo, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for seal in seals {
        if sealed.contains(&(seal.claim.delivery, claim_value(&seal.claim))) {
            folding.seal(seal.project, seal.window);
        } else {
            context.out.unsealed.push(seal.claim);
        }
    }
    Ok(())
}

/// A window that closed, claimed for memory. What it carries is asked for when it is sent.
fn job(closing: &Closing, nonce: Nonce, now: Timestamp) -> Job {
    Job {
        delivery: closing.delivery,
        nonce,
        project: closing.project,
        subscriber: closing.subscriber,
        event: closing.first,
        lane: closing.lane,
        attempts: 0,
        tries: 0,
        token: 1,
        life: 0,
        accepted_at: now,
        replay: closing.replay,
        out_of_order: false,
        is_suspect: false,
        fold: Some(closing.window),
        body: Bytes::new(),
    }
}

/// Outside lanes they go straight to memory if there is room; in a lane each waits for its turn, which may be now.
fn place(context: &mut Context<'_>, closings: &[Closing]) -> Vec<i16> {
    let (nonce, now) = (context.conn.nonce().cast_unsigned(), context.group.now);
    let status = |closing: &Closing| match closing.lane {
        Some(_) => WAITING,
        None if context.room.take(closing.subscriber, 0) => {
            context.out.jobs.push(job(closing, nonce, now));
            CLAIMED
        }
        None => {
            context.spilled.insert(closing.subscriber);
            DUE
        }
    };
    closings.iter().map(status).collect()
}

fn lanes_of(closings: &[Closing]) -> Lanes {
    closings.iter().filter_map(|closing| Some((closing.subscriber, closing.lane?))).collect()
}
