//! Values in bins whose width is a fixed share of the value (DDSketch), so that any quantile is known within that
//! share of itself.
//!
//! A value lies in the bin ⌈log_γ |value|⌉ with γ = (1 + a) / (1 - a); negative values have bins of their own, and
//! what is nearer to zero than 10⁻⁹ counts as zero. Beyond ±10¹⁸ values count as that. Beside the bins, count and sum are
//! exact, minimum and maximum as far as a double is.
//!
//! Promises: sketches of one accuracy add up: merged in any order and grouping they are the same, whichever machine
//! binned the values. That is why the logarithm is computed here, from operations that IEEE 754 defines to the bit.
//! Does not: know its accuracy. Its metric does.

use super::varint::{Reader, Torn, put, put_signed, put_wide};

/// What is nearer to zero counts as zero.
const MAGNITUDE_MIN: f64 = 1e-9;
/// What is farther from zero counts as this.
const MAGNITUDE_MAX: f64 = 1e18;
/// Sums are kept in units of 10⁻⁹.
const UNITS: f64 = 1e9;
/// The farthest value in units.
const UNITS_MAX: i128 = 1_000_000_000_000_000_000 * 1_000_000_000;

/// How far a quantile may be from the true one, as a share of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accuracy {
    share: f64,
    ln_gamma: f64,
}

impl Accuracy {
    /// A share from 10⁻⁴ up to, not including, 1.
    pub fn new(share: f64) -> Option<Self> {
        let ln_gamma = ln((1.0 + share) / (1.0 - share));
        (1e-4..1.0).contains(&share).then_some(Self { share, ln_gamma })
    }

    /// The share.
    pub fn share(self) -> f64 {
        self.share
    }

    fn bin(self, magnitude: f64) -> i32 {
        (ln(magnitude) / self.ln_gamma).ceil() as i32
    }

    /// The value that is nearest, as a share, to everything in the bin.
    fn value(self, bin: i32) -> f64 {
        (f64::from(bin) * self.ln_gamma).exp() * (1.0 - self.share)
    }
}

/// The natural logarithm of a positive, normal number: its exponent, and a series for the rest.
fn ln(value: f64) -> f64 {
    const FRACTION: u64 = (1 << 52) - 1;
    let bits = value.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as f64 - 1023.0;
    let mut rest = f64::from_bits((bits & FRACTION) | (1023 << 52));
    if rest > std::f64::consts::SQRT_2 {
        rest /= 2.0;
        exponent += 1.0;
    }
    // ln r = 2 (s + s³/3 + s⁵/5 …) with s = (r - 1) / (r + 1), here at most 0.172.
    let s = (rest - 1.0) / (rest + 1.0);
    let square = s * s;
    let series = (0..=10).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent * std::f64::consts::LN_2 + 2.0 * s * series
}

/// How many values fell into each bin. Sketches of one accuracy add up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    negative: Bins,
    zero: u64,
    positive: Bins,
    count: u64,
    /// In units of 10⁻⁹.
    sum: i128,
    min: f64,
    max: f64,
}

// Minimum and maximum are finite, so that equality is one.
impl Eq for Sketch {}

impl Sketch {
    /// Adds a value. What is not a number is not added.
    pub fn add(&mut self, accuracy: Accuracy, value: f64) {
        self.add_exact(accuracy, value, fixed(value));
    }

    /// Adds a value that is known more exactly in units of 10⁻⁹. What counts as something else counts so in the sum.
    pub fn add_exact(&mut self, accuracy: Accuracy, value: f64, units: i128) {
        if value.is_nan() {
            return;
        }
        let value = value.clamp(-MAGNITUDE_MAX, MAGNITUDE_MAX);
        let magnitude = value.abs();
        let value = if magnitude < MAGNITUDE_MIN { 0.0 } else { value };
        if value > 0.0 {
            self.positive.add(accuracy.bin(magnitude));
        } else if value < 0.0 {
            self.negative.add(accuracy.bin(magnitude));
        } else {
            self.zero = self.zero.saturating_add(1);
        }
        let units = if magnitude < MAGNITUDE_MIN { 0 } else { units.clamp(-UNITS_MAX, UNITS_MAX) };
        self.note(1, units, value, value);
    }

    /// Adds another one of the same accuracy.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.negative.merge(&other.negative);
        self.zero = self.zero.saturating_add(other.zero);
        self.positive.merge(&other.positive);
        self.note(other.count, other.sum, other.min, other.max);
    }

    fn note(&mut self, count: u64, sum: i128, min: f64, max: f64) {
        let is_first = self.count == 0;
        self.min = if is_first { min } else { self.min.min(min) };
        self.max = if is_first { max } else { self.max.max(max) };
        self.count = self.count.saturating_add(count);
        self.sum = self.sum.saturating_add(sum);
    }

    /// How many values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum, in units of 10⁻⁹.
    pub fn sum(&self) -> i128 {
        self.sum
    }

    /// Their mean.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / UNITS / self.count as f64)
    }

    /// The smallest.
    pub fn min(&self) -> Option<f64> {
        (self.count > 0).then_some(self.min)
    }

    /// The largest.
    pub fn max(&self) -> Option<f64> {
        (self.count > 0).then_some(self.max)
    }

    /// The value of rank ⌊q (n - 1)⌋, counted from zero in ascending order, within the accuracy's share of it.
    pub fn quantile(&self, accuracy: Accuracy, q: f64) -> Option<f64> {
        let last = self.count.checked_sub(1)?;
        let mut rank = ((q.clamp(0.0, 1.0) * last as f64).floor() as u64).min(last);
        let below = self.negative.0.iter().rev().map(|(bin, n)| (-accuracy.value(*bin), *n));
        let above = self.positive.0.iter().map(|(bin, n)| (accuracy.value(*bin), *n));
        for (value, n) in below.chain([(0.0, self.zero)]).chain(above) {
            if rank < n {
                return Some(value.clamp(self.min, self.max));
            }
            rank -= n;
        }
        Some(self.max)
    }

    /// Empties it and keeps its memory.
    fn clear(&mut self) {
        let (mut negative, mut positive) =
            (std::mem::take(&mut self.negative), std::mem::take(&mut self.positive));
        negative.0.clear();
        positive.0.clear();
        *self = Self { negative, positive, ..Self::default() };
    }

    /// Writes it; an empty one can not be read back.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let is_single = self.min == self.max;
        let has = [self.zero > 0, !self.negative.0.is_empty(), !self.positive.0.is_empty(), is_single];
        out.push(has.iter().rev().fold(0, |flags, is_set| flags << 1 | u8::from(*is_set)));
        put_wide(out, self.sum);
        out.extend(self.min.to_le_bytes());
        if !is_single {
            out.extend(self.max.to_le_bytes());
        }
        if self.zero > 0 {
            put(out, self.zero);
        }
        for bins in [&self.negative, &self.positive] {
            bins.encode(out);
        }
    }

    /// Reads what [`Sketch::encode`] wrote, into memory that may have been used before.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<(), Torn> {
        self.clear();
        let mut reader = Reader(bytes);
        let flags = reader.byte()?;
        self.sum = reader.wide()?;
        self.min = number(&mut reader)?;
        self.max = if flags & 8 != 0 { self.min } else { number(&mut reader)? };
        self.zero = if flags & 1 != 0 { reader.number()? } else { 0 };
        self.count = self.zero;
        for (flag, bins) in [(2, &mut self.negative), (4, &mut self.positive)] {
            if flags & flag != 0 {
                self.count = self.count.saturating_add(bins.decode(&mut reader)?);
            }
        }
        let is_whole = reader.0.is_empty() && self.count > 0 && self.min <= self.max && flags < 16;
        if is_whole { Ok(()) } else { Err(Torn) }
    }
}

/// A value in units of 10⁻⁹, rounded; saturating.
pub fn fixed(value: f64) -> i128 {
    (value * UNITS).round() as i128
}

fn number(reader: &mut Reader<'_>) -> Result<f64, Torn> {
    let bytes = reader.take(8)?.try_into().map_err(|_| Torn)?;
    let value = f64::from_le_bytes(bytes);
    if value.is_finite() { Ok(value) } else { Err(Torn) }
}

/// How many values in which bin, in order of bins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bins(Vec<(i32, u64)>);

impl Bins {
    fn add(&mut self, bin: i32) {
        match self.0.binary_search_by_key(&bin, |(bin, _)| *bin) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(1),
            Err(at) => self.0.insert(at, (bin, 1)),
        }
    }

    /// In place as long as every bin is there already, which is how it soon is when many are added up.
    fn merge(&mut self, other: &Self) {
        let mut at = 0;
        for (done, (bin, n)) in other.0.iter().enumerate() {
            while self.0.get(at).is_some_and(|mine| mine.0 < *bin) {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some(mine) if mine.0 == *bin => mine.1 = mine.1.saturating_add(*n),
                _ => return self.merge_from(at, &other.0[done..]),
            }
        }
    }

    fn merge_from(&mut self, at: usize, mut more: &[(i32, u64)]) {
        let tail = self.0.split_off(at);
        self.0.reserve(tail.len() + more.len());
        for mine in tail {
            while let Some((first, rest)) = more.split_first().filter(|(first, _)| first.0 < mine.0) {
                self.0.push(*first);
                more = rest;
            }
            match more.split_first().filter(|(first, _)| first.0 == mine.0) {
                Some((first, rest)) => {
                    self.0.push((mine.0, mine.1.saturating_add(first.1)));
                    more = rest;
                }
                None => self.0.push(mine),
            }
        }
        self.0.extend(more);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let Some((first, n)) = self.0.first() else { return };
        put(out, self.0.len() as u64);
        put_signed(out, i64::from(*first));
        put(out, *n);
        for pair in self.0.windows(2) {
            put(out, pair[1].0.abs_diff(pair[0].0).into());
            put(out, pair[1].1);
        }
    }

    /// How many values there are.
    fn decode(&mut self, reader: &mut Reader<'_>) -> Result<u64, Torn> {
        let len = reader.number()?;
        let mut bin = reader.signed()?;
        let mut total = 0_u64;
        for place in 0..len {
            if place > 0 {
                let step = i64::try_from(reader.number()?).ok().filter(|step| *step > 0).ok_or(Torn)?;
                bin = bin.checked_add(step).ok_or(Torn)?;
            }
            let n = reader.number()?;
            if n == 0 {
                return Err(Torn);
            }
            self.0.push((i32::try_from(bin).map_err(|_| Torn)?, n));
            total = total.saturating_add(n);
        }
        if len == 0 { Err(Torn) } else { Ok(total) }
    }
}

#[cfg(test)]
#[path = "sketch_tests.rs"]
mod tests;
