//! From a schema's JSON to its rules.
//!
//! Walks the document with a list of what is left to do, not with the stack: a chain of ten thousand references is
//! ten thousand short steps. Each place is compiled once, however often it is referred to.

use std::collections::{BTreeMap, VecDeque};

use percent_encoding::percent_decode_str;
use regex::Regex;
use serde_json::{Map, Number, Value};

use super::{Bound, Count, Counted, Items, Kinds, Members, Place, Rule, Schema, pattern};
use crate::limits::{SCHEMA_IN_PLACE_MAX, SCHEMA_REGEXES_MAX};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Words that older drafts gave a meaning, or that we do not apply, and what to write instead.
const REFUSED: [(&str, &str); 6] = [
    ("$dynamicRef", "use $ref"),
    ("$recursiveRef", "use $ref"),
    ("dependencies", "use dependentRequired or dependentSchemas"),
    ("additionalItems", "use items beside prefixItems"),
    ("extends", "use allOf"),
    ("divisibleBy", "use multipleOf"),
];

/// What is wrong with a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// Where in the schema, as a JSON pointer.
    pub path: String,
    /// What is wrong and what to do about it.
    pub detail: String,
}

type Compiled<T> = Result<T, Flaw>;

impl Schema {
    /// Compiles a schema.
    pub fn compile(document: &Value) -> Result<Self, Flaw> {
        let mut compiler = Compiler::new(document)?;
        compiler.place(String::new());
        while let Some((place, pointer)) = compiler.left.pop_front() {
            compiler.nodes[place] = compiler.node(&pointer)?;
        }
        let schema = Self { nodes: compiler.nodes };
        schema.check_circles(&compiler.places)?;
        Ok(schema)
    }

    /// Takes away whatever nothing leads to, again and again: what is left leads in a circle. The rounds it takes are
    /// the longest chain.
    fn check_circles(&self, places: &BTreeMap<String, Place>) -> Result<(), Flaw> {
        let edges: Vec<Vec<Place>> =
            self.nodes.iter().map(|rules| rules.iter().flat_map(Rule::in_place).collect()).collect();
        let mut incoming = vec![0_usize; edges.len()];
        edges.iter().flatten().for_each(|to| incoming[*to] += 1);
        let mut depth = vec![0_usize; edges.len()];
        let mut free: Vec<Place> = (0..edges.len()).filter(|place| incoming[*place] == 0).collect();
        while let Some(from) = free.pop() {
            for to in &edges[from] {
                depth[*to] = depth[*to].max(depth[from] + 1);
                incoming[*to] -= 1;
                if incoming[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        let path_of = |place: Place| {
            places.iter().find(|(_, at)| **at == place).map(|(path, _)| path.clone()).unwrap_or_default()
        };
        if let Some(place) = incoming.iter().position(|count| *count > 0) {
            let detail = "it refers to itself for the same value, so a check would never end";
            return Err(Flaw { path: path_of(place), detail: detail.to_owned() });
        }
        if let Some(place) = depth.iter().position(|depth| *depth > SCHEMA_IN_PLACE_MAX) {
            let detail = format!(
                "more than {SCHEMA_IN_PLACE_MAX} schemas inside each other for one value; flatten them"
            );
            return Err(Flaw { path: path_of(place), detail });
        }
        Ok(())
    }
}

struct Compiler<'a> {
    document: &'a Value,
    /// The document's own name, without a fragment.
    id: Option<&'a str>,
    anchors: BTreeMap<&'a str, String>,
    nodes: Vec<Vec<Rule>>,
    places: BTreeMap<String, Place>,
    left: VecDeque<(Place, String)>,
    regexes: BTreeMap<String, Regex>,
}

impl<'a> Compiler<'a> {
    fn new(document: &'a Value) -> Compiled<Self> {
        if let Some(dialect) = document.get("$schema")
            && dialect.as_str().map(|text| text.trim_end_matches('#')) != Some(DIALECT)
        {
            return Err(flaw("/$schema", format!("only {DIALECT} is understood; leave it out or say so")));
        }
        let id = document.get("$id").and_then(Value::as_str).map(|id| id.trim_end_matches('#'));
        let anchors = anchors(document)?;
        let (nodes, places, left) = (Vec::new(), BTreeMap::new(), VecDeque::new());
        Ok(Self { document, id, anchors, nodes, places, left, regexes: BTreeMap::new() })
    }

    /// The place of the schema at `pointer`, to be compiled if it is new.
    fn place(&mut self, pointer: String) -> Place {
        if let Some(place) = self.places.get(&pointer) {
            return *place;
        }
        let place = self.nodes.len();
        self.nodes.push(Vec::new());
        self.places.insert(pointer.clone(), place);
        self.left.push_back((place, pointer));
        place
    }

    fn node(&mut self, pointer: &str) -> Compiled<Vec<Rule>> {
        let schema = self.document.pointer(pointer);
        let members = match schema {
            Some(Value::Bool(true)) => return Ok(Vec::new()),
            Some(Value::Bool(false)) => return Ok(vec![Rule::Never]),
            Some(Value::Object(members)) => members,
            _ => return Err(flaw(pointer, "a schema is an object, true or false")),
        };
        if let Some((word, instead)) = REFUSED.iter().find(|(word, _)| members.contains_key(*word)) {
            return Err(flaw(&join(pointer, word), format!("`{word}` is not understood here; {instead}")));
        }
        let words = Words { pointer, members };
        let mut rules = Vec::new();
        self.reference(&words, &mut rules)?;
        words.values(&mut rules)?;
        words.counts(&mut rules)?;
        self.text(&words, &mut rules)?;
        self.items(&words, &mut rules)?;
        self.members(&words, &mut rules)?;
        self.logic(&words, &mut rules)?;
        // These see what all the others looked at.
        rules.extend(self.sub(&words, "unevaluatedItems").map(Rule::UnevaluatedItems));
        rules.extend(self.sub(&words, "unevaluatedProperties").map(Rule::UnevaluatedProperties));
        Ok(rules)
    }

    fn reference(&mut self, words: &Words<'_>, rules: &mut Vec<Rule>) -> Compiled<()> {
        let Some(text) = words.text("$ref")? else { return Ok(()) };
        let at = join(words.pointer, "$ref");
        let outside = || {
            let shown: String = text.chars().take(100).collect();
            flaw(&at, format!("`{shown}` leads outside of this document; put what it names under $defs"))
        };
        let (name, fragment) = text.split_once('#').unwrap_or((text, ""));
        if !name.is_empty() && Some(name) != self.id {
            return Err(outside());
        }
        let fragment = percent_decode_str(fragment).decode_utf8().map_err(|_| outside())?;
        let pointer = match self.anchors.get(&*fragment) {
            Some(pointer) => pointer.clone(),
            None => fragment.into_owned(),
        };
        if self.document.pointer(&pointer).is_none() {
            return Err(flaw(&at, format!("there is nothing at `#{}`", shorten(&pointer))));
        }
        rules.push(Rule::Ref(self.place(pointer)));
        Ok(())
    }

    fn text(&mut self, words: &Words<'_>, rules: &mut Vec<Rule>) -> Compiled<()> {
        if let Some(text) = words.text("pattern")? {
            rules.push(Rule::Pattern(self.regex(&join(words.pointer, "pattern"), text)?));
        }
        Ok(())
    }

    fn regex(&mut self, at: &str, text: &str) -> Compiled<Regex> {
        if let Some(known) = self.regexes.get(text) {
            return Ok(known.clone());
        }
        if self.regexes.len() == SCHEMA_REGEXES_MAX {
            return Err(flaw(at, format!("a schema has at most {SCHEMA_REGEXES_MAX} different patterns")));
        }
        let regex = pattern::compile(text).map_err(|detail| flaw(at, detail))?;
        self.regexes.insert(text.to_owned(), regex.clone());
        Ok(regex)
    }

    fn items(&mut self, words: &Words<'_>, rules: &mut Vec<Rule>) -> Compiled<()> {
        if words.members.get("items").is_some_and(Value::is_array) {
            return Err(flaw(&join(words.pointer, "items"), "a list belongs in prefixItems"));
        }
        let items = Items {
            first: self.list(words, "prefixItems")?.unwrap_or_default(),
            rest: self.sub(words, "items"),
        };
        if !items.first.is_empty() || items.rest.is_some() {
            rules.push(Rule::Items(items));
        }
        if let Some(place) = self.sub(words, "contains") {
            let min = words.count("minContains")?.unwrap_or(1);
            let max = words.count("maxContains")?.unwrap_or(u64::MAX);
            rules.push(Rule::Contains { place, min, max });
        }
        Ok(())
    }

    fn members(&mut self, words: &Words<'_>, rules: &mut Vec<Rule>) -> Compiled<()> {
        if let Some(names) = words.members.get("required") {
            rules.push(Rule::Required(names_of(&join(words.pointer, "required"), names)?));
        }
        if let Some(lists) = words.object("dependentRequired")? {
            let at = join(words.pointer, "dependentRequired");
            let read =
                |(name, list): (&String, &Value)| Ok((name.clone(), names_of(&join(&at, name), list)?));
            rules.push(Rule::DependentRequired(lists.iter().map(read).collect::<Compiled<_>>()?));
        }
        let at = join(words.pointer, "patternProperties");
        let patterns = self.map(words, "patternProperties")?.unwrap_or_default();
        let compile = |(text, place): (String, Place)| Ok((self.regex(&join(&at, &text), &text)?, place));
        let members = Members {
            patterns: patterns.into_iter().map(compile).collect::<Compiled<_>>()?,
            named: self.map(words, "properties")?.unwrap_or_default(),
            rest: self.sub(words, "additionalProperties"),
        };
        if !members.named.is_empty() || !members.patterns.is_empty() || members.rest.is_some() {
            rules.push(Rule::Members(members));
        }
        rules.extend(self.sub(words, "propertyNames").map(Rule::PropertyNames));
        rules.extend(self.map(words, "dependentSchemas")?.map(Rule::DependentSchemas));
        Ok(())
    }

    fn logic(&mut self, words: &Words<'_>, rules: &mut Vec<Rule>) -> Compiled<()> {
        rules.extend(self.list(words, "allOf")?.map(Rule::AllOf));
        rules.extend(self.list(words, "anyOf")?.map(Rule::AnyOf));
        rules.extend(self.list(words, "oneOf")?.map(Rule::OneOf));
        rules.extend(self.sub(words, "not").map(Rule::Not));
        if let Some(condition) = self.sub(words, "if") {
            let (then, otherwise) = (self.sub(words, "then"), self.sub(words, "else"));
            rules.push(Rule::If { condition, then, otherwise });
        }
        Ok(())
    }

    fn sub(&mut self, words: &Words<'_>, word: &str) -> Option<Place> {
        words.members.contains_key(word).then(|| self.place(join(words.pointer, word)))
    }

    fn list(&mut self, words: &Words<'_>, word: &str) -> Compiled<Option<Vec<Place>>> {
        let at = join(words.pointer, word);
        match words.members.get(word) {
            None => Ok(None),
            Some(Value::Array(items)) if !items.is_empty() => {
                Ok(Some((0..items.len()).map(|index| self.place(format!("{at}/{index}"))).collect()))
            }
            Some(_) => Err(flaw(&at, "expected a list of at least one schema")),
        }
    }

    fn map(&mut self, words: &Words<'_>, word: &str) -> Compiled<Option<BTreeMap<String, Place>>> {
        let at = join(words.pointer, word);
        let Some(members) = words.object(word)? else { return Ok(None) };
        Ok(Some(members.keys().map(|name| (name.clone(), self.place(join(&at, name)))).collect()))
    }
}

/// A schema object, and where it stands.
struct Words<'a> {
    pointer: &'a str,
    members: &'a Map<String, Value>,
}

impl<'a> Words<'a> {
    fn values(&self, rules: &mut Vec<Rule>) -> Compiled<()> {
        if let Some(kinds) = self.members.get("type") {
            rules.push(Rule::Type(kinds_of(&join(self.pointer, "type"), kinds)?));
        }
        rules.extend(self.members.get("const").cloned().map(Rule::Const));
        match self.members.get("enum") {
            None => {}
            Some(Value::Array(options)) => rules.push(Rule::Enum(options.clone())),
            Some(_) => return Err(flaw(&join(self.pointer, "enum"), "expected a list of values")),
        }
        Ok(())
    }

    fn counts(&self, rules: &mut Vec<Rule>) -> Compiled<()> {
        const BOUNDS: [(&str, Bound); 4] = [
            ("maximum", Bound::Maximum),
            ("exclusiveMaximum", Bound::ExclusiveMaximum),
            ("minimum", Bound::Minimum),
            ("exclusiveMinimum", Bound::ExclusiveMinimum),
        ];
        const COUNTS: [(&str, Counted, Count); 6] = [
            ("maxLength", Counted::Characters, Count::AtMost),
            ("minLength", Counted::Characters, Count::AtLeast),
            ("maxItems", Counted::Items, Count::AtMost),
            ("minItems", Counted::Items, Count::AtLeast),
            ("maxProperties", Counted::Members, Count::AtMost),
            ("minProperties", Counted::Members, Count::AtLeast),
        ];
        if let Some(divisor) = self.number("multipleOf")? {
            if divisor.as_f64().is_none_or(|divisor| divisor <= 0.0) {
                return Err(flaw(&join(self.pointer, "multipleOf"), "expected a number above zero"));
            }
            rules.push(Rule::MultipleOf(divisor));
        }
        for (word, bound) in BOUNDS {
            rules.extend(self.number(word)?.map(|number| Rule::Bound(bound, number)));
        }
        for (word, counted, count) in COUNTS {
            rules.extend(self.count(word)?.map(|limit| Rule::Count(counted, count, limit)));
        }
        match self.members.get("uniqueItems") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => rules.push(Rule::UniqueItems),
            Some(_) => return Err(flaw(&join(self.pointer, "uniqueItems"), "expected true or false")),
        }
        Ok(())
    }

    fn text(&self, word: &str) -> Compiled<Option<&'a str>> {
        let read = |value: &'a Value| {
            value.as_str().ok_or_else(|| flaw(&join(self.pointer, word), "expected a text"))
        };
        self.members.get(word).map(read).transpose()
    }

    fn number(&self, word: &str) -> Compiled<Option<Number>> {
        match self.members.get(word) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(Some(number.clone())),
            Some(_) => Err(flaw(&join(self.pointer, word), "expected a number")),
        }
    }

    fn count(&self, word: &str) -> Compiled<Option<u64>> {
        let Some(number) = self.number(word)? else { return Ok(None) };
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && *float >= 0.0);
        let count = number.as_u64().or_else(|| float.map(|float| float as u64));
        count.map(Some).ok_or_else(|| flaw(&join(self.pointer, word), "expected a whole number, 0 or above"))
    }

    fn object(&self, word: &str) -> Compiled<Option<&'a Map<String, Value>>> {
        let read = |value: &'a Value| {
            value.as_object().ok_or_else(|| flaw(&join(self.pointer, word), "expected an object"))
        };
        self.members.get(word).map(read).transpose()
    }
}

/// Words whose values are data and not schemas.
pub(in crate::catalog) const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Where each `$anchor` is. Refuses an `$id` below the top: it would give references another meaning.
pub(in crate::catalog) fn anchors(document: &Value) -> Compiled<BTreeMap<&str, String>> {
    let mut found = BTreeMap::new();
    let mut left = vec![(String::new(), document)];
    while let Some((pointer, value)) = left.pop() {
        match value {
            Value::Object(members) => {
                if !pointer.is_empty() && members.get("$id").is_some_and(Value::is_string) {
                    return Err(flaw(
                        &join(&pointer, "$id"),
                        "only the whole schema can have an `$id`; use $defs",
                    ));
                }
                for word in ["$anchor", "$dynamicAnchor"] {
                    found.extend(
                        members.get(word).and_then(Value::as_str).map(|name| (name, pointer.clone())),
                    );
                }
                let inner = members.iter().filter(|(name, _)| !DATA.contains(&name.as_str()));
                left.extend(inner.map(|(name, member)| (join(&pointer, name), member)));
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                left.extend(items.map(|(index, item)| (format!("{pointer}/{index}"), item)));
            }
            _ => {}
        }
    }
    Ok(found)
}

fn kinds_of(at: &str, value: &Value) -> Compiled<Kinds> {
    let one = |value: &Value| {
        let kind = value.as_str().and_then(Kinds::named);
        kind.ok_or_else(|| flaw(at, format!("expected one of {}", super::KINDS.join(", "))))
    };
    match value {
        Value::Array(names) => names.iter().try_fold(Kinds(0), |all, name| Ok(Kinds(all.0 | one(name)?.0))),
        name => one(name),
    }
}

fn names_of(at: &str, value: &Value) -> Compiled<Vec<String>> {
    let names =
        value.as_array().map(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    names.flatten().ok_or_else(|| flaw(at, "expected a list of names"))
}

fn join(pointer: &str, name: &str) -> String {
    format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn shorten(text: &str) -> String {
    text.chars().take(100).collect()
}

fn flaw(path: &str, detail: impl Into<String>) -> Flaw {
    Flaw { path: path.to_owned(), detail: detail.into() }
}
