//! The nemesis: which fault comes when, decided by a seed.
//!
//! Every kind it was told to use comes once before any comes again, and all come at least once however short the run.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::cluster::Cluster;
use super::verdict::Window;
use crate::chaos::receiver::Receiver;
use crate::clock::{self, Stopwatch};
use crate::prng::Prng;
use crate::services::Services;

/// A request whose result is not yet written was begun at most so long before: answers are held back for a while before
/// some faults, and a group commit on a busy machine takes its time.
const UNDER_WAY_MAX: Duration = Duration::from_millis(3_000);
/// What was on its way as a process died or stood still arrives a moment later.
const ON_ITS_WAY: Duration = Duration::from_millis(300);
/// How long answers are held back before a process is struck, and how long they are held afterwards.
const HELD_BEFORE: Duration = Duration::from_millis(500);
const HELD_AFTER: Duration = Duration::from_millis(500);
/// A process that has just come back has nothing to do until shares and lanes have come to it.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
/// One that was stopped finds out that it was taken over within this.
const AWAKE_PATIENCE: Duration = Duration::from_secs(3);

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
pub(super) enum Fault {
    /// SIGKILL to a process, and a new start
    Kill,
    /// SIGSTOP for longer than a lease, then SIGCONT
    Stop,
    /// SIGTERM to one process after the other, each started again
    Rolling,
    /// SIGKILL to all of PostgreSQL, and a new start
    Postgres,
    /// Redis flushed, without its scripts, out of memory, or killed
    Redis,
    /// All of these
    All,
}

impl Fault {
    /// These, where one of them may be all.
    pub(super) fn expanded(faults: &[Self]) -> Vec<Self> {
        if faults.contains(&Self::All) {
            vec![Self::Kill, Self::Stop, Self::Rolling, Self::Postgres, Self::Redis]
        } else {
            faults.to_vec()
        }
    }
}

/// Lets Redis throw away everything it holds, and take nothing new for a while.
fn evict(services: &mut Services, span: Duration) -> Result<()> {
    services.tell_redis("SET ballast 1")?;
    let before = services.redis_counts("evicted_keys")?;
    services.tell_redis("CONFIG SET maxmemory-policy allkeys-random")?;
    services.tell_redis("CONFIG SET maxmemory 1")?;
    clock::pause(span);
    let evicted = services.redis_counts("evicted_keys")? - before;
    services.tell_redis("CONFIG SET maxmemory 0")?;
    ensure!(evicted > 0, "Redis evicted nothing");
    Ok(())
}

/// What happened to Redis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Loss {
    Flush,
    Scripts,
    Eviction,
    Kill,
}

/// What was done.
#[derive(Default)]
pub(super) struct Deeds {
    pub(super) counts: BTreeMap<Fault, u64>,
    /// What explains duplicates.
    pub(super) windows: Vec<Window>,
    /// When the last fault was over.
    pub(super) ended: Duration,
    losses: u64,
}

impl Deeds {
    pub(super) fn count(&self, fault: Fault) -> u64 {
        self.counts.get(&fault).copied().unwrap_or(0)
    }
}

/// One who brings faults.
pub(super) struct Nemesis<'a, 'b> {
    pub(super) cluster: &'a mut Cluster<'b>,
    pub(super) receiver: &'a Receiver,
    pub(super) watch: Stopwatch,
    pub(super) prng: &'a mut Prng,
    pub(super) deeds: Deeds,
}

impl Nemesis<'_, '_> {
    /// Strikes until the time is over; without faults it only lets the time pass.
    pub(super) fn run(mut self, faults: &[Fault], span: Duration) -> Result<Deeds> {
        let began = self.watch.elapsed();
        let mut hand: Vec<Fault> = Vec::new();
        let mut is_first = true;
        while is_first || self.watch.elapsed() - began < span {
            self.pause_ms(500, 1_500);
            if faults.is_empty() {
                is_first = false;
                continue;
            }
            if hand.is_empty() {
                hand = self.shuffled(faults);
            }
            let Some(fault) = hand.pop() else { continue };
            self.strike(fault)?;
            is_first &= !hand.is_empty();
        }
        Ok(self.deeds)
    }

    fn strike(&mut self, fault: Fault) -> Result<()> {
        let began = self.watch.elapsed();
        match fault {
            Fault::Kill => self.kill()?,
            Fault::Stop => self.stop()?,
            Fault::Rolling => self.roll()?,
            Fault::Postgres => self.lose_postgres()?,
            Fault::Redis => self.lose_redis()?,
            Fault::All => {}
        }
        *self.deeds.counts.entry(fault).or_default() += 1;
        self.deeds.ended = self.watch.elapsed();
        let took = self.deeds.ended - began;
        println!("{:>7.1} s  {fault:?}, {:.1} s", began.as_secs_f64(), took.as_secs_f64());
        Ok(())
    }

    fn kill(&mut self) -> Result<()> {
        let victim = self.victim()?;
        let began = self.watch.elapsed();
        if self.deeds.count(Fault::Kill) == 0 || self.prng.below(2) == 0 {
            self.catch_busy(victim);
        }
        self.cluster.kill(victim)?;
        self.open_window(began);
        // Back before anybody misses it, a little later, or after others have taken over what it held.
        let away = self.prng.pick(&[0, 2_000, 7_000]);
        clock::pause(Duration::from_millis(away));
        self.cluster.replicas[victim].resume()?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        let victim = self.victim()?;
        let lives = self.cluster.lives(victim)?;
        let began = self.watch.elapsed();
        self.catch_busy(victim);
        self.cluster.replicas[victim].signal("-STOP")?;
        self.open_window(began);
        self.pause_ms(6_500, 8_000);
        self.cluster.replicas[victim].signal("-CONT")?;
        // Whether it did is counted at the end.
        clock::wait_until(AWAKE_PATIENCE, || self.cluster.lives(victim).is_ok_and(|now| now > lives));
        Ok(())
    }

    fn roll(&mut self) -> Result<()> {
        for victim in 0..self.cluster.replicas.len() {
            self.cluster.end(victim)?;
            self.cluster.replicas[victim].resume()?;
        }
        Ok(())
    }

    fn lose_postgres(&mut self) -> Result<()> {
        self.cluster.services.kill_postgres()?;
        let away = self.prng.pick(&[0, 2_000, 6_000]);
        clock::pause(Duration::from_millis(away));
        self.cluster.services.resume_postgres()
    }

    /// Each loss in turn, beginning with any.
    fn lose_redis(&mut self) -> Result<()> {
        const LOSSES: [Loss; 4] = [Loss::Flush, Loss::Scripts, Loss::Eviction, Loss::Kill];
        if self.deeds.losses == 0 {
            self.deeds.losses = self.prng.below(LOSSES.len() as u64);
        }
        let loss = LOSSES[usize::try_from(self.deeds.losses % LOSSES.len() as u64)?];
        self.deeds.losses += 1;
        let away = Duration::from_millis(self.prng.pick(&[0, 1_000, 4_000]));
        let services = &mut *self.cluster.services;
        match loss {
            Loss::Flush => services.flush_redis(),
            Loss::Scripts => services.tell_redis("SCRIPT FLUSH"),
            Loss::Eviction => evict(services, Duration::from_secs(1) + away),
            Loss::Kill => {
                services.kill_redis()?;
                clock::pause(away);
                services.resume_redis()
            }
        }
    }

    /// Holds answers back until this process is known to wait for one. Whether it did is seen at the end.
    fn catch_busy(&self, victim: usize) {
        self.receiver.hold(BUSY_PATIENCE);
        clock::pause(HELD_BEFORE);
        clock::wait_until(BUSY_PATIENCE - HELD_BEFORE, || self.cluster.is_busy(victim));
        self.receiver.hold(HELD_AFTER);
    }

    /// What was under way between the beginning of a fault and now may come again.
    fn open_window(&mut self, began: Duration) {
        let window =
            Window { from: began.saturating_sub(UNDER_WAY_MAX), until: self.watch.elapsed() + ON_ITS_WAY };
        self.deeds.windows.push(window);
    }

    fn victim(&mut self) -> Result<usize> {
        Ok(usize::try_from(self.prng.below(self.cluster.replicas.len() as u64))?)
    }

    fn pause_ms(&mut self, from: u64, to: u64) {
        clock::pause(Duration::from_millis(from + self.prng.below(to - from)));
    }

    fn shuffled(&mut self, faults: &[Fault]) -> Vec<Fault> {
        let mut keyed: Vec<(u64, Fault)> = faults.iter().map(|fault| (self.prng.next(), *fault)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, fault)| fault).collect()
    }
}
