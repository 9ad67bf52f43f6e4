//! `tidegate export`: a project as documents that `tidegate apply` takes.
//!
//! Signing secrets are not in it: the server shows none twice. Neither is what it masks in addresses and headers; a
//! masked value that is applied to the subscriber it came from stays what it is.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;

use crate::client::Client;
use crate::commands::Globals;
use crate::commands::apply::{Kind, list};
use crate::failure::Failure;
use crate::output::Output;

/// What the server adds to a resource and no file declares.
const OBSERVED: [&str; 11] = [
    "created_at",
    "updated_at",
    "active",
    "inactive_reason",
    "public_key",
    "grace_until",
    "failing_since",
    "verification_status",
    "verified_at",
    "backfilling",
    "has_schema",
];

/// Print a project as files that `apply` takes
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// Write a file per resource into this folder instead
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs `tidegate export`.
pub(crate) async fn run(args: ExportArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let mut client = Client::new(globals)?;
    let mut documents = Vec::new();
    for kind in Kind::ALL {
        for resource in list(&mut client, kind).await? {
            let whole = whole(&mut client, kind, resource).await?;
            documents.push((file_name(kind, &whole), yaml(kind, whole)?));
        }
    }
    let output = Output::new(globals.json);
    let Some(folder) = args.out else {
        for (_, document) in &documents {
            output.line(&format!("---\n{}", document.trim_end()))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, document) in &documents {
        let path = folder.join(name);
        fs::write(&path, document).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output.line(&format!("{} files in {}", documents.len(), folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Lists of types leave their schemas out; the type itself has it.
async fn whole(client: &mut Client, kind: Kind, listed: Value) -> Result<Value, Failure> {
    let text = |name: &str| listed[name].as_str().unwrap_or_default().to_owned();
    match kind {
        Kind::Subscriber | Kind::Gate => Ok(listed),
        Kind::Type => {
            let (service, type_name) = (text("service"), text("type"));
            client.get(&["v1", "catalog", "services", &service, "types", &type_name], &[]).await?.json()
        }
    }
}

/// The kind stands first, the rest in order of its names.
fn yaml(kind: Kind, resource: Value) -> anyhow::Result<String> {
    Ok(format!("kind: {}\n{}", kind.name(), serde_saphyr::to_string(&declared(resource))?))
}

/// What a file would say: without what the server observed.
fn declared(resource: Value) -> Value {
    let Value::Object(mut members) = resource else { return Value::Null };
    let is_paused = members.get("inactive_reason").is_some_and(|reason| reason == "paused");
    members.retain(|name, value| !OBSERVED.contains(&name.as_str()) && !value.is_null());
    if is_paused {
        members.insert("active".to_owned(), false.into());
    }
    if let Some(Value::Object(breaker)) = members.get_mut("breaker") {
        breaker.retain(|name, _| matches!(name.as_str(), "failures" | "probe"));
    }
    Value::Object(members)
}

fn file_name(kind: Kind, resource: &Value) -> String {
    let text = |name: &str| resource[name].as_str().unwrap_or_default();
    let stem = match kind {
        Kind::Subscriber => text("id").to_owned(),
        Kind::Gate => text("name").to_owned(),
        Kind::Type => format!("{}-{}", text("service"), text("type")),
    };
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' };
    format!("{}-{}.yaml", kind.name(), stem.chars().map(safe).collect::<String>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_declared_is_exported() {
        let resource = json!({
            "id": "billing", "active": false, "inactive_reason": "paused", "created_at": "2026-01-01T00:00:00Z",
            "destination": {"url": "https://example.com"},
        });
        let expected = json!({
            "id": "billing", "active": false, "destination": {"url": "https://example.com"},
        });
        assert_eq!(file_name(Kind::Subscriber, &resource), "subscriber-billing.yaml");
        assert_eq!(declared(resource), expected);
    }

    #[test]
    fn a_file_name_can_not_leave_its_folder() {
        assert_eq!(file_name(Kind::Type, &json!({"service": "../x", "type": "a/b"})), "type-.._x-a_b.yaml");
    }
}
