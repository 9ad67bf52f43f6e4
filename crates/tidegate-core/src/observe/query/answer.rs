//! An answer: points by bucket and series, written as JSON.
//!
//! Series are in order of their keys. A point of which nothing is known is there with zeros, unless `fill` leaves it out. A page
//! is a run of points, bucket by bucket; where it ends is said by bucket and key rather than by number, so that a series
//! that appears between two pages moves nothing.

use std::fmt::Write as _;

use serde_json::Value;

use super::Subject;
use super::ask::{Fill, Form, text_of};
use super::fold::{Point, Total};
use super::plan::{Plan, Range, every_text};
use crate::observe::metric::Kind;
use crate::observe::sketch::Sketch;
use crate::time::Timestamp;

/// A list of values, and its JSON, by which it is sorted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) text: String,
    pub(super) values: Vec<Value>,
}

/// Where a page of an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// What the first page was about: the next ones are about the same, however late it is by then.
    pub(super) range: Option<Range>,
    bucket: i64,
    series: String,
}

impl Resume {
    /// As a cursor carries it.
    pub fn text(&self) -> String {
        let Range { from, to, every } = self.range.unwrap_or(Range { from: 0, to: 0, every: 0 });
        format!("{from} {to} {every} {} {}", self.bucket, self.series)
    }

    /// Reads what [`Resume::text`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ');
        let mut number = || words.next()?.parse::<i64>().ok();
        let (from, to, every, bucket) = (number()?, number()?, number()?, number()?);
        let range = (from < to && every > 0).then_some(Range { from, to, every });
        Some(Self { range, bucket, series: words.next()?.to_owned() })
    }
}

/// Everything that was asked for.
#[derive(Debug)]
pub struct Answer<'a> {
    plan: &'a Plan,
    series: Vec<Series>,
    /// What is not nothing, by bucket and series.
    points: Vec<Point>,
}

/// One place of a page.
struct Place<'a> {
    bucket: i64,
    series: usize,
    total: Option<&'a Total>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(plan: &'a Plan, series: Vec<Series>, points: Vec<Point>) -> Self {
        let mut answer = Self { plan, series, points };
        if let Some(range) = plan.range.filter(|_| plan.subject.kind == Kind::State) {
            answer.carry_forward(range);
        }
        answer
    }

    /// Net changes become counts: at the end of each bucket, everything that happened before.
    fn carry_forward(&mut self, range: Range) {
        let mut counts = vec![0_i64; self.series.len()];
        let mut changes = std::mem::take(&mut self.points).into_iter().peekable();
        for bucket in 0..range.buckets() {
            while let Some(change) = changes.next_if(|change| change.bucket <= bucket) {
                let count = &mut counts[change.series as usize];
                *count = count.saturating_add(change.total.count);
            }
            let standing = (0_u32..).zip(&counts).filter(|(_, count)| **count != 0);
            self.points.extend(standing.map(|(series, count)| Point {
                bucket,
                series,
                total: Total { count: *count, ..Total::default() },
            }));
        }
    }

    /// How many points all its pages have together.
    pub fn points(&self) -> usize {
        match self.plan.ask.fill {
            Fill::Zero => self.buckets().saturating_mul(self.series.len()),
            Fill::None => self.points.len(),
        }
    }

    /// Where this page ends, if others follow.
    pub fn next(&self) -> Option<Resume> {
        let (first, end) = self.bounds();
        if end >= self.points() {
            return None;
        }
        let last = self.places(first, end).pop()?;
        let series = self.series[last.series].text.clone();
        Some(Resume { range: self.plan.range, bucket: last.bucket, series })
    }

    /// As the API answers. `next` is what [`Answer::next`] became.
    pub fn json(&self, complete_until: Option<Timestamp>, next: Option<&str>) -> String {
        let mut out = String::from("{");
        if let Some(Range { from, to, every }) = self.plan.range {
            let every = every_text(every);
            let _ = write!(out, "\"every\":\"{every}\",\"from\":{},\"to\":{}", time(from), time(to));
        } else {
            let _ = write!(out, "\"at\":{}", self.plan.at.map_or_else(|| "null".to_owned(), time));
        }
        let complete = complete_until.map_or_else(|| "null".to_owned(), |until| time(until.as_ms()));
        let _ = write!(out, ",\"complete_until\":{complete},\"points\":{},", self.points());
        let (first, end) = self.bounds();
        let places = self.places(first, end);
        match (self.plan.ask.form, self.plan.range) {
            (Form::Columns, range) => self.write_columns(&mut out, &places, range),
            (Form::Rows, Some(range)) => self.write_buckets(&mut out, &places, range),
            (Form::Rows, None) => {
                let _ = write!(out, "\"{}\":", self.list_name());
                self.write_series(&mut out, &places, &self.wording());
            }
        }
        if self.plan.ask.limit.is_some() {
            let _ = write!(out, ",\"next\":{}", Value::from(next));
        }
        out.push('}');
        out
    }

    fn buckets(&self) -> usize {
        self.plan.range.map_or(1, |range| usize::try_from(range.buckets()).unwrap_or(usize::MAX))
    }

    /// The first point of this page, and the one after its last.
    fn bounds(&self) -> (usize, usize) {
        let first = self.plan.resume.as_ref().map_or(0, |resume| match self.plan.ask.fill {
            Fill::Zero => {
                let passed = self.series.partition_point(|series| series.text <= resume.series);
                usize::try_from(resume.bucket).unwrap_or(0).saturating_mul(self.series.len()) + passed
            }
            Fill::None => self.points.partition_point(|point| {
                let text = &self.series[point.series as usize].text;
                (point.bucket, text) <= (resume.bucket, &resume.series)
            }),
        });
        let total = self.points();
        let first = first.min(total);
        (first, self.plan.ask.limit.map_or(total, |limit| total.min(first.saturating_add(limit))))
    }

    fn places(&self, first: usize, end: usize) -> Vec<Place<'_>> {
        let known = |point: &Point| (point.bucket, point.series as usize);
        if self.plan.ask.fill == Fill::None {
            let place = |(bucket, series), total| Place { bucket, series, total: Some(total) };
            let points = self.points[first..end].iter();
            return points.map(|point| place(known(point), &point.total)).collect();
        }
        let place_of = |index: usize| ((index / self.series.len()) as i64, index % self.series.len());
        let skipped = self.points.partition_point(|point| first < end && known(point) < place_of(first));
        let mut rest = &self.points[skipped..];
        let mut places = Vec::with_capacity(end - first);
        for index in first..end {
            let (bucket, series) = place_of(index);
            let found = rest.split_first().filter(|(point, _)| known(point) == (bucket, series));
            if let Some((_, after)) = found {
                rest = after;
            }
            places.push(Place { bucket, series, total: found.map(|(point, _)| &point.total) });
        }
        places
    }

    fn write_buckets(&self, out: &mut String, places: &[Place<'_>], range: Range) {
        let wording = self.wording();
        out.push_str("\"buckets\":[");
        let begin = |out: &mut String, bucket| {
            let (from, to) = range.bounds(bucket);
            let separator = if out.ends_with('[') { "" } else { "," };
            let name = self.list_name();
            let _ = write!(out, "{separator}{{\"from\":{},\"to\":{},\"{name}\":", time(from), time(to));
        };
        for bucket in places.chunk_by(|a, b| a.bucket == b.bucket) {
            begin(out, bucket[0].bucket);
            self.write_series(out, bucket, &wording);
            out.push('}');
        }
        if self.series.is_empty() && self.plan.ask.fill == Fill::Zero {
            for bucket in 0..range.buckets() {
                begin(out, bucket);
                out.push_str("[]}");
            }
        }
        out.push(']');
    }

    fn write_series(&self, out: &mut String, places: &[Place<'_>], wording: &Wording) {
        out.push('[');
        for (at, place) in places.iter().enumerate() {
            out.push_str(if at == 0 { "{" } else { ",{" });
            out.push_str(&wording.keys[place.series]);
            for (name, member) in &wording.members {
                out.push_str(name);
                self.write_number(out, place.total, *member);
            }
            out.push_str(wording.end);
        }
        out.push(']');
    }

    /// What is the same in every bucket.
    fn wording(&self) -> Wording {
        let members = self.members();
        let mut wording = Wording {
            keys: (0..self.series.len()).map(|series| self.key_text(series)).collect(),
            members: Vec::new(),
            end: if members.iter().any(|member| member.is_percentile()) { "}}" } else { "}" },
        };
        let mut were_percentiles = false;
        for member in members {
            let opens = member.is_percentile() && !were_percentiles;
            were_percentiles = member.is_percentile();
            let before = if opens { "\"percentiles\":{" } else { "" };
            let comma = if wording.members.is_empty() { "" } else { "," };
            wording.members.push((format!("{comma}{before}\"{}\":", member.name()), member));
        }
        wording
    }

    /// The members that say which series it is, with the comma after them.
    fn key_text(&self, series: usize) -> String {
        let names = self.plan.grouped.iter().map(|place| &self.plan.subject.dimensions[*place]);
        let values = &self.series[series].values;
        let members: Vec<String> = names
            .zip(values)
            .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
            .collect();
        let members = members.join(",");
        if self.is_of_objects() { format!("{members},") } else { format!("\"key\":{{{members}}},") }
    }

    fn write_columns(&self, out: &mut String, places: &[Place<'_>], range: Option<Range>) {
        let mut columns = Vec::new();
        if let Some(range) = range {
            columns.push((
                "from".to_owned(),
                list(places, |out, place| out.push_str(&time(range.bounds(place.bucket).0))),
            ));
            columns.push((
                "to".to_owned(),
                list(places, |out, place| out.push_str(&time(range.bounds(place.bucket).1))),
            ));
        }
        let names = self.plan.grouped.iter().map(|place| self.plan.subject.dimensions[*place].clone());
        let dimensions: Vec<(String, String)> = (0..)
            .zip(names)
            .map(|(at, name): (usize, _)| {
                (
                    name,
                    list(places, |out, place| {
                        let _ = write!(out, "{}", self.series[place.series].values[at]);
                    }),
                )
            })
            .collect();
        if self.is_of_objects() {
            columns.extend(dimensions);
        } else {
            columns.push(("key".to_owned(), object(&dimensions)));
        }
        let members = self.members();
        let column = |member: &Member| {
            let number = |out: &mut String, place: &Place<'_>| self.write_number(out, place.total, *member);
            (member.name(), list(places, number))
        };
        columns.extend(members.iter().filter(|member| !member.is_percentile()).map(column));
        let percentiles: Vec<_> =
            members.iter().filter(|member| member.is_percentile()).map(column).collect();
        if !percentiles.is_empty() {
            columns.push(("percentiles".to_owned(), object(&percentiles)));
        }
        let _ = write!(out, "\"columns\":{}", object(&columns));
    }

    fn is_of_objects(&self) -> bool {
        matches!(self.plan.subject.kind, Kind::State | Kind::Transition)
    }

    fn list_name(&self) -> &'static str {
        match self.plan.subject.kind {
            Kind::State => "states",
            Kind::Transition => "transitions",
            _ => "series",
        }
    }

    /// What is said of each point, percentiles last.
    fn members(&self) -> Vec<Member> {
        let Subject { kind, has_sum, .. } = &self.plan.subject;
        let mut members = vec![Member::Count];
        if *kind == Kind::Histogram {
            members.extend([Member::Sum, Member::Mean, Member::Min, Member::Max]);
            members.extend(self.plan.ask.percentiles.iter().map(|q| Member::Percentile(*q)));
        } else if *has_sum {
            members.push(Member::Sum);
        }
        members
    }

    fn write_number(&self, out: &mut String, total: Option<&Total>, member: Member) {
        let sketch = total.and_then(|total| total.sketch.as_deref());
        let value = match member {
            Member::Count => {
                let _ = match sketch {
                    Some(sketch) => write!(out, "{}", sketch.count()),
                    None => write!(out, "{}", total.map_or(0, |total| total.count)),
                };
                return;
            }
            Member::Sum => {
                let sum = sketch.map_or_else(|| total.map_or(0, |total| total.sum), Sketch::sum);
                return write_decimal(out, sum);
            }
            Member::Mean => sketch.and_then(Sketch::mean),
            Member::Min => sketch.and_then(Sketch::min),
            Member::Max => sketch.and_then(Sketch::max),
            Member::Percentile(q) => {
                let known = sketch.zip(self.plan.subject.accuracy);
                known.and_then(|(sketch, accuracy)| sketch.quantile(accuracy, q))
            }
        };
        let _ = match value {
            Some(value) => write!(out, "{value}"),
            None => write!(out, "null"),
        };
    }
}

/// What is written of a series in every bucket, apart from its numbers.
struct Wording {
    /// The members that say which series it is, with the comma after them.
    keys: Vec<String>,
    /// Each number with what stands before it.
    members: Vec<(String, Member)>,
    end: &'static str,
}

/// What is said of a point.
#[derive(Clone, Copy)]
enum Member {
    Count,
    Sum,
    Mean,
    Min,
    Max,
    Percentile(f64),
}

impl Member {
    fn name(self) -> String {
        match self {
            Self::Count => "count".to_owned(),
            Self::Sum => "sum".to_owned(),
            Self::Mean => "mean".to_owned(),
            Self::Min => "min".to_owned(),
            Self::Max => "max".to_owned(),
            Self::Percentile(q) => q.to_string(),
        }
    }

    fn is_percentile(self) -> bool {
        matches!(self, Self::Percentile(_))
    }
}

fn list(places: &[Place<'_>], write: impl Fn(&mut String, &Place<'_>)) -> String {
    let mut out = String::from("[");
    for (at, place) in places.iter().enumerate() {
        out.push_str(if at == 0 { "" } else { "," });
        write(&mut out, place);
    }
    out.push(']');
    out
}

fn object(members: &[(String, String)]) -> String {
    let members = members.iter().map(|(name, text)| format!("{}:{text}", Value::from(name.as_str())));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

fn time(ms: i64) -> String {
    format!("\"{}\"", Timestamp::from_ms(ms))
}

/// Units of 10⁻⁹ as a decimal number, to the last digit.
fn write_decimal(out: &mut String, units: i128) {
    let (whole, rest) = (units.unsigned_abs() / 1_000_000_000, units.unsigned_abs() % 1_000_000_000);
    let _ = write!(out, "{}{whole}", if units < 0 { "-" } else { "" });
    if rest > 0 {
        let _ = write!(out, ".{rest:09}");
        out.truncate(out.trim_end_matches('0').len());
    }
}

/// The values that were asked for by name and were not seen, where series are kept apart by that dimension alone.
pub(super) fn absent(plan: &Plan, seen: &[Series]) -> Vec<Series> {
    let [place] = plan.grouped[..] else { return Vec::new() };
    if plan.ask.fill == Fill::None {
        return Vec::new();
    }
    let texts: Vec<String> = seen.iter().map(|series| text_of(&series.values[0])).collect();
    let wanted = plan.filters.get(&place).into_iter().flatten();
    let missing = wanted.filter(|text| !texts.contains(text)).map(|text| vec![Value::from(text.as_str())]);
    missing.map(|values| Series { text: Value::from(values.clone()).to_string(), values }).collect()
}
