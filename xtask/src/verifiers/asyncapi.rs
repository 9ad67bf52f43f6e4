//! `/asyncapi.json`, read by the parser that its standard's authors publish: no error, no warning, every type there.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Package, fetch_javascript};
use crate::http;
use crate::server::{ADMIN_KEY, Server};

const PACKAGE: Package = Package {
    manifest: include_str!("../../verifiers/asyncapi/package.json"),
    lock: include_str!("../../verifiers/asyncapi/package-lock.json"),
    script: include_str!("../../verifiers/asyncapi/check.mjs"),
};

/// Declares types of every kind, then lets the parser judge the description of them.
pub(super) fn check(server: &Server, tools: &Path, folder: &Path) -> Result<()> {
    let empty = folder.join("asyncapi-empty.json");
    fs::write(&empty, ask(server, "GET", "/asyncapi.json", None)?)?;
    let types = types();
    for (name, definition) in &types {
        let path = format!("/v1/catalog/services/shop/types/{name}");
        ask(server, "PUT", &path, Some(definition))?;
    }
    let full = folder.join("asyncapi.json");
    fs::write(&full, ask(server, "GET", "/asyncapi.json", None)?)?;
    for (file, expected) in [(&empty, 0), (&full, types.len())] {
        let mut command = fetch_javascript(&tools.join("asyncapi"), &PACKAGE)?;
        let output = command.arg(file).stderr(Stdio::inherit()).output().context("node does not start")?;
        ensure!(output.status.success(), "the parser of AsyncAPI refuses {}", file.display());
        let found: Value = serde_json::from_slice(&output.stdout)?;
        ensure!(found["channels"] == expected, "{found}, but {expected} types are declared");
    }
    println!("asyncapi: {} types described, read without a warning", types.len());
    Ok(())
}

fn types() -> Vec<(&'static str, Value)> {
    vec![
        ("plain", json!({})),
        ("told", json!({ "description": "Something happened.", "deprecated": { "replaced_by": "plain" } })),
        ("odd%2Fname", json!({ "schema": true })),
        (
            "tree",
            json!({ "schema": {
                "$id": "https://example.com/tree", "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object", "required": ["size"], "unevaluatedProperties": false,
                "properties": { "size": { "$ref": "https://example.com/tree#/$defs/size" }, "hue": { "$ref": "#hue" },
                    "children": { "type": "array", "items": { "$ref": "#" }, "prefixItems": [true] } },
                "$defs": { "size": { "type": "integer", "minimum": 0 }, "hue": { "$anchor": "hue", "enum": ["red"] } },
            } }),
        ),
    ]
}

fn ask(server: &Server, method: &str, path: &str, body: Option<&Value>) -> Result<Vec<u8>> {
    let authorization = format!("Bearer {ADMIN_KEY}");
    let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
    let body = body.map(Value::to_string).unwrap_or_default();
    let answer = http::request(server.address, method, path, &headers, body.as_bytes())?;
    ensure!(answer.status < 300, "{method} {path}: {}", String::from_utf8_lossy(&answer.body));
    Ok(answer.body)
}
