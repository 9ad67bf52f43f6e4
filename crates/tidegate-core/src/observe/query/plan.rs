//! Which stored buckets answer a question: the coarsest that fit.
//!
//! Buckets of an answer lie at multiples of `every` in UTC (of weeks: at Mondays) and are cut at `from` and `to`. Inside,
//! the coarsest stored length that divides `every` is read; at the edges finer ones, down to the shortest that is kept for
//! that time, to which `from` and `to` are rounded outward. What would need buckets that are no longer kept is refused.
//!
//! Promises: the stretches of a plan lie end to end, cover the range exactly, and none of their buckets lies in two buckets
//! of the answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::Subject;
use super::answer::Resume;
use super::ask::Ask;
use super::fold::Fold;
use crate::id::KeyNo;
use crate::limits::{
    QUERY_BUCKETS_DEFAULT, QUERY_BUCKETS_READ_MAX, QUERY_POINTS_MAX, QUERY_POINTS_PAGED_MAX, RETENTION_MAX,
};
use crate::observe::delta::Key;
use crate::observe::grain::Grain;
use crate::observe::kept::Kept;
use crate::observe::metric::Kind;
use crate::observe::page::Torn;
use crate::subscriber::Invalid;
use crate::time::{Span, Timestamp};

const HOUR_MS: i64 = 3_600_000;
const WEEK_MS: i64 = Grain::D7.length_ms();
/// Intervals that people choose, in seconds: one of them is taken when none is given, or named when one is too fine.
const INTERVALS_S: [i64; 19] = [
    5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 604_800,
    2_419_200, 31_449_600,
];

/// Stored buckets of one length, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Their length.
    pub grain: Grain,
    /// When the first begins, in milliseconds; `i64::MIN` for everything that is stored.
    pub from: i64,
    /// When the last ends.
    pub to: i64,
}

/// The stretches that answer for `from` to `to`, both multiples of the base, at intervals of `every`.
pub fn plan(from: i64, to: i64, every: i64, base: Grain) -> Vec<Stretch> {
    let fits = |grain: &&Grain| every % grain.length_ms() == 0;
    let top = Grain::from_base(base).iter().rev().find(fits).copied().unwrap_or(base);
    cover(from, to, base, top)
}

/// The fewest buckets that cover a range, of lengths from `base` to `top`.
pub fn cover(from: i64, to: i64, base: Grain, top: Grain) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let mut at = from;
    while at < to {
        let lengths = Grain::from_base(base).iter().copied().filter(|grain| *grain <= top);
        let fits = |grain: &Grain| grain.start_ms(at) == at && at + grain.length_ms() <= to;
        let grain = lengths.rev().find(fits).unwrap_or(base);
        let end = grain.start_ms(to).max(at + grain.length_ms());
        // Where a longer bucket begins, it may be that one that fits.
        let longer = Grain::from_base(grain).get(1).filter(|longer| **longer <= top);
        let end = longer.map_or(end, |longer| end.min(longer.start_ms(at) + longer.length_ms()));
        match stretches.last_mut().filter(|last| last.grain == grain) {
            Some(last) => last.to = end,
            None => stretches.push(Stretch { grain, from: at, to: end }),
        }
        at = end;
    }
    stretches
}

/// Takes so many buckets, at least one stretch's, from the front of what is left to read.
pub fn take(left: &mut VecDeque<Stretch>, mut buckets: i64) -> Vec<Stretch> {
    let mut taken = Vec::new();
    while let Some(first) = left.front_mut() {
        let length = first.grain.length_ms();
        if first.buckets() > buckets {
            if buckets > 0 {
                let to = first.from + buckets * length;
                taken.push(Stretch { to, ..*first });
                first.from = to;
            }
            break;
        }
        buckets -= first.buckets();
        taken.extend(left.pop_front());
    }
    taken
}

impl Stretch {
    /// How many buckets it has. What has no beginning or end is whole weeks, of which few are stored.
    fn buckets(&self) -> i64 {
        if self.from == i64::MIN { 1 } else { (self.to - self.from) / self.grain.length_ms() }
    }
}

/// Which instants an answer is about, and in which steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: i64,
    pub(super) to: i64,
    pub(super) every: i64,
}

impl Range {
    /// How many buckets the answer has.
    pub(super) fn buckets(self) -> i64 {
        (self.aligned(self.to - 1) - self.aligned(self.from)) / self.every + 1
    }

    /// The place of an instant's bucket among them; negative before the first.
    pub(super) fn index(self, ms: i64) -> i64 {
        if ms < self.from { -1 } else { (self.aligned(ms) - self.aligned(self.from)) / self.every }
    }

    /// When a bucket begins and ends.
    pub(super) fn bounds(self, index: i64) -> (i64, i64) {
        let start = self.aligned(self.from) + index * self.every;
        (start.max(self.from), (start + self.every).min(self.to))
    }

    fn aligned(self, ms: i64) -> i64 {
        let origin = if self.every % WEEK_MS == 0 { Grain::D7.start_ms(0) } else { 0 };
        ms - (ms - origin).rem_euclid(self.every)
    }
}

/// What to read, and what to make of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to read, in order of time.
    pub stretches: Vec<Stretch>,
    pub(super) ask: Ask,
    pub(super) subject: Subject,
    kept: Kept,
    /// Absent: one moment, everything that is read together.
    pub(super) range: Option<Range>,
    /// Of a moment: which, or absent for all that is known.
    pub(super) at: Option<i64>,
    /// Places of the dimensions that series are kept apart by.
    pub(super) grouped: Vec<usize>,
    /// Texts that a dimension may have, by its place.
    pub(super) filters: BTreeMap<usize, BTreeSet<String>>,
    pub(super) resume: Option<Resume>,
}

impl Plan {
    /// How an answer to this comes about from what is kept. `resume` is what the question's cursor stands for.
    pub fn new(ask: Ask, subject: Subject, kept: Kept, resume: Option<Resume>) -> Result<Self, Invalid> {
        let mut grouped = Vec::new();
        for (at, name) in ask.group_by.iter().enumerate() {
            let place = place_of(&subject, name, &format!("group_by[{at}]"))?;
            if grouped.contains(&place) {
                let detail = format!("`{name}` stands twice");
                return Err(Invalid::new("field_repeated", &format!("group_by[{at}]"), detail));
            }
            grouped.push(place);
        }
        let mut filters = BTreeMap::new();
        for (name, values) in &ask.filters {
            filters.insert(place_of(&subject, name, &format!("where.{name}"))?, values.clone());
        }
        let (stretches, at, range) = (Vec::new(), None, None);
        let mut plan = Self { stretches, at, range, ask, subject, kept, grouped, filters, resume };
        if plan.ask.is_moment() {
            plan.stop_at()?;
        } else {
            plan.go_over()?;
        }
        Ok(plan)
    }

    /// How many points an answer may have.
    pub(super) fn points_max(&self) -> usize {
        if self.ask.limit.is_some() { QUERY_POINTS_PAGED_MAX } else { QUERY_POINTS_MAX }
    }

    fn stop_at(&mut self) -> Result<(), Invalid> {
        let Some(at) = self.ask.at.map(Timestamp::as_ms) else {
            self.stretches = vec![Stretch { grain: Grain::D7, from: i64::MIN, to: i64::MAX }];
            return Ok(());
        };
        let shortest = self.shortest("at", at)?;
        let end = round_up(at, shortest);
        if end != at && shortest > Grain::H1 {
            let detail = format!(
                "of that time, only what was at {} and {shortest} before and after is kept",
                utc(end)
            );
            return Err(Invalid::new("not_kept", "at", detail));
        }
        self.at = Some(end);
        self.stretches = everything_before(end, self.subject.base);
        Ok(())
    }

    /// The shortest buckets that are kept for a time.
    fn shortest(&self, field: &str, ms: i64) -> Result<Grain, Invalid> {
        self.kept.finest(self.subject.base, ms).ok_or_else(|| {
            let (term, since) = (
                every_text(millis(self.kept.term())),
                utc(self.kept.now().as_ms() - millis(self.kept.term())),
            );
            let detail = format!("this is kept for {term}: ask for what happened since {since}");
            Invalid::new("not_kept", field, detail)
        })
    }

    fn go_over(&mut self) -> Result<(), Invalid> {
        let range = match self.resume.as_ref().and_then(|resume| resume.range) {
            Some(range) => range,
            None => self.range_asked()?,
        };
        self.range = Some(range);
        let buckets = usize::try_from(range.buckets()).unwrap_or(usize::MAX);
        if buckets > self.points_max() {
            return Err(self.too_large(1));
        }
        if self.subject.kind == Kind::State {
            self.stretches = everything_before(range.from, self.subject.base);
        }
        self.stretches.extend(plan(range.from, range.to, range.every, self.subject.base));
        self.check_work(range)?;
        self.check_kept()
    }

    /// An odd interval may be made of very many short buckets.
    fn check_work(&self, range: Range) -> Result<(), Invalid> {
        if self.stretches.iter().map(Stretch::buckets).sum::<i64>() <= QUERY_BUCKETS_READ_MAX {
            return Ok(());
        }
        let lengths = Grain::from_base(self.subject.base);
        let fits = |grain: &&Grain| (range.to - range.from) / grain.length_ms() < QUERY_BUCKETS_READ_MAX / 2;
        let length = lengths.iter().find(fits).unwrap_or(&Grain::D7);
        let detail = format!("this answer would be made of too many buckets: ask for a multiple of {length}");
        Err(Invalid::new("query_too_large", "every", detail))
    }

    /// Everything that is to be read is still there.
    fn check_kept(&self) -> Result<(), Invalid> {
        let is_gone =
            |stretch: &&Stretch| stretch.from != i64::MIN && stretch.from < self.kept.since(stretch.grain);
        let Some(gone) = self.stretches.iter().find(is_gone) else { return Ok(()) };
        let shortest = self.shortest("from", gone.from)?;
        let detail = format!(
            "of {}, only buckets of {shortest} and longer are kept: ask for `every` {shortest} or a multiple of it, or for \
             a later time",
            utc(gone.from)
        );
        Err(Invalid::new("not_kept", "every", detail))
    }

    fn range_asked(&self) -> Result<Range, Invalid> {
        let base = self.subject.base;
        let to = self.ask.to.unwrap_or(self.kept.now()).as_ms();
        let usual = HOUR_MS.min(millis(self.kept.term()));
        let from = self.ask.from.map_or(to - usual, Timestamp::as_ms);
        if from >= to {
            let detail = "`from` lies before `to`, which is now unless it is given";
            return Err(Invalid::new("field_range", "from", detail));
        }
        let shortest = self.shortest("from", from)?;
        let (from, to) = (shortest.start_ms(from), round_up(to, self.shortest("to", to)?));
        let every = match self.ask.every {
            Some(every) => millis(every.0),
            None => interval(from, to, shortest, QUERY_BUCKETS_DEFAULT).unwrap_or(WEEK_MS * 52),
        };
        if every == 0 || every % base.length_ms() != 0 || every > millis(RETENTION_MAX) {
            let most = every_text(millis(RETENTION_MAX));
            let detail = format!(
                "`every` is a multiple of {base}, the shortest buckets that are kept of this, and at most {most}"
            );
            return Err(Invalid::new("field_value", "every", detail));
        }
        Ok(Range { from, to, every })
    }

    /// The refusal of an answer with so many series.
    pub(super) fn too_large(&self, series: usize) -> Invalid {
        let Range { from, to, .. } = self.range.unwrap_or(Range { from: 0, to: 1, every: 1 });
        let buckets = QUERY_POINTS_MAX / series.max(1);
        let shortest = self.kept.finest(self.subject.base, from).unwrap_or(Grain::D7);
        let remedy = match interval(from, to, shortest, buckets) {
            Some(every) => format!("ask for `every` {} or coarser, or for less time", every_text(every)),
            None => "narrow it down with `where`, or group by fewer dimensions".to_owned(),
        };
        let max = self.points_max();
        let detail =
            format!("this answer would have more than {max} points ({series} series or more): {remedy}");
        Invalid::new("query_too_large", "every", detail)
    }

    /// Begins an answer. `keys` are read after the pages, so that every cell's key is among them.
    pub fn fold(&self, keys: &[(KeyNo, Key)]) -> Result<Fold<'_>, Torn> {
        Fold::new(self, keys)
    }
}

/// Everything that happened before an instant, as few buckets as there are.
fn everything_before(ms: i64, base: Grain) -> Vec<Stretch> {
    let week = Grain::D7.start_ms(ms);
    let mut stretches = vec![Stretch { grain: Grain::D7, from: i64::MIN, to: week }];
    stretches.extend(cover(week, ms, base, Grain::D1));
    stretches
}

/// The finest usual interval that divides a range into at most so many buckets.
fn interval(from: i64, to: i64, base: Grain, buckets: usize) -> Option<i64> {
    let most = i64::try_from(buckets).unwrap_or(i64::MAX);
    let usual = INTERVALS_S.into_iter().map(|seconds| seconds * 1000);
    let fit = usual.filter(|every| every % base.length_ms() == 0);
    fit.into_iter().find(|every| Range { from, to, every: *every }.buckets() <= most)
}

fn round_up(ms: i64, grain: Grain) -> i64 {
    let start = grain.start_ms(ms);
    if start == ms { ms } else { start + grain.length_ms() }
}

fn place_of(subject: &Subject, name: &str, field: &str) -> Result<usize, Invalid> {
    subject.dimensions.iter().position(|dimension| dimension == name).ok_or_else(|| {
        let detail = if subject.dimensions.is_empty() {
            format!("`{name}` is no dimension: this metric has none")
        } else {
            format!("`{name}` is no dimension: this metric has {}", subject.dimensions.join(", "))
        };
        Invalid::new("field_value", field, detail)
    })
}

/// An interval as people write it: `90s`, `1h`, `7d`.
pub(super) fn every_text(every: i64) -> String {
    let day = Grain::D1.length_ms();
    if every % day == 0 {
        format!("{}d", every / day)
    } else {
        Span::from_ms(every.unsigned_abs()).to_string()
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn utc(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}
