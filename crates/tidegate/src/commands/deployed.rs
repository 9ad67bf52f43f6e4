//! The files under `deploy/` say what this program understands: every flag and variable in them is one of its own.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use serde_json::Value;

use super::Cli;

const UNIT: &str = include_str!("../../../../deploy/tidegate.service");
const COMPOSE: &str = include_str!("../../../../deploy/compose.yaml");

/// The variables that `serve` reads: those of its flags, and those that are only variables, which its help names.
fn variables() -> BTreeSet<String> {
    let mut cli = Cli::command();
    let serve = cli.find_subcommand_mut("serve").expect("there is a server");
    let flags: Vec<String> = serve
        .get_arguments()
        .filter_map(|argument| Some(argument.get_env()?.to_str().expect("UTF-8").to_owned()))
        .collect();
    let help = serve.get_after_help().expect("it says what is secret").to_string();
    let words = help.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
    flags.into_iter().chain(words.filter(|word| word.starts_with("TIDEGATE_")).map(str::to_owned)).collect()
}

#[track_caller]
fn understands<'a>(arguments: impl IntoIterator<Item = &'a str>, named: impl IntoIterator<Item = &'a str>) {
    let arguments: Vec<&str> = arguments.into_iter().collect();
    if let Err(error) = Cli::try_parse_from(&arguments) {
        panic!("{arguments:?}: {error}");
    }
    let known = variables();
    for name in named {
        assert!(known.contains(name), "nothing reads {name}");
    }
}

/// The values of a key in a section of a unit.
fn values<'a>(section: &str, key: &str) -> Vec<&'a str> {
    let body = UNIT.split(&format!("\n[{section}]\n")).nth(1).expect("the section is there");
    let lines = body.lines().take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_unit_starts_the_server_however_often_it_takes() {
    let start = values("Service", "ExecStart");
    let names = values("Service", "Environment").into_iter().filter_map(|set| Some(set.split_once('=')?.0));
    let secrets = UNIT.lines().find(|line| line.contains("secrets.env ")).expect("what is secret is named");
    let secrets = secrets.split(&[' ', ',', '=']).filter(|word| word.starts_with("TIDEGATE_"));
    understands(start[0].split(' '), names.chain(secrets));
    assert_eq!(values("Service", "Restart"), ["always"]);
    // Or systemd gives up after five starts, which a database that is away for ten seconds is enough for.
    assert_eq!(values("Unit", "StartLimitIntervalSec"), ["0"]);
}

#[test]
fn the_compose_file_can_be_read_and_starts_the_server() {
    let compose: Value = serde_saphyr::from_str(COMPOSE).expect("it is YAML");
    let replicas = ["tidegate-1", "tidegate-2", "tidegate-3"].map(|name| &compose["services"][name]);
    for replica in replicas {
        let command = replica["command"].as_array().expect("a command").iter();
        let variables = replica["environment"].as_object().expect("variables");
        understands(command.map(|word| word.as_str().expect("text")), variables.keys().map(String::as_str));
        let volumes = replica["volumes"].as_array().expect("the binary is brought in");
        assert_eq!(volumes.len(), 1, "it reads nothing else of the machine: {volumes:?}");
    }
    for name in ["postgres", "redis", "balancer"] {
        assert!(compose["services"][name]["image"].is_string(), "{name}");
    }
}
