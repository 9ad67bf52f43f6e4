//! What has to happen so that a project is what the documents say.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value, json};

use tidegate_core::gate::{Gate, check_name};
use tidegate_core::subscriber::Invalid;

use super::documents::{Document, Kind};
use crate::client::Client;
use crate::failure::{Exit, Failure};

/// What happens to one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is not there yet.
    Create,
    /// It differs.
    Update,
    /// The files do not name it.
    Delete,
    /// It is as it should be.
    None,
}

impl Change {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::None => "none",
        }
    }
}

/// One resource and what happens to it.
pub(crate) struct Step {
    pub(crate) kind: Kind,
    /// How people know it.
    pub(crate) name: String,
    pub(crate) change: Change,
    /// What differs, as the server told.
    pub(crate) fields: Vec<Value>,
    /// The secret of a subscriber that was made.
    pub(crate) secret: Option<String>,
    path: Vec<String>,
    body: Map<String, Value>,
}

impl Step {
    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let mut value = json!({
            "kind": self.kind.name(), "id": self.name, "change": self.change.name(), "fields": self.fields,
        });
        if let Some(secret) = &self.secret {
            value["secret"] = secret.as_str().into();
        }
        value
    }

    /// Does it.
    pub(crate) async fn carry_out(&mut self, client: &mut Client) -> Result<(), Failure> {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        if self.change == Change::Delete {
            client.act(Method::DELETE, &path, None).await?;
            return Ok(());
        }
        let body = Value::Object(self.body.clone());
        let answer = client.act(Method::PUT, &path, Some(&body)).await?.json()?;
        self.secret = answer.get("secret").and_then(Value::as_str).map(str::to_owned);
        Ok(())
    }
}

/// Asks the server what each document would change; refused documents are told with their place.
pub(crate) async fn plan(
    client: &mut Client,
    mut documents: Vec<Document>,
    is_pruning: bool,
) -> Result<Vec<Step>, Failure> {
    documents.sort_by_key(|document| document.kind);
    let mut known = BTreeMap::new();
    for kind in Kind::ALL {
        if is_pruning || documents.iter().any(|document| document.kind == kind) {
            known.insert(kind, list(client, kind).await?);
        }
    }
    check_gates(client, &documents, is_pruning).await?;
    let mut steps: Vec<Step> = Vec::new();
    for document in documents {
        let place = document.place.clone();
        let existing = known.get(&document.kind).map_or(&[][..], Vec::as_slice);
        let step = match document.kind {
            Kind::Subscriber => plan_subscriber(client, document, existing).await,
            Kind::Type => plan_type(client, document).await,
            Kind::Gate => plan_gate(document, existing),
        };
        let step = step.map_err(|failure| at(&place, failure))?;
        if steps.iter().any(|other| other.kind == step.kind && other.path == step.path) {
            let title = format!("{place}: the {} {} is there twice", step.kind.name(), step.name);
            return Err(Failure::usage(title).fix("keep one of the documents"));
        }
        steps.push(step);
    }
    if is_pruning {
        steps.extend(prune(&known, &steps));
    }
    Ok(steps)
}

fn at(place: &str, mut failure: Failure) -> Failure {
    failure.title = format!("{place}: {}", failure.title);
    failure
}

async fn plan_subscriber(
    client: &mut Client,
    document: Document,
    existing: &[Value],
) -> Result<Step, Failure> {
    let mut body = document.members;
    let id = match body.remove("id") {
        Some(Value::String(id)) => id,
        Some(_) => return Err(Failure::usage("`id` must be text")),
        None => id_by_name(&body, existing)?,
    };
    let path = vec!["v1".to_owned(), "subscribers".to_owned(), id.clone()];
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    let told = client
        .ask(Method::PUT, &segments, &[("dry_run", "true")], &Value::Object(body.clone()))
        .await?
        .json()?;
    let change = match told["change"].as_str() {
        Some("create") => Change::Create,
        Some("update") => Change::Update,
        _ => Change::None,
    };
    let fields = told["fields"].as_array().cloned().unwrap_or_default();
    Ok(Step { kind: Kind::Subscriber, name: id, change, fields, secret: None, path, body })
}

/// A document without an id means the subscriber of its name, or a new one called so.
fn id_by_name(body: &Map<String, Value>, existing: &[Value]) -> Result<String, Failure> {
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
    if name.is_empty() {
        return Err(Failure::usage("a subscriber needs an `id` or a `name`").fix("add `id: something`"));
    }
    let mut same = existing.iter().filter(|subscriber| subscriber["name"] == name);
    match (same.next(), same.next()) {
        (Some(subscriber), None) => Ok(subscriber["id"].as_str().unwrap_or_default().to_owned()),
        (Some(_), Some(_)) => Err(Failure::usage(format!("several subscribers are called {name:?}"))
            .fix("add the `id` of the one that is meant; `tidegate subscribers list` shows them")),
        (None, _) => Ok(slug(name)),
    }
}

/// `My service` becomes `my-service`.
fn slug(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    parts.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

async fn plan_type(client: &mut Client, document: Document) -> Result<Step, Failure> {
    let mut body = document.members;
    let mut text = |name: &str| match body.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        _ => Err(Failure::usage(format!("a type needs `{name}`"))),
    };
    let (service, type_name) = (text("service")?, text("type")?);
    let path = ["v1", "catalog", "services", &service, "types", &type_name].map(str::to_owned).to_vec();
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    let current = match client.get(&segments, &[]).await {
        Ok(answer) => Some(answer.json()?),
        Err(failure) if failure.exit == Exit::NotFound => None,
        Err(failure) => return Err(failure),
    };
    let (change, fields) = compare_type(current.as_ref(), &body);
    let name = format!("{service}/{type_name}");
    Ok(Step { kind: Kind::Type, name, change, fields, secret: None, path, body })
}

/// A type is replaced as a whole: what the document leaves out goes away.
fn compare_type(current: Option<&Value>, wanted: &Map<String, Value>) -> (Change, Vec<Value>) {
    let Some(current) = current.and_then(Value::as_object) else { return (Change::Create, Vec::new()) };
    let declared = [
        "schema",
        "deprecated",
        "description",
        "retention",
        "index",
        "counters",
        "histograms",
        "states",
        "observe",
    ];
    let differing = declared.iter().filter(|name| {
        let present = |members: &Map<String, Value>| members.get(**name).cloned().unwrap_or(Value::Null);
        present(current) != present(wanted)
    });
    let unknown = wanted.keys().map(String::as_str).filter(|name| !declared.contains(name));
    let fields: Vec<Value> =
        differing.copied().chain(unknown).map(|field| json!({ "field": field })).collect();
    (if fields.is_empty() { Change::None } else { Change::Update }, fields)
}

/// What the documents say is there when the subscribers come: the server can not know of gates that are made with them.
async fn check_gates(client: &mut Client, documents: &[Document], is_pruning: bool) -> Result<(), Failure> {
    let of = |kind| documents.iter().filter(move |document| document.kind == kind);
    let passes = |document: &&Document| document.members.contains_key("gate");
    let Some(_) = of(Kind::Subscriber).find(passes) else { return Ok(()) };
    let there = if is_pruning { Vec::new() } else { list(client, Kind::Gate).await? };
    for document in of(Kind::Subscriber).filter(passes) {
        let gate = &document.members["gate"];
        let is_known = gate.is_null()
            || there.iter().any(|known| known["name"] == *gate)
            || of(Kind::Gate).any(|declared| declared.members.get("name") == Some(gate));
        if !is_known {
            let title = format!("{}: there is no gate {gate}", document.place);
            return Err(Failure::usage(title).fix("add a document of `kind: gate`, or correct the name"));
        }
    }
    Ok(())
}

/// Checked here as the server does, so that a mistake leaves everything before it unapplied.
fn plan_gate(document: Document, existing: &[Value]) -> Result<Step, Failure> {
    let mut body = document.members;
    let Some(Value::String(name)) = body.remove("name") else {
        return Err(Failure::usage("a gate needs a `name`"));
    };
    let wrong = |invalid: Invalid| Failure::usage(invalid.detail);
    check_name(&name, "name").map_err(wrong)?;
    let gate = Gate::parse(Value::Object(body.clone()).to_string().as_bytes()).map_err(wrong)?;
    let current = existing.iter().find(|gate| gate["name"] == name.as_str());
    let (change, fields) = compare_gate(current, gate);
    let path = ["v1", "gates", &name].map(str::to_owned).to_vec();
    Ok(Step { kind: Kind::Gate, name, change, fields, secret: None, path, body })
}

fn compare_gate(current: Option<&Value>, wanted: Gate) -> (Change, Vec<Value>) {
    let Some(current) = current else { return (Change::Create, Vec::new()) };
    let wanted = [("rate", json!(wanted.rate)), ("burst", json!(wanted.burst))];
    let differing = wanted.into_iter().filter(|(field, to)| current[*field] != *to);
    let fields: Vec<Value> =
        differing.map(|(field, to)| json!({ "field": field, "from": current[field], "to": to })).collect();
    (if fields.is_empty() { Change::None } else { Change::Update }, fields)
}

fn prune(known: &BTreeMap<Kind, Vec<Value>>, steps: &[Step]) -> Vec<Step> {
    let mut gone = Vec::new();
    for (kind, resources) in known {
        for resource in resources {
            let Some((name, path)) = address(*kind, resource) else { continue };
            if steps.iter().any(|step| step.kind == *kind && step.path == path) {
                continue;
            }
            let (change, fields, body) = (Change::Delete, Vec::new(), Map::new());
            gone.push(Step { kind: *kind, name, change, fields, secret: None, path, body });
        }
    }
    // Subscribers go before the gates they pass and the types they were made for.
    gone.reverse();
    gone
}

fn address(kind: Kind, resource: &Value) -> Option<(String, Vec<String>)> {
    let text = |name: &str| resource[name].as_str().map(str::to_owned);
    Some(match kind {
        Kind::Subscriber => {
            let id = text("id")?;
            (id.clone(), vec!["v1".to_owned(), "subscribers".to_owned(), id])
        }
        Kind::Gate => {
            let name = text("name")?;
            (name.clone(), vec!["v1".to_owned(), "gates".to_owned(), name])
        }
        Kind::Type => {
            let (service, type_name) = (text("service")?, text("type")?);
            let path = ["v1", "catalog", "services", &service, "types", &type_name].map(str::to_owned);
            (format!("{service}/{type_name}"), path.to_vec())
        }
    })
}

/// Everything of a kind that the project has.
pub(crate) async fn list(client: &mut Client, kind: Kind) -> Result<Vec<Value>, Failure> {
    match kind {
        Kind::Subscriber => pages(client, &["v1", "subscribers"]).await,
        Kind::Gate => pages(client, &["v1", "gates"]).await,
        Kind::Type => {
            let mut types = Vec::new();
            for service in pages(client, &["v1", "catalog", "services"]).await? {
                let name = service["service"].as_str().unwrap_or_default().to_owned();
                types.extend(pages(client, &["v1", "catalog", "services", &name]).await?);
            }
            Ok(types)
        }
    }
}

async fn pages(client: &mut Client, path: &[&str]) -> Result<Vec<Value>, Failure> {
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let query: Vec<(&str, &str)> = cursor.iter().map(|cursor| ("cursor", cursor.as_str())).collect();
        let page = client.get(path, &query).await?.json()?;
        items.extend(page["items"].as_array().cloned().unwrap_or_default());
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(items),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_an_id_while_it_is_unique() {
        let existing =
            [json!({"id":"sub_1","name":"A"}), json!({"id":"x","name":"B"}), json!({"id":"y","name":"B"})];
        let of = |name: &str| id_by_name(json!({ "name": name }).as_object().unwrap(), &existing);
        assert_eq!(of("A").unwrap(), "sub_1");
        assert_eq!(of("My service!").unwrap(), "my-service");
        assert!(of("B").is_err() && of("").is_err());
    }

    #[test]
    fn a_gate_that_says_the_same_is_left_alone() {
        let current = json!({"name":"g","rate":"3/s","burst":3,"updated_at":"x"});
        let change = |wanted: &str| compare_gate(Some(&current), Gate::parse(wanted.as_bytes()).unwrap()).0;
        assert_eq!(change(r#"{"rate":"3/s"}"#), Change::None);
        assert_eq!(change(r#"{"rate":"3/s","burst":3}"#), Change::None);
        assert_eq!(change(r#"{"rate":"4/s"}"#), Change::Update);
        assert_eq!(change(r#"{"rate":"3/s","burst":9}"#), Change::Update);
    }

    #[test]
    fn a_type_that_says_the_same_is_left_alone() {
        let current = json!({"service":"s","type":"t","schema":{"type":"object"},"updated_at":"x"});
        let same = json!({"schema":{"type":"object"}});
        assert_eq!(compare_type(Some(&current), same.as_object().unwrap()).0, Change::None);
        let other = json!({"description":"d"});
        let (change, fields) = compare_type(Some(&current), other.as_object().unwrap());
        assert_eq!((change, fields.len()), (Change::Update, 2));
        assert_eq!(compare_type(None, same.as_object().unwrap()).0, Change::Create);
    }
}
