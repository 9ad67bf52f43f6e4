//! What is new, as replicas tell it: which parts of the store are worth a look. Merged by union, so that any number of
//! tellings is one.

use std::collections::BTreeSet;

use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::NEWS_SUBSCRIBERS_MAX;

/// What is worth a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Whatever there is: something may have been missed. The rest is empty then.
    pub everything: bool,
    /// The configuration has changed.
    pub configuration: bool,
    /// Events were accepted, for those who follow along.
    pub events: bool,
    /// Jobs were begun or stopped.
    pub jobs: bool,
    /// They have work that is due in the store.
    pub subscribers: BTreeSet<SubscriberNo>,
}

impl News {
    /// Something may have been missed.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// The configuration has changed.
    pub fn configuration() -> Self {
        Self { configuration: true, ..Self::default() }
    }

    /// Subscribers have work that is due in the store.
    pub fn work(subscribers: impl IntoIterator<Item = SubscriberNo>) -> Self {
        let mut news = Self { subscribers: subscribers.into_iter().collect(), ..Self::default() };
        news.shorten();
        news
    }

    /// Nothing at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what others said.
    pub fn merge(&mut self, other: Self) {
        self.everything |= other.everything;
        self.configuration |= other.configuration;
        self.events |= other.events;
        self.jobs |= other.jobs;
        if self.subscribers.is_empty() {
            self.subscribers = other.subscribers;
        } else {
            self.subscribers.extend(other.subscribers);
        }
        self.shorten();
    }

    /// A long list says no more than that there is work everywhere, and does not fit into a message.
    fn shorten(&mut self) {
        if self.everything || self.subscribers.len() > NEWS_SUBSCRIBERS_MAX {
            *self = Self::everything();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_subscribers_are_everything() {
        let most = i64::try_from(NEWS_SUBSCRIBERS_MAX).unwrap();
        let mut news = News::work(0..most);
        assert_eq!(news.subscribers.len(), NEWS_SUBSCRIBERS_MAX);
        news.merge(News::work([most]));
        assert_eq!(news, News::everything());
    }
}
