//! Live events behind a backfill: in a lane they would overtake what it has still to bring, so they come with that, in their
//! turn.
//!
//! The lane's lock is held by whoever accepts, and all locks by whoever ends a backfill: so it is known for certain whether it
//! still runs. That it may is known without asking, for a backfill begins with a change of the configuration.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::{Seq, SubscriberNo, Version};

use super::super::db::{Asked, Conn};
use super::super::events::last_step;
use super::super::lanes;
use super::super::write::Context;

/// Whose backfill may run while the configuration has this version: the others' never will.
pub(in crate::postgres) type Behind = (Version, BTreeSet<SubscriberNo>);

/// Whose backfills bring live events too, and up to which.
pub(in crate::postgres) type Deferring = BTreeMap<SubscriberNo, Option<Seq>>;

/// Subscribers of ordered folds in this group whose backfill may be under way. Their lanes are locked; their rows are from
/// here on, with all others of subscribers that the group may write, so that nobody waits in a circle.
pub(in crate::postgres) async fn foresee(context: &mut Context<'_>) -> Asked<Vec<SubscriberNo>> {
    let (conn, group) = (context.conn, context.group);
    if group.submissions.is_empty() {
        return Ok(Vec::new());
    }
    if context.behind.0 != group.version {
        let sql = "SELECT no FROM subscribers WHERE backfill_after IS NOT NULL AND deleted_at IS NULL";
        context.behind = (group.version, conn.rows(sql, &[]).await?.iter().map(|row| row.get(0)).collect());
    }
    if context.behind.1.is_empty() {
        return Ok(Vec::new());
    }
    let units = group.submissions.iter().flat_map(|submission| &submission.units);
    let routes = units.flat_map(|unit| unit.routes.iter().flatten());
    let folded = routes.filter(|route| route.fold.is_some() && route.lane.is_some());
    let folded: BTreeSet<SubscriberNo> = folded.map(|route| route.subscriber).collect();
    let maybe: Vec<SubscriberNo> = folded.intersection(&context.behind.1).copied().collect();
    if !maybe.is_empty() {
        let stepping = group.backfills.iter().map(|step| step.subscriber);
        let failing = group.streaks.iter().map(|(subscriber, _)| *subscriber);
        let all: Vec<SubscriberNo> = maybe.iter().copied().chain(stepping).chain(failing).collect();
        let sql = "SELECT 1 FROM subscribers WHERE no = ANY($1) ORDER BY no FOR NO KEY UPDATE";
        conn.rows(sql, &[&all]).await?;
    }
    Ok(maybe)
}

/// Finds the steps of this group that are the last of their backfills, and takes along what came since they were prepared.
/// All lanes are locked for them, and for no others: nobody's ordered events are accepted meanwhile.
pub(in crate::postgres) async fn find_last(context: &mut Context<'_>) -> Asked<()> {
    let (conn, space) = (context.conn, context.space);
    for step in &context.group.backfills {
        context.may_end |= last_step(conn, step).await?.is_some();
    }
    if !context.may_end {
        return Ok(());
    }
    conn.execute(lanes::LOCK, &[&space, &lanes::all_locks()]).await?;
    for place in 0..context.group.backfills.len() {
        if let Some(last) = last_step(conn, &context.group.backfills[place]).await? {
            context.backfills.to_mut()[place] = last;
        }
    }
    Ok(())
}

/// Which of those are under way, after this group's own steps.
pub(in crate::postgres) async fn running(
    context: &mut Context<'_>,
    maybe: &[SubscriberNo],
) -> Asked<Deferring> {
    if maybe.is_empty() {
        return Ok(Deferring::new());
    }
    let sql = "SELECT no FROM subscribers WHERE no = ANY($1) AND backfill_after IS NOT NULL";
    let rows = context.conn.rows(sql, &[&maybe]).await?;
    let running: Deferring = rows.iter().map(|row| (row.get(0), None)).collect();
    // What this group itself has ended may turn out not to have happened.
    if context.group.backfills.is_empty() {
        context.behind.1.retain(|no| running.contains_key(no) || !maybe.contains(no));
    }
    Ok(running)
}

/// Leaves live events to backfills.
pub(super) async fn defer(conn: &Conn, deferring: &Deferring) -> Asked<()> {
    for (subscriber, until) in deferring.iter().filter_map(|(no, until)| Some((no, (*until)?))) {
        let sql = "UPDATE subscribers SET backfill_until = greatest(backfill_until, $2) WHERE no = $1";
        conn.execute(sql, &[subscriber, &until]).await?;
    }
    Ok(())
}
