//! Gates: named rates that any number of subscribers and clients share.
//!
//! A [`Gate`] is what its owner says: how many over time, and how many at once. What it has left stands in a [`Reservoir`],
//! here or with all replicas together; these draw from a [`Basin`].
//!
//! Does not: wait, or know who waits ([`crate::schedule`] does).

mod basin;
mod reservoir;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{GATE_BURST_MAX, GATE_NAME_BYTES_MAX, RATE_PER_SECOND_MAX};
use crate::subscriber::{Invalid, Rate, read};

pub use basin::{Basin, Caller, Front, Given};
pub(crate) use reservoir::eighths;
pub use reservoir::{ASTRAY_US, Flow, PENALTY_MAX_US, Reservoir, STEP_US, Standing, TOKEN};

/// What the owner of a gate says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// How many over time.
    pub rate: Rate,
    /// How many at once, after a rest.
    pub burst: u32,
}

/// One object on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    rate: Rate,
    burst: Option<u32>,
}

impl Gate {
    /// Reads the body of a request.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
        let Form { rate, burst } = read(body)?;
        if u64::from(rate.count) > u64::from(RATE_PER_SECOND_MAX) * rate.per.as_secs() {
            let detail = format!("`rate` is at most {RATE_PER_SECOND_MAX}/s");
            return Err(Invalid::new("field_range", "rate", detail));
        }
        let burst = burst.unwrap_or_else(|| rate.burst());
        if !(1..=GATE_BURST_MAX).contains(&burst) {
            let detail = format!("`burst` is 1 to {GATE_BURST_MAX}; leave it out for one second's worth");
            return Err(Invalid::new("field_range", "burst", detail));
        }
        Ok(Self { rate, burst })
    }
}

/// What a gate may be called: it stands in paths, files and logs.
pub fn check_name(name: &str, field: &str) -> Result<(), Invalid> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    // As a step of a path the two mean something else, and clients take them out.
    let is_step = matches!(name, "." | "..");
    if !name.is_empty() && name.len() <= GATE_NAME_BYTES_MAX && name.chars().all(legal) && !is_step {
        return Ok(());
    }
    let detail = format!(
        "the name of a gate has 1 to {GATE_NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`, and is not `.` or `..`"
    );
    Err(Invalid::new("id_invalid", field, detail))
}

/// How long somebody who comes now would wait at a gate where so many are waiting: zero while it is calm.
pub fn pressure(flow: Flow, standing: Standing, waiting: usize) -> Duration {
    let ahead = u32::try_from(waiting).unwrap_or(u32::MAX).saturating_sub(standing.tokens);
    standing.penalized_for.saturating_add(flow.interval(standing.eighths.max(1)).saturating_mul(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(body: &str) -> Option<String> {
        Gate::parse(body.as_bytes()).unwrap_err().field
    }

    #[test]
    fn a_burst_is_a_seconds_worth_unless_it_is_said() {
        let burst = |body: &str| Gate::parse(body.as_bytes()).unwrap().burst;
        assert_eq!(burst(r#"{"rate":"3/s"}"#), 3);
        assert_eq!(burst(r#"{"rate":"30/m"}"#), 1);
        assert_eq!(burst(r#"{"rate":"3/s","burst":10}"#), 10);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_field() {
        assert_eq!(field("{}").as_deref(), Some("rate"));
        assert_eq!(field(r#"{"rate":"0/s"}"#).as_deref(), Some("rate"));
        assert_eq!(field(r#"{"rate":"100001/s"}"#).as_deref(), Some("rate"));
        assert_eq!(field(r#"{"rate":"3/s","burst":0}"#).as_deref(), Some("burst"));
        assert_eq!(field(r#"{"rate":"3/s","burst":100001}"#).as_deref(), Some("burst"));
        assert_eq!(field(r#"{"rate":"3/s","name":"x"}"#).as_deref(), Some("name"));
    }

    #[test]
    fn a_calm_gate_has_no_pressure() {
        let flow = Flow::from(Gate::parse(br#"{"rate":"4/s"}"#).unwrap());
        let calm = Standing { tokens: 2, eighths: 8, ..Standing::default() };
        assert_eq!(pressure(flow, calm, 2), Duration::ZERO);
        assert_eq!(pressure(flow, calm, 6), Duration::from_secs(1));
        let slow = Standing { eighths: 1, ..Standing::default() };
        assert_eq!(pressure(flow, slow, 2), Duration::from_secs(4));
        let shut = Standing { penalized_for: Duration::from_secs(9), ..Standing::default() };
        assert_eq!(pressure(flow, shut, 0), Duration::from_secs(9));
    }

    #[test]
    fn names_are_plain() {
        for name in ["notion", "a.b-c_D9"] {
            check_name(name, "gate").unwrap();
        }
        for name in ["", "a b", "é", "a/b", ".", "..", &"x".repeat(65)] {
            assert!(check_name(name, "gate").is_err(), "{name}");
        }
    }
}
