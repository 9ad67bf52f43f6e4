//! `tidegate trigger`: what folds hold is sent now, and what waits for a later try is tried now.
//!
//! One request closes so many windows and makes so many deliveries due; this command asks until none is left. What is
//! held stays held.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::commands::Globals;
use crate::commands::resource::Session;
use crate::commands::windows::counted;

const EXAMPLES: &str = "\
Examples:
  tidegate trigger                   do not wait: for windows to close, for the next try
  tidegate trigger --project p1

It needs an admin key. What is held goes when its subscriber is resumed; what was given up, with `tidegate replay`.";

/// Flags of `trigger`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TriggerArgs {}

/// Makes everything due that is to be sent, or tried again, later.
pub(crate) async fn run(_: TriggerArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let (mut windows, mut triggered) = (0, 0);
    loop {
        let answer = session.create(&["v1", "trigger"], &json!({})).await?.json()?;
        windows += answer["windows"].as_u64().unwrap_or(0);
        triggered += answer["triggered"].as_u64().unwrap_or(0);
        // An answer without the word is of a server that knows no half measures.
        if answer["complete"] != false {
            break;
        }
    }
    if session.output.json {
        let told = json!({ "windows": windows, "triggered": triggered, "complete": true });
        session.output.line(&told.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    if windows > 0 {
        session.done(&counted(windows, "closed and sent"))?;
    }
    if triggered > 0 {
        session.done(&format!("{triggered} deliveries are tried now"))?;
    }
    if windows + triggered == 0 {
        session.output.line("No window is open, and nothing waits for a later try.")?;
    }
    Ok(ExitCode::SUCCESS)
}
