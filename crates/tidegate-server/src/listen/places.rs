//! The places at the door: how many connections there are, in all and of one address, and who leaves first.
//!
//! When there is no place left, whoever has waited longest without a request under way makes room for the newcomer: a
//! crowd that does nothing can not keep the others out. Only when everybody is at work is the newcomer turned away.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::Terms;
use super::pace::{Pace, Phase};

/// Who is here.
pub(super) struct Places {
    connections_max: usize,
    per_address_max: usize,
    seats: Mutex<Seats>,
    emptied: Notify,
}

#[derive(Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, Arc<Seat>>,
    by_address: BTreeMap<IpAddr, usize>,
}

struct Seat {
    address: IpAddr,
    pace: Arc<Pace>,
    wanted: Notify,
}

/// A connection's place; free again when it is dropped.
pub(super) struct Place {
    number: u64,
    seat: Arc<Seat>,
    places: Arc<Places>,
}

impl Places {
    pub(super) fn new(terms: &Terms) -> Arc<Self> {
        Arc::new(Self {
            connections_max: terms.connections,
            per_address_max: terms.connections_per_address,
            seats: Mutex::default(),
            emptied: Notify::new(),
        })
    }

    /// A place for a newcomer, if need be that of somebody who only waits.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, now: Duration) -> Option<Place> {
        let address = network(address);
        let mut seats = self.lock();
        if seats.by_address.get(&address).is_some_and(|count| *count >= self.per_address_max) {
            seats.evict(|seat| seat.address == address).then_some(())?;
        }
        if seats.taken.len() >= self.connections_max {
            seats.evict(|_| true).then_some(())?;
        }
        let seat = Arc::new(Seat { address, pace: Arc::new(Pace::new(now)), wanted: Notify::new() });
        let number = seats.next;
        seats.next += 1;
        seats.taken.insert(number, Arc::clone(&seat));
        *seats.by_address.entry(address).or_default() += 1;
        Some(Place { number, seat, places: Arc::clone(self) })
    }

    /// Asks whoever waits longest to leave.
    pub(super) fn make_room(&self) {
        self.lock().evict(|_| true);
    }

    /// Returns when nobody is left.
    pub(super) async fn emptied(&self) {
        while !self.lock().taken.is_empty() {
            self.emptied.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// Takes the place of the one who waits longest among these. Those that never finished a request go first.
    fn evict(&mut self, is_meant: impl Fn(&Seat) -> bool) -> bool {
        let waiting = self.taken.iter().filter(|(_, seat)| is_meant(seat)).filter_map(|(number, seat)| {
            let (phase, since) = seat.pace.phase();
            let rank = match phase {
                Phase::Working => return None,
                Phase::Idle => 1,
                Phase::Fresh | Phase::Head | Phase::Stalled => 0,
            };
            Some((rank, since, *number))
        });
        let Some((.., number)) = waiting.min() else { return false };
        if let Some(seat) = self.taken.get(&number) {
            seat.wanted.notify_one();
        }
        self.leave(number);
        true
    }

    fn leave(&mut self, number: u64) {
        let Some(seat) = self.taken.remove(&number) else { return };
        if let Some(count) = self.by_address.get_mut(&seat.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&seat.address);
            }
        }
    }
}

impl Place {
    /// Whose it is: an address, or a /64 network.
    pub(super) fn address(&self) -> IpAddr {
        self.seat.address
    }

    pub(super) fn pace(&self) -> &Arc<Pace> {
        &self.seat.pace
    }

    /// Returns when somebody else needs this place.
    pub(super) async fn is_wanted(&self) {
        self.seat.wanted.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.places.lock();
        seats.leave(self.number);
        if seats.taken.is_empty() {
            self.places.emptied.notify_one();
        }
    }
}

/// Whoever has one IPv6 address has the whole /64 around it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, connections_per_address: usize) -> Arc<Places> {
        Places::new(&Terms { connections, connections_per_address, ..Terms::default() })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn is_asked_to_leave(place: &Place) -> bool {
        let mut asked = std::pin::pin!(place.is_wanted());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::future::Future::poll(asked.as_mut(), &mut context).is_ready()
    }

    #[test]
    fn whoever_waits_longest_makes_room_and_whoever_works_stays() {
        let places = places(3, 3);
        let one = places.admit(address("192.0.2.1"), at(0)).unwrap();
        let two = places.admit(address("192.0.2.2"), at(1)).unwrap();
        let three = places.admit(address("192.0.2.3"), at(2)).unwrap();
        one.pace().enter(Phase::Working, at(3));
        two.pace().enter(Phase::Idle, at(1));
        let four = places.admit(address("192.0.2.4"), at(4)).unwrap();
        assert!(is_asked_to_leave(&three), "it never said anything");
        let five = places.admit(address("192.0.2.5"), at(5)).unwrap();
        assert!(is_asked_to_leave(&four) && !is_asked_to_leave(&two) && !is_asked_to_leave(&one));
        for place in [&two, &five] {
            place.pace().enter(Phase::Working, at(6));
        }
        assert!(places.admit(address("192.0.2.6"), at(7)).is_none(), "everybody works");
        drop(two);
        assert!(places.admit(address("192.0.2.6"), at(7)).is_some());
    }

    #[test]
    fn one_address_competes_with_itself_only() {
        let places = places(10, 2);
        let other = places.admit(address("2001:db8:0:2::1"), at(0)).unwrap();
        let first = places.admit(address("2001:db8:0:1::1"), at(1)).unwrap();
        let _second = places.admit(address("2001:db8:0:1:ffff::2"), at(2)).unwrap();
        let _third = places.admit(address("2001:db8:0:1::3"), at(3)).unwrap();
        assert!(is_asked_to_leave(&first) && !is_asked_to_leave(&other));
        drop((first, other));
        assert_eq!(places.lock().by_address.len(), 1, "what is gone is forgotten");
    }
}
