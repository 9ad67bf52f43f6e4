//! The statements of one group, from BEGIN to COMMIT.
//!
//! An ordinary group (results and events) is one round trip, see `at_once.rs`: what must not be true together with the
//! rest (the configuration moved, this process was declared dead) ends the transaction on the server. Whatever needs a
//! decision in between takes the same steps, those that need no answer of each other together.

use std::borrow::Cow;
use std::collections::BTreeSet;

use tidegate_core::id::{DeliveryNo, Lane, SubscriberNo};
use tokio_postgres::types::ToSql;

use super::at_once::{self, Call};
use super::db::{Ask, Asked, Conn, Fault};
use super::deliveries::{self, Results};
use super::folds::behind::Behind;
use super::folds::{self, Folding, Reach, Tally};
use super::lanes::{self, Lanes};
use super::open::CONFIGURATION;
use super::submit::{Columns, Entry, NUMBERS_MAX, Stamp};
use super::{admit, configuration, events, jobs, suspects};
use crate::decided::newest;
use crate::sabotage::{self, Line};
use crate::{Admission, BackfillStep, Claim, Committed, Finished, Group, Room};

/// The first number of a new block.
pub(super) const DRAW: &str = "SELECT nextval('numbers') << 20";

/// Renews this life, and takes part in the configuration and in what readers must wait for.
const ENTER: &str =
    "WITH mine AS (UPDATE replicas SET written = $3, at = $7 WHERE incarnation = $1 AND session = $2 RETURNING 1)
    SELECT CASE WHEN NOT EXISTS (SELECT 1 FROM mine) THEN refuse('tidegate: this process was taken over', 'TG002') END,
        pg_advisory_xact_lock_shared($4::int, $5::int), pg_advisory_xact_lock_shared($6::bigint | last_value)
    FROM numbers";

fn entering() -> Cow<'static, str> {
    sabotage::unless(Line::Fencing, ENTER, &[("THEN refuse(", "AND FALSE THEN refuse(")])
}

/// Ends a group that was routed by another configuration. After [`ENTER`], so that what it sees stays true until the
/// group has ended. The last word is read back; the others are for whoever reads the server's log.
const CHECK: &str = "SELECT CASE WHEN version <> $1
    THEN refuse('tidegate: the configuration moved to ' || version, 'TG001') END FROM installation";

/// Holds the subscribers whose rows a group changes, in the order of their numbers: two groups that change the same ones in
/// opposite order would wait for each other.
const HOLD_SUBSCRIBERS: &str = "SELECT FROM subscribers WHERE no = ANY($1) ORDER BY no FOR NO KEY UPDATE";

/// Results that one statement writes: it looks up the values of each among those of all.
const RESULTS_AT_ONCE: usize = 1_024;

/// Somebody who sends an id again often sends many: after a group that brought some, so many more look before they take.
const REPEATS_EXPECTED: u32 = 8;

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
    /// How many windows there are, and may be.
    pub(super) tally: Tally,
    pub(super) windows_max: usize,
    /// Lanes in which windows may close: what else comes to them waits until that is known.
    pub(super) fold_lanes: Lanes,
    /// How many more groups are expected to bring ids that are taken.
    pub(super) repeats: u32,
    /// Whose backfill may be under way.
    pub(super) behind: Behind,
    /// Steps of backfills, the last ones with what came since they were prepared.
    pub(super) backfills: Cow<'a, [BackfillStep]>,
    /// All lanes are locked: a backfill may end.
    pub(super) may_end: bool,
    /// Blocks with deliveries that this life claimed as it made them.
    pub(super) blocks: Vec<i64>,
    /// More of those, which this group has made.
    pub(super) born: BTreeSet<DeliveryNo>,
    /// The first number of the last block that was drawn for events.
    pub(super) block: i64,
    lanes_met: Lanes,
    /// The first number of a block that nobody has used.
    drawn: Option<i64>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        conn: &'a Conn,
        group: &'a Group,
        space: i32,
        life: (i64, i64),
        room: Room,
        (tally, windows_max): (Tally, usize),
    ) -> Self {
        let (incarnation, written) = life;
        Self {
            conn,
            group,
            space,
            incarnation,
            written,
            room,
            spilled: BTreeSet::new(),
            out: Committed::default(),
            tally,
            windows_max,
            fold_lanes: Lanes::new(),
            repeats: 0,
            behind: Behind::default(),
            backfills: Cow::Borrowed(&group.backfills),
            may_end: false,
            blocks: Vec::new(),
            born: BTreeSet::new(),
            block: 0,
            lanes_met: Lanes::new(),
            drawn: None,
        }
    }

    /// The first number of a new block.
    pub(super) async fn draw(&mut self) -> Asked<i64> {
        self.block = match self.drawn.take() {
            Some(block) => block,
            None => self.conn.only(DRAW, &[]).await?.get(0),
        };
        Ok(self.block)
    }

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

/// All of a group, up to and with its COMMIT.
pub(super) async fn write(context: &mut Context<'_>, session: i64) -> Asked<()> {
    let group = context.group;
    prepare(context.conn).await?;
    if is_plain(group)
        && let Some(columns) = collect(context)
    {
        return write_at_once(context, &columns, session).await;
    }
    write_in_steps(context, session).await
}

/// Whether a group is of results and events alone, and no decision is needed on the way.
fn is_plain(group: &Group) -> bool {
    let has_rest = !(group.streaks.is_empty()
        && group.released.is_empty()
        && group.backfills.is_empty()
        && group.asked.is_empty()
        && group.steps.is_empty()
        && group.seals.is_empty()
        && group.begun.is_empty()
        && group.close == 0
        && group.refills.is_empty());
    let is_laned = group.results.iter().any(|finished| finished.lane.is_some());
    let is_frozen = group.results.iter().any(|finished| finished.body.is_some());
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let is_folded =
        || units.flat_map(|unit| unit.routes.iter().flatten()).any(|route| route.window().is_some());
    let are_many = group.results.len() > RESULTS_AT_ONCE;
    !(has_rest || is_laned || is_frozen || are_many || is_folded())
}

/// All units in columns, unless one of them needs a look of its own.
pub(super) fn collect<'a>(context: &mut Context<'a>) -> Option<Columns<'a>> {
    let mut columns = Columns::default();
    let room = context.room.clone();
    if collect_into(context, &mut columns) {
        return Some(columns);
    }
    context.room = room;
    context.lanes_met.clear();
    None
}

fn collect_into<'a>(context: &mut Context<'a>, columns: &mut Columns<'a>) -> bool {
    let group: &'a Group = context.group;
    for (which, submission) in group.submissions.iter().enumerate() {
        for (unit, routed) in submission.units.iter().enumerate() {
            if routed.admission != Admission::Granted || routed.unit.events.len() != 1 {
                return false;
            }
            columns.push(context, Entry { place: (which, unit), project: submission.project, routed });
        }
    }
    columns.sort();
    !columns.has_twins() && columns.numbers_max() < NUMBERS_MAX
}

/// What a session needs before its first group.
async fn prepare(conn: &Conn) -> Asked<()> {
    if conn.is_prepared() {
        return Ok(());
    }
    conn.tell(&at_once::definition()).await?;
    conn.prepared(&at_once::CALL).await?;
    conn.set_prepared();
    Ok(())
}

/// The values of [`ENTER`].
pub(super) struct Entering {
    life: (i64, i64, i64),
    space: i32,
    tag: i64,
    now: i64,
}

impl Entering {
    fn of(context: &Context<'_>, session: i64) -> Self {
        let tag = events::horizon_tag(context.space);
        let life = (context.incarnation, session, context.written);
        Self { life, space: context.space, tag, now: context.group.now.as_ms() }
    }

    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 7] {
        let (incarnation, session, written) = &self.life;
        [incarnation, session, written, &self.space, &CONFIGURATION, &self.tag, &self.now]
    }
}

/// Begins a transaction that goes step by step.
async fn begin(context: &Context<'_>, session: i64) -> Asked<()> {
    let (enter, entering) = (entering(), Entering::of(context, session));
    let (entering, version) = (entering.values(), [&context.group.version as &(dyn ToSql + Sync)]);
    let mut asks: Vec<Ask<'_>> = vec![("BEGIN", &[]), (&enter, &entering)];
    if !context.group.submissions.is_empty() {
        asks.push((CHECK, &version));
    }
    let changed = changed_subscribers(context.group);
    let changed = [&changed as &(dyn ToSql + Sync)];
    // One alone waits for nobody with another one in hand.
    if context.group.streaks.len() + context.group.backfills.len() > 1 {
        asks.push((HOLD_SUBSCRIBERS, &changed));
    }
    context.conn.together(&asks).await.map(drop)
}

fn changed_subscribers(group: &Group) -> Vec<SubscriberNo> {
    let failing = group.streaks.iter().map(|(subscriber, _)| *subscriber);
    failing.chain(group.backfills.iter().map(|step| step.subscriber)).collect()
}

/// An ordinary group: one statement, which is a transaction by itself. It expects all ids to be new, unless some were not
/// lately, and is called again when it was wrong.
async fn write_at_once(context: &mut Context<'_>, columns: &Columns<'_>, session: i64) -> Asked<()> {
    let results = Results::of(&context.group.results, context.group.now);
    let call = Call {
        entering: Entering::of(context, session),
        stamp: context.stamp(),
        blocks: &context.blocks,
        results: &results,
        columns,
    };
    let expects_repeats = context.repeats > 0 || columns.has_lanes();
    let done = match call.run(context.conn, expects_repeats).await {
        Err(fault) if !expects_repeats && fault.is_known_id() => call.run(context.conn, true).await?,
        done => done?,
    };
    let met_some = done.taken.as_ref().is_some_and(|taken| taken.len() < columns.entries().len());
    context.repeats = if met_some { REPEATS_EXPECTED } else { context.repeats.saturating_sub(1) };
    match &done.finished {
        Some(counted) => {
            let heard = heard(&context.group.results, counted);
            drop(deliveries::finished(context, &heard));
        }
        None => context.out.stale += (context.group.results.len() as u64).saturating_sub(done.delivered),
    }
    context.block = done.block;
    columns.hand_over(context, done.made, done.block);
    let unlaned = context.out.jobs.iter().filter(|job| job.lane.is_none());
    context.born = unlaned.map(|job| job.delivery).collect();
    context.out.numbers = columns.numbers(done.taken.as_deref(), done.block);
    // Known ones are compared with what is there. The group is on disk already: without an answer, what it did is read back.
    let answers = admit::answers(context, columns, done.taken.as_deref()).await;
    context.out.submissions = answers.map_err(|_| Fault::Silent)?;
    Ok(())
}

async fn finish(context: &Context<'_>) -> Asked<Vec<DeliveryNo>> {
    let mut counted = Vec::new();
    for some in context.group.results.chunks(RESULTS_AT_ONCE) {
        let results = Results::of(some, context.group.now);
        counted.extend(results.write(context.conn, context.incarnation).await?);
    }
    Ok(counted)
}

/// Of all results those that counted.
fn heard<'a>(results: &'a [Finished], counted: &[DeliveryNo]) -> Vec<&'a Finished> {
    let counted: BTreeSet<DeliveryNo> = counted.iter().copied().collect();
    newest(results).into_iter().filter(|one| counted.contains(&one.claim.delivery)).collect()
}

/// Any group: one step after the other.
async fn write_in_steps(context: &mut Context<'_>, session: i64) -> Asked<()> {
    let (conn, group) = (context.conn, context.group);
    begin(context, session).await?;
    folds::behind::find_last(context).await?;
    let reach = folds::foresee(context).await?;
    let locks = if context.may_end { Vec::new() } else { locks(context, &reach).await? };
    let (mut book, drawn) = reach.load(conn, context.space, &locks, draws_first(group)).await?;
    context.drawn = drawn;
    reach.count_elsewhere(&mut book, &context.tally);
    let maybe_behind = folds::behind::foresee(context).await?;
    context.fold_lanes.clone_from(&reach.lanes);
    let mut folding = Folding::new(&book, group.now, context.windows_max, &group.stretch);
    deliveries::freeze(context).await?;
    let counted = finish(context).await?;
    let heard = heard(&group.results, &counted);
    lanes::step_aside(context, &heard).await?;
    let touched = deliveries::finished(context, &heard);
    lanes::let_next_go(context, &touched).await?;
    for (subscriber, since) in &group.streaks {
        configuration::keep_streak(conn, *subscriber, *since).await?;
    }
    deliveries::release(context).await?;
    deliveries::ask(context).await?;
    folds::seal(context, &mut folding).await?;
    suspects::begin(context).await?;
    folding.close_due(conn, group).await?;
    for step in context.backfills.clone().iter() {
        deliveries::backfill(context, &mut folding, step).await?;
    }
    for step in &group.steps {
        jobs::step(context, &mut folding, step).await?;
    }
    folding.deferring = folds::behind::running(context, &maybe_behind).await?;
    admit::submissions(context, &mut folding).await?;
    if group.close > 0 || !reach.is_empty() {
        folding.settle(context, &reach.lanes).await?;
    }
    for refill in &group.refills {
        deliveries::refill(context, *refill).await?;
    }
    conn.execute("COMMIT", &[]).await?;
    Ok(())
}

/// Whether events draw the first numbers of a group. What comes before them has lower ones.
fn draws_first(group: &Group) -> bool {
    let is_first = group.close == 0 && group.backfills.is_empty() && group.steps.is_empty();
    is_first && !group.submissions.is_empty()
}

/// The locks of all lanes that the group may touch: it takes them before it touches any.
async fn locks(context: &Context<'_>, reach: &Reach) -> Asked<Vec<i32>> {
    let (conn, group) = (context.conn, context.group);
    let sealed = group.seals.iter().map(|seal| seal.claim);
    let claims: Vec<Claim> = group.released.iter().chain(&group.begun).copied().chain(sealed).collect();
    let mut touched = deliveries::lanes_of(conn, &claims).await?;
    touched.extend(reach.locks());
    touched.extend(jobs::lanes_of(conn, &group.steps).await?);
    touched.extend(group.results.iter().filter_map(|one| Some((one.subscriber, one.lane?))));
    for step in context.backfills.iter() {
        let brought = step.matched.iter().filter_map(|(_, route)| route.lane);
        touched.extend(brought.chain(step.passed.iter().copied()).map(|lane| (step.subscriber, lane)));
    }
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let routes = units.flat_map(|unit| unit.routes.iter().flatten());
    touched.extend(routes.filter_map(|route| Some((route.subscriber, route.lane?))));
    Ok(lanes::locks(&touched))
}
