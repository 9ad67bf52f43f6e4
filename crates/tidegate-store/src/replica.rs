//! Who shares a store.

use tidegate_core::id::{Incarnation, Version};
use tidegate_core::observe::Switches;
use tidegate_core::schedule::{Fellow, Stance};
use tidegate_core::time::Timestamp;

/// How busy a process is, for the others and for people to see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Attempts under way.
    pub in_flight: u64,
    /// Deliveries in memory.
    pub queued: u64,
    /// Streams of events that somebody reads there.
    pub streams: u64,
    /// Those among whom it divides limits; 0 while it has more under way than that allows. For versions that know no more.
    pub obeys: i64,
    /// The same, subscriber by subscriber; absent for versions that do not say.
    pub stance: Option<Stance>,
    /// What its own clock said when it beat.
    pub wall: Option<Timestamp>,
    /// What its own settings switch off of what is counted.
    pub switches: Option<Switches>,
}

/// What a beat told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The store's time, to measure one's own clock by; absent for a store without a clock of its own.
    pub now: Option<Timestamp>,
    /// This process's life.
    pub incarnation: Incarnation,
    /// All that live, this one among them, oldest first.
    pub replicas: Vec<Replica>,
    /// Those whose beat is overdue: what they held may be taken over.
    pub expired: Vec<Incarnation>,
    /// The configuration in force, where others may change it.
    pub version: Option<Version>,
    /// Why a commit may not be on disk when it returns, as the store is set up now; absent while it is.
    pub weakness: Option<&'static str>,
}

/// A process that shares the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Its life.
    pub incarnation: Incarnation,
    /// What people call it.
    pub name: String,
    /// When that life began.
    pub began_at: Timestamp,
    /// Its last beat, by the store's clock.
    pub at: Timestamp,
    /// How busy it was.
    pub load: Load,
    /// Groups that it has written in this life.
    pub groups: u64,
}

impl Replica {
    /// It begins nothing any more, and leaves when what is under way has ended.
    pub fn is_leaving(&self) -> bool {
        self.load.stance.as_ref().is_some_and(|stance| stance.is_leaving)
    }

    /// What it says about limits.
    pub fn fellow(&self) -> Fellow<'_> {
        let Load { obeys, stance, .. } = &self.load;
        Fellow { incarnation: self.incarnation, obeys: *obeys, stance: stance.as_ref() }
    }

    /// By how many milliseconds its own clock is ahead of the store's, as far as a beat can tell.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        self.load.wall.map(|wall| wall.as_ms() - self.at.as_ms())
    }
}

impl Beat {
    /// The place of this process among those that live, from 0; absent when it is not one of them any more.
    pub fn rank(&self) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.incarnation == self.incarnation)
    }
}

/// A number that says how a store is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct Vital {
    /// What is measured, as a name of a metric without its prefix.
    pub name: &'static str,
    /// In words.
    pub help: &'static str,
    /// Of what, where there are several.
    pub part: Option<&'static str>,
    /// How much.
    pub value: f64,
}

/// What a takeover found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Deliveries that are due again.
    pub due: u64,
    /// Suspects that were being sent and are set aside as exhausted.
    pub set_aside: u64,
}
