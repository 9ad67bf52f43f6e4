//! Each rule is shown a small input that breaks it, and one beside it that does not.

use super::{Source, check};

const CORE: &str = "crates/tidegate-core/Cargo.toml";

#[track_caller]
fn problems(path: &str, text: &str) -> Vec<String> {
    let source = Source { path: path.to_owned(), bytes: text.as_bytes().to_vec() };
    check(&[source]).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn check_one(path: &str, text: &str, expected: &str) {
    let found = problems(path, text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(expected), "{} does not start with {expected}", found[0]);
}

#[track_caller]
fn check_clean(path: &str, text: &str) {
    assert_eq!(problems(path, text), Vec::<String>::new());
}

#[test]
fn a_rust_file_opens_with_its_story() {
    check_one("src/a.rs", "use std::fmt;\n", "src/a.rs:1: no story");
    check_clean("src/a.rs", "//! A.\n");
    check_clean("src/a.sql", "SELECT 1;\n");
}

#[test]
fn a_file_has_at_most_500_lines() {
    let full = format!("//! A.\n{}", "\n".repeat(499));
    check_clean("src/a.rs", &full);
    check_one("src/a.rs", &format!("{full}\n"), "src/a.rs:501: 501 lines");
}

#[test]
fn unfinished_and_silenced_code_is_found() {
    for needle in [
        concat!("// FIX", "ME later"),
        concat!("// TO", "DO later"),
        concat!("todo", "!()"),
        concat!("unimple", "mented!()"),
        concat!("db", "g!(x)"),
        concat!("#[ig", "nore = \"slow\"]"),
        concat!("#[al", "low(dead_code)]"),
        concat!("#![al", "low(dead_code)]"),
    ] {
        check_one("src/a.rs", &format!("//! A.\n\n{needle}\n"), "src/a.rs:3: `");
    }
}

#[test]
fn tests_do_not_wait_for_time() {
    for needle in [concat!("std::thread::sl", "eep(d);"), concat!("tokio::time::sl", "eep(d).await;")] {
        let text = format!("//! A.\n{needle}\n");
        check_one("crates/a/tests/it.rs", &text, "crates/a/tests/it.rs:2: `");
        check_one("crates/a/src/b/tests.rs", &text, "crates/a/src/b/tests.rs:2: `");
        check_clean("crates/a/src/clock.rs", &text);
    }
}

#[test]
fn drawers_are_found_in_files_and_folders() {
    check_one("src/utils.rs", "//! A.\n", "src/utils.rs:1: `utils` in a name");
    check_one("src/lane_manager.rs", "//! A.\n", "src/lane_manager.rs:1: `manager` in a name");
    check_one("src/common/mod.rs", "//! A.\n", "src/common/mod.rs:1: `common` in a name");
    check_clean("src/uncommon.rs", "//! A.\n");
}

#[test]
fn a_large_file_must_be_text() {
    let text = "a".repeat(100_001);
    check_clean("web/a.txt", &text);
    check_one("web/a.bin", &format!("{text}\0"), "web/a.bin:1: a binary file of 100002 bytes");
    check_clean("web/a.bin", "small\0");
}

#[test]
fn dependencies_point_one_way() {
    let store = "[package]\nname = \"tidegate-store\"\n\n[dependencies]\n";
    let path = "crates/tidegate-store/Cargo.toml";
    check_clean(path, &format!("{store}tidegate-core.workspace = true\n"));
    check_one(
        path,
        &format!("{store}tidegate-server.workspace = true\n"),
        "crates/tidegate-store/Cargo.toml:5: tidegate-store sees tidegate-server",
    );
    check_one(
        path,
        &format!("{store}\n[dev-dependencies]\ntidegate-server = {{ path = \"x\" }}\n"),
        "crates/tidegate-store/Cargo.toml:7: tidegate-store sees",
    );
    check_one(
        path,
        &format!("{store}\n[dependencies.tidegate-server]\nworkspace = true\n"),
        "crates/tidegate-store/Cargo.toml:6: tidegate-store sees",
    );
    check_one(
        "crates/new/Cargo.toml",
        "[package]\nname = \"new\"\n",
        "crates/new/Cargo.toml:1: unknown crate",
    );
}

#[test]
fn the_core_uses_exactly_what_was_agreed() {
    let agreed: String =
        super::manifests::CORE_DEPENDENCIES.iter().map(|name| format!("{name}.workspace = true\n")).collect();
    let core = format!("[package]\nname = \"tidegate-core\"\n[dependencies]\n{agreed}");
    check_clean(CORE, &core);
    check_clean(CORE, &format!("{core}[dev-dependencies]\nproptest.workspace = true\n"));
    let line = core.lines().count() + 1;
    check_one(
        CORE,
        &format!("{core}tokio = \"1\"\n"),
        &format!("crates/tidegate-core/Cargo.toml:{line}: the core uses tokio"),
    );
    let fewer = core.replace("ring.workspace = true\n", "");
    check_one(CORE, &fewer, "crates/tidegate-core/Cargo.toml:1: the core no longer uses ring");
}

#[test]
fn banned_packages_are_found_in_the_lock_file() {
    check_clean("Cargo.lock", "[[package]]\nname = \"ring\"\n");
    for package in ["aws-lc-sys", "openssl-sys", "cmake"] {
        check_one("Cargo.lock", &format!("[[package]]\nname = \"{package}\"\n"), "Cargo.lock:2: `");
    }
}

#[test]
fn nobody_asks_for_sabotage() {
    let path = "crates/tidegate/Cargo.toml";
    let features = "[package]\nname = \"tidegate\"\n[features]\n";
    check_clean(path, &format!("{features}sabotage = [\"tidegate-server/sabotage\"] # sabotage\n"));
    for line in [
        "default = [\"sabotage\"]",
        "default = [\n\"sabotage\"]",
        "[dependencies]\nserde = { features = [\"sabotage\"] }",
    ] {
        let found = problems(path, &format!("{features}{line}\n"));
        assert!(found.len() == 1 && found[0].contains("`sabotage` is asked for"), "{line}: {found:?}");
    }
    check_one("Cargo.toml", "serde = { features = [\"sabotage\"] }\n", "Cargo.toml:1: the feature");
}

#[test]
fn migrations_are_numbered_without_gaps() {
    let migrations = |names: &[&str]| -> Vec<String> {
        let file = |name: &&str| Source { path: format!("s/migrations/{name}"), bytes: Vec::new() };
        let sources: Vec<Source> = names.iter().map(file).collect();
        check(&sources).iter().map(|problem| format!("{}: {}", problem.path, problem.what)).collect()
    };
    assert_eq!(migrations(&["0001_events.sql", "0002_lanes.sql"]), Vec::<String>::new());
    assert_eq!(migrations(&["V1__events.sql", "V2__lanes.sql"]), Vec::<String>::new());
    assert_eq!(migrations(&["0001_a.sql", "0003_b.sql"]), ["s/migrations/0003_b.sql: not migration 2"]);
    assert_eq!(migrations(&["0001_a.sql", "0001_b.sql"]), ["s/migrations/0001_b.sql: not migration 2"]);
    assert_eq!(migrations(&["0002_a.sql"]), ["s/migrations/0002_a.sql: not migration 1"]);
}
