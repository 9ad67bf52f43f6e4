//! Objects and the states they are in, many to a row: packed, in order of their ids.
//!
//! A page has the objects from its first id up to the next page's. A byte that says the form, the texts that its objects
//! share, then the objects: how long each is, its id, its state and those it was in as numbers of texts, when it was last
//! seen and by which event. What a flush does not touch is copied as it stands, so that the cost of a page is that of
//! copying it.
//!
//! Promises: an object is found as it was put; a page is cut where it grows too long; bytes that are no page are [`Torn`].
//! Does not: know of which state it is, nor who its neighbours are. The row does.

use std::sync::Arc;

use super::state::{ObjectRow, Visited};
use super::varint::{Reader, Torn, put, put_signed};
use crate::time::Timestamp;

/// The form's byte.
const FORM: u8 = 1;
/// A page fits into one page of an embedded store, with its row's other columns.
const BYTES_MAX: usize = 3_900;
/// What is cut is cut into parts of this size, which leaves them room to grow.
const BYTES_CUT: usize = BYTES_MAX * 3 / 4;

/// A page that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its first object.
    pub first: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

/// The page of nothing.
pub const BLANK: &[u8] = &[FORM, 0];

/// Changes some objects of a page, which come in order and each once: what `each` makes of an object is put in its place.
/// Usually there is one page after it, more if it has grown too long, and none if nothing is left.
pub fn update<'n>(
    page: &[u8],
    touched: impl IntoIterator<Item = &'n str>,
    mut each: impl FnMut(Option<ObjectRow>) -> Option<ObjectRow>,
) -> Result<Vec<Page>, Torn> {
    let mut old = Objects::open(page)?;
    let mut new =
        Packer { texts: old.texts.clone(), rows: Vec::with_capacity(page.len() + 256), scratch: Vec::new() };
    let mut next = old.next().transpose()?;
    for name in touched {
        while let Some(packed) = next.filter(|packed| packed.id < name.as_bytes()) {
            new.copy(&packed);
            next = old.next().transpose()?;
        }
        let same = next.filter(|packed| packed.id == name.as_bytes());
        let row = same.map(|packed| packed.row(&old.texts)).transpose()?;
        if same.is_some() {
            next = old.next().transpose()?;
        }
        if let Some(row) = each(row) {
            new.put(name, &row);
        }
    }
    while let Some(packed) = next {
        new.copy(&packed);
        next = old.next().transpose()?;
    }
    new.cut()
}

/// Goes over the objects of a page, in order.
pub fn objects(page: &[u8]) -> Result<impl Iterator<Item = Result<(&str, ObjectRow), Torn>>, Torn> {
    let mut objects = Objects::open(page)?;
    Ok(std::iter::from_fn(move || {
        let packed = objects.next()?;
        Some(packed.and_then(|packed| Ok((packed.name()?, packed.row(&objects.texts)?))))
    }))
}

/// The objects of a page; ends after the first that is [`Torn`].
struct Objects<'p> {
    texts: Vec<Arc<str>>,
    reader: Reader<'p>,
}

impl<'p> Objects<'p> {
    fn open(page: &'p [u8]) -> Result<Self, Torn> {
        let mut reader = Reader(page);
        if reader.byte()? != FORM {
            return Err(Torn);
        }
        let count = reader.number()?;
        let texts = (0..count).map(|_| text(&mut reader).map(Arc::from)).collect::<Result<_, _>>()?;
        Ok(Self { texts, reader })
    }

    fn read(&mut self) -> Result<Packed<'p>, Torn> {
        let from = self.reader.0;
        let len = usize::try_from(self.reader.number()?).map_err(|_| Torn)?;
        let mut rest = Reader(self.reader.take(len)?);
        let whole = &from[..from.len() - self.reader.0.len()];
        let len = usize::try_from(rest.number()?).map_err(|_| Torn)?;
        Ok(Packed { id: rest.take(len)?, whole, rest })
    }
}

impl<'p> Iterator for Objects<'p> {
    type Item = Result<Packed<'p>, Torn>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.0.is_empty() {
            return None;
        }
        let packed = self.read();
        if packed.is_err() {
            self.reader = Reader(&[]);
        }
        Some(packed)
    }
}

fn text<'p>(reader: &mut Reader<'p>) -> Result<&'p str, Torn> {
    let len = usize::try_from(reader.number()?).map_err(|_| Torn)?;
    std::str::from_utf8(reader.take(len)?).map_err(|_| Torn)
}

/// An object in a page.
#[derive(Clone, Copy)]
struct Packed<'p> {
    id: &'p [u8],
    /// With its length.
    whole: &'p [u8],
    /// Behind its id.
    rest: Reader<'p>,
}

impl<'p> Packed<'p> {
    fn name(&self) -> Result<&'p str, Torn> {
        std::str::from_utf8(self.id).map_err(|_| Torn)
    }

    fn row(&self, texts: &[Arc<str>]) -> Result<ObjectRow, Torn> {
        let mut reader = self.rest;
        let one_of = |reader: &mut Reader<'_>| {
            let number = usize::try_from(reader.number()?).map_err(|_| Torn)?;
            texts.get(number).cloned().ok_or(Torn)
        };
        let value = one_of(&mut reader)?;
        let count = reader.number()?;
        let visited = (0..count).map(|_| one_of(&mut reader)).collect::<Result<_, _>>()?;
        let (time, event) = (Timestamp::from_ms(reader.signed()?), reader.signed()?);
        Ok(ObjectRow { value, time, event, visited: Visited(visited) })
    }
}

/// A page that is being put together.
#[derive(Default)]
struct Packer {
    texts: Vec<Arc<str>>,
    rows: Vec<u8>,
    scratch: Vec<u8>,
}

impl Packer {
    fn copy(&mut self, packed: &Packed<'_>) {
        self.rows.extend_from_slice(packed.whole);
    }

    fn put(&mut self, name: &str, row: &ObjectRow) {
        let mut packed = std::mem::take(&mut self.scratch);
        packed.clear();
        put_text(&mut packed, name);
        put(&mut packed, self.number(&row.value));
        put(&mut packed, row.visited.0.len() as u64);
        for state in &row.visited.0 {
            put(&mut packed, self.number(state));
        }
        put_signed(&mut packed, row.time.as_ms());
        put_signed(&mut packed, row.event);
        put(&mut self.rows, packed.len() as u64);
        self.rows.extend_from_slice(&packed);
        self.scratch = packed;
    }

    /// The number of a text, which is new if need be. Most are those of the page itself.
    fn number(&mut self, text: &Arc<str>) -> u64 {
        let same = self.texts.iter().position(|known| Arc::ptr_eq(known, text));
        let equal = || self.texts.iter().position(|known| known == text);
        let place = same.or_else(equal).unwrap_or_else(|| {
            self.texts.push(Arc::clone(text));
            self.texts.len() - 1
        });
        place as u64
    }

    fn len(&self) -> usize {
        self.rows.len() + 4 + self.texts.iter().map(|text| text.len() + 2).sum::<usize>()
    }

    fn finish(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.push(FORM);
        put(&mut out, self.texts.len() as u64);
        self.texts.iter().for_each(|text| put_text(&mut out, text));
        out.extend_from_slice(&self.rows);
        out
    }

    fn cut(&self) -> Result<Vec<Page>, Torn> {
        let page = self.finish();
        if page.len() <= BYTES_MAX {
            let first =
                Objects::open(&page)?.next().transpose()?.map(|packed| packed.name().map(str::to_owned));
            return Ok(first.transpose()?.map(|first| Page { first, bytes: page }).into_iter().collect());
        }
        // Texts that nobody has any more are forgotten first.
        let whole = repacked(&page, usize::MAX)?;
        let len: usize = whole.iter().map(|page| page.bytes.len()).sum();
        if len <= BYTES_MAX {
            return Ok(whole);
        }
        repacked(&page, len.div_ceil(len.div_ceil(BYTES_CUT)))
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// The same objects in pages of about this size; none of several objects is longer than a page may be.
fn repacked(page: &[u8], size: usize) -> Result<Vec<Page>, Torn> {
    let mut pages = Vec::new();
    let (mut packer, mut first) = (Packer::default(), String::new());
    for object in objects(page)? {
        let (name, row) = object?;
        let before = (packer.texts.len(), packer.rows.len());
        let is_full = packer.len() >= size;
        packer.put(name, &row);
        if before.1 > 0 && (is_full || packer.len() > size.max(BYTES_MAX)) {
            packer.texts.truncate(before.0);
            packer.rows.truncate(before.1);
            pages.push(Page { first: std::mem::take(&mut first), bytes: packer.finish() });
            packer = Packer::default();
            packer.put(name, &row);
        }
        if first.is_empty() {
            name.clone_into(&mut first);
        }
    }
    if !packer.rows.is_empty() {
        pages.push(Page { first, bytes: packer.finish() });
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<String, ObjectRow>;

    fn row() -> impl Strategy<Value = ObjectRow> {
        let state = prop_oneof!["[A-C]", "[\\PC\"]{0,80}"];
        let states = proptest::collection::vec(state, 1..4);
        (states, any::<i64>(), any::<i64>()).prop_map(|(states, time, event)| ObjectRow {
            value: states[0].as_str().into(),
            time: Timestamp::from_ms(time),
            event,
            visited: Visited(states.iter().map(|state| state.as_str().into()).collect()),
        })
    }

    fn read(pages: &[Page]) -> Vec<(String, ObjectRow)> {
        let objects = pages.iter().flat_map(|page| objects(&page.bytes).unwrap());
        objects.map(|object| object.map(|(name, row)| (name.to_owned(), row)).unwrap()).collect()
    }

    /// The pages that a store would have, with the first one reaching down to the beginning.
    fn change(pages: &mut Vec<Page>, touched: &BTreeMap<String, Option<ObjectRow>>, model: &mut Model) {
        let mut rest: Vec<_> = touched.iter().collect();
        while let Some((name, _)) = rest.first() {
            let place = pages.iter().rposition(|page| page.first <= **name).unwrap_or(0);
            let end = pages
                .get(place + 1)
                .map_or(rest.len(), |next| rest.partition_point(|(name, _)| **name < next.first));
            let here: Vec<_> = rest.drain(..end).collect();
            let mut each = here.iter();
            let page = pages.get(place).map_or(BLANK, |page| &page.bytes);
            let new = update(page, here.iter().map(|(name, _)| name.as_str()), |old| {
                let (name, row) = each.next().unwrap();
                assert_eq!(old.as_ref(), model.get(*name));
                (*row).clone()
            });
            pages.splice(place..(place + 1).min(pages.len()), new.unwrap());
        }
        for (name, row) in touched {
            match row {
                Some(row) => model.insert(name.clone(), row.clone()),
                None => model.remove(name),
            };
        }
    }

    proptest! {
        #[test]
        fn objects_are_found_as_they_were_put(flushes in proptest::collection::vec(
            proptest::collection::btree_map("[a-d]{0,3}", proptest::option::of(row()), 0..60), 0..8,
        )) {
            let (mut pages, mut model) = (Vec::new(), Model::new());
            for flush in flushes {
                change(&mut pages, &flush, &mut model);
                prop_assert_eq!(read(&pages), model.clone().into_iter().collect::<Vec<_>>());
                for page in &pages {
                    let count = objects(&page.bytes).unwrap().count();
                    prop_assert!(page.bytes.len() <= BYTES_MAX || count == 1, "{} bytes", page.bytes.len());
                }
            }
        }

        #[test]
        fn any_bytes_are_gone_through(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = update(&bytes, ["a"], |row| row);
            let _ = update(&[&[FORM][..], &bytes].concat(), ["a"], |_| None);
        }
    }

    #[test]
    fn many_objects_take_few_pages_and_states_that_are_over_take_none() {
        let row = |state: &str, no: i64| ObjectRow {
            value: state.into(),
            time: Timestamp::from_ms(1_794_996_022_000 + no),
            event: 1_000_000 + no,
            visited: Visited(vec!["NEW".into(), state.into()]),
        };
        let names: Vec<String> = (0..10_000).map(|no| format!("{no:08}")).collect();
        let mut no = 0;
        let pages = update(BLANK, names.iter().map(String::as_str), |_| {
            no += 1;
            Some(row("PAID", no))
        });
        let pages = pages.unwrap();
        assert!((60..100).contains(&pages.len()), "{}", pages.len());
        let all_but_last = &pages[..pages.len() - 1];
        assert!(all_but_last.iter().all(|page| page.bytes.len() > BYTES_MAX / 2), "none is nearly empty");
        let mut page = pages[0].clone();
        for state in 0..1_000 {
            let all =
                update(&page.bytes, [names[0].as_str()], |_| Some(row(&format!("S{state}"), 0))).unwrap();
            assert_eq!(all.len(), 1, "after {state}");
            page = all.into_iter().next().unwrap();
        }
        let gone = update(&page.bytes, names.iter().map(String::as_str), |_| None).unwrap();
        assert_eq!(gone, []);
    }
}
