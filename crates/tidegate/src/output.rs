//! What a command prints on stdout: tables for people, JSON for programs.
//!
//! JSON is the default when stdout is no terminal, or with `--json`; then an answer of the API is passed on byte
//! for byte. Text that comes from elsewhere is stripped of control characters before a terminal sees it, because
//! an event's type may well contain an escape sequence. `NO_COLOR` is honoured.
//! Does not: print errors (see `failure.rs`).

use std::io::{self, IsTerminal, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde_json::Value;

/// Where and how a command prints its result.
pub(crate) struct Output {
    /// One JSON document (or one per line) instead of text for people.
    pub(crate) json: bool,
    /// Colours, if the terminal may have them.
    pub(crate) paint: Paint,
}

impl Output {
    /// Decides by the flag and by what stdout is.
    pub(crate) fn new(json_wanted: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { json: json_wanted || !terminal, paint: Paint::for_stream(terminal) }
    }

    /// Prints one line and makes sure it is out.
    #[expect(clippy::unused_self, reason = "printing belongs to the one who decides how")]
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{text}")?;
        stdout.flush()
    }

    /// Prints an answer of the API as it came, on lines of its own.
    pub(crate) fn raw(&self, body: &[u8]) -> io::Result<()> {
        self.line(String::from_utf8_lossy(body).trim_end())
    }
}

/// Below this a last column is not squeezed: on a narrow terminal a line that goes on is easier to read than a word a
/// letter a line.
const LAST_COLUMN_MIN: usize = 32;

/// Lays rows out under a header. Only the last column wraps at `width` (or the terminal's edge): the others hold
/// ids, which people copy.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if let Some(width) = width {
        table.set_width(width);
    }
    table.set_header(header.iter().map(|title| (*title).to_owned()));
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell)));
    }
    let last = header.len().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        } else {
            let longest = rows.iter().filter_map(|row| row.last()).map(|cell| cell.chars().count()).max();
            let least = longest.unwrap_or(0).clamp(header[last].len(), LAST_COLUMN_MIN) + 2;
            let least = u16::try_from(least).unwrap_or(u16::MAX);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
        }
    }
    table.trim_fmt()
}

/// A member of a JSON object as a cell: nested members by a dotted path, `-` for what is not there, the number
/// of objects for an array of them.
pub(crate) fn cell(item: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(item, |value, name| value.get(name));
    match found {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) if items.iter().any(Value::is_object) => items.len().to_string(),
        Some(Value::Array(items)) => items.iter().map(brief).collect::<Vec<_>>().join(","),
        Some(other) => other.to_string(),
    }
}

fn brief(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Text without control characters and without marks that reorder a line, each replaced by `�`.
pub(crate) fn plain(text: &str) -> String {
    let steers = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// The few colours that mean something.
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    /// It went wrong.
    Red = 31,
    /// It went well.
    Green = 32,
    /// Beside the point.
    Grey = 90,
}

/// Colours text, or leaves it alone.
#[derive(Clone, Copy)]
pub(crate) struct Paint(bool);

impl Paint {
    /// Colours for a terminal, unless `NO_COLOR` is set to something.
    pub(crate) fn for_stream(is_terminal: bool) -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(is_terminal && !unwanted)
    }

    /// The text in a colour.
    pub(crate) fn text(self, colour: Colour, text: &str) -> String {
        if self.0 { format!("\u{1b}[{}m{text}\u{1b}[0m", colour as u8) } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_keeps_ids_whole_and_wraps_the_last_column_only() {
        let rows = vec![
            vec![
                "sub_0123456789".to_owned(),
                "held".to_owned(),
                "the receiver said gone, and that it will not come back".to_owned(),
            ],
            vec!["sub_1".to_owned(), "delivered".to_owned(), "1 attempt".to_owned()],
        ];
        let expected = "\
SUBSCRIBER      OUTCOME    REASON
sub_0123456789  held       the receiver said gone, and that
                           it will not come back
sub_1           delivered  1 attempt";
        for narrow in [20, 42, 61] {
            assert_eq!(
                table(&["SUBSCRIBER", "OUTCOME", "REASON"], &rows, Some(narrow)),
                expected,
                "{narrow}"
            );
        }
    }

    #[test]
    fn a_cell_can_not_write_escapes_to_the_terminal() {
        let rows = vec![vec!["a\u{1b}[31mb\nc\u{202e}".to_owned()]];
        assert_eq!(table(&["X"], &rows, None), "X\na\u{fffd}[31mb\u{fffd}c\u{fffd}");
    }

    #[test]
    fn cells_follow_dotted_paths() {
        let item = json!({"a":{"b":"x"},"n":3,"list":["p","q"],"none":null,"yes":true,"tries":[{},{}]});
        for (path, expected) in [
            ("a.b", "x"),
            ("n", "3"),
            ("list", "p,q"),
            ("none", "-"),
            ("a.c", "-"),
            ("yes", "true"),
            ("tries", "2"),
        ] {
            assert_eq!(cell(&item, path), expected, "{path}");
        }
    }

    #[test]
    fn paint_is_silent_off_a_terminal() {
        assert_eq!(Paint(false).text(Colour::Red, "x"), "x");
        assert_eq!(Paint(true).text(Colour::Red, "x"), "\u{1b}[31mx\u{1b}[0m");
    }
}
