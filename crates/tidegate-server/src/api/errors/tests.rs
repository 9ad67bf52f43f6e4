//! Goal: every code that the sources use has its line, and the page says so. Method: read the sources and the page.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

/// The same table as a page for those who read the sources.
#[test]
fn the_page_is_this_table() {
    let mut page = "# Errors\n\nEvery error is `application/problem+json` with a stable `code`. This page is made from the table in \
         `api/errors.rs`; a running server shows it at `/docs/errors`.\n\n| code | cause | remedy |\n|---|---|---|\n"
        .to_owned();
    for ErrorCode { code, cause, remedy } in ERRORS {
        page.push_str(&format!("| `{code}` | {cause} | {remedy} |\n"));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/errors.md is out of date: BLESS=1 cargo test -p tidegate-server --lib");
}

/// The calls whose first text is a code.
const CALLS: [&str; 12] = [
    "Problem::new(",
    "Problem::invalid(",
    "Problem::conflict(",
    "Problem::unavailable(",
    "Self::conflict(",
    "Self::unavailable(",
    "Refusal::new(",
    "Refusal::invalid(",
    "Invalid::new(",
    "code: ",
    "(\"invalid type\", ",
    "(\"unknown variant\", ",
];

/// Every source file of the crates that make problems, tests aside.
fn sources() -> Vec<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let mut folders = vec![crates.join("tidegate-core/src"), crates.join("tidegate-server/src")];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let is_other = path.file_name().is_some_and(|name| name == "tests" || name == "errors.rs");
            match path.extension() {
                _ if is_other => {}
                None => folders.push(path),
                Some(kind) if kind == "rs" => texts.push(std::fs::read_to_string(path).expect("a text")),
                Some(_) => {}
            }
        }
    }
    texts
}

/// The first text after a call, if it reads like a code.
fn code(after: &str) -> Option<&str> {
    let text = after.split('"').nth(1)?;
    let is_near = after.find('"')? < 60 && !after.split('"').next()?.contains(['{', ';']);
    let is_code = text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_near && is_code).then_some(text)
}

#[test]
fn every_code_in_the_sources_has_its_line() {
    let known: BTreeSet<&str> = ERRORS.iter().map(|error| error.code).collect();
    let mut used = BTreeSet::new();
    let sources = sources();
    for text in &sources {
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for call in CALLS {
            used.extend(text.match_indices(call).filter_map(|(at, _)| code(&text[at + call.len()..])));
        }
    }
    let missing: Vec<_> = used.difference(&known).collect();
    assert!(missing.is_empty(), "without a line in errors.rs: {missing:?}");
    assert!(used.len() > 50, "the search finds codes");
    for error in ERRORS {
        let literal = format!("\"{}\"", error.code);
        assert!(sources.iter().any(|text| text.contains(&literal)), "{} is not used any more", error.code);
    }
}

#[test]
fn every_line_says_cause_and_remedy_once() {
    assert!(ERRORS.is_sorted_by(|a, b| a.code < b.code), "in order of the alphabet, each once");
    for error in ERRORS {
        assert!(error.cause.ends_with('.') && error.remedy.ends_with('.'), "{}", error.code);
    }
}
