//! Quotas: what is full says so, says what to do, and makes room again.

use serde_json::{Value, json};
use tidegate_core::limits::{CONDITIONS_PER_PROJECT_MAX, KEYS_PER_PROJECT_MAX};

use crate::client::{Answer, Client};
use crate::server::Server;

const URL: &str = "https://example.com/";

fn with_condition(client: &Client) -> Answer {
    let matching = json!({ "types": ["never"], "where": "data.n == 1" });
    client.post("/v1/subscribers", &json!({ "match": matching, "destination": { "url": URL } }))
}

/// Where the subscriber is that was made.
#[track_caller]
fn path(made: &Answer) -> String {
    format!("/v1/subscribers/{}", made.expect(201)["id"].as_str().expect("an id"))
}

#[track_caller]
fn refused(answer: &Answer, limit: usize) -> Value {
    let problem = answer.problem(409, "quota_exceeded");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains(&limit.to_string()), "{detail}");
    problem
}

/// Makes so many things at the same time, since one after the other is slow.
fn fill(count: usize, make: impl Fn() -> Answer + Sync) {
    const HANDS: usize = 4;
    std::thread::scope(|scope| {
        for hand in 0..HANDS {
            let make = &make;
            scope.spawn(move || (hand..count).step_by(HANDS).for_each(|_| drop(make().expect(201))));
        }
    });
}

#[test]
fn a_project_has_so_many_conditions() {
    let server = Server::start();
    let client = server.admin();
    let [first, second] = [(); 2].map(|()| path(&with_condition(&client)));
    fill(CONDITIONS_PER_PROJECT_MAX - 2, || with_condition(&client));
    let problem = refused(&with_condition(&client), CONDITIONS_PER_PROJECT_MAX);
    assert_eq!(problem["field"], "match.where");

    let plain = path(&client.post("/v1/subscribers", &json!({ "destination": { "url": URL } })));
    let wish = json!({ "match": { "where": "data.n == 2" } });
    refused(&client.patch(&plain, &wish), CONDITIONS_PER_PROJECT_MAX);
    client.patch(&first, &wish).expect(200);
    let fold = json!({ "fold": { "mode": "window", "bypass": "data.n == 2" } });
    let problem = refused(&client.patch(&plain, &fold), CONDITIONS_PER_PROJECT_MAX);
    assert_eq!(problem["field"], "fold.bypass", "a fold's conditions count as well");
    client.post("/v1/projects", &json!({ "id": "other" })).expect(201);
    with_condition(&client.with("x-tidegate-project", "other")).expect(201);

    assert!(client.delete(&second).status < 300);
    client.patch(&plain, &wish).expect(200);
}

#[test]
fn a_project_has_so_many_keys() {
    let server = Server::start();
    let client = server.admin();
    client.post("/v1/projects", &json!({ "id": "p" })).expect(201);
    let create = || client.post("/v1/keys", &json!({ "project": "p", "role": "viewer" }));
    fill(KEYS_PER_PROJECT_MAX, create);
    refused(&create(), KEYS_PER_PROJECT_MAX);
    client.post("/v1/keys", &json!({ "role": "viewer" })).expect(201);
}
