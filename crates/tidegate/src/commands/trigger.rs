//! `tidegate trigger`: what waits for a later try is tried now.
//!
//! One request makes so many deliveries due; this command asks until none is left. What is held stays held.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::commands::Globals;
use crate::commands::resource::Session;

const EXAMPLES: &str = "\
Examples:
  tidegate trigger                   the receiver is well again: do not wait for the next try
  tidegate trigger --project p1

It needs an admin key. What is held goes when its subscriber is resumed; what was given up, with `tidegate replay`.";

/// Flags of `trigger`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TriggerArgs {}

/// Makes everything due that is to be tried again later.
pub(crate) async fn run(_: TriggerArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let mut triggered = 0;
    loop {
        let answer = session.create(&["v1", "trigger"], &json!({})).await?.json()?;
        triggered += answer["triggered"].as_u64().unwrap_or(0);
        // An answer without the word is of a server that knows no half measures.
        if answer["complete"] != false {
            break;
        }
    }
    if session.output.json {
        session.output.line(&json!({ "triggered": triggered, "complete": true }).to_string())?;
    } else if triggered == 0 {
        session.output.line("Nothing waits for a later try.")?;
    } else {
        session.done(&format!("{triggered} deliveries are tried now"))?;
    }
    Ok(ExitCode::SUCCESS)
}
