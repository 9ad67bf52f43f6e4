//! The text of a scrape: families that are looked up rather than counted, and the two formats.
//!
//! What is counted is encoded as OpenMetrics. Scrapers that do not ask for that get the older text format of
//! Prometheus, in which a counter's family is named with its `_total` and there is no end mark.

use std::fmt::{Display, Write as _};

/// The kinds of families that are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up; its samples are named with `_total`.
    Counter,
}

const EOF: &str = "# EOF\n";

/// OpenMetrics text, to which families can be added.
pub struct Text(String);

impl Text {
    /// What was encoded, its end mark included.
    pub fn new(mut encoded: String) -> Self {
        if encoded.ends_with(EOF) {
            encoded.truncate(encoded.len() - EOF.len());
        }
        Self(encoded)
    }

    /// A family with one sample and no label.
    pub fn one(&mut self, kind: Kind, name: &str, help: &str, value: impl Display) {
        self.family(kind, name, help, [(String::new(), value)]);
    }

    /// A family with one label. Its values are ours, never a user's text: nothing is escaped here.
    pub fn labelled<V: Display>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        label: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        let samples = samples.into_iter().map(|(of, value)| (format!("{{{label}=\"{of}\"}}"), value));
        self.family(kind, name, help, samples);
    }

    fn family<V: Display>(
        &mut self,
        kind: Kind,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, V)>,
    ) {
        let (kind, suffix) = match kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(self.0, "{name}{suffix}{labels} {value}");
        }
    }

    /// As OpenMetrics.
    pub fn into_openmetrics(mut self) -> String {
        self.0.push_str(EOF);
        self.0
    }

    /// In the older format, without families that have no sample: a checker takes their help for a mistake.
    pub fn into_prometheus(self) -> String {
        let mut plain = String::with_capacity(self.0.len());
        let mut lines = self.0.lines().peekable();
        while let Some(line) = lines.next() {
            let Some(help) = line.strip_prefix("# HELP ") else {
                plain.push_str(line);
                plain.push('\n');
                continue;
            };
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            while lines.next_if(|line| line.starts_with("# UNIT ")).is_some() {}
            let kind =
                lines.next_if(|line| line.starts_with("# TYPE ")).and_then(|line| line.rsplit(' ').next());
            while lines.next_if(|line| line.starts_with("# UNIT ")).is_some() {}
            if lines.peek().is_none_or(|line| line.starts_with('#')) {
                continue;
            }
            let kind = kind.unwrap_or("untyped");
            let suffix = if kind == "counter" { "_total" } else { "" };
            let _ = writeln!(plain, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}");
        }
        plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let encoded = "# HELP a_x Things.\n# TYPE a_x counter\na_x_total 3\n# HELP a_f Failures.\n# TYPE a_f counter\n# EOF\n";
        let text = || {
            let mut text = Text::new(encoded.to_owned());
            text.one(Kind::Counter, "cpu_seconds", "Time", 1.5);
            text.labelled(Kind::Gauge, "b_bytes", "Sizes", "part", [("wal".to_owned(), 7)]);
            text
        };
        let openmetrics = text().into_openmetrics();
        assert!(openmetrics.starts_with(encoded.strip_suffix(EOF).unwrap()) && openmetrics.ends_with(EOF));
        assert_eq!(
            text().into_prometheus(),
            "# HELP a_x_total Things.\n# TYPE a_x_total counter\na_x_total 3\n\
             # HELP cpu_seconds_total Time.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 1.5\n\
             # HELP b_bytes Sizes.\n# TYPE b_bytes gauge\nb_bytes{part=\"wal\"} 7\n"
        );
    }
}
