//! `--fold window:60s,max_events=100`: a fold in one word of a command line.
//!
//! What is written is turned into the JSON of the API as it stands; whether it makes sense the server decides. Conditions
//! have commas and quotes of their own, so they are for `--file`.

use serde_json::{Map, Value};

/// The modes, and the term that the time after the colon is.
const MODES: [(&str, Option<&str>); 4] =
    [("each", None), ("window", Some("window")), ("quiet", Some("quiet")), ("batch", Some("every"))];

/// Terms that can be given.
const TERMS: [&str; 5] = ["max_wait", "max_events", "max_bytes", "leading", "adaptive"];

/// Reads the flag.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut parts = text.split(',');
    let head = parts.next().unwrap_or_default();
    let (mode, time) = head.split_once(':').map_or((head, None), |(mode, time)| (mode, Some(time)));
    let Some((mode, term)) = MODES.iter().find(|(name, _)| *name == mode) else {
        return Err("write window:60s, quiet:10s, batch:30s or each".to_owned());
    };
    let mut fold = Map::from_iter([("mode".to_owned(), Value::from(*mode))]);
    match (term, time) {
        (Some(term), Some(time)) => drop(fold.insert((*term).to_owned(), time.into())),
        (None, Some(_)) => return Err("`each` takes no time".to_owned()),
        (_, None) => {}
    }
    for part in parts {
        let (name, value) = part.split_once('=').unwrap_or((part, "true"));
        if !TERMS.contains(&name) {
            let known = TERMS.join(", ");
            return Err(format!("`{name}` can not be given here; {known} can, and --file takes everything"));
        }
        // A duration is no JSON, numbers and truths are.
        let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
        fold.insert(name.to_owned(), value);
    }
    Ok(Value::Object(fold))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fold_in_one_word() {
        for (text, expected) in [
            ("each", json!({"mode": "each"})),
            ("window", json!({"mode": "window"})),
            ("window:60s", json!({"mode": "window", "window": "60s"})),
            ("window:60s,leading", json!({"mode": "window", "window": "60s", "leading": true})),
            ("quiet:10s,max_wait=2m", json!({"mode": "quiet", "quiet": "10s", "max_wait": "2m"})),
            ("batch:30s,max_events=1000", json!({"mode": "batch", "every": "30s", "max_events": 1000})),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for wrong in ["", "60s", "debounce:5s", "each:5s", "window:60s,by=type", "window:60s,"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
