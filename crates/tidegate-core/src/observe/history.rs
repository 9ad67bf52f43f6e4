//! Changes of objects, packed: what one flush tells of one state, one change behind the other.
//!
//! A byte that says the form, then the changes in order of events. Names of states are written once and by their number
//! after that; events and times as differences.
//!
//! Promises: what was packed is unpacked; bytes that are no history are [`Torn`].

use std::sync::Arc;

use super::state::Change;
use super::varint::{Reader, Torn, put, put_signed};
use crate::id::{MetricNo, Seq};
use crate::time::Timestamp;

/// Changes that are packed together at most: some 20 KB.
pub const CHANGES_MAX: usize = 1_000;

/// The form's byte.
const FORM: u8 = 1;
/// It came too late to change anything.
const LATE: u8 = 1;
/// It is the first of its object, or nobody knows from where it came.
const NOWHERE: u64 = 0;

/// Packs changes of one state, in order of events.
pub fn pack(changes: &[Change]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + changes.len() * 24);
    out.push(FORM);
    let (mut event, mut time) = (0, 0);
    let mut names: Vec<&Arc<str>> = Vec::new();
    for change in changes {
        out.push(u8::from(change.is_late) * LATE);
        put_signed(&mut out, change.event.wrapping_sub(event));
        put_signed(&mut out, change.time.as_ms().wrapping_sub(time));
        (event, time) = (change.event, change.time.as_ms());
        put_text(&mut out, &change.object);
        match &change.from {
            Some(from) => put_name(&mut out, &mut names, from),
            None => put(&mut out, NOWHERE),
        }
        put_name(&mut out, &mut names, &change.to);
    }
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_name<'c>(out: &mut Vec<u8>, names: &mut Vec<&'c Arc<str>>, name: &'c Arc<str>) {
    match names.iter().position(|known| *known == name) {
        Some(place) => put(out, place as u64 + 1),
        None => {
            names.push(name);
            put(out, names.len() as u64);
            put_text(out, name);
        }
    }
}

/// The changes of a state, in order of events.
pub fn unpack(state: MetricNo, packed: &[u8]) -> Result<Vec<Change>, Torn> {
    let mut reader = Reader(packed);
    if reader.byte()? != FORM {
        return Err(Torn);
    }
    let (mut changes, mut names) = (Vec::new(), Vec::new());
    let (mut event, mut time): (Seq, i64) = (0, 0);
    while !reader.0.is_empty() {
        let flags = reader.byte()?;
        event = event.wrapping_add(reader.signed()?);
        time = time.wrapping_add(reader.signed()?);
        let object = text(&mut reader)?.into();
        let from = name(&mut reader, &mut names)?;
        let to = name(&mut reader, &mut names)?.ok_or(Torn)?;
        let (time, is_late) = (Timestamp::from_ms(time), flags & LATE != 0);
        changes.push(Change { state, object, from, to, time, event, is_late });
    }
    Ok(changes)
}

fn text<'p>(reader: &mut Reader<'p>) -> Result<&'p str, Torn> {
    let len = usize::try_from(reader.number()?).map_err(|_| Torn)?;
    std::str::from_utf8(reader.take(len)?).map_err(|_| Torn)
}

fn name(reader: &mut Reader<'_>, names: &mut Vec<Arc<str>>) -> Result<Option<Arc<str>>, Torn> {
    let number = usize::try_from(reader.number()?).map_err(|_| Torn)?;
    let Some(place) = number.checked_sub(1) else { return Ok(None) };
    if place == names.len() {
        names.push(text(reader)?.into());
    }
    names.get(place).map(|name| Some(Arc::clone(name))).ok_or(Torn)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let name = prop::sample::select(vec!["", "NEW", "PAID", "é\""]);
        let change = (
            (any::<Seq>(), any::<i64>(), any::<bool>()),
            ("[a-c]{0,3}", proptest::option::of(name.clone()), name),
        );
        let change = change.prop_map(|((event, time, is_late), (object, from, to))| Change {
            state: 7,
            object: object.into(),
            from: from.map(Arc::from),
            to: to.into(),
            time: Timestamp::from_ms(time),
            event,
            is_late,
        });
        proptest::collection::vec(change, 0..20)
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(changes in changes(), cut in 0_usize..400) {
            let packed = pack(&changes);
            prop_assert_eq!(unpack(7, &packed), Ok(changes.clone()));
            // A part is either a shorter history or none.
            if let Ok(part) = unpack(7, &packed[..cut.min(packed.len())]) {
                prop_assert_eq!(&part[..], &changes[..part.len()]);
            }
        }

        #[test]
        fn any_bytes_are_gone_through(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = unpack(1, &bytes);
        }
    }
}
