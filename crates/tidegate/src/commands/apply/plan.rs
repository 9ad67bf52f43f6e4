//! What has to happen so that a project is what the documents say.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value, json};

use tidegate_core::gate::check_name;
use tidegate_core::limits::{
    CATALOG_TYPES_PER_PROJECT_MAX, GATES_PER_PROJECT_MAX, SUBSCRIBERS_PER_PROJECT_MAX,
};

use super::documents::{Document, Kind};
use crate::client::Client;
use crate::failure::Failure;

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
    /// Where it stands in the files; a deletion stands nowhere.
    place: Option<String>,
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

    /// Does it; what fails is told with its place.
    pub(crate) async fn carry_out(&mut self, client: &mut Client) -> Result<(), Failure> {
        let done = self.send(client).await;
        done.map_err(|failure| match &self.place {
            Some(place) => at(place, failure),
            None => at(&format!("{} {}", self.kind.name(), self.name), failure),
        })
    }

    async fn send(&mut self, client: &mut Client) -> Result<(), Failure> {
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
            Kind::Gate => plan_gate(client, document).await,
        };
        let mut step = step.map_err(|failure| at(&place, failure))?;
        if steps.iter().any(|other| other.kind == step.kind && other.path == step.path) {
            let title = format!("{place}: the {} {} is there twice", step.kind.name(), step.name);
            return Err(Failure::usage(title).fix("keep one of the documents"));
        }
        step.place = Some(place);
        steps.push(step);
    }
    check_room(&known, &steps)?;
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
    ask(client, Kind::Subscriber, id, path, body).await
}

/// The server checks what is declared and tells what would change.
async fn ask(
    client: &mut Client,
    kind: Kind,
    name: String,
    path: Vec<String>,
    body: Map<String, Value>,
) -> Result<Step, Failure> {
    let segments: Vec<&str> = path.iter().map(String::as_str).collect();
    let wanted = Value::Object(body.clone());
    let told = client.ask(Method::PUT, &segments, &[("dry_run", "true")], &wanted).await?.json()?;
    let change = match told["change"].as_str() {
        Some("create") => Change::Create,
        Some("update") => Change::Update,
        _ => Change::None,
    };
    let fields = told["fields"].as_array().cloned().unwrap_or_default();
    Ok(Step { kind, name, change, fields, secret: None, place: None, path, body })
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
    ask(client, Kind::Type, format!("{service}/{type_name}"), path, body).await
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

async fn plan_gate(client: &mut Client, document: Document) -> Result<Step, Failure> {
    let mut body = document.members;
    let Some(Value::String(name)) = body.remove("name") else {
        return Err(Failure::usage("a gate needs a `name`"));
    };
    // The empty name would be the path of the list.
    check_name(&name, "name").map_err(|invalid| Failure::usage(invalid.detail))?;
    let path = ["v1", "gates", &name].map(str::to_owned).to_vec();
    ask(client, Kind::Gate, name, path, body).await
}

/// Each document fits by itself; all that are new must fit together.
fn check_room(known: &BTreeMap<Kind, Vec<Value>>, steps: &[Step]) -> Result<(), Failure> {
    for (kind, resources) in known {
        let most = match kind {
            Kind::Type => CATALOG_TYPES_PER_PROJECT_MAX,
            Kind::Gate => GATES_PER_PROJECT_MAX,
            Kind::Subscriber => SUBSCRIBERS_PER_PROJECT_MAX,
        };
        let is_new = |step: &&Step| step.kind == *kind && step.change == Change::Create;
        let (there, new) = (resources.len(), steps.iter().filter(is_new).count());
        if new > 0 && there + new > most {
            let name = kind.name();
            let title = format!("{new} new documents of `kind: {name}`, where {there} of at most {most} are");
            return Err(Failure::usage(title).fix("delete what is not used first; deletions come last"));
        }
    }
    Ok(())
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
            gone.push(Step { kind: *kind, name, change, fields, secret: None, place: None, path, body });
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
    fn what_is_new_must_fit_together() {
        let known = BTreeMap::from([(Kind::Gate, vec![Value::Null; GATES_PER_PROJECT_MAX - 1])]);
        let step = |name: &str, change| Step {
            kind: Kind::Gate,
            name: name.to_owned(),
            change,
            fields: Vec::new(),
            secret: None,
            place: None,
            path: Vec::new(),
            body: Map::new(),
        };
        assert!(check_room(&known, &[step("a", Change::Create), step("b", Change::Update)]).is_ok());
        let told = check_room(&known, &[step("a", Change::Create), step("b", Change::Create)]).unwrap_err();
        assert!(told.to_string().contains("999 of at most 1000"), "{told}");
    }
}
