//! What keeps windows of one subscriber apart.

use std::sync::Arc;

use ring::digest;
use serde_json::{Map, Value};

use crate::limits::FOLD_KEY_VALUE_BYTES_MAX;
use crate::route::{Path, View, value_of};

/// The values at a fold's paths: as people read them, and as one number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// A hash of the paths and values. Replays gather apart, under hashes of their own.
    pub hash: u128,
    /// `{"type":"A","data.plan":7}`.
    pub text: Arc<str>,
}

impl Key {
    /// The key of an event. What is missing counts as null.
    pub fn of(view: &View<'_>, by: &[Path]) -> Self {
        Self::with(by.iter().map(|path| (path.as_str().to_owned(), value_of(view, path))))
    }

    /// The key with these members, in whatever order they come.
    pub fn with(members: impl IntoIterator<Item = (String, Value)>) -> Self {
        let shown = members.into_iter().map(|(path, value)| (path, shown(value)));
        Self::from_text(&Value::Object(shown.collect::<Map<String, Value>>()).to_string())
    }

    /// The key that reads so.
    pub fn from_text(text: &str) -> Self {
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let hash = u128::from_be_bytes(hash.as_ref()[..16].try_into().expect("SHA-256 has 32 bytes"));
        Self { hash, text: Arc::from(text) }
    }

    /// The same for events that are sent again.
    #[must_use]
    pub fn for_replay(&self) -> Self {
        Self { hash: !self.hash, text: Arc::clone(&self.text) }
    }
}

/// Long values stand in a key by their hash: they still keep windows apart, and a key stays short.
fn shown(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= FOLD_KEY_VALUE_BYTES_MAX { value } else { Value::from(hashed(&text)) }
}

/// What stands for a text that is too long.
pub(crate) fn hashed(text: &str) -> String {
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    let hex: String = hash.as_ref()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
