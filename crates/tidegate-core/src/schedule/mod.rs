//! Whose turn it is.
//!
//! The schedule holds the claimed deliveries that wait in memory, a queue per subscriber, and picks the next one to
//! send: subscribers take turns, each stays inside its own concurrency and rate, and all together inside one bound.
//! So a hung receiver uses up its own places and nobody else's. It also knows which subscribers have more work in the
//! store, and when; memory is bounded whatever the backlog is.
//!
//! Does not: sleep, send, or touch the store. `tidegate-server` asks and acts.

mod rate;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::delivery::Job;
use crate::id::SubscriberNo;
use crate::limits::{
    ATTEMPTS_IN_FLIGHT_MAX, QUEUE_BYTES_MAX, QUEUE_JOBS_MAX, QUEUE_REFILL_BELOW, QUEUE_REFILL_JOBS,
};
use crate::subscriber::Rate;
use crate::time::Timestamp;
pub use rate::Bucket;

/// What a subscriber allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Attempts under way at once.
    pub concurrency: u32,
    /// Attempts over time.
    pub rate: Option<Rate>,
}

/// How much memory may hold. Simulation makes them small, so that little traffic meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Deliveries of one subscriber that wait.
    pub queue_jobs: usize,
    /// A queue shorter than this is refilled from the store.
    pub refill_below: usize,
    /// Deliveries taken from the store at once.
    pub refill_jobs: usize,
    /// Bodies of all that wait.
    pub queue_bytes: usize,
    /// Attempts under way.
    pub in_flight: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            queue_jobs: QUEUE_JOBS_MAX,
            refill_below: QUEUE_REFILL_BELOW,
            refill_jobs: QUEUE_REFILL_JOBS,
            queue_bytes: QUEUE_BYTES_MAX,
            in_flight: ATTEMPTS_IN_FLIGHT_MAX,
        }
    }
}

/// Whether a subscriber may take another body into memory: as long as it holds less than it leaves free for all the
/// others, or nothing at all.
pub fn fits(held: usize, free: usize) -> bool {
    held == 0 || held < free
}

/// All queues and turns.
#[derive(Debug, Default)]
pub struct Schedule {
    bounds: Bounds,
    lineups: BTreeMap<SubscriberNo, Lineup>,
    /// Subscribers that could send at once, in the order of their turns.
    turns: VecDeque<SubscriberNo>,
    /// Subscribers that wait for their rate, by when they may go on.
    throttled: BTreeSet<(Timestamp, SubscriberNo)>,
    /// Subscribers with work in the store that is due.
    hungry: BTreeSet<SubscriberNo>,
    /// Subscribers with work in the store that is due later.
    later: BTreeSet<(Timestamp, SubscriberNo)>,
    in_flight: usize,
    bytes: usize,
    /// Somebody would now be given work from the store who was not before.
    appetite: bool,
}

#[derive(Debug)]
struct Lineup {
    terms: Terms,
    /// Takes part. A dismissed one is remembered while attempts are under way, so that they keep their places.
    open: bool,
    bucket: Option<Bucket>,
    queue: VecDeque<Job>,
    /// Of the bodies in the queue.
    bytes: usize,
    in_flight: u32,
    /// In `turns` or in `throttled`.
    lined_up: bool,
    /// New deliveries overflowed into the store: until those are drained, newer ones go there too, in order.
    spilled: bool,
    later: Option<Timestamp>,
}

impl Schedule {
    /// Nobody takes part yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Lets a subscriber take part, or changes what it allows.
    pub fn admit(&mut self, subscriber: SubscriberNo, terms: Terms, now: Timestamp) {
        let lineup = self.lineups.entry(subscriber).or_insert_with(|| Lineup::new(terms, now));
        lineup.open = true;
        if lineup.terms != terms {
            lineup.bucket = terms.rate.map(|rate| Bucket::new(rate, now));
            lineup.terms = terms;
        }
        self.line_up(subscriber);
    }

    /// Ends a subscriber's part. The deliveries that waited here are given back; those in flight come to their end.
    pub fn dismiss(&mut self, subscriber: SubscriberNo) -> Vec<Job> {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return Vec::new() };
        let queue = std::mem::take(&mut lineup.queue);
        let later = lineup.later.take();
        self.bytes -= std::mem::take(&mut lineup.bytes);
        (lineup.open, lineup.lined_up, lineup.spilled) = (false, false, false);
        if lineup.in_flight == 0 {
            self.lineups.remove(&subscriber);
        }
        self.turns.retain(|turn| *turn != subscriber);
        self.throttled.retain(|(_, turn)| *turn != subscriber);
        self.hungry.remove(&subscriber);
        if let Some(at) = later {
            self.later.remove(&(at, subscriber));
        }
        queue.into()
    }

    /// Queues a claimed delivery, or hands it back when its subscriber does not take part.
    pub fn push(&mut self, job: Job) -> Result<(), Job> {
        let subscriber = job.subscriber;
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else {
            return Err(job);
        };
        self.bytes += job.body.len();
        lineup.bytes += job.body.len();
        lineup.queue.push_back(job);
        self.line_up(subscriber);
        Ok(())
    }

    /// The next delivery to send now, in fair turn. Its place is taken until [`Schedule::finish`].
    pub fn pick(&mut self, now: Timestamp) -> Option<Job> {
        self.readmit_throttled(now);
        while self.in_flight < self.bounds.in_flight {
            let subscriber = self.turns.pop_front()?;
            let lineup = self.lineups.get_mut(&subscriber).expect("only those who take part have a turn");
            lineup.lined_up = false;
            if let Some(bucket) = &mut lineup.bucket
                && let Err(at) = bucket.take(now)
            {
                lineup.lined_up = true;
                self.throttled.insert((at, subscriber));
                continue;
            }
            let job = lineup.queue.pop_front().expect("only those with work have a turn");
            lineup.in_flight += 1;
            self.in_flight += 1;
            let is_low = lineup.queue.len() < self.bounds.refill_below && self.hungry.contains(&subscriber);
            self.appetite |= is_low;
            lineup.bytes -= job.body.len();
            self.bytes -= job.body.len();
            self.line_up(subscriber);
            return Some(job);
        }
        None
    }

    /// An attempt has ended: its place is free.
    pub fn finish(&mut self, subscriber: SubscriberNo) {
        self.in_flight -= 1;
        let lineup = self.lineups.get_mut(&subscriber).expect("whoever has attempts under way is remembered");
        lineup.in_flight -= 1;
        if !lineup.open && lineup.in_flight == 0 {
            self.lineups.remove(&subscriber);
            return;
        }
        self.line_up(subscriber);
    }

    /// How many new deliveries of a subscriber memory takes. None while older ones wait in the store.
    pub fn room(&self, subscriber: SubscriberNo) -> usize {
        match self.lineups.get(&subscriber) {
            Some(lineup) if lineup.open && !lineup.spilled => {
                self.bounds.queue_jobs.saturating_sub(lineup.queue.len())
            }
            _ => 0,
        }
    }

    /// How many bytes of bodies memory takes.
    pub fn room_bytes(&self) -> usize {
        self.bounds.queue_bytes.saturating_sub(self.bytes)
    }

    /// How many bytes of bodies a subscriber has in memory.
    pub fn held_bytes(&self, subscriber: SubscriberNo) -> usize {
        self.lineups.get(&subscriber).map_or(0, |lineup| lineup.bytes)
    }

    /// New deliveries of a subscriber are due in the store because memory had no room.
    pub fn spill(&mut self, subscriber: SubscriberNo) {
        if let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) {
            lineup.spilled = true;
            self.hungry.insert(subscriber);
        }
    }

    /// A subscriber has work in the store that is due at `at`.
    pub fn expect(&mut self, subscriber: SubscriberNo, at: Timestamp) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if lineup.later.is_some_and(|known| known <= at) {
            return;
        }
        if let Some(known) = lineup.later.replace(at) {
            self.later.remove(&(known, subscriber));
        }
        self.later.insert((at, subscriber));
    }

    /// Who wants how much from the store now. Asks for a bounded amount in all, so that a commit stays short.
    pub fn wishes(&mut self, now: Timestamp) -> Vec<(SubscriberNo, usize)> {
        self.wake_later(now);
        let (mut left, free) = (self.bounds.refill_jobs, self.room_bytes());
        let mut wishes = Vec::new();
        for subscriber in &self.hungry {
            if left == 0 {
                break;
            }
            let lineup = &self.lineups[subscriber];
            if lineup.queue.len() < self.bounds.refill_below && fits(lineup.bytes, free) {
                wishes.push((*subscriber, left));
                left /= 2;
            }
        }
        wishes
    }

    /// A wish was answered. `drained`: nothing due is left in the store; `next_due`: what is left is due then.
    pub fn refilled(&mut self, subscriber: SubscriberNo, drained: bool, next_due: Option<Timestamp>) {
        let Some(lineup) = self.lineups.get_mut(&subscriber).filter(|lineup| lineup.open) else { return };
        if !drained {
            return;
        }
        lineup.spilled = false;
        self.hungry.remove(&subscriber);
        if let Some(at) = next_due {
            self.expect(subscriber, at);
        }
    }

    /// When the next subscriber that waits for its rate may go on.
    pub fn throttled_until(&self) -> Option<Timestamp> {
        self.throttled.first().map(|(at, _)| *at)
    }

    /// When the next work in the store is due.
    pub fn store_due_at(&self) -> Option<Timestamp> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Whether, since last asked, somebody came to want work from the store.
    pub fn take_appetite(&mut self) -> bool {
        std::mem::take(&mut self.appetite)
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes everything that waits in memory, for a graceful stop.
    pub fn drain(&mut self) -> Vec<Job> {
        let everyone: Vec<SubscriberNo> = self.lineups.keys().copied().collect();
        everyone.into_iter().flat_map(|subscriber| self.dismiss(subscriber)).collect()
    }

    /// Puts a subscriber at the end of the turns, if it has work and a place for it.
    fn line_up(&mut self, subscriber: SubscriberNo) {
        let Some(lineup) = self.lineups.get_mut(&subscriber) else { return };
        if lineup.open
            && !lineup.lined_up
            && !lineup.queue.is_empty()
            && lineup.in_flight < lineup.terms.concurrency
        {
            lineup.lined_up = true;
            self.turns.push_back(subscriber);
        }
    }

    fn readmit_throttled(&mut self, now: Timestamp) {
        while let Some((at, subscriber)) = self.throttled.first().copied().filter(|(at, _)| *at <= now) {
            self.throttled.remove(&(at, subscriber));
            self.turns.push_back(subscriber);
        }
    }

    fn wake_later(&mut self, now: Timestamp) {
        while let Some((at, subscriber)) = self.later.first().copied().filter(|(at, _)| *at <= now) {
            self.later.remove(&(at, subscriber));
            self.hungry.insert(subscriber);
            if let Some(lineup) = self.lineups.get_mut(&subscriber) {
                lineup.later = None;
            }
        }
    }
}

impl Lineup {
    fn new(terms: Terms, now: Timestamp) -> Self {
        Self {
            terms,
            open: true,
            bucket: terms.rate.map(|rate| Bucket::new(rate, now)),
            queue: VecDeque::new(),
            bytes: 0,
            in_flight: 0,
            lined_up: false,
            spilled: false,
            later: None,
        }
    }
}

#[cfg(test)]
mod tests;
