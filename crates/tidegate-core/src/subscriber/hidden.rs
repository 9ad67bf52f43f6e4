//! What of a definition is secret: an endpoint's URL, whose path and query may hold tokens, and the values of headers.
//!
//! [`part`] splits a definition into a text that may be read by whoever reads the database and bytes to be sealed;
//! [`join`] puts them together again. Answers show [`masked_headers`], and a patch that brings a mask back means
//! "as it was".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::definition::Definition;
use super::invalid::Invalid;

/// Stands where a secret is.
pub const MASK: &str = "***";

#[derive(Serialize, Deserialize)]
struct Hidden {
    url: String,
    headers: BTreeMap<String, String>,
}

/// The definition as JSON without its secrets, and its secrets.
pub fn part(definition: &Definition) -> (String, Vec<u8>) {
    let destination = &definition.destination;
    let hidden = Hidden { url: destination.url.clone(), headers: destination.headers.clone() };
    let mut open = definition.clone();
    open.destination.url = origin(&destination.url);
    open.destination.headers = masked_headers(&destination.headers);
    (open.said().to_string(), serde_json::to_vec(&hidden).expect("texts are always JSON"))
}

/// The whole definition again.
pub fn join(open: &str, hidden: &[u8]) -> Result<Definition, String> {
    let mut definition: Definition = serde_json::from_str(open).map_err(|error| error.to_string())?;
    let hidden: Hidden =
        serde_json::from_slice(hidden).map_err(|_| "its destination can not be read".to_owned())?;
    definition.destination.url = hidden.url;
    definition.destination.headers = hidden.headers;
    Ok(definition)
}

/// Headers as answers show them: their values may be credentials.
pub fn masked_headers(headers: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    headers.keys().map(|name| (name.clone(), MASK.to_owned())).collect()
}

/// Puts the values back that `headers` brings masked. `known` is what they were.
pub(super) fn unmask(
    headers: &mut BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> Result<(), Invalid> {
    for (name, value) in headers.iter_mut().filter(|(_, value)| *value == MASK) {
        let Some(before) = known.get(name) else {
            let field = format!("destination.headers.{name}");
            let detail =
                format!("{MASK} stands for a value that is kept, but none is: give the value itself");
            return Err(Invalid::new("header_masked", &field, detail));
        };
        before.clone_into(value);
    }
    Ok(())
}

/// Scheme, host and port. A URL was checked before it comes here; what is none shows nothing.
fn origin(url: &str) -> String {
    let Ok(url) = url::Url::parse(url) else { return String::new() };
    format!("{}/", url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::super::creation::Creation;
    use super::super::patch::patch;
    use super::*;

    const URL: &str = "https://example.com:8443/t0ken/hook?key=t0ken";

    fn definition() -> Definition {
        let body = format!(r#"{{"destination":{{"url":"{URL}","headers":{{"x-key":"t0ken"}}}}}}"#);
        Creation::parse(body.as_bytes()).unwrap().definition
    }

    #[test]
    fn nothing_secret_is_left_and_nothing_is_lost() {
        let (open, hidden) = part(&definition());
        assert!(!open.contains("t0ken") && open.contains("https://example.com:8443/"), "{open}");
        assert_eq!(join(&open, &hidden).unwrap(), definition());
        assert!(join(&open, b"{}").is_err() && join("{}", &hidden).is_err());
    }

    #[test]
    fn a_mask_keeps_what_it_hides() {
        let kept = patch(&definition(), br#"{"destination":{"headers":{"x-key":"***"}}}"#).unwrap();
        assert_eq!((kept.definition, kept.changed), (definition(), vec![]));
        let problem = patch(&definition(), br#"{"destination":{"headers":{"x-new":"***"}}}"#).unwrap_err();
        assert_eq!(problem.code, "header_masked");
        let problem = Creation::parse(br#"{"destination":{"url":"u","headers":{"a":"***"}}}"#).unwrap_err();
        assert_eq!(
            (problem.code, problem.field.as_deref()),
            ("header_masked", Some("destination.headers.a"))
        );
    }
}
