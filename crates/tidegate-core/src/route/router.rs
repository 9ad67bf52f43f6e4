//! The routing table of one project: which subscribers to ask about an event.
//!
//! Subscribers are found by the event's type: one look-up for the type itself and one for each of its prefixes.
//! Only those found are asked, so thousands of subscribers with types of their own cost nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::judge::Subscriber;
use super::pattern::Pattern;
use super::view::View;
use crate::event::Event;
use crate::fold::Appending;
use crate::id::{Lane, SubscriberNo};

/// Where one event goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// To whom.
    pub subscriber: SubscriberNo,
    /// In which lane; `None` outside the lanes.
    pub lane: Option<Lane>,
    /// Into which window; `None` for a delivery of its own.
    pub fold: Option<Arc<Appending>>,
    /// Which window it ends without joining it, for it has a delivery of its own.
    pub ends: Option<Arc<Appending>>,
}

impl Route {
    /// A delivery of its own.
    pub fn alone(subscriber: SubscriberNo, lane: Option<Lane>) -> Self {
        Self { subscriber, lane, fold: None, ends: None }
    }

    /// Into a window.
    pub fn folded(subscriber: SubscriberNo, lane: Option<Lane>, appending: Appending) -> Self {
        Self { subscriber, lane, fold: Some(Arc::new(appending)), ends: None }
    }

    /// What it has to do with a window, and whether it passes that by.
    pub fn window(&self) -> Option<(&Appending, bool)> {
        let joined = self.fold.as_deref().map(|joined| (joined, false));
        joined.or_else(|| self.ends.as_deref().map(|ended| (ended, true)))
    }
}

/// The routing table of one project.
#[derive(Clone, Debug, Default)]
pub struct Router {
    /// In the order of their numbers.
    subscribers: Vec<Arc<Subscriber>>,
    /// Places in `subscribers`, by exact type.
    exact: HashMap<String, Vec<usize>>,
    /// The same by prefix, which ends in a dot.
    below: HashMap<String, Vec<usize>>,
    /// Those that take any type.
    any: Vec<usize>,
}

/// What changed from one routing table to another.
#[derive(Clone, Debug, Default)]
pub struct Changes<'a> {
    /// Those that are new or have changed.
    asked: Vec<&'a Subscriber>,
    /// Those that are gone or have changed, in the order of their numbers.
    dropped: Vec<SubscriberNo>,
}

impl Changes<'_> {
    /// Brings the routes of an event by the old table to where the new one sends it.
    pub fn apply(&self, event: &Event, routes: &mut Vec<Route>) {
        routes.retain(|route| self.dropped.binary_search(&route.subscriber).is_err());
        if self.asked.is_empty() {
            return;
        }
        let view = View::new(event);
        routes.extend(self.asked.iter().filter_map(|subscriber| subscriber.matches(&view)));
        routes.sort_by_key(|route| route.subscriber);
    }
}

impl Router {
    /// Builds the table.
    pub fn build(mut subscribers: Vec<Arc<Subscriber>>) -> Self {
        subscribers.sort_by_key(|subscriber| subscriber.no);
        let mut router = Self::default();
        for (place, subscriber) in subscribers.iter().enumerate() {
            let types = &subscriber.definition.matching.types;
            if types.is_empty() {
                router.any.push(place);
            }
            for pattern in types {
                match pattern {
                    Pattern::Exact(name) => router.exact.entry(name.clone()).or_default().push(place),
                    Pattern::Below(prefix) => router.below.entry(prefix.clone()).or_default().push(place),
                    Pattern::Any => router.any.push(place),
                }
            }
        }
        // One may name `*` twice.
        router.any.dedup();
        router.subscribers = subscribers;
        router
    }

    /// All subscribers, in the order of their numbers.
    pub fn subscribers(&self) -> &[Arc<Subscriber>] {
        &self.subscribers
    }

    /// Where an event goes, in the order of the subscribers' numbers.
    pub fn route(&self, event: &Event) -> Vec<Route> {
        if self.exact.is_empty() && self.below.is_empty() {
            return self.ask(&self.any, event);
        }
        self.ask(&self.candidates(&event.type_name), event)
    }

    /// What changed since `old`. One that was not changed is the same in memory.
    pub fn changes_since(&self, old: &Self) -> Changes<'_> {
        let mut changes = Changes::default();
        let mut before = old.subscribers.iter().peekable();
        for now in &self.subscribers {
            while let Some(gone) = before.next_if(|before| before.no < now.no) {
                changes.dropped.push(gone.no);
            }
            match before.next_if(|before| before.no == now.no) {
                Some(before) if Arc::ptr_eq(before, now) => {}
                Some(_) => {
                    changes.dropped.push(now.no);
                    changes.asked.push(now);
                }
                None => changes.asked.push(now),
            }
        }
        changes.dropped.extend(before.map(|gone| gone.no));
        changes
    }

    fn ask(&self, places: &[usize], event: &Event) -> Vec<Route> {
        let mut routes = Vec::new();
        if places.is_empty() {
            return routes;
        }
        let view = View::new(event);
        for route in places.iter().filter_map(|place| self.subscribers[*place].matches(&view)) {
            if routes.is_empty() {
                // Most events go to one: no room is made for more, which others would carry around.
                routes.reserve_exact(1);
            }
            routes.push(route);
        }
        routes
    }

    /// Places of the subscribers that want this type, each once.
    fn candidates(&self, type_name: &str) -> Vec<usize> {
        let mut places = self.any.clone();
        places.extend(self.exact.get(type_name).into_iter().flatten());
        if !self.below.is_empty() {
            let prefixes = type_name.match_indices('.').map(|(dot, _)| &type_name[..=dot]);
            places.extend(prefixes.filter_map(|prefix| self.below.get(prefix)).flatten());
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}
