//! `tidegate audit`: kept events are counted again and compared with what was counted, to the unit.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::commands::Globals;
use crate::commands::resource::Session;
use crate::failure::{Exit, Failure};
use crate::output::{cell, table};

const EXAMPLES: &str = "\
Examples:
  tidegate audit                                        every type that counts something
  tidegate audit shop order.paid
  tidegate audit shop order.paid --from 2026-03-01T00:00:00Z --to 2026-03-02T00:00:00Z

Exit code 1 when something was counted wrong. Only what happened in buckets that lie in the range is compared.";

/// Flags of `audit`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AuditArgs {
    /// The source of the events; without it, every declared type is audited
    #[arg(requires = "type_name")]
    service: Option<String>,
    /// Their type
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Only events that happened at or after this time
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only events that happened before this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
}

/// Audits one type, or all of them.
pub(crate) async fn run(args: AuditArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut session = Session::new(globals)?;
    let types = match (&args.service, &args.type_name) {
        (Some(service), Some(type_name)) => vec![(service.clone(), type_name.clone())],
        _ => declared(&mut session).await?,
    };
    let (mut rows, mut differences, mut audits) = (Vec::new(), Vec::new(), Vec::new());
    for (service, type_name) in types {
        let body = json!({ "service": service, "type": type_name, "from": args.from, "to": args.to });
        let answer = session.create(&["v1", "audit"], &body).await?.json()?;
        for metric in answer["metrics"].as_array().into_iter().flatten() {
            let told = ["kind", "name", "cells", "differences"].map(|name| cell(metric, name));
            let events = answer["events"].to_string();
            rows.push([vec![service.clone(), type_name.clone(), events], told.to_vec()].concat());
        }
        differences.extend(answer["differences"].as_array().cloned().unwrap_or_default());
        audits.push(json!({ "service": service, "type": type_name, "audit": answer }));
    }
    if session.output.json {
        session.output.line(&Value::from(audits).to_string())?;
    } else {
        show(&session, &rows, &differences)?;
    }
    Ok(ExitCode::from(if differences.is_empty() { 0 } else { Exit::Failed as u8 }))
}

fn show(session: &Session, rows: &[Vec<String>], differences: &[Value]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(session.output.line("Nothing is counted. Declare a counter: tidegate catalog --help")?);
    }
    let header = ["SERVICE", "TYPE", "EVENTS", "KIND", "NAME", "COMPARED", "DIFFERENCES"];
    session.output.line(&table(&header, rows, None))?;
    if differences.is_empty() {
        return Ok(session.done("what was counted is what the events say")?);
    }
    let columns = ["metric", "every", "from", "key", "expected", "counted"];
    let rows: Vec<Vec<String>> =
        differences.iter().map(|item| columns.map(|name| cell(item, name)).to_vec()).collect();
    let header = ["METRIC", "EVERY", "FROM", "KEY", "EXPECTED", "COUNTED"];
    Ok(session.output.line(&format!("\n{}", table(&header, &rows, None)))?)
}

/// Every declared type.
async fn declared(session: &mut Session) -> Result<Vec<(String, String)>, Failure> {
    let mut types = Vec::new();
    for service in session.all(&["v1", "catalog", "services"], "service").await? {
        for type_name in session.all(&["v1", "catalog", "services", &service], "type").await? {
            types.push((service.clone(), type_name));
        }
    }
    Ok(types)
}
