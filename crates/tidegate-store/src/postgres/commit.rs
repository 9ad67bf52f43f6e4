//! The group commit: one transaction for everybody who has something to write.
//!
//! An ordinary group (results and events) is one round trip: its statements follow each other without waiting for
//! answers, and those that must not be true together with the rest (the configuration moved, this process was declared
//! dead) end the transaction on the server. Whatever needs a decision in between takes the same steps one at a time.
//!
//! A submission that fails on its own account is rerun alone, so that its neighbours never pay for it. When the outcome
//! of a commit is not known, the database is asked, on a new session that ends all that the old one may still be doing:
//! the group is adopted or refused, never guessed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::id::{Lane, SubscriberNo, Version};
use tokio::sync::Mutex;
use tokio_postgres::Row;

use super::connect::root_cause;
use super::db::{Asked, Conn, Fault, Pool};
use super::deliveries::{self, Results};
use super::lanes::{self, Lanes};
use super::open::{BLOCK_BITS, CONFIGURATION, enter_period};
use super::submit::{Columns, Entry, Stamp};
use super::{Shared, admit, configuration, events, jobs, submit};
use crate::{Admission, Committed, Error, Group, Refilled, Result, Room};

/// How often a group is tried that others stood in the way of.
const TRIES_MAX: u32 = 3;
/// How often a database that is gone is looked for before a group with an unknown outcome is given up for now.
const LOOKS_MAX: u32 = 8;
/// The pause between two looks, the first time; then twice as long each time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// States of our own, see `refuse` in the schema.
const STALE: &str = "TG001";
const FENCED: &str = "TG002";

/// The first number of a new block.
pub(super) const DRAW: &str = "SELECT nextval('numbers') << 20";

/// Renews this life, and takes part in the configuration and in what readers must wait for.
const ENTER: &str =
    "WITH mine AS (UPDATE replicas SET written = $3 WHERE incarnation = $1 AND session = $2 RETURNING 1)
    SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM mine) THEN refuse('taken over', 'TG002') END,
        pg_advisory_xact_lock_shared($4::int, $5::int), pg_advisory_xact_lock_shared($6::bigint | last_value)
    FROM numbers";

/// Ends a group that was routed by another configuration. After [`ENTER`], so that what it sees stays true until the
/// group has ended.
const CHECK: &str =
    "SELECT CASE WHEN version <> $1 THEN refuse(version::text, 'TG001') END FROM installation";

/// What only group commits touch.
pub(super) struct Writer {
    shared: Arc<Shared>,
    conn: Option<Conn>,
    incarnation: i64,
    session: i64,
    /// The number of the last group that was begun.
    written: i64,
    period: i64,
    /// A group whose outcome is not known: its number.
    doubt: Option<i64>,
    /// What such a group hands over, with the next one, when it turned out to be there.
    owed: Committed,
}

/// What the statements of one group share.
pub(super) struct Context<'a> {
    pub(super) conn: &'a Conn,
    pub(super) group: &'a Group,
    pub(super) space: i32,
    pub(super) incarnation: i64,
    pub(super) written: i64,
    pub(super) room: Room,
    pub(super) spilled: BTreeSet<SubscriberNo>,
    pub(super) out: Committed,
    lanes_met: Lanes,
}

impl Context<'_> {
    /// Whether no other delivery of this group came to this lane before.
    pub(super) fn is_first(&mut self, subscriber: SubscriberNo, lane: Lane) -> bool {
        self.lanes_met.insert((subscriber, lane))
    }

    pub(super) fn stamp(&self) -> Stamp {
        Stamp {
            incarnation: self.incarnation,
            written: self.written,
            version: self.group.version,
            now: self.group.now.as_ms(),
        }
    }
}

/// Why a group was not written.
enum Failure {
    /// It is certain that nothing was.
    Refused(Error),
    /// Something in it can not be written, whoever tries.
    Bad(Error),
    /// Somebody stood in its way; nothing was written.
    Again(Error),
    /// It may have been, or not.
    Unknown(Error),
}

pub(super) async fn commit(
    writer: &Arc<Mutex<Writer>>,
    pool: &Arc<Pool>,
    group: Arc<Group>,
) -> Result<Committed> {
    let mut writer = Arc::clone(writer).lock_owned().await;
    let pool = Arc::clone(pool);
    // To its end, whatever becomes of the caller.
    let running = tokio::spawn(async move { writer.commit(&pool, &group).await });
    running
        .await
        .unwrap_or_else(|error| Err(Error::Unavailable(format!("database work ended early: {error}"))))
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, incarnation: i64) -> Self {
        Self {
            shared,
            conn: None,
            incarnation,
            session: 0,
            written: 0,
            period: i64::MIN,
            doubt: None,
            owed: Committed::default(),
        }
    }

    /// Forgets the life before.
    pub(super) fn begin_anew(&mut self, incarnation: i64) {
        *self = Self::new(Arc::clone(&self.shared), incarnation);
    }

    async fn commit(&mut self, pool: &Arc<Pool>, group: &Group) -> Result<Committed> {
        let period = self.shared.periods.at(group.now);
        if period > self.period {
            enter_period(pool, &self.shared, period).await?;
            self.period = period;
        }
        self.settle_doubt().await?;
        let committed = match self.run(group, group.room.clone()).await {
            Ok((committed, _)) => committed,
            Err(Failure::Bad(_)) if !group.submissions.is_empty() => self.one_by_one(group).await?,
            Err(failure) => return Err(failure.into()),
        };
        let mut all = std::mem::take(&mut self.owed);
        all.absorb(committed);
        Ok(all)
    }

    /// Some submission can not be written: each goes alone, after what comes before them and before the refills, whose
    /// answers speak of what all of them left in the store.
    async fn one_by_one(&mut self, group: &Group) -> Result<Committed> {
        let bare = || Group { now: group.now, version: group.version, ..Group::default() };
        let first = Group {
            results: group.results.clone(),
            streaks: group.streaks.clone(),
            released: group.released.clone(),
            asked: group.asked.clone(),
            backfills: group.backfills.clone(),
            steps: group.steps.clone(),
            ..bare()
        };
        let (mut all, mut room) = self.run(&first, group.room.clone()).await?;
        // From here on something is written: what fails is told where it belongs, never instead of what did not.
        for submission in &group.submissions {
            let alone = Group { submissions: vec![submission.clone()], ..bare() };
            match self.run(&alone, room.clone()).await {
                Err(failure) => all.submissions.push(Err(failure.into())),
                Ok((one, left)) => {
                    all.absorb(one);
                    room = left;
                }
            }
        }
        let last = Group { refills: group.refills.clone(), ..bare() };
        match self.run(&last, room).await {
            Ok((refilled, _)) => all.absorb(refilled),
            Err(_) => all.refilled.extend(group.refills.iter().map(|refill| Refilled {
                subscriber: refill.subscriber,
                drained: false,
                next_due: Some(group.now),
            })),
        }
        all.spilled.sort_unstable();
        all.spilled.dedup();
        Ok(all)
    }

    /// Writes a group; what is left of the room comes back with what it did.
    async fn run(&mut self, group: &Group, room: Room) -> std::result::Result<(Committed, Room), Failure> {
        check_routes(group)?;
        let mut tries = 1;
        loop {
            match self.transact(group, room.clone()).await {
                Err(Failure::Again(error)) if tries < TRIES_MAX => {
                    tracing::warn!(%error, "a group is written again");
                    tries += 1;
                }
                Err(Failure::Unknown(error)) => return self.read_back(group, room, error).await,
                result => return result,
            }
        }
    }

    async fn transact(
        &mut self,
        group: &Group,
        room: Room,
    ) -> std::result::Result<(Committed, Room), Failure> {
        if self.conn.as_ref().is_none_or(|conn| conn.client().is_closed()) {
            self.conn = None;
            self.resume().await.map_err(|fault| Failure::Refused(fault.into()))?;
        }
        self.written += 1;
        let mut conn = self.conn.take().expect("it was just made");
        conn.mark(true);
        let mut context = Context {
            conn: &conn,
            group,
            space: self.shared.space,
            incarnation: self.incarnation,
            written: self.written,
            room,
            spilled: BTreeSet::new(),
            out: Committed::default(),
            lanes_met: Lanes::new(),
        };
        let written = write(&mut context, self.session).await;
        let Context { mut out, spilled, room, .. } = context;
        out.spilled = spilled.into_iter().collect();
        match written {
            Ok(()) => {
                conn.mark(false);
                self.conn = Some(conn);
                Ok((out, room))
            }
            Err(error) => {
                let failure = judge(error, &conn, group.version);
                let is_over = !matches!(failure, Failure::Unknown(_)) && conn.roll_back().await.is_ok();
                self.conn = is_over.then_some(conn);
                Err(failure)
            }
        }
    }

    /// A new session for this life. From here on nothing comes of what the old one may still be doing. Says the last
    /// group that is there.
    async fn resume(&mut self) -> Asked<i64> {
        let conn = Conn::open(&self.shared.target).await?;
        let sql =
            "UPDATE replicas SET session = session + 1 WHERE incarnation = $1 RETURNING session, written";
        let Some(row) = conn.row(sql, &[&self.incarnation]).await? else { return Err(Error::Fenced.into()) };
        self.session = row.get(0);
        self.conn = Some(conn);
        Ok(row.get(1))
    }

    /// Looks whether a group is there whose commit was not answered.
    async fn read_back(
        &mut self,
        group: &Group,
        room: Room,
        error: Error,
    ) -> std::result::Result<(Committed, Room), Failure> {
        let doubted = self.written;
        tracing::warn!(%error, "the outcome of a commit is not known: asking the database");
        self.conn = None;
        for look in 0..LOOKS_MAX {
            pause(LOOK_AGAIN * 2_u32.pow(look)).await;
            match self.resume().await {
                Ok(last) if last == doubted => {
                    let adopted = self.adopt(group, doubted).await;
                    let committed = adopted.map_err(|fault| Failure::Refused(fault.into()))?;
                    return Ok((committed, room));
                }
                Ok(_) => return Err(Failure::Refused(error)),
                Err(Fault::Store(Error::Fenced)) => return Err(Failure::Refused(Error::Fenced)),
                Err(_) => {}
            }
        }
        self.doubt = Some(doubted);
        Err(Failure::Refused(error))
    }

    /// Before anything else is written it must be known what became of the group before.
    async fn settle_doubt(&mut self) -> Result<()> {
        let Some(doubted) = self.doubt else { return Ok(()) };
        let last = self.resume().await?;
        self.doubt = None;
        if last == doubted {
            // Whoever waited for an answer has been told that it failed, and asks again.
            let jobs = self.claimed_in(doubted).await?;
            self.owed.jobs.extend(jobs);
        }
        Ok(())
    }

    async fn claimed_in(&self, written: i64) -> Asked<Vec<tidegate_core::delivery::Job>> {
        let conn = self.conn.as_ref().expect("a session was just made");
        deliveries::claimed_in(conn, self.incarnation, written).await
    }

    /// What a group did whose answers were lost: read from what it left.
    async fn adopt(&self, group: &Group, written: i64) -> Asked<Committed> {
        let conn = self.conn.as_ref().expect("a session was just made");
        let mut committed = Committed { jobs: self.claimed_in(written).await?, ..Committed::default() };
        for submission in &group.submissions {
            let statuses = admit::read_back(conn, submission, (self.incarnation, written)).await?;
            committed.submissions.push(Ok(statuses));
        }
        for refill in &group.refills {
            let again = Refilled { subscriber: refill.subscriber, drained: false, next_due: Some(group.now) };
            committed.refilled.push(again);
        }
        committed.stepped = group.steps.iter().map(|step| step.job).collect();
        committed.backfilled = Vec::new();
        // What it left due in the store is found by asking for it.
        let concerned = group.results.iter().map(|finished| finished.subscriber);
        let routed = group.submissions.iter().flat_map(|submission| &submission.units);
        let routed = routed.flat_map(|unit| unit.routes.iter().flatten().map(|route| route.subscriber));
        let concerned: BTreeSet<SubscriberNo> = concerned.chain(routed).collect();
        committed.postponed = concerned.into_iter().map(|subscriber| (subscriber, group.now)).collect();
        Ok(committed)
    }
}

#[expect(clippy::disallowed_methods, reason = "a database that restarts is not looked for in a circle")]
async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// The rule that an event goes to a subscriber once is kept here: a duplicate route is the caller's mistake.
fn check_routes(group: &Group) -> std::result::Result<(), Failure> {
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let mut routes = units.flat_map(|unit| &unit.routes);
    if routes.all(|routes| routes.is_sorted_by(|a, b| a.subscriber < b.subscriber)) {
        return Ok(());
    }
    Err(Failure::Bad(Error::Unavailable("an event goes to a subscriber once".to_owned())))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error)
            | Failure::Bad(error)
            | Failure::Again(error)
            | Failure::Unknown(error) => error,
        }
    }
}

/// What an error of the database means for the group.
fn judge(fault: Fault, conn: &Conn, routed: Version) -> Failure {
    let error = match fault {
        Fault::Store(error) => return Failure::Refused(error),
        Fault::Database(error) => error,
    };
    let text = Error::Unavailable(root_cause(&error));
    let Some(code) = error.code().map(|code| code.code().to_owned()) else { return Failure::Unknown(text) };
    if conn.client().is_closed() {
        return Failure::Unknown(text);
    }
    match code.as_str() {
        FENCED => Failure::Refused(Error::Fenced),
        STALE => Failure::Refused(Error::Stale { routed, current: told_version(&error) }),
        "40001" | "40P01" | "55P03" => Failure::Again(text),
        code if code.starts_with("22") || code.starts_with("23") => Failure::Bad(text),
        code if ["08", "57", "58", "XX"].iter().any(|class| code.starts_with(class)) => {
            Failure::Unknown(text)
        }
        _ => Failure::Refused(text),
    }
}

/// The configuration in force, as the refusal told.
fn told_version(error: &tokio_postgres::Error) -> Version {
    error.as_db_error().and_then(|told| told.message().parse().ok()).unwrap_or_default()
}

/// All of a group, up to and with its COMMIT.
async fn write(context: &mut Context<'_>, session: i64) -> Asked<()> {
    let group = context.group;
    prepare(context.conn).await?;
    let mut columns = Columns::default();
    let room = context.room.clone();
    if is_plain(group) && collect(context, &mut columns) {
        return write_at_once(context, &columns, session).await;
    }
    context.room = room;
    context.lanes_met.clear();
    write_in_steps(context, session).await
}

/// Whether a group is of results and events alone, and no decision is needed on the way.
fn is_plain(group: &Group) -> bool {
    let has_rest = !(group.streaks.is_empty()
        && group.released.is_empty()
        && group.backfills.is_empty()
        && group.asked.is_empty()
        && group.steps.is_empty()
        && group.refills.is_empty());
    let is_laned = group.results.iter().any(|finished| finished.lane.is_some());
    let is_frozen = group.results.iter().any(|finished| finished.body.is_some());
    !(has_rest || is_laned || is_frozen)
}

/// Brings all units into columns, unless one of them needs a look of its own.
fn collect<'a>(context: &mut Context<'a>, columns: &mut Columns<'a>) -> bool {
    let group: &'a Group = context.group;
    let mut keys = BTreeSet::new();
    for (which, submission) in group.submissions.iter().enumerate() {
        for (unit, routed) in submission.units.iter().enumerate() {
            let is_simple = routed.admission == Admission::Granted && routed.unit.events.len() == 1;
            let is_new =
                is_simple && keys.insert(events::Key::of(submission.project, &routed.unit.events[0]));
            if !is_new {
                return false;
            }
            columns.push(context, Entry { place: (which, unit), project: submission.project, routed });
        }
    }
    columns.sort();
    columns.places() < 1 << BLOCK_BITS
}

/// The statements of an ordinary group are there before its transaction begins.
async fn prepare(conn: &Conn) -> Asked<()> {
    if conn.is_prepared() {
        return Ok(());
    }
    let plain = submit::insert_plain();
    let laned = submit::insert_laned();
    let all = [
        "BEGIN",
        "COMMIT",
        ENTER,
        CHECK,
        DRAW,
        lanes::LOCK,
        deliveries::FINISH,
        submit::TAKE_IDS,
        submit::INSERT_EVENTS,
        &plain,
        &laned,
    ];
    for sql in all {
        conn.prepared(sql).await?;
    }
    conn.set_prepared();
    Ok(())
}

async fn enter(context: &Context<'_>, session: i64) -> Asked<()> {
    let (conn, tag) = (context.conn, events::horizon_tag(context.space));
    conn.only(
        ENTER,
        &[&context.incarnation, &session, &context.written, &context.space, &CONFIGURATION, &tag],
    )
    .await?;
    Ok(())
}

async fn check_version(context: &Context<'_>) -> Asked<()> {
    if !context.group.submissions.is_empty() {
        context.conn.only(CHECK, &[&context.group.version]).await?;
    }
    Ok(())
}

async fn draw(conn: &Conn, is_needed: bool) -> Asked<i64> {
    if is_needed { Ok(conn.only(DRAW, &[]).await?.get(0)) } else { Ok(0) }
}

/// An ordinary group: everything is sent, then everything is answered.
async fn write_at_once(context: &mut Context<'_>, columns: &Columns<'_>, session: i64) -> Asked<()> {
    let (conn, stamp, has_events) = (context.conn, context.stamp(), !columns.is_empty());
    let results = Results::of(&context.group.results, context.group.now);
    let (begun, entered, checked, locked, finished, block, taken, written, made, ended) = tokio::join!(
        biased;
        conn.execute("BEGIN", &[]),
        enter(context, session),
        check_version(context),
        lock(context, columns.lanes()),
        finish(conn, &results, stamp.incarnation),
        draw(conn, has_events),
        async { if has_events { columns.take_ids(conn).await } else { Ok(Vec::new()) } },
        async { if has_events { columns.insert_events(conn, &stamp).await } else { Ok(0) } },
        columns.insert_deliveries(conn, &stamp),
        conn.execute("COMMIT", &[]),
    );
    begun?;
    entered?;
    checked?;
    locked?;
    let (finished, block, taken) = (finished?, block?, taken?);
    written?;
    let made = made?;
    ended?;
    deliveries::finished(context, &finished);
    columns.hand_over(context, &made, block);
    // Known ones are compared with what is there; that they are there is on disk already.
    context.out.submissions = admit::answers(context, columns, &taken).await?;
    Ok(())
}

async fn lock(context: &Context<'_>, lanes: Lanes) -> Asked<()> {
    lanes::lock(context.conn, context.space, &lanes).await
}

async fn finish(conn: &Conn, results: &Results, incarnation: i64) -> Asked<Vec<Row>> {
    if results.is_empty() { Ok(Vec::new()) } else { results.write(conn, incarnation).await }
}

/// Any group: one step after the other.
async fn write_in_steps(context: &mut Context<'_>, session: i64) -> Asked<()> {
    let (conn, group) = (context.conn, context.group);
    conn.execute("BEGIN", &[]).await?;
    enter(context, session).await?;
    check_version(context).await?;
    lock_lanes(context).await?;
    deliveries::freeze(context).await?;
    let results = Results::of(&group.results, group.now);
    let rows = finish(conn, &results, context.incarnation).await?;
    let touched = deliveries::finished(context, &rows);
    lanes::let_next_go(context, &touched).await?;
    for (subscriber, since) in &group.streaks {
        configuration::keep_streak(conn, *subscriber, *since).await?;
    }
    deliveries::release(context).await?;
    deliveries::ask(context).await?;
    for step in &group.backfills {
        deliveries::backfill(context, step).await?;
    }
    for step in &group.steps {
        jobs::step(context, step).await?;
    }
    admit::submissions(context).await?;
    for refill in &group.refills {
        deliveries::refill(context, *refill).await?;
    }
    conn.execute("COMMIT", &[]).await?;
    Ok(())
}

/// All lanes that the group may touch, before it touches any.
async fn lock_lanes(context: &Context<'_>) -> Asked<()> {
    let (conn, group) = (context.conn, context.group);
    if group.backfills.iter().any(|step| step.through >= step.until) {
        return lanes::lock_all(conn, context.space).await;
    }
    let mut touched = deliveries::lanes_of(conn, &group.released).await?;
    touched.extend(jobs::lanes_of(conn, &group.steps).await?);
    touched.extend(group.results.iter().filter_map(|one| Some((one.subscriber, one.lane?))));
    for step in &group.backfills {
        touched.extend(step.matched.iter().filter_map(|(_, lane)| Some((step.subscriber, (*lane)?))));
    }
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let routes = units.flat_map(|unit| unit.routes.iter().flatten());
    touched.extend(routes.filter_map(|route| Some((route.subscriber, route.lane?))));
    lanes::lock(conn, context.space, &touched).await
}
