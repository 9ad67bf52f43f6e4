//! Draws answers about metrics: a row for each point with a bar, or a line for each series.
//!
//! Reads what `POST /v1/query/…` answers, of any kind. Bars and lines are of the count, of histograms of the first
//! percentile. Does not: ask.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::output::{self, plain};

/// Characters of the longest bar.
const BAR_WIDTH: usize = 24;
/// Characters of a line over time.
const LINE_WIDTH: usize = 60;
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One point of an answer, ready to be drawn.
struct Point<'a> {
    /// When its bucket begins; empty for one moment.
    from: &'a str,
    /// Names and texts of what keeps it apart.
    key: Vec<(String, String)>,
    /// Names and texts of its numbers.
    numbers: Vec<(String, String)>,
    height: f64,
}

/// A row for each point.
pub(crate) fn table(answer: &Value) -> String {
    let points = points_of(answer);
    let Some(first) = points.first() else { return nothing(answer) };
    let has_times = points.iter().any(|point| !point.from.is_empty());
    let names = first.key.iter().chain(&first.numbers).map(|(name, _)| name.to_uppercase());
    let mut header: Vec<String> = has_times.then(|| "FROM".to_owned()).into_iter().chain(names).collect();
    header.push(String::new());
    let highest = points.iter().map(|point| point.height).fold(0.0, f64::max);
    let rows: Vec<Vec<String>> = points
        .iter()
        .map(|point| {
            let time = has_times.then(|| brief(point.from));
            let texts = point.key.iter().chain(&point.numbers).map(|(_, text)| text.clone());
            time.into_iter().chain(texts).chain([bar(point.height, highest)]).collect()
        })
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut text = output::table(&header, &rows, None);
    if let Some(next) = answer["next"].as_str() {
        text.push_str(&format!("\n\nThere is more: --cursor {}", plain(next)));
    }
    text
}

/// A line for each series.
pub(crate) fn lines(answer: &Value) -> String {
    let mut series: BTreeMap<Vec<(String, String)>, BTreeMap<&str, f64>> = BTreeMap::new();
    let points = points_of(answer);
    let times: Vec<&str> =
        answer["buckets"].as_array().into_iter().flatten().filter_map(|b| b["from"].as_str()).collect();
    for point in &points {
        series.entry(point.key.clone()).or_default().insert(point.from, point.height);
    }
    let Some(key) = series.keys().next() else { return nothing(answer) };
    let mut header: Vec<String> = key.iter().map(|(name, _)| name.to_uppercase()).collect();
    header.extend(["LOWEST", "HIGHEST", "LAST", ""].map(str::to_owned));
    let highest = points.iter().map(|point| point.height).fold(0.0, f64::max);
    let rows: Vec<Vec<String>> = series
        .iter()
        .map(|(key, by_time)| {
            let heights: Vec<f64> =
                times.iter().map(|time| by_time.get(time).copied().unwrap_or(0.0)).collect();
            let heights = if heights.is_empty() { by_time.values().copied().collect() } else { heights };
            let lowest = heights.iter().copied().fold(f64::INFINITY, f64::min);
            let most = heights.iter().copied().fold(0.0, f64::max);
            let last = heights.last().copied().unwrap_or(0.0);
            let numbers = [lowest, most, last].map(short);
            key.iter().map(|(_, text)| text.clone()).chain(numbers).chain([line(&heights, highest)]).collect()
        })
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let ends = times.first().zip(times.last());
    let range = ends.map_or_else(String::new, |(first, last)| {
        let every = answer["every"].as_str().unwrap_or("-");
        format!("\n\n{} to {}, every {}", brief(first), brief(last), plain(every))
    });
    format!("{}{range}", output::table(&header, &rows, None))
}

fn nothing(answer: &Value) -> String {
    let until = answer["complete_until"].as_str().unwrap_or("now");
    format!("Nothing was counted there (up to {}).", brief(until))
}

fn points_of(answer: &Value) -> Vec<Point<'_>> {
    let moment = answer.get("states").into_iter().map(|list| ("", list));
    let buckets = answer["buckets"].as_array().into_iter().flatten().filter_map(|bucket| {
        let list = ["series", "states", "transitions"].into_iter().find_map(|name| bucket.get(name))?;
        Some((bucket["from"].as_str()?, list))
    });
    let lists = moment.chain(buckets);
    lists
        .flat_map(|(from, list)| list.as_array().into_iter().flatten().map(move |item| point_of(from, item)))
        .collect()
}

fn point_of<'a>(from: &'a str, item: &'a Value) -> Point<'a> {
    let texts = |value: &Value| -> Vec<(String, String)> {
        let members = value.as_object().into_iter().flatten();
        members.map(|(name, value)| (name.clone(), text_of(value))).collect()
    };
    let (mut key, mut numbers) = (texts(&item["key"]), Vec::new());
    for (name, value) in item.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("key" | "percentiles", _) => {}
            // What was added up is exact, to the last digit.
            ("sum", _) => numbers.push((name.clone(), value.to_string())),
            (_, Value::String(_)) => key.push((name.clone(), text_of(value))),
            _ => numbers.push((name.clone(), text_of(value))),
        }
    }
    let place = |name: &str| ["count", "sum", "mean", "min", "max"].iter().position(|known| *known == name);
    numbers.sort_by_key(|(name, _)| place(name));
    let percentiles = texts(&item["percentiles"]);
    let tallest = percentiles.first().map(|(name, _)| &item["percentiles"][name]).unwrap_or(&item["count"]);
    let height = tallest.as_f64().unwrap_or(0.0);
    numbers.extend(percentiles.into_iter().map(|(name, text)| (format!("p{name}"), text)));
    Point { from, key, numbers, height }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => short(number.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

/// A number as people read it: six digits are enough.
fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0 } else { (5 - value.abs().log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// `2026-01-31 09:30:00`, without what is zero at the end.
fn brief(time: &str) -> String {
    plain(&time.trim_end_matches('Z').trim_end_matches(".000").replace('T', " "))
}

fn bar(height: f64, highest: f64) -> String {
    if height <= 0.0 || highest <= 0.0 {
        return String::new();
    }
    let eighths = ((height / highest) * (BAR_WIDTH * 8) as f64).ceil() as usize;
    let (full, rest) = (eighths / 8, eighths % 8);
    let part = rest.checked_sub(1).map(|rest| EIGHTHS[rest]);
    std::iter::repeat_n('█', full).chain(part).collect()
}

/// Heights over time; where there are more than fit, the highest of each part.
fn line(heights: &[f64], highest: f64) -> String {
    let part = heights.len().div_ceil(LINE_WIDTH).max(1);
    let step = |heights: &[f64]| {
        let height = heights.iter().copied().fold(0.0, f64::max);
        if height <= 0.0 || highest <= 0.0 {
            return ' ';
        }
        STEPS[((height / highest * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    heights.chunks(part).map(step).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bucket(from: &str, de: u64, fr: u64) -> Value {
        json!({"from": from, "to": "", "series": [
            {"key": {"data.country": "DE"}, "count": de, "sum": 41.5},
            {"key": {"data.country": "FR"}, "count": fr, "sum": 0},
        ]})
    }

    fn answer() -> Value {
        let buckets = [("2026-01-31T09:30:00.000Z", 8, 0), ("2026-01-31T09:31:00.000Z", 1, 4)];
        let buckets: Vec<Value> = buckets.into_iter().map(|(from, de, fr)| bucket(from, de, fr)).collect();
        json!({"every": "1m", "complete_until": "2026-01-31T09:32:00.000Z", "points": 4, "buckets": buckets, "next": "n1"})
    }

    #[test]
    fn points_are_rows_with_bars() {
        let expected = "\
FROM                 DATA.COUNTRY  COUNT  SUM
2026-01-31 09:30:00  DE            8      41.5  ████████████████████████
2026-01-31 09:30:00  FR            0      0
2026-01-31 09:31:00  DE            1      41.5  ███
2026-01-31 09:31:00  FR            4      0     ████████████

There is more: --cursor n1";
        assert_eq!(table(&answer()), expected);
    }

    #[test]
    fn series_are_lines_over_time() {
        let expected = "\
DATA.COUNTRY  LOWEST  HIGHEST  LAST
DE            1       8        1     █▁
FR            0       4        4      ▄

2026-01-31 09:30:00 to 2026-01-31 09:31:00, every 1m";
        assert_eq!(lines(&answer()), expected);
    }

    #[test]
    fn moments_histograms_and_nothing_are_drawn_too() {
        let states =
            json!({"at": null, "states": [{"state": "NEW", "count": 1}, {"state": "PAID", "count": 3}]});
        assert_eq!(
            table(&states),
            "STATE  COUNT\nNEW    1      ████████\nPAID   3      ████████████████████████"
        );
        let series = json!([{"key": {}, "count": 2, "sum": 3, "mean": 1.5, "min": 1.0, "max": 2.0, "percentiles": {"0.5": 1.000_000_4}}]);
        let histogram = json!({"buckets": [{"from": "2026-01-31T00:00:00.000Z", "series": series}]});
        let expected = "\
FROM                 COUNT  SUM  MEAN  MIN  MAX  P0.5
2026-01-31 00:00:00  2      3    1.5   1    2    1     ████████████████████████";
        assert_eq!(table(&histogram), expected);
        let empty = json!({"complete_until": "2026-01-31T09:32:00.000Z", "buckets": []});
        assert_eq!(table(&empty), "Nothing was counted there (up to 2026-01-31 09:32:00).");
        assert_eq!(lines(&empty), table(&empty));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1234.5678, "1234.57"),
            (0.000_123_456_7, "0.000123457"),
            (-2.5, "-2.5"),
            (1e18, "1000000000000000000"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn long_lines_are_cut_to_their_peaks() {
        let heights: Vec<f64> = (0..240).map(|at| if at == 200 { 9.0 } else { 0.0 }).collect();
        let line = line(&heights, 9.0);
        assert_eq!(line.chars().count(), 60);
        assert_eq!(line.trim(), "█");
    }
}
