//! What is sent: sales, decided by the run's seed, that happened at several times of the past days.
//!
//! Sales of an order tell its life, in one request and in order, so that nothing of it can come late whatever dies: how it
//! must be counted is known exactly. Sales of a parcel are spread over requests and processes, and may come late.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::truth::{DAY, MINUTE, WEEK, start};
use crate::prng::Prng;

/// Sales of one request.
pub(super) const REQUEST: usize = 50;
/// Of those, how many belong to orders.
const OF_ORDERS: usize = REQUEST / 2;
const SHOPS: u64 = 30;
const PLANS: u64 = 5;
const PARCELS: u64 = 400;
const STATUSES: [&str; 4] = ["NEW", "PAID", "SENT", "DONE"];
const PLACES: [&str; 5] = ["north", "east", "south", "west", "lost"];
/// How long each time of selling lasts.
const SPAN: i64 = 10 * MINUTE;
/// How long ago the times of selling began, but for the one around Monday's midnight. Buckets of 5 s are kept for 8 days.
const AGO: [i64; 6] = [25 * MINUTE, 7 * 60 * MINUTE, DAY, 2 * DAY + 5 * MINUTE, 4 * DAY, 6 * DAY];

/// When sales happen.
pub(super) struct Calendar {
    /// The times of selling, whole five minutes.
    pub(super) spans: Vec<(i64, i64)>,
    /// Whole weeks around all of them.
    pub(super) all: (i64, i64),
}

impl Calendar {
    pub(super) fn before(now: i64) -> Self {
        let monday = start(now - SPAN, WEEK);
        let mut spans: Vec<i64> = AGO.iter().map(|ago| start(now - ago, 5 * MINUTE)).collect();
        spans.push(monday - SPAN / 2);
        let spans = spans.into_iter().map(|from| (from, from + SPAN)).collect();
        Self { spans, all: (monday - 2 * WEEK, start(now, WEEK) + WEEK) }
    }
}

/// An object, and what it is said to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) object: u64,
    pub(super) state: &'static str,
}

/// One event.
#[derive(Clone, Debug)]
pub(super) struct Sale {
    pub(super) number: usize,
    pub(super) time: i64,
    pub(super) shop: Option<u64>,
    pub(super) plan: Option<u64>,
    /// In hundredths.
    pub(super) amount: i64,
    pub(super) order: Option<Step>,
    pub(super) parcel: Option<Step>,
}

impl Sale {
    pub(super) fn event(&self) -> Value {
        let mut data = json!({"amount": self.amount as f64 / 100.0});
        let mut tell = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                data[name] = value.into();
            }
        };
        tell("shop", self.shop.map(shop));
        tell("plan", self.plan.map(plan));
        tell("order", self.order.map(|step| step.object.to_string()));
        tell("status", self.order.map(|step| step.state.to_owned()));
        tell("parcel", self.parcel.map(|step| step.object.to_string()));
        tell("place", self.parcel.map(|step| step.state.to_owned()));
        json!({
            "id": format!("sale-{}", self.number), "source": "chaos", "type": "sale",
            "time": Timestamp::from_ms(self.time), "data": data,
        })
    }
}

pub(super) fn shop(number: u64) -> String {
    format!("shop {number}")
}

pub(super) fn plan(number: u64) -> String {
    format!("plan {number}")
}

/// What the catalog declares of them.
pub(super) fn declared() -> Value {
    json!({
        "index": ["data.shop"],
        "counters": {
            "sold": {"dimensions": ["data.shop", "data.plan"], "sum": "data.amount"},
            "dear": {"where": "data.amount > 50.0"},
        },
        "histograms": {"amount": {"value": "data.amount", "dimensions": ["data.shop"]}},
        "states": [
            {"object": "order", "id": "data.order", "attributes": ["data.status"]},
            {"object": "parcel", "id": "data.parcel", "attributes": ["data.place"]},
        ],
    })
}

/// So many requests' worth.
pub(super) fn invent(requests: usize, calendar: &Calendar, prng: &mut Prng) -> Vec<Sale> {
    let mut inventor = Inventor { calendar, prng, orders: 0, seen: BTreeSet::new(), sales: Vec::new() };
    for request in 1..=requests {
        while inventor.sales.len() < request * REQUEST - OF_ORDERS {
            inventor.order(request * REQUEST);
        }
        while inventor.sales.len() < request * REQUEST {
            inventor.parcel();
        }
    }
    inventor.sales
}

struct Inventor<'a> {
    calendar: &'a Calendar,
    prng: &'a mut Prng,
    orders: u64,
    /// When each parcel was seen. What is seen twice at one time is where the later number says, and nobody knows that here.
    seen: BTreeSet<(u64, i64)>,
    sales: Vec<Sale>,
}

impl Inventor<'_> {
    /// The life of one, no further than the request goes.
    fn order(&mut self, end: usize) {
        self.orders += 1;
        let mut time = self.moment(SPAN / 2);
        let steps = 1 + self.prng.below(STATUSES.len() as u64) as usize;
        for state in STATUSES.into_iter().take(steps.min(end - self.sales.len())) {
            let order = Some(Step { object: self.orders, state });
            self.sell(time, order, None);
            time += 1 + self.prng.below(100_000) as i64;
        }
    }

    fn parcel(&mut self) {
        let (object, state) = (self.prng.below(PARCELS), self.prng.pick(&PLACES));
        let mut time = self.moment(SPAN);
        while !self.seen.insert((object, time)) {
            time = self.moment(SPAN);
        }
        self.sell(time, None, Some(Step { object, state }));
    }

    fn sell(&mut self, time: i64, order: Option<Step>, parcel: Option<Step>) {
        let one_of = |prng: &mut Prng, count| (prng.below(20) > 0).then(|| prng.below(count));
        let (shop, plan) = (one_of(self.prng, SHOPS), one_of(self.prng, PLANS));
        let amount = self.prng.below(12_001) as i64 - 2_000;
        self.sales.push(Sale { number: self.sales.len(), time, shop, plan, amount, order, parcel });
    }

    /// Within the first part of one of the times of selling.
    fn moment(&mut self, part: i64) -> i64 {
        let (from, _) = self.prng.pick(&self.calendar.spans);
        from + self.prng.below(part.unsigned_abs()) as i64
    }
}
