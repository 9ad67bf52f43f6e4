//! New events on their way in: column by column, one statement for the ids, one for the events, one for the deliveries.
//!
//! Everything is numbered by its place in the request before anything is known about it: an event's number is the
//! group's block plus its place, its deliveries follow. Which ids are new is found out by taking them, in order of their
//! keys, so that two processes that take the same ones never wait for each other in a circle. Events and deliveries
//! are then written for those that were free; the other places stay unused.

use tidegate_core::delivery::Job;
use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo};
use tidegate_core::route::Route;
use tokio_postgres::types::ToSql;

use super::db::{Ask, Asked, Conn};
use super::deliveries::{CLAIMED, DUE, WAITING};
use super::events::Key;
use super::folds::{self, Folding, Numbers};
use super::lanes::Lanes;
use super::open::BLOCK_BITS;
use super::write::{Context, DRAW};
use crate::RoutedUnit;
use crate::sabotage::{self, Line};

/// A unit, and where it stands in its group.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a> {
    /// Which submission and which unit of it.
    pub(super) place: (usize, usize),
    pub(super) project: ProjectNo,
    pub(super) routed: &'a RoutedUnit,
}

impl Entry<'_> {
    /// How many numbers its events and what they lead to need, at most.
    pub(super) fn numbers_max(&self) -> i64 {
        let routes = self.routed.routes.iter().flatten();
        let led_to =
            routes.map(|route| match i64::from(route.fold.is_some()) + i64::from(route.ends.is_some()) {
                0 => 1,
                windows => KEPT_FOR_FOLDS + DRAWN_BY_FOLDS * windows,
            });
        i64::try_from(self.routed.unit.events.len()).unwrap_or(i64::MAX).saturating_add(led_to.sum())
    }
}

/// Ids in the order of their keys, which is the order in which they are taken, with the place of each one's event.
pub(super) struct Ids<'a> {
    places: Vec<i64>,
    high: Vec<i64>,
    low: Vec<i64>,
    prints: Vec<&'a [u8]>,
}

impl Ids<'_> {
    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 4] {
        [&self.places, &self.high, &self.low, &self.prints]
    }
}

/// Deliveries, each with the place, project and key of its event.
pub(super) struct Routes<'a> {
    pub(super) places: &'a [i64],
    pub(super) events: Vec<i64>,
    pub(super) projects: Vec<i64>,
    pub(super) high: Vec<i64>,
    pub(super) low: Vec<i64>,
    pub(super) subscribers: &'a [i64],
    pub(super) lanes: &'a [Option<Lane>],
    pub(super) wanted: &'a [i16],
}

/// Units to be written, as columns.
#[derive(Default)]
pub(super) struct Columns<'a> {
    entries: Vec<Entry<'a>>,
    /// Per event: which entry it is of.
    owners: Vec<usize>,
    /// Events and deliveries, numbered in one row.
    places: i64,
    event_places: Vec<i64>,
    projects: Vec<i64>,
    high: Vec<i64>,
    low: Vec<i64>,
    times: Vec<i64>,
    sources: Vec<&'a [u8]>,
    ids: Vec<&'a [u8]>,
    types: Vec<&'a [u8]>,
    subjects: Vec<Option<&'a [u8]>>,
    prints: Vec<&'a [u8]>,
    bodies: Vec<&'a [u8]>,
    /// Indexes of the above, in the order of keys.
    sorted: Vec<usize>,
    delivery_places: Vec<i64>,
    delivery_events: Vec<usize>,
    subscribers: Vec<i64>,
    lanes: Vec<Option<Lane>>,
    wanted: Vec<i16>,
    /// Events that go into windows: which event, by which route, and the first of the numbers kept for it.
    folded: Vec<(usize, &'a Route, i64)>,
}

/// Numbers that are kept for an event that goes into a window of a lane: those of windows and deliveries that it leads
/// to stand between the event's and the next one's.
const KEPT_FOR_FOLDS: i64 = 4;

/// Numbers that an event may draw which goes into a window: for those of windows and deliveries that it leads to.
const DRAWN_BY_FOLDS: i64 = 8;

/// Numbers of what is written at once, unless a single unit needs more: half a block, so that windows that close have room.
pub(super) const NUMBERS_MAX: i64 = 1 << BLOCK_BITS >> 1;

/// Takes ids, in order, that are all new; fails if one is not. `$1` is the group's block. Here and below, arrays are
/// unfolded side by side where they are selected, not in `FROM`, which would keep a copy of each.
pub(super) const TAKE_NEW_IDS: &str = "INSERT INTO dedupe (key_high, key_low, event, fingerprint)
        SELECT i.high, i.low, $1::bigint + i.place, i.print
        FROM (SELECT unnest($2::bigint[]) AS place, unnest($3::bigint[]) AS high, unnest($4::bigint[]) AS low,
            unnest($5::bytea[]) AS print) i";

/// Takes ids. What is taken already stays as it is. How many it got stays for the statements that follow: when it got
/// all, they need not look.
pub(super) fn take_ids() -> String {
    format!(
        "WITH taken AS ({TAKE_NEW_IDS} ON CONFLICT DO NOTHING RETURNING event & 1048575 AS place)
        SELECT coalesce(array_agg(place), '{{}}'), set_config('tidegate.taken', count(*)::text, TRUE) FROM taken"
    )
}

/// Writes events whose ids were all free.
pub(super) const INSERT_NEW_EVENTS: &str = "INSERT INTO events (seq, project, incarnation, written, version, accepted_at, time,
        key_high, key_low, source, id, type, subject, body)
    SELECT $1::bigint + i.place, i.project, $2::bigint, $3::bigint, $4::bigint, $5::bigint, i.time, i.high, i.low,
        i.source, i.id, i.type, i.subject, i.body
    FROM (SELECT unnest($6::bigint[]) AS place, unnest($7::bigint[]) AS project, unnest($8::bigint[]) AS time,
        unnest($9::bigint[]) AS high, unnest($10::bigint[]) AS low, unnest($11::bytea[]) AS source,
        unnest($12::bytea[]) AS id, unnest($13::bytea[]) AS type, unnest($14::bytea[]) AS subject,
        unnest($15::bytea[]) AS body) i";

/// Writes the events whose ids were free.
pub(super) fn insert_events() -> String {
    format!(
        "{INSERT_NEW_EVENTS}
    WHERE (SELECT current_setting('tidegate.taken') = cardinality($6::bigint[])::text) OR EXISTS (SELECT 1 FROM dedupe d
        WHERE d.key_high = i.high AND d.key_low = i.low AND d.event = $1::bigint + i.place)"
    )
}

/// The deliveries of new events, where none has a lane and the life's row names the block, so that they need no holder.
pub(super) const INSERT_NEW_DELIVERIES: &str = "INSERT INTO deliveries (id, project, subscriber, event, replay, due_at, incarnation,
        written, created_at, status, claims, nonce)
    SELECT $1::bigint + i.place, i.project, i.subscriber, $1::bigint + i.event, 0, $4::bigint,
        CASE WHEN i.status = 1 THEN $2::bigint END, CASE WHEN i.status = 1 THEN $3::bigint END, $4::bigint, i.status,
        CASE WHEN i.status = 1 THEN 1 ELSE 0 END, $10::int
    FROM (SELECT unnest($5::bigint[]) AS place, unnest($6::bigint[]) AS event, unnest($7::bigint[]) AS project,
        unnest($8::bigint[]) AS subscriber, unnest($9::smallint[]) AS status) i";

const DELIVERIES: &str = "INSERT INTO deliveries (id, project, subscriber, event, replay, lane, due_at, incarnation,
        holder, written, created_at, status, claims, nonce)
    SELECT $1::bigint + i.place, i.project, i.subscriber, $1::bigint + i.event, 0,
        i.lane, $4::bigint, CASE WHEN i.status = 1 THEN $2::bigint END, CASE WHEN i.status = 1 THEN $2::bigint END,
        CASE WHEN i.status = 1 THEN $3::bigint END, $4::bigint, i.status, CASE WHEN i.status = 1 THEN 1 ELSE 0 END, $14::int";
const ROUTES: &str = "(SELECT unnest($5::bigint[]) AS place, unnest($6::bigint[]) AS event,
        unnest($7::bigint[]) AS project, unnest($8::bigint[]) AS high, unnest($9::bigint[]) AS low,
        unnest($10::bigint[]) AS subscriber, unnest($11::bigint[]) AS lane, unnest($12::smallint[]) AS status) i
    WHERE (SELECT current_setting('tidegate.taken') = $13::bigint::text) OR EXISTS (SELECT 1 FROM dedupe d
        WHERE d.key_high = i.high AND d.key_low = i.low AND d.event = $1::bigint + i.event)";

/// The deliveries of those events, where none has a lane.
pub(super) fn insert_plain() -> String {
    format!("{DELIVERIES} FROM {ROUTES} RETURNING id & 1048575 AS place, status")
}

/// The same with lanes: whoever finds its lane in use, or behind a backfill, waits.
pub(super) fn insert_laned() -> String {
    format!(
        "{DELIVERIES} FROM (SELECT i.place, i.event, i.project, i.subscriber, i.lane,
            CASE WHEN i.lane IS NOT NULL AND (row_number() OVER (PARTITION BY i.subscriber, i.lane ORDER BY i.place) > 1
                OR EXISTS (SELECT 1 FROM deliveries o WHERE o.subscriber = i.subscriber AND o.lane = i.lane
                    AND o.lane IS NOT NULL AND o.shelf < 3)
                OR EXISTS (SELECT 1 FROM subscribers s WHERE s.no = i.subscriber AND s.backfill_after IS NOT NULL))
            THEN 2::smallint ELSE i.status END AS status
        FROM {ROUTES}) i ORDER BY i.place RETURNING id & 1048575 AS place, status"
    )
}

/// The place of each delivery and what became of it.
pub(super) type Made = Vec<(i64, i16)>;

impl<'a> Columns<'a> {
    /// Adds a unit. Room in memory is taken for its deliveries as if all of them came in.
    pub(super) fn push(&mut self, context: &mut Context<'_>, entry: Entry<'a>) {
        let owner = self.entries.len();
        self.entries.push(entry);
        for (event, routes) in entry.routed.unit.events.iter().zip(&entry.routed.routes) {
            let index = self.owners.len();
            let key = Key::of(entry.project, event);
            self.owners.push(owner);
            self.event_places.push(self.places);
            self.places += 1;
            self.projects.push(entry.project);
            self.high.push(key.high);
            self.low.push(key.low);
            self.times.push(event.time.as_ms());
            self.sources.push(event.source.as_bytes());
            self.ids.push(event.id.as_bytes());
            self.types.push(event.type_name.as_bytes());
            self.subjects.push(event.subject.as_deref().map(str::as_bytes));
            self.prints.push(&entry.routed.unit.fingerprint);
            self.bodies.push(&event.body);
            for route in routes {
                if route.ends.is_some() {
                    self.folded.push((index, route, self.places));
                }
                if route.fold.is_some() {
                    self.folded.push((index, route, self.places));
                    self.places += if route.lane.is_some() { KEPT_FOR_FOLDS } else { 0 };
                    continue;
                }
                let may_fold =
                    route.lane.is_some_and(|lane| context.fold_lanes.contains(&(route.subscriber, lane)));
                let is_taken = !may_fold
                    && route.lane.is_none_or(|lane| context.is_first(route.subscriber, lane))
                    && context.room.take(route.subscriber, event.body.len());
                self.delivery_places.push(self.places);
                self.places += 1;
                self.delivery_events.push(index);
                self.subscribers.push(route.subscriber);
                self.lanes.push(route.lane);
                self.wanted.push(match is_taken {
                    true => CLAIMED,
                    false if may_fold => WAITING,
                    false => DUE,
                });
            }
        }
        self.sorted.extend(self.sorted.len()..self.owners.len());
    }

    /// Puts the ids in the order in which they are taken.
    pub(super) fn sort(&mut self) {
        if sabotage::is(Line::Sorted) {
            return;
        }
        let (high, low) = (&self.high, &self.low);
        self.sorted.sort_unstable_by_key(|index| (high[*index], low[*index]));
    }

    pub(super) fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// How many numbers it needs, at most.
    pub(super) fn numbers_max(&self) -> i64 {
        self.places.saturating_add(self.drawn_max())
    }

    fn drawn_max(&self) -> i64 {
        i64::try_from(self.folded.len()).unwrap_or(i64::MAX).saturating_mul(DRAWN_BY_FOLDS)
    }

    /// Whether two events share a key. They must be sorted.
    pub(super) fn has_twins(&self) -> bool {
        self.sorted.windows(2).any(|pair| self.key(pair[0]) == self.key(pair[1]))
    }

    /// What the id of an event is looked up by.
    pub(super) fn key(&self, index: usize) -> Key {
        Key { high: self.high[index], low: self.low[index] }
    }

    /// The ids in the order in which they are taken.
    pub(super) fn ids(&self) -> Ids<'a> {
        Ids {
            places: picked(&self.sorted, &self.event_places),
            high: picked(&self.sorted, &self.high),
            low: picked(&self.sorted, &self.low),
            prints: picked(&self.sorted, &self.prints),
        }
    }

    /// The events in the order of their numbers: whatever is sorted by these grows at its end.
    pub(super) fn events(&self) -> [&(dyn ToSql + Sync); 10] {
        [
            &self.event_places,
            &self.projects,
            &self.times,
            &self.high,
            &self.low,
            &self.sources,
            &self.ids,
            &self.types,
            &self.subjects,
            &self.bodies,
        ]
    }

    /// What is to become of them.
    pub(super) fn routes(&self) -> Routes<'_> {
        Routes {
            places: &self.delivery_places,
            events: picked(&self.delivery_events, &self.event_places),
            projects: picked(&self.delivery_events, &self.projects),
            high: picked(&self.delivery_events, &self.high),
            low: picked(&self.delivery_events, &self.low),
            subscribers: &self.subscribers,
            lanes: &self.lanes,
            wanted: &self.wanted,
        }
    }

    /// Takes the ids, writes the events whose ids were free, and their deliveries. Brings the places of these events; of the
    /// deliveries the place of each and what became of it.
    pub(super) async fn insert(&self, conn: &Conn, stamp: &Stamp, block: i64) -> Asked<(Vec<i64>, Made)> {
        let (ids, routes, count) = (self.ids(), self.routes(), self.count());
        let mut taking: Vec<&(dyn ToSql + Sync)> = vec![&block];
        taking.extend(ids.values());
        let Stamp { incarnation, written, version, now } = stamp;
        let mut events: Vec<&(dyn ToSql + Sync)> = vec![&block, incarnation, written, version, now];
        events.extend(self.events());
        let nonce = conn.nonce();
        let deliveries: [&(dyn ToSql + Sync); 14] = [
            &block,
            incarnation,
            written,
            now,
            &routes.places,
            &routes.events,
            &routes.projects,
            &routes.high,
            &routes.low,
            &routes.subscribers,
            &routes.lanes,
            &routes.wanted,
            &count,
            &nonce,
        ];
        let (take, insert) = (take_ids(), insert_events());
        let deliver = if self.has_lanes() { insert_laned() } else { insert_plain() };
        let mut asks: Vec<Ask<'_>> = vec![(&take, &taking), (&insert, &events)];
        if self.has_deliveries() {
            asks.push((&deliver, &deliveries));
        }
        let answers = conn.together(&asks).await?;
        let taken = answers[0].first().map(|row| row.get(0)).unwrap_or_default();
        let made = answers.get(2).into_iter().flatten().map(|row| (row.get(0), row.get(1)));
        Ok((taken, made.collect()))
    }

    /// Per event, whether its id was free; all were if it is not told which.
    pub(super) fn fresh(&self, taken: Option<&[i64]>) -> Vec<bool> {
        let Some(taken) = taken else { return vec![true; self.owners.len()] };
        let mut fresh = vec![false; self.owners.len()];
        for place in taken {
            if let Ok(index) = self.event_places.binary_search(place) {
                fresh[index] = true;
            }
        }
        fresh
    }

    /// The numbers of the events whose ids were free, in order.
    pub(super) fn numbers(&self, taken: Option<&[i64]>, block: i64) -> Vec<Seq> {
        let fresh = self.event_places.iter().zip(self.fresh(taken));
        fresh.filter(|(_, is_fresh)| *is_fresh).map(|(place, _)| block + place).collect()
    }

    /// How many events.
    pub(super) fn count(&self) -> i64 {
        i64::try_from(self.owners.len()).unwrap_or(i64::MAX)
    }

    pub(super) fn has_deliveries(&self) -> bool {
        !self.subscribers.is_empty()
    }

    /// The lanes its deliveries are in.
    pub(super) fn lanes(&self) -> Lanes {
        let pairs = self.subscribers.iter().zip(&self.lanes);
        pairs.filter_map(|(subscriber, lane)| Some((*subscriber, (*lane)?))).collect()
    }

    pub(super) fn has_lanes(&self) -> bool {
        self.lanes.iter().any(Option::is_some)
    }

    /// What was written goes to memory or is due in the store. All is as it was wanted if it is not told.
    pub(super) fn hand_over(&self, context: &mut Context<'_>, made: Option<Made>, block: i64) {
        let wanted = || self.delivery_places.iter().copied().zip(self.wanted.iter().copied()).collect();
        let mut made: Made = made.unwrap_or_else(wanted);
        made.sort_unstable();
        for (place, status) in made {
            let Ok(index) = self.delivery_places.binary_search(&place) else { continue };
            match status {
                CLAIMED => {
                    let job = self.job(context, index, block);
                    context.out.jobs.push(job);
                }
                DUE => {
                    context.spilled.insert(self.subscribers[index]);
                }
                _ => {}
            }
        }
    }

    /// Events that came in go into their windows.
    pub(super) async fn fold(
        &self,
        conn: &Conn,
        folding: &mut Folding<'_>,
        block: i64,
        is_fresh: impl Fn(usize) -> bool,
    ) -> Asked<()> {
        if self.folded.is_empty() {
            return Ok(());
        }
        let has_room = self.numbers_max().saturating_add(folding.windows()) < 1 << BLOCK_BITS;
        let rest = if has_room { block + self.places } else { conn.only(DRAW, &[]).await?.get(0) };
        let mut numbers = Numbers::from(rest);
        for (index, route, place) in self.folded.iter().filter(|(index, ..)| is_fresh(*index)) {
            let bytes = u32::try_from(self.bodies[*index].len()).unwrap_or(u32::MAX);
            let event = (block + self.event_places[*index], bytes);
            numbers.reserve(
                block + place,
                if route.lane.is_some() && route.fold.is_some() { KEPT_FOR_FOLDS } else { 0 },
            );
            if let Some(arrival) = folds::arrival(self.projects[*index], event, route, false) {
                folding.append(&arrival, &mut numbers);
            }
        }
        Ok(())
    }

    fn job(&self, context: &Context<'_>, index: usize, block: i64) -> Job {
        let event = self.delivery_events[index];
        let entry = self.entries[self.owners[event]];
        let first = self.owners.partition_point(|owner| *owner < self.owners[event]);
        let delivery: DeliveryNo = block + self.delivery_places[index];
        let subscriber: SubscriberNo = self.subscribers[index];
        Job {
            delivery,
            nonce: context.conn.nonce().cast_unsigned(),
            project: entry.project,
            subscriber,
            event: block + self.event_places[event],
            lane: self.lanes[index],
            attempts: 0,
            tries: 0,
            token: 1,
            life: 0,
            accepted_at: context.group.now,
            replay: false,
            out_of_order: false,
            is_suspect: false,
            fold: None,
            body: entry.routed.unit.events[event - first].body.clone(),
        }
    }
}

fn picked<T: Copy>(which: &[usize], values: &[T]) -> Vec<T> {
    which.iter().map(|index| values[*index]).collect()
}

/// What is the same for all rows of a group.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    pub(super) incarnation: i64,
    pub(super) written: i64,
    pub(super) version: i64,
    pub(super) now: i64,
}
