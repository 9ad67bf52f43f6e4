//! Goal: the description of the API is the API. Method: compare `/openapi.json` with the table of routes, and follow
//! every reference in it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{openapi, routes};

const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

fn description() -> Value {
    serde_json::from_str(openapi::text()).expect("the description is JSON")
}

/// Every operation: method, path and what is said about it.
fn operations(description: &Value) -> Vec<(String, String, &Value)> {
    let paths = description["paths"].as_object().expect("paths");
    paths
        .iter()
        .flat_map(|(path, item)| {
            let members = item.as_object().expect("a path item");
            let methods = members.iter().filter(|(name, _)| METHODS.contains(&name.as_str()));
            methods.map(|(method, operation)| (method.to_uppercase(), path.clone(), operation))
        })
        .collect()
}

#[test]
fn exactly_the_routes_are_described() {
    let description = description();
    let described: BTreeSet<(String, String)> =
        operations(&description).into_iter().map(|(method, path, _)| (method, path)).collect();
    let served = routes().into_iter().map(|route| (route.method.to_string(), route.path.to_owned()));
    assert_eq!(described, served.collect());
}

#[test]
fn the_version_is_this_version() {
    assert_eq!(description()["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(description()["openapi"], "3.1.0");
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    let description = description();
    let mut references = BTreeSet::new();
    collect(&description, &mut references);
    for reference in &references {
        let found = reference.strip_prefix('#').and_then(|pointer| description.pointer(pointer));
        assert!(found.is_some(), "{reference} leads nowhere");
    }
    for kind in ["parameters", "responses", "schemas"] {
        for name in description["components"][kind].as_object().expect("components").keys() {
            assert!(references.contains(&format!("#/components/{kind}/{name}")), "{kind}/{name} is not used");
        }
    }
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            references.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| collect(member, references));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

#[test]
fn operations_have_ids_of_their_own_and_say_what_can_go_wrong() {
    let description = description();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&description) {
        let id = operation["operationId"].as_str().expect("an operationId");
        assert!(ids.insert(id), "{id} stands twice");
        let needs_key = operation["security"].as_array().is_some_and(|security| !security.is_empty());
        let is_guarded = path.starts_with("/v1/") || path.starts_with("/api/") || path == "/asyncapi.json";
        assert_eq!(needs_key, is_guarded, "{method} {path}");
        let answers = |status: &str| operation["responses"].get(status).is_some();
        if needs_key {
            assert!(["401", "403", "404"].into_iter().all(answers), "{method} {path}");
        }
        if operation.get("requestBody").is_some() {
            assert!(["400", "408", "413", "422", "503"].into_iter().all(answers), "{method} {path}");
        }
        let has_query = operation["parameters"]
            .as_array()
            .is_some_and(|parameters| parameters.iter().any(|parameter| is_query(&description, parameter)));
        assert!(!has_query || answers("422"), "{method} {path}");
    }
}

fn is_query(description: &Value, parameter: &Value) -> bool {
    let pointer = parameter["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    let parameter = pointer.and_then(|pointer| description.pointer(pointer)).unwrap_or(parameter);
    parameter["in"] == "query"
}
