//! What is new, as replicas tell it: which parts of the store are worth a look. Merged by union, so that any number of
//! tellings is one.

use std::collections::BTreeSet;

use tidegate_core::id::{GateNo, SubscriberNo};
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
    /// They were penalised.
    pub gates: BTreeSet<GateNo>,
    /// Their penalties were lifted.
    pub lifted: BTreeSet<GateNo>,
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

    /// A gate was penalised.
    pub fn penalty(gate: GateNo) -> Self {
        Self { gates: BTreeSet::from([gate]), ..Self::default() }
    }

    /// The penalty of a gate was lifted.
    pub fn lift(gate: GateNo) -> Self {
        Self { lifted: BTreeSet::from([gate]), ..Self::default() }
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
        self.gates.extend(other.gates);
        self.lifted.extend(other.lifted);
        self.shorten();
    }

    /// A long list says no more than that there is work everywhere, and does not fit into a message.
    fn shorten(&mut self) {
        let listed = self.subscribers.len() + self.gates.len() + self.lifted.len();
        if self.everything || listed > NEWS_SUBSCRIBERS_MAX {
            *self = Self::everything();
        }
    }

    /// As one line of text, with who says it.
    pub(super) fn write(&self, sender: u64) -> String {
        let flags = [(self.everything, 'a'), (self.configuration, 'c'), (self.events, 'e'), (self.jobs, 'j')];
        let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect();
        let subscribers = self.subscribers.iter().map(ToString::to_string);
        let gates = self.gates.iter().map(|gate| format!("g{gate}"));
        let lifted = self.lifted.iter().map(|gate| format!("l{gate}"));
        let numbers: Vec<String> = subscribers.chain(gates).chain(lifted).collect();
        format!("{sender:x} {flags} {}", numbers.join(","))
    }

    /// Reads such a line; nothing if it is one's own. What can not be read, as from a newer version, may be anything.
    pub(super) fn read(line: &str, me: u64) -> Self {
        let mut parts = line.splitn(3, ' ');
        let sender = parts.next().and_then(|sender| u64::from_str_radix(sender, 16).ok());
        match sender {
            Some(sender) if sender == me => Self::default(),
            Some(_) => Self::read_rest(parts.next(), parts.next()).unwrap_or_else(Self::everything),
            None => Self::everything(),
        }
    }

    fn read_rest(flags: Option<&str>, numbers: Option<&str>) -> Option<Self> {
        let mut news = Self::default();
        for flag in flags?.chars() {
            match flag {
                'c' => news.configuration = true,
                'e' => news.events = true,
                'j' => news.jobs = true,
                _ => return None,
            }
        }
        for number in numbers?.split(',').filter(|number| !number.is_empty()) {
            match (number.strip_prefix('g'), number.strip_prefix('l')) {
                (Some(gate), _) => news.gates.insert(gate.parse().ok()?),
                (_, Some(gate)) => news.lifted.insert(gate.parse().ok()?),
                _ => news.subscribers.insert(number.parse().ok()?),
            };
        }
        news.shorten();
        Some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What fits into the payload of one NOTIFY.
    const PAYLOAD_BYTES_MAX: usize = 7_999;

    #[test]
    fn news_are_read_as_they_were_written() {
        let gates = [4, 55].into();
        let all = News { configuration: true, events: true, jobs: true, gates, ..News::work([1, 22, 333]) };
        let some = [News::configuration(), News::work([7]), News::penalty(8), News::lift(9), all];
        for news in [News::default(), News::everything()].into_iter().chain(some) {
            assert_eq!(News::read(&news.write(0xfeed), 1), news);
            assert!(News::read(&news.write(1), 1).is_empty(), "one does not hear oneself");
        }
    }

    #[test]
    fn what_can_not_be_read_may_be_anything() {
        for line in ["", "1", "1 c", "1 cz 4", "1 c 4,x", "zz\u{0} c 4"] {
            assert_eq!(News::read(line, 9), News::everything(), "{line:?}");
        }
    }

    #[test]
    fn a_message_is_never_too_long() {
        let most = i64::try_from(NEWS_SUBSCRIBERS_MAX).unwrap();
        let mut news = News::work((1..most).map(|no| i64::MAX - no));
        news.merge(News::penalty(i64::MAX));
        assert_eq!(news.subscribers.len(), NEWS_SUBSCRIBERS_MAX - 1);
        assert!(news.write(u64::MAX).len() <= PAYLOAD_BYTES_MAX);
        news.merge(News::work([1]));
        assert_eq!(news, News::everything());
    }
}
