//! What `PUT /v1/catalog/services/{service}/types/{type}` takes.

use std::collections::BTreeMap;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::schema::{Flaw, Schema};
use crate::ingest::check_name;
use crate::json;
use crate::limits::{
    CATALOG_DESCRIPTION_BYTES_MAX, JSON_DEPTH_MAX, SCHEMA_BYTES_MAX, SOURCE_BYTES_MAX, TYPE_BYTES_MAX,
};
use crate::observe::{
    Counter, Extraction, Histogram, Object, Observing, Spec, Switches, Term, check_retention,
};
use crate::operator;
use crate::route::Path;
use crate::subscriber::{Invalid, read};

/// What a type of events is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Definition {
    /// What `data` has to be, as it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Box<RawValue>>,
    /// It should not be sent any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deprecated: Option<Deprecation>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How long its events are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Term>,
    /// What is counted, measured, followed and indexed of its events.
    #[serde(flatten)]
    pub observing: Observing,
}

/// What is said about a type that should not be sent any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deprecation {
    /// The type to send instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
}

impl Definition {
    /// Reads and checks the body of a request.
    pub fn parse(body: &[u8]) -> Result<Self, Invalid> {
        let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
        if json::scan(body).depth > JSON_DEPTH_MAX {
            let detail = format!("the JSON nests deeper than {JSON_DEPTH_MAX} levels; flatten it");
            return Err(Invalid { code: "json_too_deep", field: None, detail, syntax: true });
        }
        let form: Form = read(body)?;
        let definition = form.into_definition();
        definition.check_texts()?;
        definition.compile_schema()?;
        check_retention("retention", definition.retention.as_ref())?;
        definition.observing.check()?;
        Ok(definition)
    }

    /// The metrics of the type.
    pub fn specs(&self) -> Vec<Spec> {
        self.observing.specs()
    }

    pub(super) fn compile_schema(&self) -> Result<Option<Schema>, Invalid> {
        let Some(raw) = &self.schema else { return Ok(None) };
        if raw.get().len() > SCHEMA_BYTES_MAX {
            let detail =
                format!("a schema has at most {SCHEMA_BYTES_MAX} bytes; this one has {}", raw.get().len());
            return Err(Invalid::new("schema_too_large", "schema", detail));
        }
        let document: Value = serde_json::from_str(raw.get())
            .map_err(|error| Invalid::new("schema_invalid", "schema", error.to_string()))?;
        Schema::compile(&document).map(Some).map_err(|flaw| explain(&flaw))
    }

    fn check_texts(&self) -> Result<(), Invalid> {
        if self.description.as_ref().is_some_and(|text| text.len() > CATALOG_DESCRIPTION_BYTES_MAX) {
            let detail = format!("`description` has at most {CATALOG_DESCRIPTION_BYTES_MAX} bytes");
            return Err(Invalid::new("field_too_long", "description", detail));
        }
        let replacement = self.deprecated.as_ref().and_then(|deprecated| deprecated.replaced_by.as_deref());
        replacement.map_or(Ok(()), |name| check("deprecated.replaced_by", name, TYPE_BYTES_MAX))
    }
}

/// Whether events can have such a source and such a type.
pub fn check_names(service: &str, type_name: &str) -> Result<(), Invalid> {
    check("service", service, SOURCE_BYTES_MAX)?;
    if service == operator::SOURCE {
        let detail = "the source `tidegate` is for events about Tidegate itself, which need no declaration";
        return Err(Invalid::new("source_reserved", "service", detail));
    }
    check("type", type_name, TYPE_BYTES_MAX)
}

fn check(field: &str, name: &str, max: usize) -> Result<(), Invalid> {
    check_name(field, name, max).map_err(|refusal| Invalid::new(refusal.code, field, refusal.detail))
}

fn explain(flaw: &Flaw) -> Invalid {
    let at = flaw.path.replace('/', ".");
    let is_reference = flaw.path.ends_with("/$ref");
    let code = if is_reference { "schema_reference" } else { "schema_invalid" };
    let shown: String = format!("schema{at}").chars().take(300).collect();
    Invalid::new(code, &shown, format!("at `{shown}`: {}", flaw.detail))
}

/// The fields on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    schema: Option<Box<RawValue>>,
    #[serde(default)]
    deprecated: Flag,
    description: Option<String>,
    retention: Option<Term>,
    index: Option<Vec<Path>>,
    counters: Option<BTreeMap<String, Object<Counter>>>,
    histograms: Option<BTreeMap<String, Object<Histogram>>>,
    states: Option<Vec<Object<Extraction>>>,
    observe: Option<Object<Switches>>,
}

impl Form {
    fn into_definition(self) -> Definition {
        let observing = Observing {
            index: self.index,
            counters: self.counters.map(unwrapped),
            histograms: self.histograms.map(unwrapped),
            states: self.states.map(|states| states.into_iter().map(|Object(inner)| inner).collect()),
            observe: self.observe.map(|Object(inner)| inner),
        };
        Definition {
            schema: self.schema,
            deprecated: self.deprecated.0,
            description: self.description,
            retention: self.retention,
            observing,
        }
    }
}

fn unwrapped<T>(named: BTreeMap<String, Object<T>>) -> BTreeMap<String, T> {
    named.into_iter().map(|(name, Object(inner))| (name, inner)).collect()
}

/// `{"replaced_by":…}`, `{}` or `true`; `false` and `null` are none.
#[derive(Default)]
struct Flag(Option<Deprecation>);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null | Value::Bool(false) => Ok(Self(None)),
            Value::Bool(true) => Ok(Self(Some(Deprecation::default()))),
            object @ Value::Object(_) => {
                Deprecation::deserialize(object).map(|found| Self(Some(found))).map_err(D::Error::custom)
            }
            _ => Err(D::Error::custom("invalid type: expected true, false or {\"replaced_by\":\"…\"}")),
        }
    }
}
