//! The catalog: which services say what, and what an event that the catalog does not know comes to.
//!
//! A project's catalog is open (everything is taken) or strict (only declared types are). A declared type may have a
//! schema for `data`, and may be deprecated. [`Catalog::judge`] is asked once per unit, at acceptance; a unit it
//! finds fault with goes to the quarantine as a whole, with the [`Finding`].
//!
//! Promises: judging is total and a pure function of catalog, unit and `now`; what it costs is bounded by the event's
//! size. Does not: look anything up, or change an event.

mod asyncapi;
mod definition;
mod judge;
mod parcel;
pub mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use asyncapi::describe;
pub use definition::{Definition, Deprecation, check_names};
pub use judge::{Finding, Reason, judge, judge_again};
pub use parcel::{pack, unpack};
use schema::Schema;

use crate::id::MetricNo;
use crate::observe::Kind;
use crate::time::Timestamp;

/// What becomes of types that nobody declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are accepted.
    #[default]
    Open,
    /// They are quarantined.
    Strict,
}

impl Mode {
    /// As the API and the store write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Strict => "strict",
        }
    }

    /// Reads what [`Mode::name`] writes.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Open, Self::Strict].into_iter().find(|mode| mode.name() == name)
    }
}

/// A declared type of events, ready for use.
#[derive(Debug)]
pub struct EventType {
    /// As it was declared.
    pub definition: Definition,
    /// Since when.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What is counted of it.
    pub metrics: Vec<(Kind, String, MetricNo)>,
    schema: Option<Schema>,
}

impl EventType {
    /// Compiles a definition that was checked before; the text says why it can not be used.
    pub fn compile(
        definition: Definition,
        created_at: Timestamp,
        updated_at: Timestamp,
    ) -> Result<Self, String> {
        let schema = definition.compile_schema().map_err(|invalid| invalid.detail)?;
        Ok(Self { definition, created_at, updated_at, metrics: Vec::new(), schema })
    }

    /// The same, with the numbers that its metrics have.
    #[must_use]
    pub fn counting(self, metrics: Vec<(Kind, String, MetricNo)>) -> Self {
        Self { metrics, ..self }
    }

    /// The number of one of its metrics.
    pub fn metric(&self, kind: Kind, name: &str) -> Option<MetricNo> {
        let found = self.metrics.iter().find(|(of, called, _)| *of == kind && called == name);
        found.map(|(.., no)| *no)
    }
}

/// The types of one service, by name.
pub type Types = BTreeMap<String, Arc<EventType>>;

/// One project's catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Open or strict.
    pub mode: Mode,
    services: BTreeMap<String, Types>,
    deprecated: usize,
}

impl Catalog {
    /// Declares a type, or declares it anew.
    pub fn put(&mut self, service: &str, type_name: &str, event_type: Arc<EventType>) {
        self.deprecated += usize::from(event_type.definition.deprecated.is_some());
        let types = self.services.entry(service.to_owned()).or_default();
        let old = types.insert(type_name.to_owned(), event_type);
        self.deprecated -= usize::from(old.is_some_and(|old| old.definition.deprecated.is_some()));
    }

    /// Takes a type back.
    pub fn remove(&mut self, service: &str, type_name: &str) {
        let Some(types) = self.services.get_mut(service) else { return };
        let old = types.remove(type_name);
        self.deprecated -= usize::from(old.is_some_and(|old| old.definition.deprecated.is_some()));
        if types.is_empty() {
            self.services.remove(service);
        }
    }

    /// All services with their types.
    pub fn services(&self) -> &BTreeMap<String, Types> {
        &self.services
    }

    /// A declared type.
    pub fn get(&self, service: &str, type_name: &str) -> Option<&Arc<EventType>> {
        self.services.get(service)?.get(type_name)
    }

    /// It takes everything and says nothing, as every new project's does.
    pub fn is_trivial(&self) -> bool {
        self.mode == Mode::Open && self.services.is_empty()
    }

    /// Whether any type is deprecated at all.
    pub fn has_deprecated(&self) -> bool {
        self.deprecated > 0
    }

    /// What to tell the sender of a deprecated type.
    pub fn warning(&self, service: &str, type_name: &str) -> Option<String> {
        let deprecation = self.get(service, type_name)?.definition.deprecated.as_ref()?;
        Some(match &deprecation.replaced_by {
            Some(other) => format!("the type {type_name} is deprecated: send {other} instead"),
            None => format!("the type {type_name} is deprecated"),
        })
    }
}
