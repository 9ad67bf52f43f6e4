//! An event, read once for all the subscribers that look at it.
//!
//! Type, source and subject cost nothing. The rest of the body is split into its parts when the first condition or
//! path asks for one, and `data` and `extensions` are parsed when they are asked for: once for conditions, once for
//! paths.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cel::common::value::Val;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::path::{self, follow};
use super::scan;
use super::value::{self, Budget};
use crate::event::Event;

/// What is looked at in an event.
#[derive(Debug)]
pub struct View<'a> {
    pub(super) event: &'a Event,
    budget: OnceLock<Arc<Budget>>,
    parts: OnceLock<Parts<'a>>,
    parents: OnceLock<Box<dyn Val + 'a>>,
    extensions: OnceLock<Result<Box<dyn Val + 'a>, String>>,
    extensions_json: OnceLock<Value>,
    data: OnceLock<Result<Box<dyn Val + 'a>, String>>,
    data_json: OnceLock<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Parts<'a> {
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
            budget: OnceLock::new(),
            parts: OnceLock::new(),
            parents: OnceLock::new(),
            extensions: OnceLock::new(),
            extensions_json: OnceLock::new(),
            data: OnceLock::new(),
            data_json: OnceLock::new(),
        }
    }

    /// What conditions may spend.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        self.budget.get_or_init(Arc::default)
    }

    /// `data` for conditions; null when it is not JSON. An error when no value can hold it, such as `1e999`.
    pub(super) fn data(&self) -> Result<&(dyn Val + 'a), &str> {
        let read = || {
            let text = self.parts().data.map_or("null", RawValue::get);
            value::read(text, self.budget()).map_err(|error| format!("data cannot be read: {error}"))
        };
        self.data.get_or_init(read).as_deref().map_err(String::as_str)
    }

    /// The extension attributes for conditions; empty when there are none.
    pub(super) fn extensions(&self) -> Result<&(dyn Val + 'a), &str> {
        let read = || {
            let text = self.parts().extensions.map_or("{}", RawValue::get);
            value::read(text, self.budget()).map_err(|error| format!("extensions cannot be read: {error}"))
        };
        self.extensions.get_or_init(read).as_deref().map_err(String::as_str)
    }

    /// The ids of the events it follows from.
    pub(super) fn parents(&self) -> &(dyn Val + 'a) {
        self.parents.get_or_init(|| value::texts(&self.parts().parents, self.budget())).as_ref()
    }

    /// When it happened, as it stands in the body.
    pub(super) fn time(&self) -> &str {
        &self.parts().time
    }

    /// When it ended.
    pub(super) fn ended(&self) -> Option<&str> {
        self.parts().ended.as_deref()
    }

    /// The value in `data` that names lead to.
    pub(super) fn data_at<'p>(&self, path: impl Iterator<Item = &'p str> + Clone) -> Option<Value> {
        self.value_at(path::DATA, path, &self.data_json, |parts| parts.data)
    }

    /// The same in the extension attributes.
    pub(super) fn extension_at<'p>(&self, path: impl Iterator<Item = &'p str> + Clone) -> Option<Value> {
        self.value_at(path::EXTENSIONS, path, &self.extensions_json, |parts| parts.extensions)
    }

    /// The same below a part of the body, as it stands there, if it is cheap to find.
    pub(super) fn raw_at<'p>(&self, part: &'p str, path: impl Iterator<Item = &'p str>) -> Option<&[u8]> {
        let is_small = self.event.body.len() <= SCANNED_BYTES_MAX;
        if is_small { scan::raw_at(&self.event.body, part, path)? } else { None }
    }

    /// A whole number there that is too long for any value, see [`path::long`].
    pub(super) fn long_at<'p>(
        &self,
        part: &'p str,
        path: impl Iterator<Item = &'p str> + Clone,
    ) -> Option<String> {
        if let Some(raw) = self.raw_at(part, path.clone()) {
            return path::long(std::str::from_utf8(raw).ok()?);
        }
        let parts = self.parts();
        let mut raw = if part == path::DATA { parts.data? } else { parts.extensions? };
        for name in path {
            raw = match serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(raw.get()) {
                Ok(members) => members.get(name).copied()?,
                Err(_) => {
                    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
                    items.get(name.parse::<usize>().ok()?).copied()?
                }
            };
        }
        path::long(raw.get())
    }

    fn value_at<'p>(
        &self,
        part: &'p str,
        path: impl Iterator<Item = &'p str> + Clone,
        whole: &OnceLock<Value>,
        of: fn(&Parts<'a>) -> Option<&'a RawValue>,
    ) -> Option<Value> {
        if self.event.body.len() <= SCANNED_BYTES_MAX
            && let Some(found) = scan::value_at(&self.event.body, part, path.clone())
        {
            return found;
        }
        let raw = of(self.parts())?;
        let whole = whole.get_or_init(|| serde_json::from_str(raw.get()).unwrap_or_default());
        follow(whole, path).cloned()
    }

    fn parts(&self) -> &Parts<'a> {
        self.parts.get_or_init(|| serde_json::from_slice(&self.event.body).unwrap_or_default())
    }
}

/// Up to this size a body is gone through for every path; of a larger one, `data` is read once for all of them.
const SCANNED_BYTES_MAX: usize = 4096;
