//! The group commit: one transaction for everybody who has something to write; `write.rs` has its statements.
//!
//! A submission that fails on its own account is rerun alone, so that its neighbours never pay for it. When the outcome
//! of a commit is not known, the database is asked, on a new session that ends all that the old one may still be doing:
//! the group is adopted or refused, never guessed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::delivery::Job;
use tidegate_core::id::{DeliveryNo, SubscriberNo, Version};
use tokio::sync::Mutex;

use super::connect::root_cause;
use super::db::{Asked, Conn, Fault, Pool};
use super::folds::Tally;
use super::folds::behind::Behind;
use super::held::{self, Held};
use super::open::{BLOCK_BITS, enter_period};
use super::plans::Planning;
use super::write::{Context, write};
use super::{Shared, admit, deliveries, lineage, windows};
use crate::coordination::timer::pause;
use crate::rewind::Found;
use crate::{Committed, Error, Group, Result, Room};

/// How often a group is tried that others stood in the way of.
const TRIES_MAX: u32 = 3;
/// How often a database that is gone is looked for before a group with an unknown outcome is given up for now.
const LOOKS_MAX: u32 = 8;
/// The pause between two looks, the first time; then twice as long each time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A group waits for nothing but the database. A process that stands still in the middle of one keeps everybody else
/// from what the group has locked: no longer than until the others may declare it dead.
const STILL_MAX_MS: u32 = 4_000;

/// States of our own, see `refuse` in the schema.
const STALE: &str = "TG001";
const FENCED: &str = "TG002";

/// What only group commits touch.
pub(super) struct Writer {
    shared: Arc<Shared>,
    conn: Option<Conn>,
    incarnation: i64,
    session: i64,
    /// The number of the last group that was begun.
    written: i64,
    period: i64,
    /// A group whose outcome is not known, or not yet acted on: its number.
    doubt: Option<i64>,
    /// How many windows each project has, as far as is known.
    tally: Tally,
    /// How many more groups are expected to bring ids that are taken.
    repeats: u32,
    planning: Planning,
    /// Whose backfill may be under way.
    behind: Behind,
    /// What it claimed as it was made.
    held: Held,
    /// What such a group hands over, with the next one, when it turned out to be there.
    owed: Committed,
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
            tally: Tally::new(),
            repeats: 0,
            planning: Planning::default(),
            behind: Behind::default(),
            held: Held::default(),
            owed: Committed::default(),
        }
    }

    /// Whether nothing is under way, and it is known what became of everything that was.
    pub(super) fn is_quiet(&self) -> bool {
        self.conn.is_some() && self.doubt.is_none()
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
        let (own, stale) = group.of_life(self.incarnation).unzip();
        let group = own.as_ref().unwrap_or(group);
        let committed = match self.run(group, group.room.clone()).await {
            Ok((committed, _)) => committed,
            Err(Failure::Bad(_)) => self.one_by_one(group).await?,
            Err(failure) => return Err(failure.into()),
        };
        let mut all = std::mem::take(&mut self.owed);
        all.absorb(committed);
        all.absorb(stale.unwrap_or_default());
        all.claimed_in(self.incarnation);
        Ok(all)
    }

    /// Something can not be written, most likely a submission: each goes alone, after what comes before them and before the
    /// refills, whose answers speak of what all of them left in the store.
    async fn one_by_one(&mut self, group: &Group) -> Result<Committed> {
        let first = group.before_submissions();
        let (mut all, mut room) = match self.run(&first, group.room.clone()).await {
            Err(Failure::Bad(_)) => self.in_pieces(&first, group.room.clone()).await?,
            written => written?,
        };
        // From here on something is written: what fails is told where it belongs, never instead of what did not.
        for submission in &group.submissions {
            match self.run(&group.alone(submission), room.clone()).await {
                Err(failure) => all.submissions.push(Err(failure.into())),
                Ok((one, left)) => {
                    all.absorb(one);
                    room = left;
                }
            }
        }
        let refilled = self.run(&group.only_refills(), room).await;
        Ok(all.end(group, refilled.ok().map(|(refilled, _)| refilled)))
    }

    /// It is none of the submissions: what can be written is, and the rest is left out.
    async fn in_pieces(&mut self, group: &Group, mut room: Room) -> Result<(Committed, Room)> {
        let mut all = Committed::default();
        for piece in group.pieces() {
            match self.run(&piece, room.clone()).await {
                Ok((one, left)) => {
                    all.absorb(one);
                    room = left;
                }
                Err(Failure::Bad(error)) => piece.leave_out(&error, &mut all),
                Err(failure) => {
                    // What was claimed so far is handed over with the next group.
                    self.owed.absorb(all);
                    return Err(failure.into());
                }
            }
        }
        Ok((all, room))
    }

    /// Writes a group; what is left of the room comes back with what it did.
    async fn run(&mut self, group: &Group, room: Room) -> std::result::Result<(Committed, Room), Failure> {
        check_routes(group)?;
        if self.shared.seen.is_back() {
            return Err(Error::Fenced.into());
        }
        self.settle_doubt().await?;
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
        if self.conn.as_ref().is_none_or(Conn::is_over) {
            self.conn = None;
            self.resume().await.map_err(|fault| Failure::Refused(fault.into()))?;
        }
        self.written += 1;
        let mut conn = self.conn.take().expect("it was just made");
        conn.mark(true);
        self.plan_anew(&conn, group).await.map_err(|fault| Failure::Refused(fault.into()))?;
        self.held.shelve(&conn, self.incarnation).await.map_err(|fault| Failure::Refused(fault.into()))?;
        let life = (self.incarnation, self.written);
        let windows_max = self.shared.windows_max.load(std::sync::atomic::Ordering::Relaxed);
        let windows = (std::mem::take(&mut self.tally), windows_max);
        let mut context = Context::new(&conn, group, self.shared.space, life, room, windows);
        context.repeats = self.repeats;
        context.behind = std::mem::take(&mut self.behind);
        context.blocks = self.held.blocks();
        self.doubt = Some(self.written);
        let written = write(&mut context, self.session).await;
        let Context { mut out, spilled, room, tally, repeats, behind, born, block, .. } = context;
        (self.repeats, self.behind) = (repeats, behind);
        out.spilled = spilled.into_iter().collect();
        match written {
            Ok(()) => {
                self.acknowledge(block);
                self.tally = tally;
                let results = group.results.iter().map(|finished| finished.claim.delivery);
                self.held.end(results.chain(group.released.iter().map(|claim| claim.delivery)));
                self.held.begin(born);
                conn.mark(false);
                self.conn = Some(conn);
                Ok((out, room))
            }
            Err(error) => {
                let failure = judge(error, &conn, group.version);
                if !matches!(failure, Failure::Unknown(_)) {
                    self.doubt = None;
                }
                let is_over = !matches!(failure, Failure::Unknown(_)) && conn.roll_back().await.is_ok();
                self.conn = is_over.then_some(conn);
                Err(failure)
            }
        }
    }

    /// Now and then the server looks again at how large the tables are.
    async fn plan_anew(&mut self, conn: &Conn, group: &Group) -> Asked<()> {
        let units = group.submissions.iter().flat_map(|submission| &submission.units);
        let rows = units.map(|unit| 1 + unit.routes.iter().map(Vec::len).sum::<usize>()).sum();
        if self.planning.is_due(rows) {
            conn.tell("DISCARD PLANS").await?;
        }
        Ok(())
    }

    /// The last group that was begun is written.
    fn acknowledge(&mut self, block: i64) {
        self.doubt = None;
        self.shared.seen.group(self.incarnation, self.written, block >> BLOCK_BITS);
    }

    /// A new session for this life. From here on nothing comes of what the old one may still be doing. Says the last
    /// group that is there. If one is missing that was, the database went back in time.
    async fn resume(&mut self) -> Asked<i64> {
        let known = self.shared.seen.known();
        let mut conn = Conn::open(&self.shared.target).await?;
        conn.tell(&format!("SET idle_in_transaction_session_timeout = {STILL_MAX_MS}")).await?;
        lineage::follow(&mut conn, self.shared.space).await?;
        let sql = "UPDATE replicas SET session = session + 1 WHERE incarnation = $1
             RETURNING session, written, (SELECT period FROM installation), (SELECT last_value FROM numbers)";
        let Some(row) = conn.row(sql, &[&self.incarnation]).await? else { return Err(Error::Fenced.into()) };
        self.session = row.get(0);
        self.conn = Some(conn);
        self.planning = Planning::default();
        let written: i64 = row.get(1);
        let found = Found { written: Some(written), version: None, block: None };
        self.shared.seen.compare(known, found)?;
        let (period, block): (i64, i64) = (row.get(2), row.get(3));
        let is_entered = self.period > i64::MIN;
        let is_ready =
            || period >= self.period && block >= self.shared.periods.first_no(self.period) >> BLOCK_BITS;
        if is_entered && !is_ready() {
            self.period = i64::MIN;
            let why = "the database went back in time, and what it needs for today is made again".to_owned();
            return Err(Error::Unavailable(why).into());
        }
        Ok(written)
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
                    // The way to the database may be cut again while what the group did is read.
                    if let Ok(committed) = self.adopt(group, doubted).await {
                        self.acknowledge(0);
                        return Ok((committed, room));
                    }
                }
                Ok(_) => {
                    self.doubt = None;
                    return Err(Failure::Refused(error));
                }
                Err(Fault::Store(Error::Fenced)) => return Err(Failure::Refused(Error::Fenced)),
                Err(_) => {}
            }
        }
        Err(Failure::Refused(error))
    }

    /// Before anything else is written it must be known what became of the group before.
    async fn settle_doubt(&mut self) -> Result<()> {
        let Some(doubted) = self.doubt else { return Ok(()) };
        if self.resume().await? == doubted {
            // Whoever waited for an answer has been told that it failed, and asks again.
            let jobs = self.claimed_in(doubted).await?;
            self.owed.jobs.extend(jobs);
            self.acknowledge(0);
        }
        self.doubt = None;
        Ok(())
    }

    /// What a group claimed. Its blocks are no longer known here, so each gets its holder.
    async fn claimed_in(&self, written: i64) -> Asked<Vec<Job>> {
        let conn = self.conn.as_ref().expect("a session was just made");
        let jobs = deliveries::claimed_in(conn, self.incarnation, written).await?;
        let ids: Vec<DeliveryNo> = jobs.iter().map(|job| job.delivery).collect();
        held::shelve(conn, self.incarnation, &ids).await?;
        Ok(jobs)
    }

    /// What a group did whose answers were lost: read from what it left.
    async fn adopt(&self, group: &Group, written: i64) -> Asked<Committed> {
        let conn = self.conn.as_ref().expect("a session was just made");
        let mut committed = Committed { jobs: self.claimed_in(written).await?, ..Committed::default() };
        let answers = admit::read_back(conn, &group.submissions, (self.incarnation, written)).await?;
        committed.submissions = answers.into_iter().map(Ok).collect();
        committed.refilled.extend(group.ask_again());
        // A step may have come to nothing, because its job was stopped or its configuration was an old one. Its job's row
        // says so, and is read again before the next step.
        committed.stepped = Vec::new();
        committed.backfilled = Vec::new();
        // What it left due in the store is found by asking for it.
        let concerned = group.results.iter().map(|finished| finished.subscriber);
        let routed = group.submissions.iter().flat_map(|submission| &submission.units);
        let routed = routed.flat_map(|unit| unit.routes.iter().flatten().map(|route| route.subscriber));
        let concerned: BTreeSet<SubscriberNo> = concerned.chain(routed).collect();
        committed.postponed = concerned.into_iter().map(|subscriber| (subscriber, group.now)).collect();
        // Nothing was sent under these claims: the caller that asked to seal or begin them releases them.
        let sealed = group.seals.iter().map(|seal| seal.claim);
        committed.unsealed = sealed.chain(group.begun.iter().copied()).collect();
        committed.close_due = windows::next_due(conn).await?;
        if group.close > 0 {
            committed.postponed.extend(deliveries::due(conn).await?);
        }
        Ok(committed)
    }
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
        Fault::Store(error @ Error::Quota(_)) => return Failure::Bad(error),
        Fault::Store(error) => return Failure::Refused(error),
        Fault::Silent => return Failure::Unknown(fault.into()),
        Fault::Database(error) => error,
    };
    let text = Error::Unavailable(root_cause(&error));
    let Some(code) = error.code().map(|code| code.code().to_owned()) else { return Failure::Unknown(text) };
    if conn.is_over() {
        return Failure::Unknown(text);
    }
    match code.as_str() {
        FENCED => Failure::Refused(Error::Fenced),
        STALE => Failure::Refused(Error::Stale { routed, current: told_version(&error) }),
        "40001" | "40P01" | "55P03" => Failure::Again(text),
        // What does not fit: a value, a constraint, a limit of the server's own.
        code if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => Failure::Bad(text),
        code if ["08", "57", "58", "XX"].iter().any(|class| code.starts_with(class)) => {
            Failure::Unknown(text)
        }
        _ => Failure::Refused(text),
    }
}

/// The configuration in force, as the refusal told: its last word.
fn told_version(error: &tokio_postgres::Error) -> Version {
    let word = error.as_db_error().and_then(|told| told.message().rsplit(' ').next()?.parse().ok());
    word.unwrap_or_default()
}
