//! What the server said about each event, counted.
//!
//! The counts come from `results`, which holds one entry per event sent, because a lone conflict answers 409 and
//! has nothing else. Only the first results that are not plain successes are kept: memory does not grow with the
//! file.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::failure::{Exit, Failure};
use crate::output::{Colour, Paint, cell, plain};

/// Conflicts and quarantined events that are named; more are only counted.
const NAMED_MAX: usize = 100;

/// Counts over all requests of one command.
#[derive(Default)]
pub(super) struct Tally {
    accepted: usize,
    duplicates: usize,
    /// Same source and id, other content.
    pub(super) conflicts: usize,
    quarantined: usize,
    first: Option<Value>,
    named: Vec<Value>,
}

impl Tally {
    /// Whether the answer says what became of each event, whatever its status.
    pub(super) fn can_read(answer: &Answer) -> bool {
        answer.json().is_ok_and(|body| body.get("results").is_some_and(Value::is_array))
    }

    /// Adds the results of one request.
    pub(super) fn add(&mut self, answer: &Answer) -> Result<(), Failure> {
        let body = answer.json()?;
        let Some(results) = body.get("results").and_then(Value::as_array) else {
            return Err(Failure::new(Exit::Failed, "the server's answer names no results")
                .detail(format!("HTTP {}: {}", answer.status.as_u16(), cell(&body, "title")))
                .fix("check that --url names a Tidegate server"));
        };
        for result in results {
            self.add_one(result);
        }
        Ok(())
    }

    fn add_one(&mut self, result: &Value) {
        match result.get("status").and_then(Value::as_str) {
            Some("accepted") => self.accepted += 1,
            Some("duplicate") => self.duplicates += 1,
            Some("conflict") => self.conflicts += 1,
            _ => self.quarantined += 1,
        }
        let went_in = self.accepted + self.duplicates;
        if self.first.is_none() {
            self.first = Some(result.clone());
        }
        if self.counted() - went_in > self.named.len() && self.named.len() < NAMED_MAX {
            self.named.push(result.clone());
        }
    }

    /// Events that were answered at all.
    pub(super) fn counted(&self) -> usize {
        self.accepted + self.duplicates + self.conflicts + self.quarantined
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let mut summary = json!({
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "conflicts": self.conflicts,
            "quarantined": self.quarantined,
            "refused": self.named,
        });
        if self.counted() == 1 {
            summary["results"] = json!([self.first]);
        }
        summary
    }

    /// For people.
    pub(super) fn text(&self, paint: Paint) -> String {
        let mark = if self.conflicts > 0 { (Colour::Red, "✗") } else { (Colour::Green, "✓") };
        let mut text = format!(
            "{} {} accepted, {} duplicate, {} in conflict, {} quarantined",
            paint.text(mark.0, mark.1),
            self.accepted,
            self.duplicates,
            self.conflicts,
            self.quarantined
        );
        for result in &self.named {
            let line =
                format!("{}  {}  {}", cell(result, "status"), cell(result, "id"), cell(result, "reason"));
            text.push_str(&format!("\n  {}", plain(&line)));
        }
        let unnamed = self.conflicts + self.quarantined - self.named.len();
        if unnamed > 0 {
            text.push_str(&format!("\n  and {unnamed} more"));
        }
        if let (1, 1, Some(first)) = (self.counted(), self.accepted, &self.first) {
            let hint = format!("\n  see what becomes of it: tidegate trace {}", plain(&cell(first, "id")));
            text.push_str(&paint.text(Colour::Grey, &hint));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(results: &Value) -> Tally {
        let mut tally = Tally::default();
        for result in results.as_array().expect("an array") {
            tally.add_one(result);
        }
        tally
    }

    #[test]
    fn a_lone_event_is_named_with_the_next_command() {
        let tally = tally(&json!([{"id":"e1","status":"accepted"}]));
        let expected = "\
✓ 1 accepted, 0 duplicate, 0 in conflict, 0 quarantined
  see what becomes of it: tidegate trace e1";
        assert_eq!(tally.text(Paint::for_stream(false)), expected);
        assert_eq!(
            tally.json(),
            json!({"accepted":1,"duplicates":0,"conflicts":0,"quarantined":0,"refused":[],
                   "results":[{"id":"e1","status":"accepted"}]})
        );
    }

    #[test]
    fn what_did_not_go_in_is_named_with_its_reason() {
        let tally = tally(&json!([
            {"id":"a","status":"duplicate"},
            {"id":"b","status":"conflict"},
            {"id":"c","status":"quarantined","reason":"FUTURE_TIME"},
            {"id":"d","status":"duplicate"}
        ]));
        let expected = "\
✗ 0 accepted, 2 duplicate, 1 in conflict, 1 quarantined
  conflict  b  -
  quarantined  c  FUTURE_TIME";
        assert_eq!(tally.text(Paint::for_stream(false)), expected);
    }

    #[test]
    fn only_the_first_refusals_are_kept() {
        let many: Vec<Value> = (0..150).map(|n| json!({"id":n.to_string(),"status":"conflict"})).collect();
        let tally = tally(&Value::Array(many));
        assert_eq!(tally.conflicts, 150);
        assert_eq!(tally.named.len(), NAMED_MAX);
        assert!(tally.text(Paint::for_stream(false)).ends_with("\n  and 50 more"));
    }
}
