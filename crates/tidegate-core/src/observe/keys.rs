//! Keys, while a slab is filled: told apart by what they are made of.
//!
//! A key is a list of values, and most values are met again and again. So each value has a number, a key is the way
//! from value to value, and only a key that is new is ever written as text.
//!
//! Promises: what reads alike has one number, whichever way it came.

use std::collections::HashMap;
use std::sync::Arc;

use super::delta::Key;
use super::hash::Seeded;
use super::pick::elements;

/// Where a list begins; also the empty list.
const LIST: u32 = 0;
/// Before a key that was given as a whole.
const WHOLE: u32 = 1;

/// The list without any value.
pub(super) const NOTHING: KeyPlace = KeyPlace(LIST);

/// A value among all that were met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueNo(u32);

/// A key among all that were met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyPlace(pub(super) u32);

/// All that were met.
#[derive(Debug)]
pub(super) struct Keys {
    /// Values as they stand in events.
    found: HashMap<Box<str>, ValueNo, Seeded>,
    /// The same as they stand in keys: different ones in events may be one here.
    numbers: HashMap<Arc<str>, ValueNo, Seeded>,
    texts: Vec<Arc<str>>,
    /// From a key, and the value that comes next, to the longer key.
    steps: HashMap<(u32, u32), u32, Seeded>,
    /// The last step to each key; the first ones are no keys of their own.
    ways: Vec<(u32, u32)>,
}

impl Keys {
    pub(super) fn new(hasher: Seeded) -> Self {
        Self {
            found: HashMap::with_hasher(hasher),
            numbers: HashMap::with_hasher(hasher),
            texts: Vec::new(),
            steps: HashMap::with_hasher(hasher),
            ways: vec![(LIST, 0), (WHOLE, 0)],
        }
    }

    /// The number of a value that stands so in an event; `write` says how it stands in keys.
    #[inline]
    pub(super) fn value(&mut self, found: &str, write: impl FnOnce(&mut String, &str)) -> ValueNo {
        if let Some(known) = self.found.get(found) {
            return *known;
        }
        let mut text = String::new();
        write(&mut text, found);
        let number = self.number(&text);
        self.found.insert(found.into(), number);
        number
    }

    /// The key with a value more.
    #[inline]
    pub(super) fn and(&mut self, KeyPlace(key): KeyPlace, value: ValueNo) -> KeyPlace {
        KeyPlace(self.step(key, value))
    }

    /// The key that reads so.
    pub(super) fn read(&mut self, key: &str) -> KeyPlace {
        let (count, bytes) =
            elements(key).fold((0, 0), |(count, bytes), value| (count + 1, bytes + value.len()));
        let is_list = key.starts_with('[') && key.ends_with(']');
        if !is_list || bytes + count.max(1) + 1 != key.len() {
            // Something else, or with spaces in between.
            let value = self.number(key);
            return KeyPlace(self.step(WHOLE, value));
        }
        elements(key).fold(NOTHING, |key, value| {
            let value = self.number(value);
            self.and(key, value)
        })
    }

    /// How many keys there are at most: their numbers are lower.
    pub(super) fn len(&self) -> usize {
        self.ways.len()
    }

    /// A key as text.
    pub(super) fn text(&self, KeyPlace(key): KeyPlace) -> Key {
        let mut values = Vec::new();
        let mut at = key;
        while at != LIST && at != WHOLE {
            let (before, value) = self.ways[at as usize];
            values.push(&self.texts[value as usize]);
            at = before;
        }
        if at == WHOLE {
            return values.first().map_or_else(Key::default, |whole| Arc::clone(whole));
        }
        let mut text = String::with_capacity(2 + values.iter().map(|value| value.len() + 1).sum::<usize>());
        text.push('[');
        for (place, value) in values.into_iter().rev().enumerate() {
            if place > 0 {
                text.push(',');
            }
            text.push_str(value);
        }
        text.push(']');
        text.into()
    }

    fn number(&mut self, text: &str) -> ValueNo {
        if let Some(known) = self.numbers.get(text) {
            return *known;
        }
        let (text, number): (Arc<str>, _) = (text.into(), ValueNo(self.texts.len() as u32));
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    #[inline]
    fn step(&mut self, key: u32, ValueNo(value): ValueNo) -> u32 {
        let ways = &mut self.ways;
        *self.steps.entry((key, value)).or_insert_with(|| {
            ways.push((key, value));
            ways.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_alike_is_one_key() {
        let mut keys = Keys::new(Seeded::new(3));
        let shown = |text: &mut String, found: &str| text.push_str(found.trim_end_matches(".0"));
        let (seven, a) = (keys.value("7.0", shown), keys.value("\"a\"", shown));
        assert_eq!((keys.value("7", shown), keys.value("7.0", shown)), (seven, seven));
        let key = keys.and(NOTHING, seven);
        let key = keys.and(key, a);
        assert_eq!(&*keys.text(key), "[7,\"a\"]");
        assert_eq!((keys.read("[7,\"a\"]"), keys.read("[]")), (key, NOTHING));
        for other in ["[7, \"a\"]", "7", "[", "", "[7,\"a\"", "[]]", "[7,\"a\",]", "[[7,\"a\"]]"] {
            let place = keys.read(other);
            assert_eq!((&*keys.text(place), place == key), (other, false), "{other}");
            assert_eq!(keys.read(other), place);
        }
        assert_eq!(&*keys.text(NOTHING), "[]");
        assert!(keys.len() > key.0 as usize);
    }
}
