//! `tidegate query`: what was counted, as a table with bars, as one line a series, or as JSON.
//!
//! Asks `POST /v1/query/…` and draws the answer. Does not: add up or choose anything; the server does.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tidegate_core::time::{Span, Timestamp};

use crate::clock;
use crate::commands::Globals;
use crate::commands::chart;
use crate::commands::resource::Session;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  tidegate query counters shop order.paid by_country --last 1d --every 1h --by data.country
  tidegate query counters shop order.paid by_country --where data.country=DE,FR --chart
  tidegate query histograms shop order.paid total --last 1h --percentiles 0.5,0.99
  tidegate query states shop order data.status
  tidegate query states shop order data.status --last 1d --every 1h --chart
  tidegate query transitions shop order data.status --to-states PAID

What is counted is declared in the catalog: tidegate catalog --help";

/// Flags of `query`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QueryArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// How often something happened, and how much in all
    #[command(alias = "counter")]
    Counters {
        #[command(flatten)]
        metric: Metric,
        #[command(flatten)]
        range: Range,
    },
    /// How a value is distributed
    #[command(alias = "histogram")]
    Histograms {
        #[command(flatten)]
        metric: Metric,
        /// Shares of the values that lie below
        #[arg(long, value_name = "0.5,0.99", value_delimiter = ',')]
        percentiles: Option<Vec<f64>>,
        #[command(flatten)]
        range: Range,
    },
    /// How many objects are in each state, now or over time
    #[command(alias = "state")]
    States {
        #[command(flatten)]
        object: Object,
        /// At this moment rather than now
        #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "to", "last", "every"])]
        at: Option<String>,
        /// Only these states
        #[arg(long, value_name = "STATE,…", value_delimiter = ',')]
        states: Option<Vec<String>>,
        #[command(flatten)]
        range: Range,
    },
    /// How often objects went from one state to another
    #[command(alias = "transition")]
    Transitions {
        #[command(flatten)]
        object: Object,
        /// Only from these states; `(none)` is before the first
        #[arg(long, value_name = "STATE,…", value_delimiter = ',')]
        from_states: Option<Vec<String>>,
        /// Only to these states
        #[arg(long, value_name = "STATE,…", value_delimiter = ',')]
        to_states: Option<Vec<String>>,
        #[command(flatten)]
        range: Range,
    },
}

#[derive(Args)]
struct Metric {
    /// The service that the type belongs to
    service: String,
    /// The type of events
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// The counter or histogram
    name: String,
    /// Keep series apart by this dimension; give it again for more
    #[arg(long = "by", value_name = "PATH", value_delimiter = ',')]
    by: Vec<String>,
    /// Only these values of a dimension
    #[arg(long = "where", value_name = "PATH=VALUE,…")]
    filters: Vec<String>,
}

#[derive(Args)]
struct Object {
    /// The service that tells of them
    service: String,
    /// The kind of object
    object: String,
    /// The path of its state
    #[arg(value_name = "PATH")]
    attribute: String,
}

#[derive(Args)]
struct Range {
    /// Since when
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    from: Option<String>,
    /// Until when; now unless it is given
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The last hours or days
    #[arg(long, value_name = "24h")]
    last: Option<String>,
    /// The length of a bucket
    #[arg(long, value_name = "1m")]
    every: Option<String>,
    /// Leave out buckets in which nothing happened
    #[arg(long)]
    sparse: bool,
    /// Points per page
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Go on where the previous page ended
    #[arg(long, requires = "limit")]
    cursor: Option<String>,
    /// One line for each series, drawn over time
    #[arg(long, conflicts_with = "limit")]
    chart: bool,
}

/// Asks and draws the answer.
pub(crate) async fn run(args: QueryArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let (kind, mut body, range) = question(args.verb)?;
    let is_chart = range.chart;
    body.extend(range.members(clock::now())?);
    body.retain(|_, value| !value.is_null());
    let answer = session.create(&["v1", "query", kind], &Value::Object(body)).await?;
    if session.output.json {
        session.output.raw(&answer.body)?;
    } else {
        let answer = answer.json()?;
        let text = if is_chart { chart::lines(&answer) } else { chart::table(&answer) };
        session.output.line(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Which kind of question, and what it says apart from its range.
fn question(verb: Verb) -> Result<(&'static str, Map<String, Value>, Range), Failure> {
    let (kind, body, range) = match verb {
        Verb::Counters { metric, range } => ("counters", metric.members("counter")?, range),
        Verb::Histograms { metric, percentiles, range } => {
            let mut body = metric.members("histogram")?;
            body["percentiles"] = json!(percentiles);
            ("histograms", body, range)
        }
        Verb::States { object, at, states, range } => {
            let mut body = object.members();
            body["at"] = json!(at);
            body["states"] = json!(states);
            ("states", body, range)
        }
        Verb::Transitions { object, from_states, to_states, range } => {
            let mut body = object.members();
            body["from_states"] = json!(from_states);
            body["to_states"] = json!(to_states);
            ("transitions", body, range)
        }
    };
    let Value::Object(body) = body else { return Err(Failure::usage("a question is an object".to_owned())) };
    Ok((kind, body, range))
}

impl Metric {
    fn members(self, kind: &str) -> Result<Value, Failure> {
        let mut filters: Map<String, Value> = Map::new();
        for filter in &self.filters {
            let Some((path, values)) = filter.split_once('=') else {
                return Err(Failure::usage(format!(
                    "--where {filter}: expected PATH=VALUE, or several with commas"
                )));
            };
            let wanted = filters.entry(path).or_insert_with(|| json!([]));
            wanted.as_array_mut().into_iter().for_each(|all| all.extend(values.split(',').map(Value::from)));
        }
        let filters = if filters.is_empty() { Value::Null } else { filters.into() };
        Ok(json!({
            "service": self.service, "type": self.type_name, kind: self.name, "group_by": self.by, "where": filters,
        }))
    }
}

impl Object {
    fn members(self) -> Value {
        json!({ "service": self.service, "object": self.object, "attribute": self.attribute })
    }
}

impl Range {
    fn members(self, now: Timestamp) -> Result<Map<String, Value>, Failure> {
        let from = match &self.last {
            Some(last) => {
                let Some(Span(last)) = Span::parse(last).filter(|Span(last)| !last.is_zero()) else {
                    return Err(Failure::usage(format!(
                        "--last {last}: expected a duration such as 90m, 24h or 7d"
                    )));
                };
                let end = self.to.as_deref().map_or(Some(now), Timestamp::parse);
                let end = end.ok_or_else(|| {
                    Failure::usage("--to: expected a time such as 2026-01-31T09:30:00Z".to_owned())
                })?;
                let last = i64::try_from(last.as_millis()).unwrap_or(i64::MAX);
                Some(Timestamp::from_ms(end.as_ms().saturating_sub(last)).to_string())
            }
            None => self.from,
        };
        let fill = self.sparse.then_some("none");
        let members = json!({
            "from": from, "to": self.to, "every": self.every, "fill": fill, "limit": self.limit, "cursor": self.cursor,
        });
        let Value::Object(members) = members else { return Ok(Map::new()) };
        Ok(members)
    }
}
