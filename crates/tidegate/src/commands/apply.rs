//! `tidegate apply`: makes a project what the files say.
//!
//! Every document is planned before anything is changed: the server is asked what would change, and refuses what is
//! wrong, so that a mistake in the last file leaves the first one unapplied. Then the plan is printed and carried out:
//! the catalog and the gates before the subscribers, deletions last. Applying the same files twice changes nothing.

mod documents;
mod plan;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

pub(crate) use self::documents::Kind;
use self::documents::read_all;
pub(crate) use self::plan::list;
use self::plan::{Change, Step, plan};
use crate::client::Client;
use crate::commands::Globals;
use crate::failure::Failure;
use crate::output::{Colour, Output, plain};

const EXAMPLE: &str = "\
A file holds one or many YAML documents:

  kind: subscriber
  id: billing                       # what identifies it; without an id its name does
  match: {types: [\"order.*\"]}
  destination: {url: https://example.com/hooks/${HOOK_TOKEN}}
  ---
  kind: type                        # an event type of the catalog
  service: shop
  type: order.paid
  schema: {type: object, required: [total]}
  ---
  kind: gate                        # a rate that subscribers share
  name: notion
  rate: 3/s

${NAME} is replaced by the variable of the environment; $${ stands for itself.";

/// What differs is told with both values up to this many bytes.
const FIELD_TEXT_MAX: usize = 300;

/// Make a project what files say: create, change and, with --prune, delete
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct ApplyArgs {
    /// A file, a folder of .yaml and .yml files, or - for stdin; may be repeated
    #[arg(short = 'f', long = "file", required = true, value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Delete subscribers, gates and types of the project that the files do not name
    #[arg(long)]
    prune: bool,
}

/// Runs `tidegate apply`.
pub(crate) async fn run(args: ApplyArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let documents = read_all(&args.files)?;
    let mut client = Client::new(globals)?;
    let output = Output::new(globals.json);
    let mut steps = plan(&mut client, documents, args.prune).await?;
    if !args.dry_run {
        carry_out(&mut client, &mut steps).await?;
    }
    print(&output, &steps, args.dry_run)?;
    Ok(ExitCode::SUCCESS)
}

async fn carry_out(client: &mut Client, steps: &mut [Step]) -> Result<(), Failure> {
    let changing = steps.iter().filter(|step| step.change != Change::None).count();
    for (done, step) in steps.iter_mut().filter(|step| step.change != Change::None).enumerate() {
        // Everything was checked, so this is a project that changed meanwhile, or a server that is gone.
        step.carry_out(client).await.map_err(|failure| {
            failure.detail(format!("{done} of {changing} changes were made; apply again to make the rest"))
        })?;
    }
    Ok(())
}

fn print(output: &Output, steps: &[Step], is_trial: bool) -> anyhow::Result<()> {
    let count = |change| steps.iter().filter(|step| step.change == change).count();
    let counts = [Change::Create, Change::Update, Change::Delete, Change::None].map(count);
    let [created, updated, deleted, unchanged] = counts;
    if output.json {
        let results: Vec<Value> = steps.iter().map(Step::json).collect();
        let answer = json!({
            "dry_run": is_trial, "created": created, "updated": updated, "deleted": deleted,
            "unchanged": unchanged, "results": results,
        });
        return Ok(output.line(&answer.to_string())?);
    }
    for step in steps {
        output.line(&line(output, step))?;
        for field in &step.fields {
            output.line(&format!("      {}", plain(&field_text(field))))?;
        }
        if let Some(secret) = &step.secret {
            output.line(&format!("      secret {secret}  (shown once)"))?;
        }
    }
    let would = if is_trial { "would be " } else { "" };
    output.line(&format!(
        "{would}{created} created, {updated} updated, {deleted} deleted; {unchanged} unchanged"
    ))?;
    Ok(())
}

fn line(output: &Output, step: &Step) -> String {
    let (mark, colour) = match step.change {
        Change::Create => ("+", Colour::Green),
        Change::Update => ("~", Colour::Green),
        Change::Delete => ("-", Colour::Red),
        Change::None => ("=", Colour::Grey),
    };
    format!("{} {:<10} {}", output.paint.text(colour, mark), step.kind.name(), plain(&step.name))
}

fn field_text(field: &Value) -> String {
    let name = field["field"].as_str().unwrap_or_default();
    let values = field.get("from").zip(field.get("to")).map(|(from, to)| format!("{from} → {to}"));
    // A whole schema is not a line.
    let values = values.filter(|values| values.len() <= FIELD_TEXT_MAX);
    format!("{name}: {}", values.as_deref().unwrap_or("changed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_both_values_unless_they_are_secret() {
        let open = json!({"field": "limits.rate", "from": "1/s", "to": "2/s"});
        assert_eq!(field_text(&open), "limits.rate: \"1/s\" → \"2/s\"");
        assert_eq!(field_text(&json!({"field": "destination.url"})), "destination.url: changed");
        let long = json!({"field": "schema", "from": null, "to": "x".repeat(FIELD_TEXT_MAX)});
        assert_eq!(field_text(&long), "schema: changed");
    }
}
