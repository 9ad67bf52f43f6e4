//! Fuzzing on a stable compiler: whatever bytes come, a parser answers, and what it lets through keeps its promises.
//!
//! A target is a corpus, a vocabulary and a check that panics when a promise is broken. Every case is made from its own
//! number: pieces of the corpus, changed a few times. There is no coverage to guide it; the corpus and the vocabulary
//! know the formats instead. A test run tries a few thousand cases of each target; `cargo xtask fuzz` goes on for as
//! long as it is told. A case that fails prints the line that repeats it.

mod chance;
mod mutate;
mod targets;

use std::time::{Duration, Instant};

use chance::Chance;
use mutate::mutate;
use targets::Target;

/// Cases of each target in an ordinary test run.
const CASES: u64 = 3_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Tells how to repeat the case that is under way when the thread unwinds.
struct Case<'a> {
    target: &'a str,
    number: u64,
    input: &'a [u8],
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.input.escape_ascii().to_string();
            let shown: String = shown.chars().take(2_000).collect();
            eprintln!("{} failed on case {}: {shown}", self.target, self.number);
            eprintln!("repeat it: cargo xtask fuzz {} --from {} --cases 1", self.target, self.number);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long to fuzz is told in real time")]
fn fuzz(target: &Target) {
    let began = Instant::now();
    let from = number("TIDEGATE_FUZZ_FROM").unwrap_or(0);
    let cases = number("TIDEGATE_FUZZ_CASES").unwrap_or(CASES);
    let time = number("TIDEGATE_FUZZ_SECONDS").map(Duration::from_secs);
    let mut tried = 0;
    while time.map_or(tried < cases, |time| began.elapsed() < time) {
        let case = from + tried;
        let mut chance = Chance::new(case);
        let input = mutate(target.corpus, target.words, &mut chance);
        let _case = Case { target: target.name, number: case, input: &input };
        (target.check)(&input, &mut chance);
        tried += 1;
    }
    println!("{}: {tried} cases from {from} on", target.name);
}

#[test]
fn bodies() {
    fuzz(&targets::BODIES);
}

#[test]
fn headers() {
    fuzz(&targets::HEADERS);
}

#[test]
fn urls() {
    fuzz(&targets::URLS);
}

#[test]
fn conditions() {
    fuzz(&targets::CONDITIONS);
}

#[test]
fn signatures() {
    fuzz(&targets::SIGNATURES);
}

#[test]
fn subscribers() {
    fuzz(&targets::SUBSCRIBERS);
}

#[test]
fn settings() {
    fuzz(&targets::SETTINGS);
}
