//! Cells of many keys in one bucket, packed.
//!
//! A page is what one row of rollups holds: a byte that says its form, then the cells in order of keys. A count is the
//! distance from the key before, how many, and their sum if it has one, as short integers; a sketch has its length
//! before it, so that a query steps over those it does not ask for.
//!
//! Promises: merging is adding, in any order; a cell of nothing is not kept; bytes that are no page are [`Torn`].
//! Does not: know of which metric, length or bucket it is. The row does.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use super::delta::Cell;
use super::metric::Kind;
use super::sketch::Sketch;
use super::varint::{Reader, put, put_signed, put_wide};
use crate::id::KeyNo;

pub use super::varint::Torn;

/// The form's byte of a page of counts.
const COUNTS: u8 = 1;
/// The form's byte of a page of sketches.
const SKETCHES: u8 = 2;
/// A page of counts has the cells of 1 024 keys: about 5 KB, so that a day at a minute is 1 440 rows and not a million.
const COUNTS_LOG: u32 = 10;
/// Sketches are some hundred bytes each, and a flush writes pages whole: 64 of them.
const SKETCHES_LOG: u32 = 6;

/// The page that has a key's cell.
pub fn of(kind: Kind, key: KeyNo) -> u32 {
    key >> log(kind)
}

/// The keys whose cells a page has: the first and the last.
pub fn keys(kind: Kind, page: u32) -> (KeyNo, KeyNo) {
    let first = page << log(kind);
    (first, first | ((1 << log(kind)) - 1))
}

/// The keys that have a cell in any of these pages.
pub fn living(pages: &[Vec<u8>]) -> Result<BTreeSet<KeyNo>, Torn> {
    let mut living = BTreeSet::new();
    for page in pages {
        for cell in cells(page)? {
            living.insert(cell?.0);
        }
    }
    Ok(living)
}

fn log(kind: Kind) -> u32 {
    if kind == Kind::Histogram { SKETCHES_LOG } else { COUNTS_LOG }
}

/// The page with more added to it; `more` is sorted by key.
pub fn merge<C: Borrow<Cell>>(page: Option<&[u8]>, more: &[(KeyNo, C)]) -> Result<Vec<u8>, Torn> {
    let form = match (page, more.first()) {
        (Some(page), _) => *page.first().ok_or(Torn)?,
        (None, Some((_, cell))) if matches!(cell.borrow(), Cell::Sketch(_)) => SKETCHES,
        (None, _) => COUNTS,
    };
    let blank = [form];
    let mut old = cells(page.unwrap_or(&blank))?;
    let mut writer = Writer::new(form, page.map_or(0, <[u8]>::len) + more.len() * 8);
    let mut next = old.next().transpose()?;
    for group in more.chunk_by(|a, b| a.0 == b.0) {
        let key = group[0].0;
        while let Some((earlier, cell)) = next.filter(|(earlier, _)| *earlier < key) {
            writer.copy(earlier, cell);
            next = old.next().transpose()?;
        }
        let same = next.filter(|(same, _)| *same == key);
        if same.is_some() {
            next = old.next().transpose()?;
        }
        match (same, group) {
            (None, [(_, alone)]) => writer.write(key, alone.borrow())?,
            _ => writer.write_sum(key, same.map(|(_, cell)| cell), group)?,
        }
    }
    while let Some((key, cell)) = next {
        writer.copy(key, cell);
        next = old.next().transpose()?;
    }
    Ok(writer.out)
}

/// Whether no key has a cell in it.
pub fn is_empty(page: &[u8]) -> bool {
    page.len() <= 1
}

/// Goes over the cells of a page, in order of keys.
pub fn cells(page: &[u8]) -> Result<Cells<'_>, Torn> {
    let mut reader = Reader(page);
    let form = reader.byte()?;
    if form == COUNTS || form == SKETCHES {
        Ok(Cells { form, reader, key: 0, is_first: true })
    } else {
        Err(Torn)
    }
}

/// [`cells`] of a page of counts, as fast as they can be read; a page of sketches is left alone and `false`.
pub(super) fn counts(page: &[u8], mut each: impl FnMut(KeyNo, i64, i128)) -> Result<bool, Torn> {
    let mut cells = cells(page)?;
    if cells.form != COUNTS {
        return Ok(false);
    }
    while !cells.reader.0.is_empty() {
        let tag = cells.reader.number()?;
        let count = cells.reader.signed()?;
        let sum = if tag & 1 == 1 { cells.reader.wide()? } else { 0 };
        each(cells.step(tag >> 1)?, count, sum);
    }
    Ok(true)
}

/// A cell in a page.
#[derive(Clone, Copy, Debug)]
pub enum CellRef<'a> {
    /// How many, and their sum in units of 10⁻⁹.
    Count {
        /// How many.
        count: i64,
        /// Their sum.
        sum: i128,
    },
    /// Values in bins, still packed.
    Sketch(SketchRef<'a>),
}

impl CellRef<'_> {
    /// Takes it out of its page.
    pub fn to_cell(self) -> Result<Cell, Torn> {
        Ok(match self {
            Self::Count { count, sum } => Cell::Count { count, sum },
            Self::Sketch(packed) => {
                let mut sketch = Sketch::default();
                packed.read(&mut sketch)?;
                Cell::Sketch(sketch.into())
            }
        })
    }
}

/// A sketch in a page.
#[derive(Clone, Copy, Debug)]
pub struct SketchRef<'a>(&'a [u8]);

impl SketchRef<'_> {
    /// Unpacks it over what `sketch` held.
    pub fn read(self, sketch: &mut Sketch) -> Result<(), Torn> {
        sketch.decode(self.0)
    }
}

/// The cells of a page; ends after the first that is [`Torn`].
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    form: u8,
    reader: Reader<'a>,
    key: KeyNo,
    is_first: bool,
}

impl<'a> Cells<'a> {
    #[inline]
    fn read(&mut self) -> Result<(KeyNo, CellRef<'a>), Torn> {
        let tag = self.reader.number()?;
        let (step, cell) = if self.form == COUNTS {
            let count = self.reader.signed()?;
            let sum = if tag & 1 == 1 { self.reader.wide()? } else { 0 };
            (tag >> 1, CellRef::Count { count, sum })
        } else {
            let len = usize::try_from(self.reader.number()?).map_err(|_| Torn)?;
            (tag, CellRef::Sketch(SketchRef(self.reader.take(len)?)))
        };
        Ok((self.step(step)?, cell))
    }

    /// The key that is so far from the one before.
    #[inline]
    fn step(&mut self, step: u64) -> Result<KeyNo, Torn> {
        let is_progress = step > 0 || self.is_first;
        self.is_first = false;
        let key =
            KeyNo::try_from(step).ok().and_then(|step| self.key.checked_add(step)).filter(|_| is_progress);
        self.key = key.ok_or(Torn)?;
        Ok(self.key)
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Result<(KeyNo, CellRef<'a>), Torn>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.0.is_empty() {
            return None;
        }
        let cell = self.read();
        if cell.is_err() {
            self.reader = Reader(&[]);
        }
        Some(cell)
    }
}

struct Writer {
    form: u8,
    out: Vec<u8>,
    key: KeyNo,
    scratch: Vec<u8>,
    sketch: Sketch,
}

impl Writer {
    fn new(form: u8, capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity + 1);
        out.push(form);
        Self { form, out, key: 0, scratch: Vec::new(), sketch: Sketch::default() }
    }

    fn write(&mut self, key: KeyNo, cell: &Cell) -> Result<(), Torn> {
        match cell {
            Cell::Count { count, sum } if self.form == COUNTS => self.count(key, *count, *sum),
            Cell::Sketch(sketch) if self.form == SKETCHES => self.pack(key, sketch),
            _ => return Err(Torn),
        }
        Ok(())
    }

    fn write_sum<C: Borrow<Cell>>(
        &mut self,
        key: KeyNo,
        old: Option<CellRef<'_>>,
        more: &[(KeyNo, C)],
    ) -> Result<(), Torn> {
        if let Some(CellRef::Sketch(old)) = old {
            let mut sum = std::mem::take(&mut self.sketch);
            old.read(&mut sum)?;
            for (_, cell) in more {
                let Cell::Sketch(sketch) = cell.borrow() else { return Err(Torn) };
                sum.merge(sketch);
            }
            self.pack(key, &sum);
            self.sketch = sum;
            return Ok(());
        }
        let mut sum = old.map_or_else(|| Ok(Cell::nothing_like(more[0].1.borrow())), CellRef::to_cell)?;
        for (_, cell) in more {
            sum.try_add(cell.borrow())?;
        }
        self.write(key, &sum)
    }

    fn pack(&mut self, key: KeyNo, sketch: &Sketch) {
        if sketch.count() > 0 {
            let mut packed = std::mem::take(&mut self.scratch);
            packed.clear();
            sketch.encode(&mut packed);
            self.put(key, &packed);
            self.scratch = packed;
        }
    }

    fn copy(&mut self, key: KeyNo, cell: CellRef<'_>) {
        match cell {
            CellRef::Count { count, sum } => self.count(key, count, sum),
            CellRef::Sketch(packed) => self.put(key, packed.0),
        }
    }

    fn count(&mut self, key: KeyNo, count: i64, sum: i128) {
        if count == 0 && sum == 0 {
            return;
        }
        let step = u64::from(self.step(key));
        put(&mut self.out, step << 1 | u64::from(sum != 0));
        put_signed(&mut self.out, count);
        if sum != 0 {
            put_wide(&mut self.out, sum);
        }
    }

    fn put(&mut self, key: KeyNo, packed: &[u8]) {
        let step = u64::from(self.step(key));
        put(&mut self.out, step);
        put(&mut self.out, packed.len() as u64);
        self.out.extend_from_slice(packed);
    }

    fn step(&mut self, key: KeyNo) -> KeyNo {
        let step = key - self.key;
        self.key = key;
        step
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
