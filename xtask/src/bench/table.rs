//! The figures as a table for people and as JSON for whoever compares them later.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// What a figure must be.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Only for comparison.
    None,
}

/// One figure.
#[derive(Serialize)]
pub(crate) struct Row {
    figure: &'static str,
    what: String,
    measured: f64,
    unit: &'static str,
    goal: Goal,
    ok: bool,
}

impl Row {
    /// A figure of the group `figure`, measured in `unit`.
    pub(crate) fn new(
        figure: &'static str,
        what: impl Into<String>,
        measured: f64,
        unit: &'static str,
        goal: Goal,
    ) -> Self {
        let ok = match goal {
            Goal::AtLeast(least) => measured >= least,
            Goal::AtMost(most) => measured <= most,
            Goal::None => true,
        };
        Self { figure, what: what.into(), measured, unit, goal, ok }
    }

    fn line(&self) -> [String; 5] {
        let goal = match self.goal {
            Goal::AtLeast(least) => format!("≥ {}", number(least)),
            Goal::AtMost(most) => format!("≤ {}", number(most)),
            Goal::None => String::new(),
        };
        let verdict = match (self.goal, self.ok) {
            (Goal::None, _) => "",
            (_, true) => "ok",
            (_, false) => "MISS",
        };
        let measured = format!("{} {}", number(self.measured), self.unit);
        [self.figure.to_owned(), self.what.clone(), measured, goal, verdict.to_owned()]
    }
}

/// Prints all figures as a Markdown table with even columns.
pub(crate) fn print(rows: &[Row]) {
    let head = ["figure", "what", "measured", "goal", ""].map(str::to_owned);
    let lines: Vec<[String; 5]> = std::iter::once(head).chain(rows.iter().map(Row::line)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    for (index, line) in lines.iter().enumerate() {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
        if index == 0 {
            let rules = widths.iter().map(|width| "-".repeat(*width));
            println!("|-{}-|", rules.collect::<Vec<_>>().join("-|-"));
        }
    }
    let missed = rows.iter().filter(|row| !row.ok).count();
    println!(
        "{missed} of {} goals missed",
        rows.iter().filter(|row| !matches!(row.goal, Goal::None)).count()
    );
}

/// Writes all figures to a file.
pub(crate) fn write_json(rows: &[Row], path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, text + "\n").with_context(|| format!("can not write {}", path.display()))
}

/// The middle one of a few measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Three significant digits below a thousand, thousands set apart above.
fn number(value: f64) -> String {
    if value.abs() < 1000.0 {
        let digits: usize = if value == value.trunc() {
            0
        } else if value.abs() < 10.0 {
            3
        } else {
            1
        };
        return format!("{value:.digits$}");
    }
    let whole = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Goal, Row, median, number};

    #[test]
    fn numbers_are_short() {
        let texts: Vec<String> =
            [0.0, 0.16, 4.0, 4.3217, 56.78, 999.0, 25_000.4, 1_234_567.0].map(number).into();
        assert_eq!(texts, ["0", "0.160", "4", "4.322", "56.8", "999", "25 000", "1 234 567"]);
    }

    #[test]
    fn a_goal_decides() {
        assert!(Row::new("a", "", 0.16, "", Goal::AtLeast(0.16)).ok);
        assert!(!Row::new("a", "", 0.159, "", Goal::AtLeast(0.16)).ok);
        assert!(!Row::new("a", "", 10.1, "ms", Goal::AtMost(10.0)).ok);
        assert!(!Row::new("a", "", f64::NAN, "ms", Goal::AtMost(10.0)).ok);
        assert!(median(vec![3.0, 1.0, 2.0]) == 2.0);
    }
}
