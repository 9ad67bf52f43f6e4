//! Pages become an answer.
//!
//! Every key has its series, or none, before the first page is read: a cell then costs a look into a list and an addition.
//! One bucket is summed at a time; what it has is put down as points when the next begins. Pages may come in any order,
//! in order of time is fastest.

use std::collections::BTreeMap;

use serde_json::Value;

use super::answer::{Answer, Series, absent};
use super::ask::{Fill, text_of};
use super::plan::Plan;
use crate::id::KeyNo;
use crate::observe::delta::Key;
use crate::observe::metric::Kind;
use crate::observe::page::{self, CellRef, Torn};
use crate::observe::sketch::Sketch;
use crate::subscriber::Invalid;

/// Keys that nobody asked about.
const NOBODY: u32 = u32::MAX;
/// What everything beyond a metric's keys is counted as.
const OTHER: &str = "(other)";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// What is stored can not be read.
    #[error(transparent)]
    Torn(#[from] Torn),
    /// It would be too large.
    #[error("{}", .0.detail)]
    TooLarge(Invalid),
}

/// What one series has in one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) count: i64,
    pub(super) sum: i128,
    pub(super) sketch: Option<Box<Sketch>>,
}

impl Total {
    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        if let Some(more) = &other.sketch {
            self.sketch.get_or_insert_default().merge(more);
        }
    }

    fn is_nothing(&self) -> bool {
        self.count == 0 && self.sum == 0 && self.sketch.is_none()
    }
}

/// A total, and where it belongs.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub(super) bucket: i64,
    pub(super) series: u32,
    pub(super) total: Total,
}

/// An answer in the making.
#[derive(Debug)]
pub struct Fold<'a> {
    plan: &'a Plan,
    /// With whether it was seen.
    series: Vec<(Series, bool)>,
    seen: usize,
    bucket: i64,
    row: Row,
    points: Vec<Point>,
    scratch: Sketch,
}

/// What the series have in the bucket that is summed.
#[derive(Debug)]
struct Row {
    /// The series of a key, by its number.
    series_of: Vec<u32>,
    totals: Vec<Total>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

impl Row {
    /// Where a key is summed, if anybody asked about it.
    #[inline]
    fn total(&mut self, key: KeyNo) -> Option<&mut Total> {
        let series = self.series_of.get(key as usize).copied().unwrap_or(NOBODY);
        let total = self.totals.get_mut(series as usize)?;
        if !std::mem::replace(&mut self.is_touched[series as usize], true) {
            self.touched.push(series);
        }
        Some(total)
    }
}

impl<'a> Fold<'a> {
    /// `keys` are read before the pages. A cell under a key that came in between counts for nobody: it was counted after the
    /// question.
    pub(super) fn new(plan: &'a Plan, keys: &[(KeyNo, Key)]) -> Result<Self, Torn> {
        let mut places = BTreeMap::new();
        let mut series = Vec::new();
        if plan.grouped.is_empty() {
            // Everything together is one series, even of nothing.
            places.insert("[]".to_owned(), 0);
            series.push((Series { text: "[]".to_owned(), values: Vec::new() }, false));
        }
        let last = keys.iter().map(|(number, _)| *number).max().unwrap_or(0);
        let mut series_of = vec![NOBODY; last as usize + 1];
        let others = vec![Value::from(OTHER); plan.subject.dimensions.len()];
        for (number, key) in keys.iter().map(|(number, key)| (*number, &**key)).chain([(0, "")]) {
            let values = if number == 0 { others.clone() } else { values_of(plan, key)? };
            if !plan.filters.iter().all(|(place, wanted)| wanted.contains(&text_of(&values[*place]))) {
                continue;
            }
            let values: Vec<Value> = plan.grouped.iter().map(|place| values[*place].clone()).collect();
            let text = serde_json::to_string(&values).map_err(|_| Torn)?;
            series_of[number as usize] = *places.entry(text).or_insert_with_key(|text| {
                series.push((Series { text: text.clone(), values }, false));
                series.len() as u32 - 1
            });
        }
        let count = series.len();
        Ok(Self {
            plan,
            series,
            seen: 0,
            bucket: i64::MIN,
            row: Row {
                series_of,
                totals: vec![Total::default(); count],
                touched: Vec::new(),
                is_touched: vec![false; count],
            },
            points: Vec::new(),
            scratch: Sketch::default(),
        })
    }

    /// Adds a page of a stored bucket that begins at `bucket`.
    pub fn add(&mut self, bucket: i64, page: &[u8]) -> Result<(), Torn> {
        let bucket = self.plan.range.map_or(0, |range| range.index(bucket));
        if bucket != self.bucket {
            self.put_down();
            self.bucket = bucket;
        }
        let Self { row, scratch, .. } = self;
        let are_counts = page::counts(page, |key, count, sum| {
            if let Some(total) = row.total(key) {
                total.count = total.count.saturating_add(count);
                total.sum = total.sum.saturating_add(sum);
            }
        })?;
        if are_counts {
            return Ok(());
        }
        for cell in page::cells(page)? {
            if let (key, CellRef::Sketch(packed)) = cell?
                && let Some(total) = row.total(key)
            {
                packed.read(scratch)?;
                total.sketch.get_or_insert_default().merge(scratch);
            }
        }
        Ok(())
    }

    /// The answer to everything that was added.
    pub fn finish(mut self) -> Result<Answer<'a>, Unanswered> {
        self.put_down();
        if self.is_too_large() {
            return Err(Unanswered::TooLarge(self.plan.too_large(self.seen)));
        }
        let (series, mut points) = self.in_order();
        points.sort_by_key(|point| (point.bucket, point.series));
        points.dedup_by(|later, earlier| {
            let is_same = (later.bucket, later.series) == (earlier.bucket, earlier.series);
            if is_same {
                earlier.total.add(&later.total);
            }
            is_same
        });
        let answer = Answer::new(self.plan, series, points);
        if answer.points() > self.plan.points_max() {
            return Err(Unanswered::TooLarge(self.plan.too_large(self.seen)));
        }
        Ok(answer)
    }

    /// What the bucket has becomes points; beyond what an answer may have they are only counted.
    fn put_down(&mut self) {
        let is_too_large = self.is_too_large();
        for series in self.row.touched.drain(..) {
            let total = std::mem::take(&mut self.row.totals[series as usize]);
            self.row.is_touched[series as usize] = false;
            if total.is_nothing() {
                continue;
            }
            let is_seen = &mut self.series[series as usize].1;
            self.seen += usize::from(!*is_seen);
            *is_seen = true;
            if !is_too_large {
                self.points.push(Point { bucket: self.bucket, series, total });
            }
        }
    }

    fn is_too_large(&self) -> bool {
        // Points of a bucket that comes back count twice here: one length's worth of room for those.
        let most = self.plan.points_max();
        let buckets =
            self.plan.range.map_or(1, |range| usize::try_from(range.buckets()).unwrap_or(usize::MAX));
        // States stand from one bucket to the next, so they fill them all.
        let is_filled = self.plan.ask.fill == Fill::Zero || self.plan.subject.kind == Kind::State;
        self.points.len() > 2 * most || is_filled && self.seen.saturating_mul(buckets) > most
    }

    /// The series that were seen or asked for by name, in order, and the points with their places among them.
    fn in_order(&mut self) -> (Vec<Series>, Vec<Point>) {
        let is_one = self.plan.grouped.is_empty();
        let all = std::mem::take(&mut self.series);
        let mut numbered: Vec<(Series, Option<u32>)> = (0..)
            .zip(all)
            .filter(|(_, (_, is_seen))| *is_seen || is_one)
            .map(|(number, (series, _))| (series, Some(number)))
            .collect();
        let seen: Vec<Series> = numbered.iter().map(|(series, _)| series.clone()).collect();
        numbered.extend(absent(self.plan, &seen).into_iter().map(|series| (series, None)));
        numbered.sort_by(|a, b| a.0.text.cmp(&b.0.text));
        let mut places = vec![0; self.row.totals.len()];
        for (place, (_, number)) in (0..).zip(&numbered) {
            if let Some(number) = number {
                places[*number as usize] = place;
            }
        }
        let mut points = std::mem::take(&mut self.points);
        for point in &mut points {
            point.series = places[point.series as usize];
        }
        (numbered.into_iter().map(|(series, _)| series).collect(), points)
    }
}

/// The values of a key's dimensions.
fn values_of(plan: &Plan, key: &str) -> Result<Vec<Value>, Torn> {
    if plan.grouped.is_empty() && plan.filters.is_empty() {
        return Ok(Vec::new());
    }
    let values: Vec<Value> = serde_json::from_str(key).map_err(|_| Torn)?;
    if values.len() == plan.subject.dimensions.len() { Ok(values) } else { Err(Torn) }
}
