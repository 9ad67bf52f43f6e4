//! Lists of events, packed: the first one, and the differences that lead to the others.

use super::varint::{Reader, put};
use crate::id::Seq;

/// The first event, and what follows it. Empty lists have no first one: 0 stands for it.
pub fn pack(events: &[Seq]) -> (Seq, Vec<u8>) {
    let mut packed = Vec::with_capacity(events.len() * 2);
    for pair in events.windows(2) {
        put(&mut packed, pair[1].abs_diff(pair[0]));
    }
    (events.first().copied().unwrap_or(0), packed)
}

/// Adds the events of a list to others, in order. What can not be read is left out.
pub fn unpack(first: Seq, packed: &[u8], events: &mut Vec<Seq>) {
    events.push(first);
    let (mut last, mut reader) = (first, Reader(packed));
    while let Ok(difference) = reader.number() {
        last = last.saturating_add_unsigned(difference);
        events.push(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back() {
        for list in [vec![7], vec![1, 2, 3], vec![5, 1 << 20, (1 << 20) + 1, 1 << 55], vec![0, 127, 255, 383]]
        {
            let (first, packed) = pack(&list);
            let mut events = Vec::new();
            unpack(first, &packed, &mut events);
            assert_eq!(events, list);
        }
    }

    #[test]
    fn torn_lists_end() {
        let mut events = Vec::new();
        unpack(1, &[0xff; 20], &mut events);
        assert_eq!(events, [1]);
    }
}
