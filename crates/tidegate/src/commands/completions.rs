//! `tidegate completions` and `tidegate man`: printed by the binary, so that they always fit it.

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::commands::Cli;

const INSTALL: &str = "\
For example:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions zsh > \"${fpath[1]}/_tidegate\"
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish";

/// Print completions for a shell
#[derive(Args)]
#[command(after_help = INSTALL)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Runs `tidegate completions`.
pub(crate) fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidegate", &mut script);
    io::Write::write_all(&mut io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `tidegate man`.
pub(crate) fn man() -> anyhow::Result<ExitCode> {
    clap_mangen::Man::new(Cli::command()).render(&mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}
