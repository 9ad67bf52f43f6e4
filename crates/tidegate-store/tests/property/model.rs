//! The model: deliveries in the order of acceptance, and the rules of lanes, said as plainly as possible.

use std::collections::BTreeMap;

use tidegate_core::delivery::{Job, Status};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::time::Timestamp;
use tidegate_store::{RetryOutcome, UnitStatus};

/// One delivery as the model sees it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) subscriber: i64,
    /// The place of its event in the order of acceptance.
    pub(crate) event: usize,
    pub(crate) lane: Option<i64>,
    pub(crate) state: State,
    pub(crate) due_at: Timestamp,
    pub(crate) attempts: u32,
    pub(crate) lost: u32,
    /// It is a suspect and is being sent.
    pub(crate) is_begun: bool,
    /// Accepted after its subscriber was created: waits for the backfill, if there is one.
    pub(crate) is_live: bool,
}

/// Where it stands.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Waiting,
    Claimed(Box<Job>),
    Delivered,
    Exhausted,
}

impl Row {
    fn is_unfinished(&self) -> bool {
        matches!(self.state, State::Waiting | State::Claimed(_))
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.lost >= CLAIMS_LOST_MAX
    }

    pub(crate) fn status(&self) -> Status {
        match self.state {
            State::Claimed(_) => Status::Sending,
            State::Delivered => Status::Delivered,
            State::Exhausted => Status::Exhausted,
            State::Waiting if self.attempts > 0 => Status::Retrying,
            State::Waiting => Status::Pending,
        }
    }
}

/// All that was accepted, and what became of it.
#[derive(Default)]
pub(crate) struct Model {
    /// Id and content, in the order of acceptance.
    pub(crate) events: Vec<(String, String)>,
    known: BTreeMap<String, usize>,
    /// By subscriber and event.
    pub(crate) rows: BTreeMap<(i64, usize), Row>,
    /// The subscriber whose backfill is under way, and how many events it has looked at.
    pub(crate) backfill: Option<(i64, usize)>,
    /// Events accepted before the late subscriber was.
    pub(crate) backfill_until: usize,
}

impl Model {
    /// Takes an event in, or says why not.
    pub(crate) fn accept(
        &mut self,
        id: &str,
        content: &str,
        routes: &[(i64, Option<i64>)],
        now: Timestamp,
    ) -> UnitStatus {
        if let Some(place) = self.known.get(id) {
            let is_same = self.events[*place].1 == content;
            return if is_same { UnitStatus::Duplicate } else { UnitStatus::Conflict };
        }
        let event = self.events.len();
        self.events.push((id.to_owned(), content.to_owned()));
        self.known.insert(id.to_owned(), event);
        for (subscriber, lane) in routes {
            self.add(*subscriber, event, *lane, now, true);
        }
        UnitStatus::Accepted
    }

    pub(crate) fn add(
        &mut self,
        subscriber: i64,
        event: usize,
        lane: Option<i64>,
        now: Timestamp,
        is_live: bool,
    ) {
        let state = State::Waiting;
        let row = Row {
            subscriber,
            event,
            lane,
            state,
            due_at: now,
            attempts: 0,
            lost: 0,
            is_begun: false,
            is_live,
        };
        assert!(
            self.rows.insert((subscriber, event), row).is_none(),
            "one delivery per event and subscriber"
        );
    }

    /// The rows that somebody holds, oldest first.
    pub(crate) fn held(&self) -> Vec<(i64, usize)> {
        let held = self.rows.iter().filter(|(_, row)| matches!(row.state, State::Claimed(_)));
        held.map(|(key, _)| *key).collect()
    }

    /// Whether it is this row's turn: always outside lanes; in a lane for the oldest, if none is in flight and no
    /// backfill may still bring an older one.
    pub(crate) fn is_its_turn(&self, row: &Row) -> bool {
        let Some(lane) = row.lane else { return true };
        let is_behind =
            row.is_live && self.backfill.is_some_and(|(subscriber, _)| subscriber == row.subscriber);
        let mut others =
            self.rows.range((row.subscriber, 0)..=(row.subscriber, usize::MAX)).filter(|(_, other)| {
                other.lane == Some(lane) && other.is_unfinished() && other.event != row.event
            });
        !is_behind
            && others.all(|(_, other)| other.event > row.event && !matches!(other.state, State::Claimed(_)))
    }

    /// What a refill of this subscriber could bring.
    pub(crate) fn claimable(&self, subscriber: i64, now: Timestamp) -> Vec<usize> {
        let rows = self.rows.range((subscriber, 0)..=(subscriber, usize::MAX));
        rows.filter(|(_, row)| {
            matches!(row.state, State::Waiting) && row.due_at <= now && self.is_its_turn(row)
        })
        .map(|(_, row)| row.event)
        .collect()
    }

    /// The store handed a job over: it must be one that could be claimed.
    pub(crate) fn claim(&mut self, job: Job, event: usize, now: Timestamp) {
        let key = (job.subscriber, event);
        let row = &self.rows[&key];
        assert!(matches!(row.state, State::Waiting), "{row:?} was not there to be claimed");
        assert!(row.due_at <= now, "{row:?} is not due");
        assert!(self.is_its_turn(row), "it is not the turn of {row:?}");
        assert_eq!((job.lane, job.attempts), (row.lane, row.attempts));
        assert_eq!(job.is_suspect, row.is_suspect(), "{row:?}");
        assert_eq!(job.body, self.events[event].1, "the bytes that came in");
        self.rows.get_mut(&key).expect("just seen").state = State::Claimed(Box::new(job));
    }

    /// A manual retry, and what it should answer.
    pub(crate) fn retry(&mut self, key: (i64, usize), now: Timestamp) -> RetryOutcome {
        let row = self.rows.get_mut(&key).expect("picked from the rows");
        if matches!(row.state, State::Claimed(_) | State::Delivered) {
            return RetryOutcome::Refused(row.status());
        }
        row.state = State::Waiting;
        row.due_at = now;
        row.lost = 0;
        let row = &self.rows[&key];
        if self.is_its_turn(row) { RetryOutcome::Due { subscriber: key.0 } } else { RetryOutcome::Queued }
    }

    /// The process ended: whatever it held is nobody's.
    pub(crate) fn restart(&mut self) {
        for key in self.held() {
            let row = self.rows.get_mut(&key).expect("it is held");
            row.lost += 1;
            let was_begun = std::mem::take(&mut row.is_begun);
            row.state = if was_begun { State::Exhausted } else { State::Waiting };
        }
    }
}
