//! Rules about where files lie and how they are called.

use std::collections::BTreeMap;

use super::{Problem, Source};

/// Drawers: names that say nothing about what is inside.
const BANNED_WORDS: [&str; 8] =
    ["util", "utils", "common", "helper", "helpers", "types", "models", "manager"];

/// A larger file that is not text belongs elsewhere: every clone pays for it for ever.
const BINARY_BYTES_MAX: usize = 100_000;

/// Checks one file's name and size.
pub(super) fn check(source: &Source, problems: &mut Vec<Problem>) {
    if source.is_rust()
        && let Some(word) = banned_word(&source.path)
    {
        problems.push(Problem {
            path: source.path.clone(),
            line: 1,
            what: format!("`{word}` in a name"),
            remedy: "name the file or module after what it does",
        });
    }
    if source.bytes.len() > BINARY_BYTES_MAX && source.bytes.contains(&0) {
        problems.push(Problem {
            path: source.path.clone(),
            line: 1,
            what: format!("a binary file of {} bytes", source.bytes.len()),
            remedy: "generate it, or keep it outside the repository",
        });
    }
}

/// The first drawer among the words that make up the path.
fn banned_word(path: &str) -> Option<&'static str> {
    let words = path.trim_end_matches(".rs").split(['/', '_', '-', '.']);
    let mut found = words.filter_map(|word| BANNED_WORDS.into_iter().find(|banned| *banned == word));
    found.next()
}

/// Every folder called `migrations` holds SQL files numbered 1, 2, 3 and so on.
pub(super) fn check_migrations(sources: &[Source], problems: &mut Vec<Problem>) {
    let mut folders: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".sql")) {
        if let Some((folder, _)) = source.path.rsplit_once('/')
            && (folder == "migrations" || folder.ends_with("/migrations"))
        {
            folders.entry(folder).or_default().push(source);
        }
    }
    for files in folders.into_values() {
        check_numbers(&files, problems);
    }
}

fn check_numbers(files: &[&Source], problems: &mut Vec<Problem>) {
    let mut numbered: Vec<(Option<u32>, &Source)> =
        files.iter().map(|file| (migration_number(file.name()), *file)).collect();
    numbered.sort_by(|a, b| (a.0, &a.1.path).cmp(&(b.0, &b.1.path)));
    let mut expected = 1;
    for (number, file) in numbered {
        if number != Some(expected) {
            problems.push(Problem {
                path: file.path.clone(),
                line: 1,
                what: format!("not migration {expected}"),
                remedy: "number migrations 1, 2, 3 … without gaps or repeats",
            });
        }
        expected = number.unwrap_or(expected - 1) + 1;
    }
}

/// The number at the start of `0001_events.sql` or `V1__events.sql`.
fn migration_number(name: &str) -> Option<u32> {
    let name = name.strip_prefix('V').unwrap_or(name);
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    name[..digits].parse().ok()
}
