//! An event, read once for all the subscribers that look at it.
//!
//! Type, source and subject cost nothing. The rest of the body is split into its parts when the first condition or
//! path asks for one, and `data` and `extensions` are parsed when they are asked for: once for conditions, once for
//! paths. Paths find what conditions can not read.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use cel::common::value::Val;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::path;
use super::scan;
use super::tree::Node;
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
    extensions_tree: OnceLock<Option<Node<'a>>>,
    data: OnceLock<Result<Box<dyn Val + 'a>, String>>,
    data_tree: OnceLock<Option<Node<'a>>>,
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
            extensions_tree: OnceLock::new(),
            data: OnceLock::new(),
            data_tree: OnceLock::new(),
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

    /// What names lead to below a part of the body, as it stands there, if it is cheap to find.
    pub(super) fn raw_at<'p>(&self, part: &'p str, path: impl Iterator<Item = &'p str>) -> Option<&[u8]> {
        let is_small = self.event.body.len() <= SCANNED_BYTES_MAX;
        if is_small { scan::raw_at(&self.event.body, part, path)? } else { None }
    }

    /// The same, opened. Nothing when there is none.
    pub(super) fn node_at<'p>(
        &self,
        part: &'p str,
        path: impl Iterator<Item = &'p str> + Clone,
    ) -> Option<Cow<'_, Node<'_>>> {
        if self.event.body.len() <= SCANNED_BYTES_MAX
            && let Some(found) = scan::raw_at(&self.event.body, part, path.clone())
        {
            return Node::parse(found?).map(Cow::Owned);
        }
        let (whole, raw) = match part {
            path::DATA => (&self.data_tree, self.parts().data),
            _ => (&self.extensions_tree, self.parts().extensions),
        };
        let whole = whole.get_or_init(|| Node::parse(raw?.get().as_bytes()));
        whole.as_ref()?.follow(path).map(Cow::Borrowed)
    }

    fn parts(&self) -> &Parts<'a> {
        self.parts.get_or_init(|| serde_json::from_slice(&self.event.body).unwrap_or_default())
    }
}

/// Up to this size a body is gone through for every path; of a larger one, `data` is read once for all of them.
const SCANNED_BYTES_MAX: usize = 4096;
