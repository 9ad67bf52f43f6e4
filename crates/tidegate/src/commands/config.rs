//! `tidegate config`: checks a configuration file as `serve` would read it, and prints the reference.
//!
//! The reference is made from the flags of `serve` themselves, so it can not fall behind them; `docs/configuration.md`
//! is its output, and a test compares.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, Args, CommandFactory, Subcommand};
use serde_json::json;
use tidegate_server::settings::File;
use tidegate_server::settings::store::Secrets;

use crate::commands::{Cli, Globals};
use crate::failure::{Exit, Failure};
use crate::output::{Colour, Output};

/// Sections of the file; everything else stands at its top.
const SECTIONS: [&str; 13] = [
    "store",
    "redis",
    "egress",
    "log",
    "tls",
    "limits",
    "timeouts",
    "deliver",
    "retention",
    "observe",
    "otlp",
    "metrics",
    "breaker",
];

/// Check a configuration file, or show the reference
#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Check a file: unknown keys, wrong values, with their lines
    Check {
        /// The file
        #[arg(env = "TIDEGATE_CONFIG", value_name = "FILE")]
        file: PathBuf,
    },
    /// Print every setting as Markdown
    Reference,
}

/// Runs `tidegate config`.
pub(crate) fn run(args: &ConfigArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let output = Output::new(globals.json);
    match &args.command {
        ConfigCommand::Reference => output.line(reference().trim_end())?,
        ConfigCommand::Check { file } => {
            check(file)?;
            if output.json {
                output.line(&json!({ "file": file.display().to_string(), "valid": true }).to_string())?;
            } else {
                let tick = output.paint.text(Colour::Green, "✓");
                output.line(&format!("{tick} {} can be used", file.display()))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check(path: &Path) -> Result<(), Failure> {
    let refused = |text: String| {
        Failure::new(Exit::Failed, text).fix("see `tidegate config reference` for every setting")
    };
    let file = File::read(path).map_err(|problem| refused(problem.to_string()))?;
    file.settle(Secrets::default()).map(|_| ()).map_err(|problem| {
        let problem = problem.to_string();
        let text = fs::read_to_string(path).unwrap_or_default();
        let key = problem.split([':', ' ']).next().unwrap_or_default();
        let line = line_of(&text, key).map_or(String::new(), |line| format!(" line {line}:"));
        refused(format!("{}:{line} {problem}", path.display()))
    })
}

/// Where a key such as `limits.connections` stands, counted from 1.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let mut wanted = key.split('.').peekable();
    for (index, line) in text.lines().enumerate() {
        let name = line.trim_start().split(':').next().unwrap_or_default();
        if wanted.peek() == Some(&name) {
            wanted.next();
            if wanted.peek().is_none() {
                return Some(index + 1);
            }
        }
    }
    None
}

/// Every setting of `serve`: its key in the file, its variable, its flag, what it means.
fn reference() -> String {
    let mut cli = Cli::command();
    cli.build();
    let serve = cli.find_subcommand("serve").expect("`serve` is a command");
    let mut text = "# Configuration\n\n\
        `tidegate serve --config tidegate.yaml`; a variable wins over the file, a flag over both. Unknown keys are errors, \
        named with their line: `tidegate config check tidegate.yaml` looks without starting anything. Times are `250ms`, \
        `10s`, `5m`, `7d`. This page is the output of `tidegate config reference`.\n\n\
        | key in the file | variable | flag | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for arg in serve.get_arguments().filter(|arg| !arg.is_global_set()) {
        let Some((variable, flag)) = names(arg) else { continue };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
        let key = match file_key(&variable) {
            Some(key) => format!("`{key}`"),
            None => "–".to_owned(),
        };
        let _ = writeln!(text, "| {key} | `{variable}` | `--{flag}` | {help} |");
    }
    text.push_str(
        "\nOnly as variables, because command lines and files are read by others: `TIDEGATE_ADMIN_KEY` (the first admin \
         key), `TIDEGATE_MASTER_KEY` (32 bytes in base64 that encrypt secrets at rest; without it a file beside the data, and \
         required with PostgreSQL), `TIDEGATE_MASTER_KEY_PREVIOUS` and `TIDEGATE_MASTER_KEY_NEXT` while it changes (see \
         [security](security.md)), and `TIDEGATE_LOG` (what is logged, for example `info,tidegate_server=debug`; \
         libraries are never heard below `info`).\n",
    );
    text
}

fn names(arg: &Arg) -> Option<(String, String)> {
    Some((arg.get_env()?.to_str()?.to_owned(), arg.get_long()?.to_owned()))
}

/// `TIDEGATE_LIMITS_CONNECTIONS` is `limits.connections`.
fn file_key(variable: &str) -> Option<String> {
    let name = variable.strip_prefix("TIDEGATE_")?.to_lowercase();
    match name.as_str() {
        "config" => return None,
        "store" | "redis" => return Some(format!("{name}.url")),
        _ => {}
    }
    let section = SECTIONS.iter().find(|section| name.starts_with(&format!("{section}_")));
    Some(match section {
        Some(section) => format!("{section}.{}", &name[section.len() + 1..]),
        None => name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_reference_is_one_that_the_file_takes() {
        let mut cli = Cli::command();
        cli.build();
        let serve = cli.find_subcommand("serve").unwrap();
        let variables = serve.get_arguments().filter(|arg| !arg.is_global_set()).filter_map(names);
        let mut count = 0;
        for key in variables.filter_map(|(variable, _)| file_key(&variable)) {
            let text = match key.split_once('.') {
                Some((section, name)) => format!("{section}:\n  {name}: {{}}\n"),
                None => format!("{key}: {{}}\n"),
            };
            let folder = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
            fs::write(&folder, text).unwrap();
            let problem = File::read(&folder).err().map(|problem| problem.to_string()).unwrap_or_default();
            fs::remove_file(&folder).unwrap();
            assert!(!problem.contains("unknown field"), "{key}: {problem}");
            count += 1;
        }
        assert!(count > 10);
    }

    #[test]
    fn the_page_is_what_the_command_prints() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&page, reference()).unwrap();
        }
        let written = fs::read_to_string(&page).unwrap_or_default();
        assert!(
            written == reference(),
            "docs/configuration.md is out of date: BLESS=1 cargo test -p tidegate"
        );
    }

    #[test]
    fn a_wrong_value_is_told_with_its_line() {
        let text = "listen: 127.0.0.1:1\nlimits:\n  handshakes: 1\n  connections: 0\n";
        assert_eq!(line_of(text, "limits.connections"), Some(4));
        assert_eq!(line_of(text, "timeouts.head"), None);
    }
}
