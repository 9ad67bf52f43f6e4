//! Durations in buckets that grow with their size: one percent of error, a few kilobytes, no allocation per value.

use std::time::Duration;

/// Every power of two of nanoseconds is divided into this many equal buckets.
const STEPS: u64 = 64;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = 64 * STEPS as usize;

/// Counts of durations.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    /// One without values.
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, max: 0 }
    }

    /// Counts one duration, given in nanoseconds.
    pub(crate) fn add(&mut self, nanos: u64) {
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    /// How many were counted.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The longest, exactly.
    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The duration that the share `q` (0 to 1) of all did not exceed; zero without values.
    pub(crate) fn quantile(&self, q: f64) -> Duration {
        let rank = ((self.total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper_edge(index).min(self.max));
            }
        }
        Duration::ZERO
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(STEPS_LOG2 + 1);
    let step = nanos >> shift;
    (u64::from(shift) * STEPS + step) as usize
}

/// The largest value that falls into the bucket.
fn upper_edge(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index / STEPS).saturating_sub(1);
    let step = index - shift * STEPS;
    ((step + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::{Histogram, bucket, upper_edge};

    #[test]
    fn a_value_lies_in_its_bucket_within_two_percent() {
        let mut nanos = 1;
        while nanos < 1 << 40 {
            let edge = upper_edge(bucket(nanos));
            assert!(edge >= nanos && edge <= nanos + nanos / 50, "{nanos} is not near {edge}");
            assert!(bucket(edge + 1) == bucket(edge) + 1, "a gap after {edge}");
            nanos += nanos / 7 + 1;
        }
    }

    #[test]
    fn quantiles_of_a_thousand_values() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5).as_nanos(), 0);
        (1..=1000).for_each(|n| histogram.add(n * 1000));
        let micros = |q: f64| histogram.quantile(q).as_nanos() / 1000;
        assert!((500..=508).contains(&micros(0.5)), "{}", micros(0.5));
        assert!((990..=1000).contains(&micros(0.99)), "{}", micros(0.99));
        assert_eq!(micros(1.0), 1000);
    }
}
