//! Random JSON text, written by hand so that it keeps what a serialiser would tidy away: white space between
//! tokens, escapes that need not be escaped, numbers longer than any machine number.

use crate::prng::Prng;

const DEPTH_MAX: u32 = 6;
const WIDTH_MAX: u64 = 5;
const SPACES: [&str; 6] = ["", "", "", " ", "\n\t", " \r\n  "];
const PIECES: [&str; 16] = [
    "a",
    "Z",
    "0",
    " ",
    "é",
    "ß",
    "漢字",
    "🌊",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\u0041",
    "\\u0000",
    "\\ud83c\\udf0a",
    "\u{2028}",
];
const NUMBERS: [&str; 14] = [
    "0",
    "-0",
    "-1",
    "42",
    "1.0",
    "0.1",
    "-3.25e-7",
    "1E+5",
    "5e-324",
    "1.7976931348623157e308",
    "9007199254740993",
    "18446744073709551616",
    "-170141183460469231731687303715884105729",
    "3.141592653589793238462643383279502884197",
];

/// One JSON value as text, without white space around it.
pub(super) fn value(prng: &mut Prng) -> String {
    let mut text = String::new();
    write_value(prng, &mut text, 0);
    text
}

fn write_value(prng: &mut Prng, text: &mut String, depth: u32) {
    let kinds = if depth < DEPTH_MAX { 8 } else { 5 };
    match prng.below(kinds) {
        0 => text.push_str(prng.pick(&["null", "true", "false", "{}", "[]", "{ }", "[\n]", "\"\""])),
        1 => text.push_str(prng.pick(&NUMBERS)),
        2 => text.push_str(&prng.next().cast_signed().to_string()),
        3 | 4 => write_string(prng, text),
        5 => write_list(prng, text, ('[', ']'), |prng, text| write_value(prng, text, depth + 1)),
        _ => write_list(prng, text, ('{', '}'), |prng, text| {
            write_string(prng, text);
            write_space(prng, text);
            text.push(':');
            write_space(prng, text);
            write_value(prng, text, depth + 1);
        }),
    }
}

fn write_list(
    prng: &mut Prng,
    text: &mut String,
    brackets: (char, char),
    mut item: impl FnMut(&mut Prng, &mut String),
) {
    text.push(brackets.0);
    for index in 0..=prng.below(WIDTH_MAX) {
        if index > 0 {
            text.push(',');
        }
        write_space(prng, text);
        item(prng, text);
        write_space(prng, text);
    }
    text.push(brackets.1);
}

fn write_string(prng: &mut Prng, text: &mut String) {
    text.push('"');
    for _ in 0..prng.below(12) {
        text.push_str(prng.pick(&PIECES));
    }
    text.push('"');
}

fn write_space(prng: &mut Prng, text: &mut String) {
    text.push_str(prng.pick(&SPACES));
}

#[cfg(test)]
mod tests {
    use super::value;
    use crate::prng::Prng;

    #[test]
    fn every_body_is_json_and_trimmed() {
        let mut prng = Prng::new(3);
        for _ in 0..2_000 {
            let text = value(&mut prng);
            assert_eq!(text, text.trim());
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        }
    }
}
