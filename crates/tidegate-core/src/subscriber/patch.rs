//! Changing a subscriber: a JSON merge patch (RFC 7396) on its definition, where `null` means the default; or a whole
//! new definition, which is the patch that leaves nothing of the old one. A fold of another mode is a new fold.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::definition::Definition;
use super::hidden::unmask;
use super::invalid::{Invalid, explain, read};
use super::mask::mask_url;
use super::validate::{CheckHeaders, CheckUrl, validate_section};

/// A part of a definition that changes and is checked as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The label.
    Name,
    /// `match`.
    Match,
    /// `fold`.
    Fold,
    /// `destination`.
    Destination,
    /// `signing`.
    Signing,
    /// `verification`.
    Verification,
    /// `order`.
    Order,
    /// `gate`.
    Gate,
    /// `limits`.
    Limits,
    /// `retry`.
    Retry,
    /// `breaker`.
    Breaker,
    /// `disable_after`.
    DisableAfter,
}

impl Section {
    /// Every section, in the order of the definition.
    pub const ALL: [Self; 12] = [
        Self::Name,
        Self::Match,
        Self::Fold,
        Self::Destination,
        Self::Signing,
        Self::Verification,
        Self::Order,
        Self::Gate,
        Self::Limits,
        Self::Retry,
        Self::Breaker,
        Self::DisableAfter,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Match => "match",
            Self::Fold => "fold",
            Self::Destination => "destination",
            Self::Signing => "signing",
            Self::Verification => "verification",
            Self::Order => "order",
            Self::Gate => "gate",
            Self::Limits => "limits",
            Self::Retry => "retry",
            Self::Breaker => "breaker",
            Self::DisableAfter => "disable_after",
        }
    }
}

/// What a patch makes of a subscriber.
#[derive(Clone, Debug, PartialEq)]
pub struct Patched {
    /// The whole new definition.
    pub definition: Definition,
    /// `active`, if the patch says so.
    pub active: Option<bool>,
    /// The sections that differ from before.
    pub changed: Vec<Section>,
    /// The address is another one.
    pub moves: bool,
}

impl Patched {
    /// Checks what changed, and nothing else: an address that stays is not judged again with its headers.
    pub fn validate(&self, check_url: CheckUrl<'_>, check_headers: CheckHeaders<'_>) -> Result<(), Invalid> {
        let as_before = |_: &str| Ok(());
        let check_url: CheckUrl<'_> = if self.moves { check_url } else { &as_before };
        self.changed
            .iter()
            .try_for_each(|section| validate_section(&self.definition, *section, check_url, check_headers))
    }
}

/// Applies the body of a `PATCH` to a definition.
pub fn patch(current: &Definition, patch: &[u8]) -> Result<Patched, Invalid> {
    let empty = patch.iter().all(u8::is_ascii_whitespace);
    let mut patch: Map<String, Value> = if empty { Map::new() } else { read(patch)? };
    let active = take_active(&mut patch)?;
    check_names(&patch)?;
    let before = current.said();
    let mut after = before.clone();
    if changes_mode(&before, &patch) {
        after["fold"] = Value::Null;
    }
    merge(&mut after, Value::Object(patch));
    let mut definition: Definition = serde_path_to_error::deserialize(after).map_err(|error| {
        let path = error.path().to_string();
        explain(&path, &error.into_inner())
    })?;
    // What was read with its secrets masked and is sent back unchanged means what is stored.
    if definition.destination.url == mask_url(&current.destination.url) {
        definition.destination.url.clone_from(&current.destination.url);
    }
    if definition.signing.algorithm != current.signing.algorithm {
        let detail = "`signing.algorithm` is changed by rotate-secret, since it needs a new key";
        return Err(Invalid::new("field_fixed", "signing.algorithm", detail));
    }
    unmask(&mut definition.destination.headers, &current.destination.headers)?;
    let after = definition.said();
    let moves = before["destination"]["url"] != after["destination"]["url"];
    let changed = Section::ALL.into_iter().filter(|section| before[section.name()] != after[section.name()]);
    Ok(Patched { changed: changed.collect(), moves, definition, active })
}

/// Makes a subscriber what its owner declares, with the body of a `PUT`. What matters only at creation is left aside.
/// Declaring what is shown changes nothing: a default that was read is not said by sending it back.
pub fn replace(current: &Definition, declared: &Map<String, Value>) -> Result<Patched, Invalid> {
    let before = current.said();
    let mut whole = declared.clone();
    for name in ["id", "from", "secret"] {
        whole.remove(name);
    }
    for section in Section::ALL.map(Section::name) {
        let wanted = whole.remove(section);
        whole.insert(section.to_owned(), cover(&before[section], wanted));
    }
    let patched = patch(current, &serde_json::to_vec(&whole).unwrap_or_default())?;
    let shown = |definition: &Definition| serde_json::to_value(definition).unwrap_or_default();
    if shown(&patched.definition) == shown(current) {
        return Ok(Patched { definition: current.clone(), changed: Vec::new(), ..patched });
    }
    Ok(patched)
}

/// The merge patch that makes `wanted` of `before`.
fn cover(before: &Value, wanted: Option<Value>) -> Value {
    match (before, wanted) {
        (_, None) => Value::Null,
        (Value::Object(before), Some(Value::Object(mut wanted))) => {
            for (name, value) in before {
                let covered = cover(value, wanted.remove(name));
                wanted.insert(name.clone(), covered);
            }
            Value::Object(wanted)
        }
        (_, Some(wanted)) => wanted,
    }
}

/// Every member that differs between two JSON values, by its path, with what it was and what it becomes. Arrays count
/// as one value.
pub fn differences(before: &Value, after: &Value) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    compare("", before, after, &mut found);
    found
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<(String, Value, Value)>) {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        if before != after {
            found.push((path.to_owned(), before.clone(), after.clone()));
        }
        return;
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let member = |members: &Map<String, Value>| members.get(name).cloned().unwrap_or(Value::Null);
        compare(&inner, &member(old), &member(new), found);
    }
}

fn take_active(patch: &mut Map<String, Value>) -> Result<Option<bool>, Invalid> {
    match patch.remove("active") {
        None => Ok(None),
        Some(Value::Bool(active)) => Ok(Some(active)),
        Some(Value::Null) => Ok(Some(true)),
        Some(_) => Err(Invalid::new("field_type", "active", "`active` must be true or false")),
    }
}

fn check_names(patch: &Map<String, Value>) -> Result<(), Invalid> {
    for name in patch.keys() {
        let detail = match name.as_str() {
            "id" => "`id` never changes",
            "from" => "`from` matters only at creation; use replay to deliver older events",
            "secret" => "`secret` is changed by rotate-secret, which keeps the old one valid for a while",
            name if Section::ALL.iter().any(|section| section.name() == name) => continue,
            _ => {
                let known = Section::ALL.map(Section::name).join("`, `");
                let detail = format!("unknown field `{}`, expected `active`, `{known}`", name.escape_debug());
                return Err(Invalid::new("field_unknown", name, detail));
            }
        };
        return Err(Invalid::new("field_fixed", name, detail));
    }
    Ok(())
}

/// Another fold mode has other terms: those of the old one are not to be blamed on whoever leaves it.
fn changes_mode(before: &Value, patch: &Map<String, Value>) -> bool {
    let mode = patch.get("fold").and_then(|fold| fold.get("mode"));
    mode.is_some_and(|mode| *mode != before["fold"]["mode"])
}

/// RFC 7396, section 2. Members that become absent get their defaults when the result is read.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            members.remove(&name);
        } else {
            merge(members.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Creation, join, part};
    use super::*;

    fn definition(mut body: Value) -> Definition {
        body["destination"] = json!({"url": "https://example.com/"});
        Creation::parse(body.to_string().as_bytes()).unwrap().definition
    }

    #[test]
    fn a_default_that_nobody_set_follows_what_it_comes_from() {
        let said =
            |definition: &Definition| serde_json::to_value(definition).unwrap()["fold"]["max_wait"].clone();
        let patched = |current: &Definition, fold: Value| {
            let patched = patch(current, json!({ "fold": fold }).to_string().as_bytes()).unwrap();
            patched.validate(&|_| Ok(()), &|_| Ok(())).map(|()| patched.definition)
        };
        let kept = |definition: &Definition| {
            let (open, hidden) = part(definition);
            join(&open, &hidden).unwrap()
        };
        let unsaid = kept(&definition(json!({"fold": {"mode": "quiet", "quiet": "1s"}})));
        assert_eq!(said(&unsaid), "12s");
        let slower = kept(&patched(&unsaid, json!({"quiet": "30s"})).unwrap());
        assert_eq!(said(&slower), "6m");
        assert_eq!(said(&patched(&slower, json!({"quiet": "100ms"})).unwrap()), "1200ms");

        // What is said stays, also where it is the same as the default.
        for pinned in [
            definition(json!({"fold": {"mode": "quiet", "quiet": "1s", "max_wait": "12s"}})),
            patched(&unsaid, json!({"max_wait": "12s"})).unwrap(),
        ] {
            let pinned = kept(&pinned);
            assert_eq!(said(&patched(&pinned, json!({"quiet": "2s"})).unwrap()), "12s");
            let invalid = patched(&pinned, json!({"quiet": "30s"})).unwrap_err();
            assert_eq!(invalid.field.as_deref(), Some("fold.max_wait"));
            assert!(invalid.detail.contains("null"), "the remedy: {}", invalid.detail);
            let freed = patched(&pinned, json!({"quiet": "30s", "max_wait": null})).unwrap();
            assert_eq!(said(&patched(&freed, json!({"quiet": "10s"})).unwrap()), "2m");
        }

        // Saying what is shown changes nothing.
        let whole = json!({"destination": {"url": "https://example.com/"}, "fold": serde_json::to_value(&unsaid).unwrap()["fold"]});
        let put = replace(&unsaid, whole.as_object().unwrap()).unwrap();
        assert_eq!((put.changed, put.definition), (vec![], unsaid));
    }

    #[test]
    fn what_was_kept_before_it_was_refused_still_changes_elsewhere() {
        let order = json!({"by": "none", "missing": "unordered"});
        let (open, hidden) = part(&definition(json!({ "order": order })));
        let kept = join(&open, &hidden).unwrap();
        for change in
            [json!({"name": "n"}), json!({"fold": {"mode": "window"}}), json!({"order": {"missing": null}})]
        {
            let patched = patch(&kept, change.to_string().as_bytes()).unwrap();
            patched
                .validate(&|_| Ok(()), &|_| Ok(()))
                .unwrap_or_else(|invalid| panic!("{change}: {invalid}"));
        }
    }
}
