//! Rules about the text of Rust files: the opening story, the length, and what must never be committed.
//!
//! Needles are written in two halves so that this file obeys its own rules.

use super::{Problem, Source};

/// Longer files hide their structure; tests count too.
const FILE_LINES_MAX: usize = 500;

/// Text that no Rust file may contain, and what to do instead.
const BANNED: [(&str, &str); 8] = [
    (concat!("FIX", "ME"), "fix it now, or write an issue"),
    (concat!("// TO", "DO"), "do it now, or write an issue"),
    (concat!("todo", "!("), "finish the function"),
    (concat!("unimple", "mented!("), "finish the function"),
    (concat!("db", "g!("), "remove it, or log with tracing"),
    (concat!("#[ig", "nore"), "make the test fast and sure, or delete it"),
    (concat!("#[al", "low("), "use #[expect(…, reason = \"…\")]"),
    (concat!("#![al", "low("), "use #[expect(…, reason = \"…\")]"),
];

/// Text that no test may contain: a test that waits for time is slow on a good day and wrong on a bad one.
const BANNED_IN_TESTS: [&str; 2] = [concat!("thread::sl", "eep"), concat!("tokio::time::sl", "eep(")];

/// Checks one file, if it is Rust.
pub(super) fn check(source: &Source, problems: &mut Vec<Problem>) {
    if !source.is_rust() {
        return;
    }
    let mut report = |line: usize, what: String, remedy: &'static str| {
        problems.push(Problem { path: source.path.clone(), line, what, remedy });
    };
    let Some(text) = source.text() else {
        report(1, "not UTF-8".to_owned(), "save it as UTF-8");
        return;
    };
    if !text.starts_with("//!") {
        report(1, "no story".to_owned(), "open the file with //! lines that say what it is for");
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        report(FILE_LINES_MAX + 1, format!("{lines} lines"), "split the file: 500 lines are the limit");
    }
    for (index, line) in text.lines().enumerate() {
        for (needle, remedy) in BANNED {
            if line.contains(needle) {
                report(index + 1, format!("`{needle}`"), remedy);
            }
        }
        for needle in BANNED_IN_TESTS {
            if is_test(&source.path) && line.contains(needle) {
                report(
                    index + 1,
                    format!("`{needle}` in a test"),
                    "wait for the thing itself, or inject the clock",
                );
            }
        }
    }
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}
