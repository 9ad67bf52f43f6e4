//! Rules about dependencies: which crate may see which, what the core may use, what nobody may pull in.
//!
//! Reads `Cargo.toml` and `Cargo.lock` line by line. That is enough for manifests as cargo itself writes them,
//! and spares a TOML parser.

use super::{Problem, Source};

/// What the pure core may use. Each entry was argued for: it does no I/O, reads no clock and starts no task.
pub(super) const CORE_DEPENDENCIES: [&str; 15] = [
    "base64",
    "bytes",
    "cel",
    "chacha20poly1305",
    "httpdate",
    "ipnet",
    "jiff",
    "percent-encoding",
    "regex",
    "ring",
    "serde",
    "serde_json",
    "serde_path_to_error",
    "thiserror",
    "url",
];

/// Which of our crates each of our crates may see. A crate exists to forbid an import.
const DIRECTIONS: [(&str, &[&str]); 7] = [
    ("tidegate-core", &[]),
    ("tidegate-store", &["tidegate-core"]),
    ("tidegate-destinations", &["tidegate-core"]),
    ("tidegate-sources", &["tidegate-core"]),
    ("tidegate-server", &["tidegate-core", "tidegate-store", "tidegate-destinations", "tidegate-sources"]),
    ("tidegate", &["tidegate-core", "tidegate-destinations", "tidegate-server"]),
    ("xtask", &["tidegate-core"]),
];

/// Packages that need cmake, or a system OpenSSL. Our build needs a C compiler and nothing else.
const BANNED_PACKAGES: [&str; 3] = ["aws-lc-sys", "cmake", "openssl-sys"];

/// Checks one file, if it is a manifest or the lock file.
pub(super) fn check(source: &Source, problems: &mut Vec<Problem>) {
    let Some(text) = source.text() else { return };
    match source.name() {
        "Cargo.toml" => {
            check_manifest(&source.path, text, problems);
            check_sabotage(&source.path, text, problems);
        }
        "Cargo.lock" => check_lock(&source.path, text, problems),
        _ => {}
    }
}

/// One line of a manifest that names a dependency.
struct Dependency<'a> {
    line: usize,
    name: &'a str,
    /// Whether only tests use it.
    dev: bool,
}

fn check_manifest(path: &str, text: &str, problems: &mut Vec<Problem>) {
    let Some(package) = package_name(text) else { return };
    let dependencies = dependencies(text);
    let mut report = |line: usize, what: String, remedy: &'static str| {
        problems.push(Problem { path: path.to_owned(), line, what, remedy });
    };
    let Some((_, visible)) = DIRECTIONS.iter().find(|(name, _)| *name == package) else {
        report(
            1,
            format!("unknown crate `{package}`"),
            "add it to DIRECTIONS and say which import it forbids",
        );
        return;
    };
    for dependency in &dependencies {
        let ours = DIRECTIONS.iter().any(|(name, _)| *name == dependency.name);
        if ours && dependency.name != package && !visible.contains(&dependency.name) {
            let what = format!("{package} sees {}", dependency.name);
            report(dependency.line, what, "dependencies point from the binary to the core, never back");
        }
    }
    if package == "tidegate-core" {
        check_core(path, &dependencies, problems);
    }
}

fn check_core(path: &str, dependencies: &[Dependency<'_>], problems: &mut Vec<Problem>) {
    let mut report = |line: usize, what: String, remedy: &'static str| {
        problems.push(Problem { path: path.to_owned(), line, what, remedy });
    };
    for dependency in dependencies.iter().filter(|dependency| !dependency.dev) {
        if !CORE_DEPENDENCIES.contains(&dependency.name) {
            let what = format!("the core uses {}", dependency.name);
            report(dependency.line, what, "keep it out, or argue for it in CORE_DEPENDENCIES");
        }
    }
    for agreed in CORE_DEPENDENCIES {
        if !dependencies.iter().any(|dependency| dependency.name == agreed) {
            report(1, format!("the core no longer uses {agreed}"), "take it off CORE_DEPENDENCIES");
        }
    }
}

fn check_lock(path: &str, text: &str, problems: &mut Vec<Problem>) {
    for (index, line) in text.lines().enumerate() {
        let Some(package) = line.strip_prefix("name = ").map(|name| name.trim_matches('"')) else { continue };
        if BANNED_PACKAGES.contains(&package) {
            problems.push(Problem {
                path: path.to_owned(),
                line: index + 1,
                what: format!("`{package}` is in the tree"),
                remedy: "find who pulls it in with `cargo tree -i` and switch that feature off",
            });
        }
    }
}

/// The feature may be declared and handed on, and nothing else: no default and no dependency may ask for it.
fn check_sabotage(path: &str, text: &str, problems: &mut Vec<Problem>) {
    for (index, line) in text.lines().enumerate() {
        let told = line.split('#').next().unwrap_or_default();
        if told.contains("sabotage") && !told.starts_with("sabotage = [") {
            problems.push(Problem {
                path: path.to_owned(),
                line: index + 1,
                what: "the feature `sabotage` is asked for".to_owned(),
                remedy: "only `cargo xtask chaos replicas --sabotage` does that, by name",
            });
        }
    }
}

/// The `name` of the `[package]` section; a bare workspace has none.
fn package_name(text: &str) -> Option<&str> {
    let (_, package) = text.split_once("[package]")?;
    let line = package.lines().find(|line| line.starts_with("name"))?;
    Some(line.split_once('=')?.1.trim().trim_matches('"'))
}

/// Every dependency of a package manifest, for any target and purpose.
fn dependencies(text: &str) -> Vec<Dependency<'_>> {
    let mut found = Vec::new();
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            if let Some((_, name)) = section.split_once("dependencies.") {
                found.push(Dependency { line: index + 1, name, dev: section.contains("dev-") });
            }
        } else if section.ends_with("dependencies")
            && !line.starts_with('#')
            && let Some((key, _)) = line.split_once('=')
        {
            let name = key.trim().split('.').next().unwrap_or(key).trim_matches('"');
            found.push(Dependency { line: index + 1, name, dev: section.contains("dev-") });
        }
    }
    found
}
