//! Beat: says every second that this process lives, and hears who else does.
//!
//! Only for a store that is shared. A beat that comes through renews the lease that everybody asks before they act
//! (`standing`), moves the clock to the store's, divides limits among those that live, and tells the [`Lookout`] what it saw: who expired, that the
//! configuration moved on. A beat that finds its process declared dead leaves the rest to the group commit, which finds the
//! same and begins a new life.
//!
//! It runs on a loop of its own, so that neither a slow request nor a slow commit is taken for the end of the process. Nor
//! does it wait for what they hold: the store beats on a session of its own, which is opened on this loop (`boot/store.rs`);
//! the desk, what waits to be written, the lookout and the outbox of the coordination are behind locks that are held only to
//! change memory, never while something is judged, written or awaited; standing, roster and clock are read without a lock.
//! What takes long is told to the lookout, which does it elsewhere.
//!
//! Does not: anything that takes long. The next beat must be on time.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::lease::{BEAT_EVERY, BEAT_TIMEOUT, Vigil, correction_ms};
use tidegate_core::observe::Switches;
use tidegate_core::schedule::{Fellow, divide};
use tidegate_store::coordination::News;
use tidegate_store::{Beat, Error, Load, Replica, Store};

use super::Parts;
use super::desk::Desk;
use super::lookout::Lookout;
use super::persist::Persist;
use crate::clock::Clock;
use crate::roster::Rosters;
use crate::standing::Standing;
use crate::watch::Watch;

/// The next beat while others are being taken over.
const BEAT_SOON: Duration = Duration::from_millis(100);
/// Every so many beats everything is looked at, whatever was told: hints may be lost.
const LOOK_EVERY_BEATS: u64 = 5;

pub(super) struct Beats {
    store: Arc<dyn Store>,
    clock: Clock,
    standing: Arc<Standing>,
    rosters: Arc<Rosters>,
    watch: Arc<Watch>,
    desk: Arc<Desk>,
    persist: Arc<Persist>,
    lookout: Arc<Lookout>,
    vigil: Vigil,
    count: u64,
    has_failed: bool,
    /// Those among whom limits are divided, by their name; 0 while this process has no part.
    flock: i64,
    /// It has said, or is about to say, that this process leaves.
    is_leaving: bool,
    /// What this process would switch off of what is counted.
    switches: Switches,
    /// That the others do not, as it was last told.
    discord: Option<String>,
    /// Somebody has expired and is about to be taken over.
    is_taking_over: bool,
}

impl Beats {
    pub(super) fn new(parts: &Parts, desk: Arc<Desk>, persist: Arc<Persist>, lookout: Arc<Lookout>) -> Self {
        Self {
            store: Arc::clone(&parts.store),
            clock: parts.clock.clone(),
            standing: Arc::clone(&parts.standing),
            rosters: Arc::clone(&parts.rosters),
            watch: Arc::clone(&parts.watch),
            desk,
            persist,
            lookout,
            vigil: Vigil::default(),
            count: 0,
            has_failed: false,
            flock: 0,
            is_leaving: false,
            switches: parts.observing.switches,
            discord: None,
            is_taking_over: false,
        }
    }

    /// For as long as the process lives.
    pub(super) async fn run(mut self) {
        loop {
            let (began, flock) = (self.clock.steady(), self.flock);
            self.beat(began).await;
            // Others wait to be told that this process knows who lives.
            if self.flock != flock {
                continue;
            }
            let spent = self.clock.steady().saturating_sub(began);
            // Nothing is agreed before it is known what became of those who are being taken over.
            let pace = if self.is_taking_over { BEAT_SOON } else { BEAT_EVERY };
            tokio::select! {
                biased;
                // The sooner the others know that this process leaves, the sooner its places are theirs.
                () = self.standing.leaving(), if !self.is_leaving => {}
                () = self.clock.pause(pace.saturating_sub(spent)) => {}
            }
        }
    }

    async fn beat(&mut self, began: Duration) {
        // In this order: nothing begins after the desk was closed, which is before anybody says that this process leaves.
        self.is_leaving = self.standing.is_leaving();
        let (desk_life, load) = self.desk.speak(self.flock, self.is_leaving);
        let wall = Some(self.clock.wall());
        let (streams, switches) = (self.watch.open() as u64, Some(self.switches));
        let load = Load { streams, wall, switches, ..load };
        let life = self.store.incarnation();
        let beating = tokio::select! {
            biased;
            beat = self.store.beat(load) => beat,
            () = self.clock.pause(BEAT_TIMEOUT) => Err(Error::Unavailable("a beat took too long".to_owned())),
        };
        // A new life has begun meanwhile: whatever this says is about the old one.
        if self.store.incarnation() != life {
            return;
        }
        match beating {
            Ok(beat) => self.heard(&beat, desk_life, began),
            Err(Error::Fenced) => self.persist.look_again(),
            Err(error) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    tracing::warn!(%error, "the store does not hear that this process lives");
                }
                // Whether it takes events all the same is worth knowing.
                self.persist.look_again();
            }
        }
        self.standing.set_heard(!self.has_failed);
    }

    /// Limits are divided among those that live; see `tidegate_core::schedule`.
    fn divide(&mut self, beat: &Beat, desk_life: u64) {
        let fellows: Vec<Fellow<'_>> = beat.replicas.iter().map(Replica::fellow).collect();
        let Some(parting) = divide(beat.incarnation, &fellows, beat.expired.len()) else {
            self.flock = 0;
            return;
        };
        let released = self.desk.divide(desk_life, &parting);
        self.flock = parting.flock;
        if !released.is_empty() {
            self.persist.release(released);
            self.lookout.tell_to_look();
        }
    }

    /// The server's settings may change while it runs. What it would not keep is not accepted.
    fn note_weakness(&self, beat: &Beat) {
        if !self.standing.set_weakness(beat.weakness) {
            return;
        }
        match beat.weakness {
            Some(weakness) => tracing::error!("{weakness} in PostgreSQL: nothing is accepted until it is on"),
            None => tracing::info!("PostgreSQL keeps what it is given again: events are accepted"),
        }
    }

    /// One word for the whole installation is kept, that of whoever started last: the others should know.
    fn note_discord(&mut self) {
        let discord = self.standing.fellows().discord();
        if discord != self.discord {
            match &discord {
                Some(who) => tracing::warn!(
                    who,
                    "the processes do not agree about what is counted: the settings of the one that started last hold for all"
                ),
                None => tracing::info!("the processes agree about what is counted"),
            }
            self.discord = discord;
        }
    }

    fn heard(&mut self, beat: &Beat, desk_life: u64, began: Duration) {
        if std::mem::take(&mut self.has_failed) {
            tracing::info!("the store hears this process again");
        }
        let round_trip = self.clock.steady().saturating_sub(began);
        if let Some(theirs) = beat.now {
            self.clock.heard(theirs);
            self.clock.follow(correction_ms(self.clock.now(), theirs, round_trip));
        }
        if self.standing.renew(began) {
            self.desk.ring();
        }
        self.note_weakness(beat);
        self.vigil.beat(began, round_trip, beat.now);
        self.divide(beat, desk_life);
        self.count += 1;
        if self.standing.meet(beat) || self.count.is_multiple_of(LOOK_EVERY_BEATS) {
            self.lookout.report(News::everything());
        }
        self.note_discord();
        // A database that went back in time has an older one.
        if beat.version.is_some_and(|version| version != self.rosters.current().version) {
            self.lookout.report(News::configuration());
        }
        if self.standing.fellows().replicas.len() > 1 {
            // Others may have accepted events before they knew that somebody looks on here.
            self.watch.stir();
        }
        self.is_taking_over = self.vigil.may_take_over() && !beat.expired.is_empty();
        if self.is_taking_over {
            self.lookout.report_expired(&beat.expired);
        }
    }
}
