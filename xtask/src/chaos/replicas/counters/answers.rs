//! What the processes say was counted, asked as everybody asks.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tidegate_core::time::Timestamp;

use super::truth::{Cell, Subject, Table};
use crate::server::{ADMIN_KEY, Server};

/// Points of one page.
const PAGE: usize = 10_000;

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sold => "counter, by shop and plan",
            Self::SoldByPlan => "the same, by plan",
            Self::Dear => "counter, where dear",
            Self::Amounts => "histogram, by shop",
            Self::Orders => "states of orders",
            Self::Changes => "transitions of orders",
        }
    }

    fn question(self) -> (&'static str, Value) {
        let order = json!({"service": "chaos", "object": "order", "attribute": "data.status"});
        let counter = |name: &str, by: &[&str]| json!({"service": "chaos", "type": "sale", "counter": name, "group_by": by});
        match self {
            Self::Sold => ("counters", counter("sold", &["data.shop", "data.plan"])),
            Self::SoldByPlan => ("counters", counter("sold", &["data.plan"])),
            Self::Dear => ("counters", counter("dear", &[])),
            Self::Amounts => {
                let body = json!({"service": "chaos", "type": "sale", "histogram": "amount", "percentiles": [0.5],
                    "group_by": ["data.shop"]});
                ("histograms", body)
            }
            Self::Orders => ("states", order),
            Self::Changes => ("transitions", order),
        }
    }

    /// The text of a series, as the truth writes it.
    fn key(self, series: &Value) -> String {
        let names: &[&str] = match self {
            Self::Sold => &["/key/data.shop", "/key/data.plan"],
            Self::SoldByPlan => &["/key/data.plan"],
            Self::Dear => &[],
            Self::Amounts => &["/key/data.shop"],
            Self::Orders => &["/state"],
            Self::Changes => &["/from_state", "/to_state"],
        };
        let texts = names.iter().map(|name| series.pointer(name).and_then(Value::as_str).unwrap_or("?"));
        texts.collect::<Vec<_>>().join(", ")
    }

    fn cell(self, series: &Value) -> Result<Cell> {
        let count =
            series["count"].as_i64().with_context(|| format!("a series without a count: {series}"))?;
        let hundredths = |name: &str| (series[name].as_f64().unwrap_or(0.0) * 100.0).round() as i64;
        Ok(Cell { count, sum: hundredths("sum"), low: hundredths("min"), high: hundredths("max") })
    }

    /// What is answered for some times, page after page.
    pub(super) fn asked(self, server: &Server, every: &str, ranges: &[(i64, i64)]) -> Result<Table> {
        let mut table = Table::new();
        for (from, to) in ranges {
            let (path, mut body) = self.question();
            body["from"] = json!(Timestamp::from_ms(*from));
            body["to"] = json!(Timestamp::from_ms(*to));
            body["every"] = every.into();
            body["fill"] = "none".into();
            body["limit"] = PAGE.into();
            loop {
                let page = server.api("POST", &format!("/v1/query/{path}"), &body)?;
                self.read(&page, &mut table)?;
                let Some(next) = page["next"].as_str() else { break };
                body["cursor"] = next.into();
            }
        }
        Ok(table)
    }

    fn read(self, page: &Value, table: &mut Table) -> Result<()> {
        let list = match self {
            Self::Orders => "states",
            Self::Changes => "transitions",
            _ => "series",
        };
        for bucket in page["buckets"].as_array().context("an answer without buckets")? {
            let from =
                bucket["from"].as_str().and_then(Timestamp::parse).context("a bucket without a time")?;
            for series in bucket[list].as_array().with_context(|| format!("a bucket without {list}"))? {
                table.insert((from.as_ms(), self.key(series)), self.cell(series)?);
            }
        }
        Ok(())
    }
}

/// Where parcels are said to be, and what that is by the transitions: those that came less those that left. Also how many were
/// seen for the first time.
pub(super) struct Parcels {
    pub(super) standing: BTreeMap<String, i64>,
    pub(super) flowed: BTreeMap<String, i64>,
    pub(super) first_seen: i64,
}

impl Parcels {
    pub(super) fn asked(server: &Server, (from, to): (i64, i64)) -> Result<Self> {
        let mut body = json!({"service": "chaos", "object": "parcel", "attribute": "data.place"});
        let now = server.api("POST", "/v1/query/states", &body)?;
        let mut parcels = Self { standing: BTreeMap::new(), flowed: BTreeMap::new(), first_seen: 0 };
        let text = |series: &Value, name: &str| series[name].as_str().unwrap_or("?").to_owned();
        for state in now["states"].as_array().context("an answer without states")? {
            parcels.standing.insert(text(state, "state"), state["count"].as_i64().unwrap_or(0));
        }
        body["from"] = json!(Timestamp::from_ms(from));
        body["to"] = json!(Timestamp::from_ms(to));
        body["every"] = "7d".into();
        body["fill"] = "none".into();
        let flow = server.api("POST", "/v1/query/transitions", &body)?;
        let buckets = flow["buckets"].as_array().context("an answer without buckets")?;
        for change in buckets.iter().flat_map(|bucket| bucket["transitions"].as_array()).flatten() {
            let count = change["count"].as_i64().unwrap_or(0);
            *parcels.flowed.entry(text(change, "to_state")).or_default() += count;
            match text(change, "from_state").as_str() {
                "(none)" => parcels.first_seen += count,
                from => *parcels.flowed.entry(from.to_owned()).or_default() -= count,
            }
        }
        parcels.flowed.retain(|_, count| *count != 0);
        Ok(parcels)
    }

    /// By how much they are not where they must be.
    pub(super) fn difference(&self, expected: &BTreeMap<String, i64>) -> u64 {
        let gap = |found: &BTreeMap<String, i64>| -> u64 {
            let of = |map: &BTreeMap<String, i64>, place| map.get(place).copied().unwrap_or(0);
            let places = expected.keys().chain(found.keys().filter(|place| !expected.contains_key(*place)));
            places.map(|place| of(expected, place).abs_diff(of(found, place))).sum()
        };
        let all: i64 = expected.values().sum();
        gap(&self.standing) + gap(&self.flowed) + all.abs_diff(self.first_seen)
    }
}

/// What `tidegate audit` found.
pub(super) struct Audit {
    pub(super) events: u64,
    pub(super) differences: u64,
}

impl Audit {
    pub(super) fn run(binary: &Path, server: &Server) -> Result<Self> {
        let url = format!("http://{}", server.address);
        let mut command = Command::new(binary);
        command.args(["audit", "--json", "--url", &url]).env("TIDEGATE_KEY", ADMIN_KEY);
        let output = command.output().context("tidegate audit does not start")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        let audits: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("tidegate audit ended with {}: {complaint}", output.status))?;
        let mut audit = Self { events: 0, differences: 0 };
        for one in audits.as_array().context("an audit is a list")? {
            let one = &one["audit"];
            audit.events += one["events"].as_u64().context("an audit without events")?;
            let metrics = one["metrics"].as_array().context("an audit without metrics")?;
            audit.differences +=
                metrics.iter().filter_map(|metric| metric["differences"].as_u64()).sum::<u64>();
        }
        let agrees = audit.differences == 0;
        ensure!(agrees == output.status.success(), "tidegate audit ended with {}", output.status);
        Ok(audit)
    }
}

/// How many events a search by an indexed value finds.
pub(super) fn search(server: &Server, shop: &str) -> Result<u64> {
    let condition = format!("data.shop%20==%20'{}'", shop.replace(' ', "%20"));
    let (mut found, mut cursor) = (0, String::new());
    loop {
        let page =
            server.api("GET", &format!("/v1/events?limit=500&where={condition}{cursor}"), &Value::Null)?;
        found += page["items"].as_array().context("a page without items")?.len() as u64;
        let Some(next) = page["next"].as_str() else { return Ok(found) };
        cursor = format!("&cursor={next}");
    }
}

/// Up to when everything is counted.
pub(super) fn complete_until(server: &Server) -> Result<i64> {
    let body = json!({"service": "chaos", "object": "order", "attribute": "data.status"});
    let answer = server.api("POST", "/v1/query/states", &body)?;
    let until = answer["complete_until"].as_str().and_then(Timestamp::parse);
    Ok(until.context("an answer that says nothing about how complete it is")?.as_ms())
}
