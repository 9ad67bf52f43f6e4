//! Projects, keys and roles: who may do what, and what does not exist for others.

use serde_json::{Value, json};

use crate::client::Client;
use crate::receiver::Receiver;
use crate::server::{ADMIN_KEY, Server};

/// Every operation of the API, as it describes itself: method, path and the roles that may use it.
fn operations(client: &Client) -> Vec<(String, String, Vec<String>)> {
    let description = client.get("/openapi.json").expect(200);
    let paths = description["paths"].as_object().expect("paths").clone();
    let of_path = |(path, item): (String, Value)| {
        let members = item.as_object().expect("a path item").clone();
        let methods = members.into_iter().filter(|(_, member)| member.get("operationId").is_some());
        let row = move |(method, operation): (String, Value)| {
            (method.to_uppercase(), path.clone(), roles(&operation))
        };
        methods.map(row).collect::<Vec<_>>()
    };
    paths.into_iter().flat_map(of_path).collect()
}

fn roles(operation: &Value) -> Vec<String> {
    let security = operation["security"].as_array().expect("security");
    security.iter().map(|one| one["key"][0].as_str().expect("a role").to_owned()).collect()
}

fn key(client: &Client, body: &Value) -> Client {
    let created = client.post("/v1/keys", body).expect(201);
    client.with_key(created["key"].as_str().expect("a key"))
}

#[test]
fn a_role_opens_what_the_description_says_and_nothing_else() {
    let server = Server::start();
    let admin = server.admin();
    let role = |role: &str| (role.to_owned(), key(&admin, &json!({ "role": role })));
    let callers =
        [role("viewer"), role("publisher"), role("admin"), ("installation".to_owned(), admin.clone())];
    let stranger = Client::stranger(server.address);
    let mut count = 0;
    for (method, path, roles) in operations(&admin) {
        let path = path.replace("{id}", "nobody").replace("{name}", "nobody");
        if roles.is_empty() {
            assert_eq!(stranger.call(&method, &path, &Value::Null).status, 200, "{method} {path}");
            continue;
        }
        let unknown = stranger.call(&method, &path, &Value::Null);
        unknown.problem(401, "key_invalid");
        assert_eq!(unknown.header("www-authenticate"), Some("bearer"));
        for (name, caller) in &callers {
            let answer = caller.call(&method, &path, &Value::Null);
            let is_allowed =
                roles.contains(name) || (name == "installation" && roles.contains(&"admin".to_owned()));
            assert_eq!(answer.status != 403, is_allowed, "{name}: {method} {path}: {}", answer.text());
            if !is_allowed {
                answer.problem(403, "role_insufficient");
            }
            count += 1;
        }
    }
    assert!(count >= 24 * 4, "every operation with a key, by every role");
}

/// A project with one of everything.
struct Tenant {
    client: Client,
    project: String,
    event: String,
    subscriber: String,
    delivery: String,
    key: String,
    job: String,
    gate: String,
    object: String,
    backfill: String,
}

impl Tenant {
    fn new(server: &Server, project: &str) -> Self {
        let admin = server.admin();
        admin.post("/v1/projects", &json!({ "id": project, "catalog": "open" })).expect(201);
        let client = key(&admin, &json!({ "project": project, "role": "admin" }));
        let spare = client.post("/v1/keys", &json!({ "role": "viewer", "name": "spare" })).expect(201);
        let subscriber = server.subscribe_as(&client, &Receiver::start(), &json!({ "active": false }));
        let event = format!("event-of-{project}");
        client.publish(&json!({ "id": event, "source": "s", "type": "t" }));
        let deliveries = client.get("/v1/deliveries").expect(200);
        let job = client.post("/v1/dead-letters/replay", &Value::Null).expect(202);
        let gate = format!("gate-of-{project}");
        client.call("PUT", &format!("/v1/gates/{gate}"), &json!({ "rate": "1/s" })).expect(201);
        let states =
            json!({ "states": [{ "object": "order", "id": "data.id", "attributes": ["data.status"] }] });
        client.call("PUT", "/v1/catalog/services/shop/types/order", &states).expect(201);
        let object = format!("object-of-{project}");
        for id in [&object, "another"] {
            let data = json!({ "id": id, "status": "new" });
            client.publish(&json!({ "id": id, "source": "shop", "type": "order", "data": data }));
        }
        client.publish(&json!({ "id": "sold", "source": "shop", "type": "sold" }));
        let sold = "/v1/catalog/services/shop/types/sold";
        client.call("PUT", sold, &json!({ "counters": { "all": {} } })).expect(201);
        let backfill = client.post(&format!("{sold}/backfill"), &json!({})).expect(202)["id"].to_string();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        Self {
            client,
            project: project.to_owned(),
            event,
            subscriber: subscriber.id,
            delivery: text(&deliveries["items"][0]["id"]),
            key: text(&spare["id"]),
            job: text(&job["id"]),
            gate,
            object,
            backfill,
        }
    }

    /// A path of the description with this tenant's own id in it.
    fn fill(&self, path: &str) -> String {
        let id = match path.split('/').nth(2) {
            Some("events") => &self.event,
            Some("subscribers" | "webhooks") => &self.subscriber,
            Some("deliveries") => &self.delivery,
            Some("keys") => &self.key,
            Some("jobs") => &self.job,
            Some("projects") => &self.project,
            Some("gates") => &self.gate,
            Some("backfills") => &self.backfill,
            Some("objects") => {
                return path.replace("{object}", "order").replace("{id}", &self.object) + "?service=shop";
            }
            _ => panic!("{path} has an id of an unknown kind: teach this test"),
        };
        path.replace("{id}", id).replace("{name}", id)
    }

    fn everything(&self) -> Vec<Value> {
        let lists =
            ["/v1/events", "/v1/subscribers", "/v1/deliveries", "/v1/keys", "/v1/dead-letters", "/v1/gates"];
        lists.map(|list| self.client.get(list).expect(200)).to_vec()
    }
}

#[test]
fn what_belongs_to_others_does_not_exist() {
    let server = Server::start();
    let (victim, intruder) = (Tenant::new(&server, "victim"), Tenant::new(&server, "intruder"));
    let astray = server.admin().with("x-tidegate-project", "intruder");
    let before = victim.everything();
    let mut count = 0;
    for (method, path, roles) in operations(&server.admin()) {
        // A declaration makes one's own, whoever else has the same id: see `files`.
        if !(path.contains("{id}") || path.contains("{name}")) || method == "PUT" {
            continue;
        }
        count += 1;
        let (path, body) = (victim.fill(&path), json!({ "name": "stolen" }));
        let answer = intruder.client.call(&method, &path, &body);
        if roles == ["installation"] {
            answer.problem(403, "role_insufficient");
            continue;
        }
        answer.problem(404, "not_found");
        astray.call(&method, &path, &body).problem(404, "not_found");
        intruder
            .client
            .with("x-tidegate-project", "victim")
            .call(&method, &path, &body)
            .problem(404, "not_found");
    }
    assert!(count >= 13);
    let filter = format!("/v1/deliveries?subscriber={}", victim.subscriber);
    intruder.client.get(&filter).problem(404, "not_found");
    intruder
        .client
        .post("/v1/keys", &json!({ "project": "victim", "role": "admin" }))
        .problem(404, "not_found");
    assert_eq!(victim.everything(), before, "nothing changed");
    for seen in intruder.everything() {
        let text = seen.to_string();
        let theirs = [&victim.event, &victim.subscriber, &victim.delivery, &victim.key, &victim.gate];
        assert!(!theirs.into_iter().any(|id| text.contains(id.as_str())), "{text}");
    }
}

/// The lists of the API that come in pages, each with the query that a page of this tenant needs.
fn lists(tenant: &Tenant, admin: &Client) -> Vec<String> {
    let description = admin.get("/openapi.json").expect(200);
    let paths = description["paths"].as_object().expect("paths");
    let is_paged = |item: &Value| {
        let parameters = item["get"]["parameters"].as_array();
        parameters.is_some_and(|all| all.iter().any(|one| one["$ref"] == "#/components/parameters/Cursor"))
    };
    let paged = paths.iter().filter(|(_, item)| is_paged(item));
    let with_ids = |path: &String| match path.as_str() {
        "/v1/webhooks/subscribers/{id}/deliveries" => {
            let webhooks = tenant.client.get("/v1/webhooks/subscribers").expect(200);
            path.replace("{id}", webhooks["items"][0]["id"].as_str().expect("an id"))
        }
        "/v1/objects/{object}" => "/v1/objects/order?service=shop&attribute=data.status".to_owned(),
        path if path.contains("{id}") => tenant.fill(path),
        path => path.replace("{service}", "s0").replace("{attribute}", "data.k"),
    };
    paged.map(|(path, _)| with_ids(path)).collect()
}

/// A list that is asked for with these parameters too.
fn with(list: &str, parameters: &str) -> String {
    format!("{list}{}{parameters}", if list.contains('?') { '&' } else { '?' })
}

/// Two of everything that is listed.
fn fill_every_list(tenant: &Tenant) {
    let client = &tenant.client;
    let url = Receiver::start().url();
    let gives_up = json!({ "destination": { "url": "http://127.0.0.1:1/" }, "retry": { "schedule": [] } });
    client.post("/v1/subscribers", &gives_up).expect(201);
    let by_number = json!({ "destination": { "url": url }, "fold": { "mode": "window", "by": ["data.n"] } });
    client.post("/v1/subscribers", &by_number).expect(201);
    for n in 0..2 {
        let webhook = json!({ "name": format!("w{n}"), "url": url, "secret": "a-secret-of-theirs" });
        client.post("/v1/webhooks/subscribers", &webhook).expect(201);
        for service in ["s0", "s1"] {
            let path = format!("/v1/catalog/services/{service}/types/t{n}");
            client.call("PUT", &path, &json!({ "index": ["data.k"] })).expect(201);
        }
        client.post(&format!("/v1/catalog/services/s0/types/t{n}/backfill"), &json!({})).expect(202);
        client.publish(&json!({ "id": format!("k{n}"), "source": "s0", "type": "t0", "data": { "k": n } }));
        client.call("PUT", &format!("/v1/gates/g{n}"), &json!({ "rate": "1/s" })).expect(201);
        client.publish(&json!({ "id": format!("e{n}"), "source": "s", "type": "t" }));
        client.post("/v1/trigger", &Value::Null).expect(202);
        let webhook = client.get("/v1/webhooks/subscribers").expect(200)["items"][0]["id"].clone();
        let history = format!("/v1/webhooks/subscribers/{}/deliveries", webhook.as_str().expect("an id"));
        client.until(&history, |page| {
            let items = page["items"].as_array().expect("a list");
            items.iter().filter(|item| item["status"] == "SUCCESS").count() > n
        });
        client.publish(
            &json!({ "id": format!("q{n}"), "source": "s", "type": "t", "time": "2999-01-01T00:00:00Z" }),
        );
        client.post("/v1/dead-letters/replay", &Value::Null).expect(202);
    }
    for n in 0..2 {
        client.publish(&json!({ "id": format!("w{n}"), "source": "s", "type": "t", "data": { "n": n } }));
    }
    client.until("/v1/dead-letters", |page| page["items"].as_array().is_some_and(|items| items.len() >= 2));
}

#[test]
fn a_cursor_opens_nothing_but_the_next_page_of_its_own_list() {
    let server = Server::start();
    let (victim, intruder) = (Tenant::new(&server, "victim"), Tenant::new(&server, "intruder"));
    [&victim, &intruder].into_iter().for_each(fill_every_list);
    let (mut count, mut cursors) = (0, Vec::new());
    for (own, foreign) in lists(&victim, &server.admin()).into_iter().zip(lists(&intruder, &server.admin())) {
        // Projects are the installation's; it has no other whose cursors it could use.
        let (reader, other) = match own.as_str() {
            "/v1/projects" => (&server.admin(), &server.admin().with("x-tidegate-project", "victim")),
            _ => (&victim.client, &intruder.client),
        };
        let page = reader.get(&with(&own, "limit=1")).expect(200);
        let Some(cursor) = page["next"].as_str() else { panic!("{own} has one page only: teach this test") };
        let next = reader.get(&with(&own, &format!("limit=1&cursor={cursor}"))).expect(200);
        assert_ne!(next["items"], page["items"], "{own}");
        other.get(&with(&foreign, &format!("limit=1&cursor={cursor}"))).problem(422, "cursor_invalid");
        let last = if cursor.ends_with('0') { "1" } else { "0" };
        let changed = format!("{}{last}", &cursor[..cursor.len() - 1]);
        reader.get(&with(&own, &format!("limit=1&cursor={changed}"))).problem(422, "cursor_invalid");
        cursors.push((own, cursor.to_owned()));
        count += 1;
    }
    assert!(count >= 6, "every list that comes in pages: {cursors:?}");
    for (list, _) in &cursors {
        for (_, cursor) in cursors.iter().filter(|(other, _)| other != list) {
            let answer = victim.client.get(&with(list, &format!("cursor={cursor}")));
            // All deliveries of the only subscriber are another list than those of this subscriber.
            assert!(matches!(answer.status, 422 | 403), "{list}: {}", answer.text());
        }
    }
    let filtered = format!(
        "/v1/events?limit=1&type=t&cursor={}",
        cursors.iter().find(|(list, _)| list == "/v1/events").expect("events").1
    );
    victim.client.get(&filtered).problem(422, "cursor_invalid");
}

#[test]
fn the_same_event_id_in_two_projects_is_two_events() {
    let server = Server::start();
    let (one, two) = (Tenant::new(&server, "one"), Tenant::new(&server, "two"));
    for (tenant, n) in [(&one, 1), (&two, 2)] {
        let answer = tenant.client.publish(&json!({ "id": "shared", "source": "s", "type": "t", "data": n }));
        assert_eq!(answer["accepted"], 1);
    }
    assert_eq!(one.client.get("/v1/events/shared").expect(200)["data"], 1);
    assert_eq!(two.client.get("/v1/events/shared").expect(200)["data"], 2);
}

#[test]
fn the_installations_key_acts_on_the_project_it_names() {
    let server = Server::start();
    let tenant = Tenant::new(&server, "p1");
    let named = server.admin().with("x-tidegate-project", "p1");
    let path = format!("/v1/subscribers/{}", tenant.subscriber);
    named.get(&path).expect(200);
    server.admin().get(&path).problem(404, "not_found");
    server.admin().with("x-tidegate-project", "p2").get("/v1/subscribers").problem(404, "not_found");
    tenant.client.with("x-tidegate-project", "p1").get(&path).expect(200);
    named.publish(&json!({ "id": "named", "source": "s", "type": "t" }));
    tenant.client.get("/v1/events/named").expect(200);
    let keys = |client: &Client| client.get("/v1/keys").expect(200)["items"].as_array().unwrap().len();
    assert_eq!((keys(&named), keys(&server.admin())), (2, 3));
}

#[test]
fn keys_are_shown_once_and_end_at_once() {
    let server = Server::start();
    let admin = server.admin();
    let made = admin.post("/v1/keys", &json!({ "role": "viewer", "name": "ci" })).expect(201);
    let secret = made["key"].as_str().expect("a key");
    assert_eq!((&made["project"], &made["role"]), (&"default".into(), &"viewer".into()));
    let viewer = admin.with_key(secret);
    viewer.get("/v1/events").expect(200);
    let list = admin.get("/v1/keys").text();
    assert!(!list.contains(secret) && !list.contains(ADMIN_KEY) && list.contains(&secret[..8]), "{list}");
    let database = std::fs::read(server.folder.path().join("data/tidegate.db")).expect("the database");
    let log = std::fs::read(server.folder.path().join("data/tidegate.db-wal")).unwrap_or_default();
    for bytes in [database, log] {
        let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(!holds(secret) && !holds(ADMIN_KEY), "only hashes are kept");
    }
    admin.delete(&format!("/v1/keys/{}", made["id"].as_str().expect("an id"))).expect(200);
    viewer.get("/v1/events").problem(401, "key_invalid");

    let own = admin.get("/v1/keys").expect(200)["items"][0]["id"].clone();
    admin.delete(&format!("/v1/keys/{}", own.as_str().expect("an id"))).problem(409, "key_last");
    for (body, code) in [
        (json!({ "role": "king" }), "field_value"),
        (json!({ "name": "x" }), "field_missing"),
        (json!({ "role": "viewer", "name": "a\u{0}" }), "field_characters"),
        (json!({ "role": "viewer", "name": "n".repeat(257) }), "field_too_long"),
        (json!({ "role": "viewer", "key": "tgk_mine" }), "field_unknown"),
    ] {
        admin.post("/v1/keys", &body).problem(422, code);
    }
    admin.with_key("Basic").with("authorization", "Basic abc").get("/v1/events").problem(401, "key_invalid");
}

#[test]
fn projects_are_made_once_and_end_empty() {
    let server = Server::start();
    let admin = server.admin();
    let tenant = Tenant::new(&server, "p1");
    admin.post("/v1/projects", &json!({ "id": "p1" })).problem(409, "conflict");
    for (id, code) in
        [("", "project_id_invalid"), ("P1", "project_id_invalid"), ("a/b", "project_id_invalid")]
    {
        admin.post("/v1/projects", &json!({ "id": id })).problem(422, code);
    }
    admin.post("/v1/projects", &json!({ "id": "p2", "catalog": "lax" })).problem(422, "field_value");
    let ids: Vec<Value> = admin.get("/v1/projects").expect(200)["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["id"].clone())
        .collect();
    assert_eq!(ids, ["default", "p1"]);
    admin.delete("/v1/projects/p1").problem(409, "conflict");
    tenant.client.delete(&format!("/v1/subscribers/{}", tenant.subscriber)).expect(200);
    admin.delete("/v1/projects/p1").expect(200);
    tenant.client.get("/v1/events").problem(401, "key_invalid");
    admin.delete("/v1/projects/p1").problem(404, "not_found");
    admin.delete("/v1/projects/default").problem(409, "project_default");
    let again = Tenant::new(&server, "p1");
    let events = again.client.get("/v1/events").expect(200);
    assert_eq!(events["items"].as_array().map(Vec::len), Some(4), "a new project has its own only: {events}");
}
