//! The values at many paths of a JSON text, found in one pass over it.
//!
//! Everything that is not asked for is skipped, and what is found is borrowed as it stands in the text. Where a name
//! comes twice the last one counts, and a segment of digits also counts into a list, as everywhere.
//! Promises: any text is gone through in linear time and without a panic; in one that is not JSON nothing or something
//! may be found.

use crate::json::string_end;

/// Paths, put together where they begin alike.
#[derive(Clone, Debug)]
pub(super) struct Picker {
    root: Node,
    count: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Which path ends here.
    slot: Option<usize>,
    /// Every path that ends here or further on.
    slots: Vec<usize>,
    children: Vec<Child>,
}

#[derive(Clone, Debug)]
struct Child {
    name: Box<str>,
    /// The name as a place in a list.
    place: Option<usize>,
    node: Node,
}

impl Picker {
    /// Paths are names with dots between; each is given once.
    pub(super) fn new<'p>(paths: impl IntoIterator<Item = &'p str>) -> Self {
        let (mut root, mut count) = (Node::default(), 0);
        for path in paths {
            root.insert(path.split('.'), count);
            count += 1;
        }
        Self { root, count }
    }

    /// What stands at each path, in their order.
    pub(super) fn pick<'t>(&self, text: &'t str) -> Vec<Option<&'t str>> {
        let mut walk = Walk { text, found: vec![None; self.count] };
        walk.value(&self.root, skip_space(text.as_bytes(), 0));
        walk.found
    }
}

impl Node {
    fn insert<'p>(&mut self, mut names: impl Iterator<Item = &'p str>, slot: usize) {
        self.slots.push(slot);
        let Some(name) = names.next() else {
            self.slot = Some(slot);
            return;
        };
        let at = self.children.iter().position(|child| &*child.name == name).unwrap_or_else(|| {
            let place = name.parse().ok();
            self.children.push(Child { name: name.into(), place, node: Self::default() });
            self.children.len() - 1
        });
        self.children[at].node.insert(names, slot);
    }

    fn member(&self, name: &str) -> Option<&Self> {
        let is_same = |child: &&Child| *child.name == *name;
        if name.contains('\\') {
            let name: String = serde_json::from_str(&format!("\"{name}\"")).ok()?;
            return self.children.iter().find(|child| *child.name == *name).map(|child| &child.node);
        }
        self.children.iter().find(is_same).map(|child| &child.node)
    }

    fn item(&self, place: usize) -> Option<&Self> {
        self.children.iter().find(|child| child.place == Some(place)).map(|child| &child.node)
    }
}

struct Walk<'t> {
    text: &'t str,
    found: Vec<Option<&'t str>>,
}

impl Walk<'_> {
    /// Goes through the value that begins at `at`, and returns where it ends.
    fn value(&mut self, node: &Node, at: usize) -> Option<usize> {
        // What an earlier member of the same name had is void.
        node.slots.iter().for_each(|slot| self.found[*slot] = None);
        let end = match self.text.as_bytes().get(at)? {
            b'{' if !node.children.is_empty() => self.object(node, at)?,
            b'[' if !node.children.is_empty() => self.list(node, at)?,
            _ => skip(self.text.as_bytes(), at)?,
        };
        if let Some(slot) = node.slot {
            self.found[slot] = self.text.get(at..end);
        }
        Some(end)
    }

    fn object(&mut self, node: &Node, at: usize) -> Option<usize> {
        let text = self.text.as_bytes();
        let mut at = skip_space(text, at + 1);
        while text.get(at)? != &b'}' {
            let name_end = (text[at] == b'"').then(|| string_end(text, at + 1))?;
            let name = self.text.get(at + 1..name_end - 1)?;
            let colon = skip_space(text, name_end);
            at = (text.get(colon)? == &b':').then(|| skip_space(text, colon + 1))?;
            at = match node.member(name) {
                Some(child) => self.value(child, at)?,
                None => skip(text, at)?,
            };
            at = after_comma(text, at);
        }
        Some(at + 1)
    }

    fn list(&mut self, node: &Node, at: usize) -> Option<usize> {
        let text = self.text.as_bytes();
        let mut at = skip_space(text, at + 1);
        let mut place = 0;
        while text.get(at)? != &b']' {
            at = match node.item(place) {
                Some(child) => self.value(child, at)?,
                None => skip(text, at)?,
            };
            at = after_comma(text, at);
            place += 1;
        }
        Some(at + 1)
    }
}

/// The elements of a list, as they stand in its text.
pub(super) fn elements(list: &str) -> impl Iterator<Item = &str> {
    let text = list.as_bytes();
    let mut at = skip_space(text, 1);
    std::iter::from_fn(move || {
        if text.get(at).is_none_or(|byte| *byte == b']') {
            return None;
        }
        let end = skip(text, at)?;
        let element = list.get(at..end)?;
        at = after_comma(text, end);
        Some(element)
    })
}

/// The next thing after a value and the comma that may follow it.
fn after_comma(text: &[u8], at: usize) -> usize {
    let at = skip_space(text, at);
    if text.get(at) == Some(&b',') { skip_space(text, at + 1) } else { at }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// The end of the value that begins at `at`, which is not empty.
fn skip(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    let mut open = 0usize;
    loop {
        match text.get(at)? {
            b'"' => at = string_end(text, at + 1),
            b'{' | b'[' => {
                open += 1;
                at += 1;
            }
            b'}' | b']' => {
                open = open.checked_sub(1)?;
                at += 1;
            }
            _ if open > 0 => at += 1,
            _ => {
                let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
                at = text[at..].iter().position(is_end).map_or(text.len(), |length| at + length);
            }
        }
        if open == 0 {
            return (at > start).then_some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const PATHS: [&str; 9] = ["a", "a.b", "a.0", "a.0.b", "b.a.b", "b", "ab", "a.b.1.a", "é"];

    fn slow(value: &Value, path: &str) -> Option<Value> {
        let step = |value: Value, name: &str| match value {
            Value::Object(members) => members.get(name).cloned(),
            Value::Array(items) => items.get(name.parse::<usize>().ok()?).cloned(),
            _ => None,
        };
        path.split('.').try_fold(value.clone(), step)
    }

    #[track_caller]
    fn check(text: &str) {
        let whole: Value = serde_json::from_str(text).unwrap();
        let found = Picker::new(PATHS).pick(text);
        for (path, found) in PATHS.iter().zip(found) {
            let found = found.map(|text| serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(found, slow(&whole, path), "{path} in {text}");
        }
    }

    #[test]
    fn what_is_found_is_what_reading_all_would_find() {
        for text in [
            "{}",
            " { \"a\" : [ { \"b\" : 1.50 } , 2 ] , \"b\" : \"]\" } ",
            r#"{"a":{"b":1},"a":2}"#,
            r#"{"a":2,"a":{"b":[0,{"a":"\"}"}]}}"#,
            r#"{"\u0061":{"\u0062":null},"\u00e9":[],"ab":"\\"}"#,
            "[1]",
            "7",
        ] {
            check(text);
        }
        let elements: Vec<&str> = elements("[ 1 ,\"a,]\", [2, 3] ,{\"a\":1},null]").collect();
        assert_eq!(elements, ["1", "\"a,]\"", "[2, 3]", "{\"a\":1}", "null"]);
        assert_eq!(super::elements("[]").count(), 0);
    }

    /// JSON with the names that are asked for, some of them twice.
    fn json() -> impl Strategy<Value = String> {
        let leaf =
            prop::sample::select(vec!["1", "-2.5e3", "true", "null", r#""x\"}]""#, r#""é""#, "[]", "{}"]);
        leaf.prop_map(str::to_owned).prop_recursive(4, 40, 4, |inner| {
            let name = prop::sample::select(vec!["a", "b", "0", "1", "ab", "é", "\\u0061"]);
            let space = prop::sample::select(vec!["", " ", "\n"]);
            prop_oneof![
                (proptest::collection::vec(inner.clone(), 0..4), space.clone()).prop_map(
                    |(items, space)| format!("[{space}{}{space}]", items.join(&format!("{space},")))
                ),
                (proptest::collection::vec((name, inner), 0..4), space).prop_map(|(members, space)| {
                    let members: Vec<String> = members
                        .iter()
                        .map(|(name, value)| format!("\"{name}\"{space}:{space}{value}"))
                        .collect();
                    format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_read_as_the_parser_reads_it(text in json()) {
            check(&text);
        }

        #[test]
        fn any_text_is_gone_through(text in "[\\[\\]{}\",:a-b0\\\\ é]{0,40}") {
            Picker::new(PATHS).pick(&text);
            elements(&text).for_each(drop);
        }
    }
}
