//! Regular expressions as JSON Schema writes them, for an engine of linear time.
//!
//! The standard names ECMA-262's dialect. The two agree on nearly everything people write in schemas; where one
//! spelling means two things (`\d` is ten digits there and several hundred here) it is translated. What needs
//! backtracking is refused.

use regex::{Regex, RegexBuilder};

use crate::limits::SCHEMA_REGEX_BYTES_MAX;

/// Compiles a pattern, or says why it can not be.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(&translate(pattern))
        .size_limit(SCHEMA_REGEX_BYTES_MAX)
        .dfa_size_limit(SCHEMA_REGEX_BYTES_MAX)
        .build()
        .map_err(|error| explain(&error))
}

fn explain(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => {
            format!("the pattern needs more than {SCHEMA_REGEX_BYTES_MAX} bytes when compiled; simplify it")
        }
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("the pattern can not be used: {last}")
        }
    }
}

fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut in_class = false;
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => escape(&mut out, letters.next(), in_class),
            '[' if in_class => out.push_str("\\["),
            '[' => {
                in_class = true;
                out.push('[');
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            // Two of these are operators of our engine's classes.
            '&' | '~' if in_class => out.extend(['\\', letter]),
            other => out.push(other),
        }
    }
    out
}

fn escape(out: &mut String, letter: Option<char>, in_class: bool) {
    let text = match letter {
        Some('d') => "[0-9]",
        Some('D') => "[^0-9]",
        Some('w') => "[A-Za-z0-9_]",
        Some('W') => "[^A-Za-z0-9_]",
        Some('b') if in_class => "\\x08",
        Some('b') => "(?-u:\\b)",
        Some('/') => "/",
        Some(other) => {
            out.extend(['\\', other]);
            return;
        }
        None => "\\",
    };
    out.push_str(text);
}
