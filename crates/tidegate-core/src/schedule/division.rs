//! How limits are divided while replicas come and go.
//!
//! Everybody learns of a change at another moment. So that all parts together never exceed a limit, a part shrinks as soon as
//! a change is known and grows only when everybody is known to obey it: until then it is the smallest part that any
//! division since the last agreement would give. Somebody who has expired and was not yet taken over may come back and
//! use the part it had, so nothing is agreed without knowing what became of it.
//!
//! Whether somebody obeys is asked for each subscriber alone: attempts that take long keep the places of their own subscriber
//! where they are until they have ended, and nobody else's. So a beat names the subscribers of which a process has more under
//! way than its part allows ([`Stance::busy`]), and the others are agreed about at once: [`divide`]. One that is leaving has no
//! part. It begins nothing any more, and counts only where it still has something under way. Nor has one that has just come,
//! until it says among whom it divides: it begins nothing before all have agreed with it.
//!
//! Versions that do not say this much only tell whether they obey in everything ([`Fellow::obeys`]). While one of them lives,
//! everybody that lives has a part, as they think.

use std::collections::{BTreeMap, BTreeSet};

use super::Schedule;
use super::replicas::Share;
use crate::delivery::Job;
use crate::id::{Incarnation, SubscriberNo};
use crate::limits::BUSY_SUBSCRIBERS_MAX;

/// What a process says in its beat about its part of all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stance {
    /// Those among whom it divides, by their name ([`flock`]); 0 for one that has no part.
    pub divides: i64,
    /// Subscribers of which it has more under way than its part allows. Absent when they are more than a beat carries.
    pub busy: Option<Vec<SubscriberNo>>,
    /// It begins nothing any more, and leaves when what is under way has ended.
    pub is_leaving: bool,
}

impl Default for Stance {
    /// Of one that has just come.
    fn default() -> Self {
        Self { divides: 0, busy: Some(Vec::new()), is_leaving: false }
    }
}

/// A process that lives, as its last beat tells.
#[derive(Clone, Copy, Debug)]
pub struct Fellow<'a> {
    /// Its life.
    pub incarnation: Incarnation,
    /// Those among whom it divides; 0 while it has more under way of anybody than that allows.
    pub obeys: i64,
    /// Absent for versions that do not say.
    pub stance: Option<&'a Stance>,
}

/// How limits are to be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The name of those who have a part; never 0.
    pub flock: i64,
    /// The part of this process.
    pub share: Share,
    /// Everybody obeys it, but for these subscribers, of which somebody has too many under way. Absent: not everybody does.
    pub agreed: Option<BTreeSet<SubscriberNo>>,
}

/// What a beat of `me` says about limits. `fellows` are all that live, in order of their lives, this one among them; `expired`
/// are those that are silent and were not yet taken over. `None`: this process has no part.
pub fn divide(me: Incarnation, fellows: &[Fellow<'_>], expired: usize) -> Option<Parting> {
    let all_say = fellows.iter().all(|fellow| fellow.stance.is_some());
    let has_part = |fellow: &Fellow<'_>| match fellow.stance.filter(|_| all_say) {
        Some(stance) => !stance.is_leaving && (stance.divides != 0 || fellow.incarnation == me),
        None => true,
    };
    let members: Vec<Incarnation> =
        fellows.iter().filter(|fellow| has_part(fellow)).map(|fellow| fellow.incarnation).collect();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let rank = count(members.iter().position(|member| *member == me)?);
    let share = Share { rank, replicas: count(members.len()) };
    let flock = flock(members);
    let mut agreed = (expired == 0).then(BTreeSet::new);
    for fellow in fellows {
        match fellow.stance {
            Some(Stance { divides, busy: Some(busy), .. }) if *divides == flock || !has_part(fellow) => {
                agreed.iter_mut().for_each(|agreed| agreed.extend(busy));
            }
            None if fellow.obeys == flock => {}
            _ => agreed = None,
        }
    }
    Some(Parting { flock, share, agreed })
}

/// A name for exactly these processes; never 0.
pub(super) fn flock(lives: impl IntoIterator<Item = Incarnation>) -> i64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in lives.into_iter().flat_map(Incarnation::to_le_bytes) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.cast_signed().max(i64::MIN + 1).abs().max(1)
}

/// What was agreed, and what was proposed since.
#[derive(Clone, Debug, Default)]
struct Agreement {
    /// What everybody obeys; absent for one that has just come.
    agreed: Option<Share>,
    /// What was to be obeyed since, each once, the newest last.
    proposed: Vec<Share>,
}

impl Agreement {
    fn of(&self, limit: u32, subscriber: SubscriberNo) -> u32 {
        let part = |share: &Share| share.of(limit, subscriber);
        self.proposed.iter().map(part).fold(self.agreed.as_ref().map_or(0, part), u32::min)
    }

    fn latest(&self) -> Option<Share> {
        self.proposed.last().copied().or(self.agreed)
    }

    fn propose(&mut self, share: Share) {
        if self.latest() != Some(share) {
            self.proposed.retain(|proposed| *proposed != share);
            self.proposed.push(share);
        }
    }
}

/// How limits are divided right now.
#[derive(Clone, Debug)]
pub(super) struct Division {
    usual: Agreement,
    /// Subscribers about which less is agreed than about the others, since somebody had too many of theirs under way. What was
    /// proposed last is the same for all.
    behind: BTreeMap<SubscriberNo, Agreement>,
}

impl Default for Division {
    /// The only one has everything.
    fn default() -> Self {
        let usual = Agreement { agreed: Some(Share::default()), proposed: Vec::new() };
        Self { usual, behind: BTreeMap::new() }
    }
}

impl Division {
    /// The part of a subscriber's limit that may be used here.
    pub(super) fn of(&self, limit: u32, subscriber: SubscriberNo) -> u32 {
        self.behind.get(&subscriber).unwrap_or(&self.usual).of(limit, subscriber)
    }

    /// The part that it is to be.
    fn proposed_of(&self, limit: u32, subscriber: SubscriberNo) -> u32 {
        self.usual.latest().map_or(0, |share| share.of(limit, subscriber))
    }

    /// Whether that is new.
    fn propose(&mut self, share: Share) -> bool {
        let is_new = self.usual.latest() != Some(share);
        let all = std::iter::once(&mut self.usual).chain(self.behind.values_mut());
        all.for_each(|agreement| agreement.propose(share));
        is_new
    }

    /// Everybody obeys what was proposed last, but for these subscribers. Says whose part may have changed, if not everybody's.
    fn agree(&mut self, busy: &BTreeSet<SubscriberNo>) -> Option<Vec<SubscriberNo>> {
        let is_news = !self.usual.proposed.is_empty();
        if is_news {
            for subscriber in busy {
                self.behind.entry(*subscriber).or_insert_with(|| self.usual.clone());
            }
        }
        let caught_up = self.behind.extract_if(.., |subscriber, _| !busy.contains(subscriber));
        let caught_up = caught_up.map(|(subscriber, _)| subscriber).collect();
        if is_news {
            self.usual = Agreement { agreed: self.usual.proposed.pop(), proposed: Vec::new() };
        }
        (!is_news).then_some(caught_up)
    }
}

impl Schedule {
    /// Nothing is ours before the others have agreed. To be said when a life begins that shares a store.
    pub fn stand_by(&mut self) {
        self.division = Division { usual: Agreement::default(), behind: BTreeMap::new() };
    }

    /// The number of replicas, or this one's place among them, has changed: uses no more than before and than that
    /// allows. Gives back what waited for places that are no longer here.
    pub fn propose(&mut self, share: Share) -> Vec<Job> {
        if self.division.propose(share) { self.resize_all() } else { Vec::new() }
    }

    /// Everybody obeys what was proposed last, but for these subscribers.
    pub fn agree(&mut self, busy: &BTreeSet<SubscriberNo>) -> Vec<Job> {
        match self.division.agree(busy) {
            Some(some) => some.into_iter().flat_map(|subscriber| self.resize(subscriber)).collect(),
            None => self.resize_all(),
        }
    }

    /// Subscribers of which more is under way than what was proposed last allows, which is nothing for one that is leaving.
    /// `None` when they are more than a beat carries.
    pub fn busy(&self, is_leaving: bool) -> Option<Vec<SubscriberNo>> {
        let allowed = |subscriber, limit| match is_leaving {
            true => 0,
            false => self.division.proposed_of(limit, subscriber),
        };
        let busy = self.lineups.iter().filter(|(subscriber, lineup)| {
            lineup.in_flight > 0 && lineup.in_flight > allowed(**subscriber, lineup.terms.concurrency)
        });
        let busy: Vec<SubscriberNo> = busy.map(|(no, _)| *no).take(BUSY_SUBSCRIBERS_MAX + 1).collect();
        (busy.len() <= BUSY_SUBSCRIBERS_MAX).then_some(busy)
    }

    fn resize_all(&mut self) -> Vec<Job> {
        let everyone: Vec<SubscriberNo> = self.lineups.keys().copied().collect();
        everyone.into_iter().flat_map(|subscriber| self.resize(subscriber)).collect()
    }
}
