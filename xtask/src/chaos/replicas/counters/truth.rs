//! What must be counted: the sales themselves, counted again without any of the product's arithmetic.

use std::collections::BTreeMap;

use super::sales::{Calendar, Sale, Step, plan, shop};

pub(super) const MINUTE: i64 = 60_000;
pub(super) const DAY: i64 = 24 * 60 * MINUTE;
pub(super) const WEEK: i64 = 7 * DAY;
/// A Monday.
const MONDAY: i64 = 4 * DAY;

const NONE: &str = "(none)";
/// What costs more is dear; in hundredths.
const DEAR: i64 = 5_000;

/// Every length of bucket, the longest first: what is wrong anywhere shows there soonest.
pub(super) const LENGTHS: [(&str, i64); 6] =
    [("7d", WEEK), ("1d", DAY), ("1h", 60 * MINUTE), ("5m", 5 * MINUTE), ("1m", MINUTE), ("5s", 5_000)];

/// When the bucket of an instant begins.
pub(super) fn start(ms: i64, every: i64) -> i64 {
    let origin = if every == WEEK { MONDAY } else { 0 };
    ms - (ms - origin).rem_euclid(every)
}

/// What one series has in one bucket; amounts are in hundredths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) count: i64,
    pub(super) sum: i64,
    pub(super) low: i64,
    pub(super) high: i64,
}

impl Cell {
    fn add(&mut self, amount: i64) {
        self.count += 1;
        self.sum += amount;
    }

    /// With the lowest and the highest.
    fn add_ranged(&mut self, amount: i64) {
        (self.low, self.high) =
            if self.count == 0 { (amount, amount) } else { (self.low.min(amount), self.high.max(amount)) };
        self.add(amount);
    }
}

/// Cells by the beginning of their bucket and the text of their series.
pub(super) type Table = BTreeMap<(i64, String), Cell>;

/// How many events more or less are counted in one table than in the other; 0 only if they are the same.
pub(super) fn difference(one: &Table, other: &Table) -> u64 {
    let of = |table: &Table, key| table.get(key).copied().unwrap_or_default();
    let gap = |key| {
        let (one, other) = (of(one, key), of(other, key));
        one.count.abs_diff(other.count).max(u64::from(one != other))
    };
    let only_there = other.keys().filter(|key| !one.contains_key(*key));
    one.keys().chain(only_there).map(gap).sum()
}

/// What is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// A counter with a sum, by both of its dimensions.
    Sold,
    /// The same by one of them.
    SoldByPlan,
    /// A counter with a condition and without dimensions.
    Dear,
    /// A histogram.
    Amounts,
    /// How many orders are in each state.
    Orders,
    /// How often they changed it.
    Changes,
}

impl Subject {
    pub(super) const ALL: [Self; 6] =
        [Self::Sold, Self::SoldByPlan, Self::Dear, Self::Amounts, Self::Orders, Self::Changes];

    /// For which times a length of bucket is asked: short ones where there is something.
    pub(super) fn ranges(calendar: &Calendar, every: i64) -> Vec<(i64, i64)> {
        if every <= 5 * MINUTE { calendar.spans.clone() } else { vec![calendar.all] }
    }

    /// What must come out.
    pub(super) fn expected(self, sales: &[Sale], calendar: &Calendar, every: i64) -> Table {
        let shop_of = |sale: &Sale| sale.shop.map_or_else(|| NONE.to_owned(), shop);
        let plan_of = |sale: &Sale| sale.plan.map_or_else(|| NONE.to_owned(), plan);
        let by = |key: &dyn Fn(&Sale) -> String, add: fn(&mut Cell, i64)| {
            let mut table = Table::new();
            for sale in sales {
                add(table.entry((start(sale.time, every), key(sale))).or_default(), sale.amount);
            }
            table
        };
        match self {
            Self::Sold => by(&|sale| format!("{}, {}", shop_of(sale), plan_of(sale)), Cell::add),
            Self::SoldByPlan => by(&plan_of, Cell::add),
            Self::Dear => {
                let mut table = by(&|_| String::new(), |cell, amount| cell.count += i64::from(amount > DEAR));
                table.retain(|_, cell| cell.count > 0);
                table
            }
            Self::Amounts => by(&shop_of, Cell::add_ranged),
            Self::Orders => standing(&changes(sales), &Self::ranges(calendar, every), every),
            Self::Changes => {
                let mut table = Table::new();
                changes(sales).iter().for_each(|change| change.count(&mut table, every));
                table
            }
        }
    }
}

/// An order came from one state to another.
struct Change {
    at: i64,
    from: Option<&'static str>,
    to: &'static str,
}

impl Change {
    fn count(&self, table: &mut Table, every: i64) {
        let key = format!("{}, {}", self.from.unwrap_or(NONE), self.to);
        table.entry((start(self.at, every), key)).or_default().count += 1;
    }
}

/// Every change of every order.
fn changes(sales: &[Sale]) -> Vec<Change> {
    let mut known: BTreeMap<u64, &'static str> = BTreeMap::new();
    let mut changes = Vec::new();
    for (at, Step { object, state }) in sales.iter().filter_map(|sale| Some((sale.time, sale.order?))) {
        let from = known.insert(object, state);
        if from != Some(state) {
            changes.push(Change { at, from, to: state });
        }
    }
    changes
}

/// How many are in each state at the end of every bucket.
fn standing(changes: &[Change], ranges: &[(i64, i64)], every: i64) -> Table {
    let mut net: BTreeMap<(i64, &str), i64> = BTreeMap::new();
    for change in changes {
        *net.entry((change.at, change.to)).or_default() += 1;
        if let Some(from) = change.from {
            *net.entry((change.at, from)).or_default() -= 1;
        }
    }
    let mut table = Table::new();
    for (from, to) in ranges {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        let mut left = net.iter().peekable();
        for bucket in (*from..*to).step_by(usize::try_from(every).unwrap_or(1)) {
            while let Some(((_, state), step)) = left.next_if(|((at, _), _)| *at < bucket + every) {
                *counts.entry(state).or_default() += step;
            }
            for (state, count) in counts.iter().filter(|(_, count)| **count != 0) {
                table.insert((bucket, (*state).to_owned()), Cell { count: *count, ..Cell::default() });
            }
        }
    }
    table
}

/// How many parcels are where they were last seen, whichever sale was counted first.
pub(super) fn parcels(sales: &[Sale]) -> BTreeMap<String, i64> {
    let mut last: BTreeMap<u64, (i64, &str)> = BTreeMap::new();
    for (time, Step { object, state }) in sales.iter().filter_map(|sale| Some((sale.time, sale.parcel?))) {
        let known = last.entry(object).or_insert((time, state));
        if time > known.0 {
            *known = (time, state);
        }
    }
    let mut places = BTreeMap::new();
    for (_, place) in last.values() {
        *places.entry((*place).to_owned()).or_default() += 1;
    }
    places
}
