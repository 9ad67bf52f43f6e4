//! Past events on their way into windows: by a backfill, a replay or a job.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::fold::{Arrival, Draft};
use tidegate_core::id::{ProjectNo, Seq, WindowNo};
use tidegate_core::route::Route;

use super::{arrival, hash};
use crate::postgres::db::{Asked, Conn};
use crate::postgres::sweep::hold_past;
use crate::postgres::write::DRAW;

/// Past events, and where each goes.
pub(in crate::postgres) type Wanted<'a> = Vec<(Seq, &'a Route)>;

/// Those that go into windows, and those that are deliveries of their own.
pub(in crate::postgres) fn parted(wanted: &[(Seq, Route)]) -> (Wanted<'_>, Wanted<'_>) {
    wanted.iter().map(|(event, route)| (*event, route)).partition(|(_, route)| route.fold.is_some())
}

/// Those that have to do with windows, be it that they only end them.
pub(in crate::postgres) fn arriving(wanted: &[(Seq, Route)]) -> Wanted<'_> {
    let all = wanted.iter().map(|(event, route)| (*event, route));
    all.filter(|(_, route)| route.window().is_some()).collect()
}

/// What is known of past events that are to be folded.
pub(super) struct Past {
    project: ProjectNo,
    sizes: BTreeMap<Seq, u32>,
    /// Events that are members of windows they would go to.
    members: BTreeSet<(Seq, WindowNo)>,
    /// Its numbers may be drawn.
    pub(super) block: i64,
}

impl Past {
    pub(super) async fn find(
        conn: &Conn,
        space: i32,
        project: ProjectNo,
        wanted: &[(Seq, &Route)],
        is_replay: bool,
        draft: &Draft<'_>,
    ) -> Asked<Self> {
        hold_past(conn, space).await?;
        // After that, so that whoever removes events finds what joined since by its number.
        let block: i64 = conn.only(DRAW, &[]).await?.get(0);
        let seqs: Vec<Seq> = wanted.iter().map(|(event, _)| *event).collect();
        let sizes = "SELECT seq, octet_length(body) FROM events WHERE seq = ANY($1) AND project = $2";
        let rows = conn.rows(sizes, &[&seqs, &project]).await?;
        let sizes = rows.iter().map(|row| (row.get(0), row.get::<_, i32>(1).cast_unsigned())).collect();
        let mut past = Self { project, sizes, members: BTreeSet::new(), block };
        if is_replay {
            let slot = |route: &Route| Some((route.subscriber, hash(route.fold.as_deref()?, true)));
            let windows = wanted.iter().filter_map(|(_, route)| Some(draft.get(slot(route)?)?.no));
            let windows: BTreeSet<WindowNo> = windows.collect();
            let windows: Vec<WindowNo> = windows.into_iter().collect();
            let sql = "SELECT event, \"window\" FROM members WHERE event = ANY($1) AND \"window\" = ANY($2)";
            let rows = conn.rows(sql, &[&seqs, &windows]).await?;
            past.members = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        }
        Ok(past)
    }

    /// Those that are still there.
    pub(super) fn arrivals<'b>(
        &'b self,
        wanted: &'b [(Seq, &'b Route)],
        is_replay: bool,
    ) -> impl Iterator<Item = Arrival<'b>> {
        wanted.iter().filter_map(move |(event, route)| {
            arrival(self.project, (*event, *self.sizes.get(event)?), route, is_replay)
        })
    }

    pub(super) fn is_there(&self, draft: &Draft<'_>, arrival: &Arrival<'_>) -> bool {
        let window = draft.get(arrival.slot()).map(|window| window.no);
        arrival.replay
            && (draft.has_joined(arrival)
                || window.is_some_and(|window| self.members.contains(&(arrival.event, window))))
    }
}
