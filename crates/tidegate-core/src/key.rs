//! API keys: who may do what. Only their hash is ever kept.

use ring::digest;
use serde::{Deserialize, Serialize};

use crate::id::prefixed;

/// What a key may do in its project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Read everything.
    Viewer,
    /// Publish events.
    Publisher,
    /// Everything.
    Admin,
}

impl Role {
    /// The stable name in the API and the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Publisher => "publisher",
            Self::Admin => "admin",
        }
    }

    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Viewer, Self::Publisher, Self::Admin].into_iter().find(|role| role.name() == name)
    }

    /// Whether it may publish events.
    pub fn may_publish(self) -> bool {
        self != Self::Viewer
    }

    /// Whether it may read events and deliveries. A publisher's key lives in many applications: it reads nothing.
    pub fn may_read(self) -> bool {
        self != Self::Publisher
    }

    /// Whether it may change anything.
    pub fn may_change(self) -> bool {
        self == Self::Admin
    }
}

const CHARS_MIN: usize = 32;
const CHARS_MAX: usize = 128;
/// Enough to recognise a key in a list, far too little to guess it.
const PREFIX_CHARS: usize = 8;

/// A new key from 256 random bits.
pub fn generate(chance: [u128; 2]) -> String {
    prefixed("tgk_", chance[0]) + &prefixed("", chance[1])
}

/// Whether an operator's own key may be used.
pub fn is_acceptable(key: &str) -> bool {
    key.starts_with("tgk_")
        && (CHARS_MIN..=CHARS_MAX).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What is kept of a key. Keys are long and random, so a plain digest is not guessable.
pub fn hash(key: &str) -> [u8; 32] {
    digest::digest(&digest::SHA256, key.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// What lists show of a key.
pub fn shown(key: &str) -> String {
    format!("{}…", key.chars().take(PREFIX_CHARS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_are_acceptable_and_differ() {
        let key = generate([1, 2]);
        assert!(is_acceptable(&key));
        assert_ne!(key, generate([1, 3]));
        assert_ne!(hash(&key), hash(&generate([1, 3])));
        for bad in ["tgk_short", "key_0123456789012345678901234567890", "tgk_0123456789 0123456789012345678"]
        {
            assert!(!is_acceptable(bad), "{bad}");
        }
    }
}
