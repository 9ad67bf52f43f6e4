//! Standing: how this process stands among those that share its store.
//!
//! Two things that everybody asks: may we act on what we hold (the lease), and who else lives. The heartbeat
//! (`pipeline/beat`) keeps both up to date; what they mean is decided in `tidegate_core::lease`. A process with a store of its
//! own is alone: it may always act, and leads.
//!
//! Promises: asking costs one look at a number and a clock, and alone not even that. When the lease has run out, because
//! the store does not answer or the process was stopped for a while, the first one to ask is told so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate_core::id::Incarnation;
use tidegate_core::lease;
use tidegate_store::sabotage::{self, Line};
use tidegate_store::{Beat, Replica};
use tokio::sync::Notify;

use crate::clock::Clock;

/// Groups that others write from one beat to the next, if they are busy.
const BUSY_GROUPS: u64 = 100;

/// How this process stands.
pub struct Standing {
    clock: Clock,
    is_alone: bool,
    /// On the steady clock; 0 is never.
    held_until_us: AtomicU64,
    /// Nobody shall wait for the lease any more.
    is_leaving: AtomicBool,
    /// Something came that is waited for. Everybody is woken in the order in which they came, so that a simulation repeats
    /// itself.
    moved: Notify,
    /// The last beat came through.
    is_heard: AtomicBool,
    /// Why the store might not keep what it is given.
    weakness: ArcSwapOption<&'static str>,
    fellows: ArcSwap<Fellows>,
    leads: AtomicBool,
}

/// Who shares the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fellows {
    /// All that live, this one among them, oldest first.
    pub replicas: Vec<Replica>,
    /// The place of this one among them.
    pub rank: usize,
    /// Groups that the others wrote between the last two beats.
    pub groups: u64,
}

impl Fellows {
    /// Those who live now, seen after `before`.
    fn after(before: &Self, replicas: &[Replica], rank: usize) -> Self {
        let known = |life| before.replicas.iter().find(|replica| replica.incarnation == life);
        let written = replicas.iter().enumerate().filter(|(place, _)| *place != rank).map(|(_, replica)| {
            known(replica.incarnation).map_or(0, |known| replica.groups.saturating_sub(known.groups))
        });
        Self { replicas: replicas.to_vec(), rank, groups: written.sum() }
    }

    /// Who does what only one should: the oldest that does not leave.
    pub fn leader(&self) -> Option<Incarnation> {
        self.replicas.iter().find(|replica| !replica.is_leaving()).map(|replica| replica.incarnation)
    }

    /// Who would switch off what of what is counted, in words, if they do not all agree. Those that do not say agree with all.
    pub fn discord(&self) -> Option<String> {
        let told: Vec<_> = self
            .replicas
            .iter()
            .filter_map(|replica| Some((replica.incarnation, replica.load.switches?.off())))
            .collect();
        if told.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            return None;
        }
        let words = told.iter().map(|(incarnation, off)| match &off[..] {
            [] => format!("{incarnation} counts everything"),
            off => format!("{incarnation} leaves out {}", off.join(", ")),
        });
        Some(words.collect::<Vec<_>>().join("; "))
    }
}

impl Standing {
    /// Of a process with a store of its own.
    pub fn alone(clock: &Clock) -> Arc<Self> {
        Self::new(clock, true)
    }

    /// Of one that shares its store, before its first beat.
    pub fn shared(clock: &Clock) -> Arc<Self> {
        Self::new(clock, false)
    }

    fn new(clock: &Clock, is_alone: bool) -> Arc<Self> {
        Arc::new(Self {
            clock: clock.clone(),
            is_alone,
            held_until_us: AtomicU64::new(0),
            is_leaving: AtomicBool::new(false),
            moved: Notify::new(),
            is_heard: AtomicBool::new(true),
            weakness: ArcSwapOption::empty(),
            fellows: ArcSwap::default(),
            leads: AtomicBool::new(is_alone),
        })
    }

    /// Nobody shares the store.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Whether what this process holds is certainly still its own.
    pub fn may_act(&self) -> bool {
        self.is_alone
            || sabotage::is(Line::Lease)
            || us(self.clock.steady()) < self.held_until_us.load(Ordering::Acquire)
    }

    /// Waits until it is; `false` when it never will be because the process is leaving.
    pub async fn acts(&self) -> bool {
        loop {
            let moved = self.moved.notified();
            if self.may_act() {
                return true;
            }
            if self.is_leaving.load(Ordering::Acquire) {
                return false;
            }
            moved.await;
        }
    }

    /// A beat that began then came through. Says whether the lease had run out before.
    pub(crate) fn renew(&self, began: Duration) -> bool {
        let was_held = self.may_act();
        self.held_until_us.store(us(lease::ends(began)), Ordering::Release);
        if !was_held {
            self.moved.notify_waiters();
        }
        !was_held
    }

    /// What this process held is another's.
    pub(crate) fn lose(&self) {
        self.held_until_us.store(0, Ordering::Release);
    }

    /// Nobody waits for the lease any more, and the others may know that this process leaves.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Whether it is.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Waits until it is.
    pub(crate) async fn leaving(&self) {
        loop {
            let moved = self.moved.notified();
            if self.is_leaving() {
                return;
            }
            moved.await;
        }
    }

    /// How old the beat is that the lease rests on; absent for one that is alone or has not beaten.
    pub fn lease_age(&self) -> Option<Duration> {
        let until = Duration::from_micros(self.held_until_us.load(Ordering::Acquire));
        let began = until.checked_sub(lease::ends(Duration::ZERO))?;
        (!self.is_alone).then(|| self.clock.steady().saturating_sub(began))
    }

    /// Takes note of who lives. Says whether that has changed.
    pub(crate) fn meet(&self, beat: &Beat) -> bool {
        let Some(rank) = beat.rank() else { return false };
        let new = Fellows::after(&self.fellows.load(), &beat.replicas, rank);
        let old = self.fellows.swap(Arc::new(new));
        let lives =
            |replicas: &[Replica]| -> Vec<_> { replicas.iter().map(|replica| replica.incarnation).collect() };
        let leads = self.fellows().leader() == Some(beat.incarnation);
        let has_led = self.leads.swap(leads, Ordering::AcqRel);
        if leads && !has_led {
            self.moved.notify_waiters();
        }
        lives(&old.replicas) != lives(&beat.replicas) || old.rank != rank || has_led != leads
    }

    /// Who shares the store; nobody is listed for one that is alone.
    pub fn fellows(&self) -> Arc<Fellows> {
        self.fellows.load_full()
    }

    /// Whether the last beat came through.
    pub(crate) fn set_heard(&self, is_heard: bool) {
        self.is_heard.store(is_heard, Ordering::Relaxed);
    }

    /// The store answers, as far as the last beat could tell.
    pub fn is_heard(&self) -> bool {
        self.is_heard.load(Ordering::Relaxed)
    }

    /// Takes note of whether the store keeps what it is given. Says whether that has changed.
    pub(crate) fn set_weakness(&self, weakness: Option<&'static str>) -> bool {
        self.weakness() != weakness && {
            self.weakness.store(weakness.map(Arc::new));
            true
        }
    }

    /// Why an event that is accepted now could be lost, as far as the last beat could tell: then none is.
    pub fn weakness(&self) -> Option<&'static str> {
        self.weakness.load().as_ref().map(|weakness| **weakness)
    }

    /// Whether others keep the store busy, as far as the last beats could tell.
    pub fn has_busy_fellows(&self) -> bool {
        self.fellows.load().groups >= BUSY_GROUPS
    }

    /// Whether anybody elsewhere looks on as events come.
    pub fn is_watched_elsewhere(&self) -> bool {
        let fellows = self.fellows.load();
        let mut others = fellows.replicas.iter().enumerate().filter(|(rank, _)| *rank != fellows.rank);
        others.any(|(_, replica)| replica.load.streams > 0)
    }

    /// Whether this is the process that does what only one should.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Waits until it is.
    pub async fn lead(&self) {
        loop {
            let moved = self.moved.notified();
            if self.leads() {
                return;
            }
            moved.await;
        }
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_core::observe::Switches;
    use tidegate_core::schedule::Stance;
    use tidegate_core::time::Timestamp;
    use tidegate_store::Load;

    use super::*;

    fn clock() -> Clock {
        Clock::simulated(Timestamp::from_ms(1_000))
    }

    fn beat(me: i64, lives: &[i64]) -> Beat {
        let at = Timestamp::from_ms(0);
        let replica = |incarnation: &i64| Replica {
            incarnation: *incarnation,
            name: String::new(),
            began_at: at,
            at,
            load: Load::default(),
            groups: 0,
        };
        Beat {
            now: None,
            incarnation: me,
            replicas: lives.iter().map(replica).collect(),
            expired: vec![],
            version: None,
            weakness: None,
        }
    }

    #[test]
    fn processes_that_would_count_different_things_are_named() {
        let off = |counters| Some(Switches { counters, ..Switches::default() });
        let told = |switches: [Option<Switches>; 3]| {
            let mut replicas = beat(1, &[1, 2, 3]).replicas;
            replicas.iter_mut().zip(switches).for_each(|(replica, of)| replica.load.switches = of);
            Fellows { replicas, rank: 0, groups: 0 }.discord()
        };
        assert_eq!(told([off(None), off(Some(true)), None]), None, "an older version says nothing");
        assert_eq!(told([off(Some(false)); 3]), None);
        let discord = told([off(None), off(Some(true)), off(Some(false))]);
        assert_eq!(
            discord.as_deref(),
            Some("1 counts everything; 2 counts everything; 3 leaves out counters")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_runs_out_before_others_take_over_and_is_found_so_at_once() {
        let clock = clock();
        let standing = Standing::shared(&clock);
        assert!(!standing.may_act(), "not before the first beat");
        let began = clock.steady();
        assert!(standing.renew(began), "it had none");
        assert!(standing.may_act() && standing.acts().await);
        clock.pause(lease::BEAT_TTL - lease::LEASE_MARGIN - Duration::from_millis(1)).await;
        assert!(standing.may_act());
        clock.pause(Duration::from_millis(2)).await;
        assert!(!standing.may_act());
        let waiting = {
            let standing = Arc::clone(&standing);
            tokio::spawn(async move { standing.acts().await })
        };
        tokio::task::yield_now().await;
        assert!(standing.renew(clock.steady()));
        assert!(waiting.await.unwrap());
        standing.lose();
        standing.leave();
        assert!(!standing.acts().await, "whoever leaves does not wait");
    }

    #[test]
    fn others_that_write_many_groups_are_busy() {
        let standing = Standing::shared(&clock());
        let meet = |groups: [u64; 3]| {
            let mut beat = beat(2, &[1, 2, 3]);
            beat.replicas.iter_mut().zip(groups).for_each(|(replica, groups)| replica.groups = groups);
            standing.meet(&beat);
            standing.has_busy_fellows()
        };
        assert!(!meet([9_000, 0, 9_000]), "what they wrote before is not known to be of today");
        assert!(!meet([9_000, 9_000, 9_000]), "its own groups keep nobody else from writing");
        assert!(meet([9_000 + BUSY_GROUPS / 2, 9_000, 9_000 + BUSY_GROUPS / 2]));
        assert!(!meet([9_000 + BUSY_GROUPS / 2, 9_000, 9_000 + BUSY_GROUPS]), "now the one rests");
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_leads() {
        let standing = Standing::shared(&clock());
        assert!(standing.meet(&beat(7, &[5, 7])) && !standing.leads());
        assert!(!standing.meet(&beat(7, &[5, 7])), "nothing new");
        assert!(standing.meet(&beat(7, &[7, 9])) && standing.leads());
        standing.lead().await;
        assert_eq!(standing.fellows().rank, 0);
        let mut beat = beat(7, &[7, 9]);
        beat.replicas[0].load.stance = Some(Stance { is_leaving: true, ..Stance::default() });
        assert!(standing.meet(&beat) && !standing.leads(), "one that leaves has others for that");
        assert_eq!(standing.fellows().leader(), Some(9));
        assert!(Standing::alone(&clock()).leads() && Standing::alone(&clock()).may_act());
    }
}
