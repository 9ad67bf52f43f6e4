//! When two JSON values are the same: `1` and `1.0` are, `[1, 2]` and `[2, 1]` are not, and the order of an object's
//! members means nothing.

use serde_json::Value;

use super::number;

pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => number::compare(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// A text that values share exactly when they are the same, to find repeats without comparing all with all.
pub(super) fn spelling(value: &Value) -> String {
    let mut text = String::new();
    spell(value, &mut text);
    text
}

fn spell(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => text.push_str(&number::spelling(number)),
        Value::Array(items) => {
            text.push('[');
            for item in items {
                spell(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            text.push('{');
            for (name, member) in members {
                text.push_str(&Value::String(name.clone()).to_string());
                text.push(':');
                spell(member, text);
                text.push(',');
            }
            text.push('}');
        }
        other => text.push_str(&other.to_string()),
    }
}
