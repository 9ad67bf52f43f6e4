//! Goal: the description of the API is the API. Method: compare `/openapi.json` with the table of routes, and follow
//! every reference in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::stage::Stage;
use super::strict::{Takes, needs_key};
use super::{openapi, router, routes};

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
        let has_key = operation["security"].as_array().is_some_and(|security| !security.is_empty());
        assert_eq!(has_key, needs_key(&path), "{method} {path}");
        let answers = |status: &str| operation["responses"].get(status).is_some();
        if has_key {
            assert!(["401", "403", "404", "422"].into_iter().all(answers), "{method} {path}");
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
    resolved(description, parameter)["in"] == "query"
}

fn resolved<'d>(description: &'d Value, parameter: &'d Value) -> &'d Value {
    let pointer = parameter["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
    pointer.and_then(|pointer| description.pointer(pointer)).unwrap_or(parameter)
}

#[test]
fn the_parameters_that_routes_take_are_those_described() {
    let description = description();
    for route in routes() {
        let Takes::Only(known) = route.takes else { continue };
        let operation = &description["paths"][route.path][route.method.as_str().to_lowercase()];
        let lists = [&description["paths"][route.path]["parameters"], &operation["parameters"]];
        let described: BTreeSet<&str> = lists
            .into_iter()
            .flat_map(|list| list.as_array().into_iter().flatten())
            .filter(|parameter| is_query(&description, parameter))
            .filter_map(|parameter| resolved(&description, parameter)["name"].as_str())
            .collect();
        assert_eq!(described, known.iter().copied().collect(), "{} {}", route.method, route.path);
    }
}

async fn ask(stage: &Stage, key: Option<&str>, method: &str, target: &str) -> (StatusCode, Value) {
    let mut request = Request::builder().method(method).uri(target);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let request = request.body(Body::empty()).expect("a request");
    let answer = router(Arc::clone(&stage.app)).oneshot(request).await.expect("an answer");
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn every_route_refuses_parameters_that_it_does_not_know() {
    let stage = Stage::new().await;
    let key = stage.admin_key().await;
    let mut asked = 0;
    for route in routes() {
        let target = format!("{}?surely_unknown=1", route.path.replace(['{', '}'], ""));
        let method = route.method.as_str();
        if matches!(route.takes, Takes::Anything) {
            assert!(!needs_key(route.path), "what is behind a key is never asked loosely: {target}");
            continue;
        }
        let (status, problem) = ask(&stage, Some(&key), method, &target).await;
        assert_eq!(
            (status.as_u16(), &problem["code"]),
            (422, &"parameter_unknown".into()),
            "{method} {target}"
        );
        assert_eq!(problem["field"], "surely_unknown", "{method} {target}");
        if needs_key(route.path) {
            let (status, _) = ask(&stage, None, method, &target).await;
            assert_eq!(status.as_u16(), 401, "{method} {target}");
        }
        asked += 1;
    }
    assert!(asked > 50, "only {asked} routes were asked");
}

#[tokio::test(start_paused = true)]
async fn probes_and_links_may_carry_anything() {
    let stage = Stage::new().await;
    for target in ["/livez?from=probe", "/metrics?x", "/docs?utm=1"] {
        assert_eq!(ask(&stage, None, "GET", target).await.0.as_u16(), 200, "{target}");
    }
}

/// A client that hangs up leaves a change half done nowhere: what was begun comes to its end.
#[tokio::test(start_paused = true)]
async fn a_change_is_finished_when_its_client_hangs_up() {
    let stage = Stage::new().await;
    stage.subscribe("sub_1").await;
    let key = stage.admin_key().await;
    let patch = Request::patch("/v1/subscribers/sub_1")
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Body::from(r#"{"name":"new"}"#));
    // Somebody else patches, so that this one has to wait in the middle.
    let other = stage.app.patching.lock().await;
    let mut answering = Box::pin(router(Arc::clone(&stage.app)).oneshot(patch.expect("a request")));
    assert!(poll_once(answering.as_mut()).await.is_none(), "it waits");
    tokio::task::yield_now().await;
    drop(answering);
    drop(other);
    let is_named = || {
        let roster = stage.app.parts.rosters.current();
        roster.endpoints().any(|endpoint| endpoint.definition().name == "new")
    };
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(is_named());
}

/// What a future answers at once, if it does.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
