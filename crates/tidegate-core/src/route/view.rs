//! An event, read once for all the subscribers that look at it.
//!
//! Type, source and subject cost nothing; the body is parsed when the first condition or path asks for what is in
//! it, and `data` only when `data` is asked for.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::event::Event;

/// What is looked at in an event.
#[derive(Debug)]
pub struct View<'a> {
    pub(super) event: &'a Event,
    envelope: OnceLock<Envelope<'a>>,
    data: OnceLock<Result<Value, String>>,
    extensions: OnceLock<Result<Value, String>>,
    parents: OnceLock<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    ended: Option<String>,
    parents: Vec<String>,
    #[serde(borrow)]
    extensions: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

impl<'a> View<'a> {
    /// A view of `event`; nothing is parsed yet.
    pub fn new(event: &'a Event) -> Self {
        Self {
            event,
            envelope: OnceLock::new(),
            data: OnceLock::new(),
            extensions: OnceLock::new(),
            parents: OnceLock::new(),
        }
    }

    /// `data` as JSON; null when it is not JSON. An error when it cannot be represented, such as `1e999`.
    pub(super) fn data(&self) -> Result<&Value, &str> {
        let read = || self.envelope().data.map_or(Ok(Value::Null), |raw| read("data", raw));
        self.data.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// The extension attributes; an empty object when there are none.
    pub(super) fn extensions(&self) -> Result<&Value, &str> {
        let none = || Ok(Value::Object(serde_json::Map::new()));
        let read = || self.envelope().extensions.map_or_else(none, |raw| read("extensions", raw));
        self.extensions.get_or_init(read).as_ref().map_err(String::as_str)
    }

    /// The ids of the events it follows from.
    pub(super) fn parents(&self) -> &Value {
        self.parents.get_or_init(|| self.envelope().parents.iter().map(String::as_str).collect())
    }

    /// When it happened, as it stands in the body.
    pub(super) fn time(&self) -> &str {
        &self.envelope().time
    }

    /// When it ended.
    pub(super) fn ended(&self) -> Option<&str> {
        self.envelope().ended.as_deref()
    }

    fn envelope(&self) -> &Envelope<'a> {
        self.envelope.get_or_init(|| serde_json::from_slice(&self.event.body).unwrap_or_default())
    }
}

fn read(name: &str, raw: &RawValue) -> Result<Value, String> {
    serde_json::from_str(raw.get()).map_err(|error| format!("{name} cannot be read: {error}"))
}
