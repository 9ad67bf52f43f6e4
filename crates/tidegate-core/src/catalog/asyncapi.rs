//! The catalog as an AsyncAPI 3.0 document, for those who generate code and documentation from such.
//!
//! One channel per type: the events that a subscriber gets. The payload is the event as it is delivered, with the
//! type's schema at its place; references inside a schema are turned to where it now stands.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Catalog, EventType};

/// Describes what a project's services say.
pub fn describe(project: &str, version: i64, catalog: &Catalog) -> Value {
    let mut channels = Map::new();
    let mut operations = Map::new();
    let mut used = BTreeMap::new();
    for (service, types) in catalog.services() {
        for (type_name, event_type) in types {
            let id = unique(&mut used, &format!("{}.{}", plain(service), plain(type_name)));
            let reference = format!("#/channels/{id}");
            operations.insert(
                id.clone(),
                json!({
                    "action": "send",
                    "channel": { "$ref": reference },
                    "messages": [{ "$ref": format!("{reference}/messages/event") }],
                }),
            );
            channels.insert(id, channel(service, type_name, event_type, &reference));
        }
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": format!("Events of {project}"),
            "version": version.to_string(),
            "description": "What this project's services say happened, as Tidegate delivers it.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
    })
}

fn channel(service: &str, type_name: &str, event_type: &EventType, reference: &str) -> Value {
    let base = format!("{reference}/messages/event/payload/properties/data");
    let mut message = json!({
        "name": type_name,
        "contentType": "application/json",
        "payload": payload(service, type_name, event_type, &base),
    });
    let definition = &event_type.definition;
    if let Some(description) = &definition.description {
        message["description"] = description.as_str().into();
    }
    if let Some(deprecation) = &definition.deprecated {
        let instead =
            deprecation.replaced_by.as_ref().map(|other| format!(": use {other}")).unwrap_or_default();
        message["summary"] = format!("Deprecated{instead}").into();
    }
    json!({ "address": type_name, "title": format!("{type_name} of {service}"), "messages": { "event": message } })
}

fn payload(service: &str, type_name: &str, event_type: &EventType, base: &str) -> Value {
    let schema = event_type.definition.schema.as_ref();
    let mut data = schema.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or(Value::Bool(true));
    settle(&mut data, base);
    json!({
        "type": "object",
        "required": ["id", "source", "type", "time"],
        "properties": {
            "id": { "type": "string" },
            "source": { "const": service },
            "type": { "const": type_name },
            "subject": { "type": "string" },
            "time": { "type": "string", "format": "date-time" },
            "ended": { "type": "string", "format": "date-time" },
            "parents": { "type": "array", "items": { "type": "string" } },
            "extensions": { "type": "object" },
            "data": data,
        },
    })
}

/// Makes a schema a part of the whole document: its references, by pointer, by anchor or by its own name, lead to where
/// it now stands. The names themselves go, since tools take a named schema for a document elsewhere.
fn settle(data: &mut Value, base: &str) {
    let anchors: BTreeMap<String, String> = super::schema::anchors(data)
        .unwrap_or_default()
        .into_iter()
        .map(|(name, pointer)| (name.to_owned(), pointer))
        .collect();
    if let Some(members) = data.as_object_mut() {
        members.remove("$id");
        members.remove("$schema");
    }
    turn(data, base, &anchors);
}

fn turn(schema: &mut Value, base: &str, anchors: &BTreeMap<String, String>) {
    match schema {
        Value::Object(members) => {
            members.remove("$anchor");
            if let Some(Value::String(reference)) = members.get_mut("$ref") {
                // What stands before the fragment can only be the schema's own name.
                let fragment = reference.split_once('#').map_or("", |(_, fragment)| fragment);
                let pointer = anchors.get(fragment).map_or(fragment, String::as_str);
                *reference = format!("{base}{pointer}");
            }
            let inner = members.iter_mut().filter(|(name, _)| !super::schema::DATA.contains(&name.as_str()));
            inner.for_each(|(_, member)| turn(member, base, anchors));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| turn(item, base, anchors)),
        _ => {}
    }
}

/// A name that needs no escaping, neither as a key nor in a reference.
fn plain(name: &str) -> String {
    let keep = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    name.chars().map(|letter| if keep(letter) { letter } else { '_' }).collect()
}

fn unique(used: &mut BTreeMap<String, usize>, id: &str) -> String {
    let count = used.entry(id.to_owned()).or_default();
    *count += 1;
    match *count {
        1 => id.to_owned(),
        n => unique(used, &format!("{id}-{n}")),
    }
}
