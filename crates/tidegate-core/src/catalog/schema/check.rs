//! Applying a schema to a value, step by counted step.
//!
//! The first thing found wrong is told, and where; values are shown shortened. What is tried and may fail (one branch
//! of several) finds no words for it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::{Bound, Count, Counted, Items, Kinds, Members, Place, Rule, Schema, equal, kind, number};
use crate::limits::{FINDING_VALUE_CHARS_MAX, SCHEMA_DEPTH_MAX, SCHEMA_STEPS_MIN, SCHEMA_STEPS_PER_BYTE};

/// Bytes looked at for the price of one step.
const STEP_BYTES: usize = 64;
/// Values compared for the price of one step.
const STEP_VALUES: usize = 16;

impl Schema {
    /// Whether `value`, which took `bytes` bytes to write, keeps the schema; if not, where and why, for people.
    pub fn check(&self, value: &Value, bytes: usize) -> Result<(), String> {
        let steps = SCHEMA_STEPS_MIN + bytes as u64 * SCHEMA_STEPS_PER_BYTE;
        let mut check = Check { schema: self, steps, depth: 0, trying: 0 };
        match check.apply(0, value, &At::Top) {
            Ok(()) => Ok(()),
            Err(Stop::Wrong(words)) => Err(words),
            Err(Stop::TooCostly) => Err(format!(
                "checking it by the schema takes more than {steps} steps or {SCHEMA_DEPTH_MAX} levels; simplify the schema"
            )),
        }
    }
}

/// Why a check ended early.
pub(super) enum Stop {
    /// The value breaks the schema; in words, unless it was only tried.
    Wrong(String),
    /// It goes too far.
    TooCostly,
}

pub(super) type Checked = Result<(), Stop>;

/// Where a value stands.
pub(super) enum At<'a> {
    Top,
    Member(&'a At<'a>, &'a str),
    Item(&'a At<'a>, usize),
}

impl At<'_> {
    fn write(&self, text: &mut String) {
        match self {
            At::Top => text.push_str("data"),
            At::Member(outer, name) => {
                outer.write(text);
                text.push('.');
                text.extend(name.chars().take(FINDING_VALUE_CHARS_MAX));
            }
            At::Item(outer, index) => {
                outer.write(text);
                let _ = write!(text, "[{index}]");
            }
        }
    }
}

pub(super) struct Check<'s> {
    pub(super) schema: &'s Schema,
    steps: u64,
    depth: usize,
    trying: usize,
}

impl Check<'_> {
    pub(super) fn apply(&mut self, place: Place, value: &Value, at: &At<'_>) -> Checked {
        self.depth += 1;
        if self.depth > SCHEMA_DEPTH_MAX {
            return Err(Stop::TooCostly);
        }
        self.pay(1)?;
        for rule in &self.schema.nodes[place] {
            self.pay(1)?;
            self.rule(place, rule, value, at)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Whether a branch holds. Going too far is going too far here too.
    pub(super) fn holds(&mut self, place: Place, value: &Value, at: &At<'_>) -> Result<bool, Stop> {
        let depth = self.depth;
        self.trying += 1;
        let result = self.apply(place, value, at);
        self.trying -= 1;
        self.depth = depth;
        match result {
            Ok(()) => Ok(true),
            Err(Stop::Wrong(_)) => Ok(false),
            Err(Stop::TooCostly) => Err(Stop::TooCostly),
        }
    }

    pub(super) fn pay(&mut self, steps: usize) -> Checked {
        self.steps = self.steps.checked_sub(steps as u64).ok_or(Stop::TooCostly)?;
        Ok(())
    }

    fn wrong(&self, at: &At<'_>, words: impl FnOnce() -> String) -> Checked {
        if self.trying > 0 {
            return Err(Stop::Wrong(String::new()));
        }
        let mut text = String::new();
        at.write(&mut text);
        // A path of long names is cut in the middle of nowhere: its end matters most.
        let skip = text.chars().count().saturating_sub(3 * FINDING_VALUE_CHARS_MAX);
        let path: String = text.chars().skip(skip).collect();
        Err(Stop::Wrong(format!("{}{path}: {}", if skip > 0 { "…" } else { "" }, words())))
    }

    fn rule(&mut self, place: Place, rule: &Rule, value: &Value, at: &At<'_>) -> Checked {
        match rule {
            Rule::Never => self.wrong(at, || "nothing is allowed here".to_owned()),
            Rule::Ref(place) => self.apply(*place, value, at),
            Rule::AllOf(places) => places.iter().try_for_each(|place| self.apply(*place, value, at)),
            Rule::AnyOf(places) => self.any_of(places, value, at),
            Rule::OneOf(places) => self.one_of(places, value, at),
            Rule::Not(place) => match self.holds(*place, value, at)? {
                true => self.wrong(at, || format!("{} is what the schema excludes with `not`", show(value))),
                false => Ok(()),
            },
            Rule::If { condition, then, otherwise } => {
                let branch = if self.holds(*condition, value, at)? { then } else { otherwise };
                branch.map_or(Ok(()), |place| self.apply(place, value, at))
            }
            Rule::DependentSchemas(places) => {
                self.pay(places.len())?;
                let given = places.iter().filter(|(name, _)| value.get(name).is_some());
                given.map(|(_, place)| *place).try_for_each(|place| self.apply(place, value, at))
            }
            Rule::UnevaluatedItems(rest) => self.unevaluated_items(place, *rest, value, at),
            Rule::UnevaluatedProperties(rest) => self.unevaluated_members(place, *rest, value, at),
            Rule::Type(_) | Rule::Const(_) | Rule::Enum(_) => self.value(rule, value, at),
            _ => match value {
                Value::Number(_) => self.number(rule, value, at),
                Value::String(text) => self.text(rule, text, at),
                Value::Array(items) => self.list(rule, items, at),
                Value::Object(members) => self.object(rule, members, at),
                Value::Null | Value::Bool(_) => Ok(()),
            },
        }
    }

    fn value(&mut self, rule: &Rule, value: &Value, at: &At<'_>) -> Checked {
        match rule {
            Rule::Type(kinds) if !kinds.meets(Kinds::of(value)) => self
                .wrong(at, || format!("expected {}, found {} {}", kinds.names(), kind(value), show(value))),
            Rule::Const(wanted) => {
                self.pay(size(wanted))?;
                if equal::same(wanted, value) {
                    return Ok(());
                }
                self.wrong(at, || format!("expected {}, found {}", show(wanted), show(value)))
            }
            Rule::Enum(options) => {
                for option in options.chunks(STEP_VALUES) {
                    self.pay(1 + option.iter().map(size).sum::<usize>())?;
                    if option.iter().any(|option| equal::same(option, value)) {
                        return Ok(());
                    }
                }
                let shown: Vec<String> = options.iter().take(5).map(show).collect();
                let more = if options.len() > shown.len() { ", …" } else { "" };
                self.wrong(at, || format!("{} is none of {}{more}", show(value), shown.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn number(&mut self, rule: &Rule, value: &Value, at: &At<'_>) -> Checked {
        let Value::Number(found) = value else { return Ok(()) };
        let (is_kept, words, limit) = match rule {
            Rule::MultipleOf(unit) => (number::is_multiple(found, unit), "a multiple of", unit),
            Rule::Bound(bound, limit) => {
                let order = number::compare(found, limit);
                match bound {
                    Bound::Maximum => (order.is_le(), "at most", limit),
                    Bound::ExclusiveMaximum => (order.is_lt(), "less than", limit),
                    Bound::Minimum => (order.is_ge(), "at least", limit),
                    Bound::ExclusiveMinimum => (order.is_gt(), "more than", limit),
                }
            }
            _ => return Ok(()),
        };
        if is_kept { Ok(()) } else { self.wrong(at, || format!("expected {words} {limit}, found {found}")) }
    }

    fn text(&mut self, rule: &Rule, text: &str, at: &At<'_>) -> Checked {
        match rule {
            Rule::Count(Counted::Characters, count, limit) => {
                self.pay(text.len() / STEP_BYTES)?;
                self.count(*count, *limit, text.chars().count(), "characters", at)
            }
            Rule::Pattern(regex) => {
                // A search costs more per byte than a comparison, yet never more than in proportion to its length.
                self.pay(8 + text.len() / 4)?;
                if regex.is_match(text) {
                    return Ok(());
                }
                let shown = show(&Value::String(text.to_owned()));
                self.wrong(at, || format!("{shown} does not match the pattern {}", cut(regex.as_str())))
            }
            _ => Ok(()),
        }
    }

    fn count(&self, count: Count, limit: u64, found: usize, what: &str, at: &At<'_>) -> Checked {
        let found = found as u64;
        match count {
            Count::AtMost if found > limit => {
                self.wrong(at, || format!("expected at most {limit} {what}, found {found}"))
            }
            Count::AtLeast if found < limit => {
                self.wrong(at, || format!("expected at least {limit} {what}, found {found}"))
            }
            _ => Ok(()),
        }
    }

    fn list(&mut self, rule: &Rule, items: &[Value], at: &At<'_>) -> Checked {
        match rule {
            Rule::Count(Counted::Items, count, limit) => self.count(*count, *limit, items.len(), "items", at),
            Rule::UniqueItems => {
                let mut seen = BTreeSet::new();
                for (index, item) in items.iter().enumerate() {
                    let spelling = equal::spelling(item);
                    self.pay(1 + spelling.len() / STEP_VALUES)?;
                    if !seen.insert(spelling) {
                        return self.wrong(&At::Item(at, index), || format!("{} stands twice", show(item)));
                    }
                }
                Ok(())
            }
            Rule::Items(Items { first, rest }) => {
                for (index, item) in items.iter().enumerate() {
                    if let Some(place) = first.get(index).or(rest.as_ref()) {
                        self.apply(*place, item, &At::Item(at, index))?;
                    }
                }
                Ok(())
            }
            Rule::Contains { place, min, max } => {
                let mut found = 0;
                for (index, item) in items.iter().enumerate() {
                    found += u64::from(self.holds(*place, item, &At::Item(at, index))?);
                }
                if (*min..=*max).contains(&found) {
                    return Ok(());
                }
                self.wrong(at, || format!("{found} items are as `contains` says, expected {min} to {max}"))
            }
            _ => Ok(()),
        }
    }

    fn object(&mut self, rule: &Rule, members: &Map<String, Value>, at: &At<'_>) -> Checked {
        match rule {
            Rule::Count(Counted::Members, count, limit) => {
                self.count(*count, *limit, members.len(), "members", at)
            }
            Rule::Required(names) => self.required(names, members, at),
            Rule::DependentRequired(lists) => {
                let given = lists.iter().filter(|(name, _)| members.contains_key(*name));
                let given: Vec<_> = given.map(|(_, names)| names).collect();
                self.pay(lists.len())?;
                given.into_iter().try_for_each(|names| self.required(names, members, at))
            }
            Rule::Members(rules) => self.members(rules, members, at),
            Rule::PropertyNames(place) => members
                .keys()
                .try_for_each(|name| self.apply(*place, &Value::String(name.clone()), &At::Member(at, name))),
            _ => Ok(()),
        }
    }

    fn required(&mut self, names: &[String], members: &Map<String, Value>, at: &At<'_>) -> Checked {
        self.pay(names.len())?;
        match names.iter().find(|name| !members.contains_key(*name)) {
            Some(name) => self.wrong(at, || format!("`{}` is missing", cut(name))),
            None => Ok(()),
        }
    }

    fn members(&mut self, rules: &Members, members: &Map<String, Value>, at: &At<'_>) -> Checked {
        for (name, member) in members {
            let at = At::Member(at, name);
            let named = rules.named.get(name);
            if let Some(place) = named {
                self.apply(*place, member, &at)?;
            }
            let mut is_known = named.is_some();
            for (regex, place) in &rules.patterns {
                self.pay(1 + name.len() / 4)?;
                if regex.is_match(name) {
                    is_known = true;
                    self.apply(*place, member, &at)?;
                }
            }
            if let Some(rest) = rules.rest.filter(|_| !is_known) {
                self.apply(rest, member, &at)?;
            }
        }
        Ok(())
    }

    fn any_of(&mut self, places: &[Place], value: &Value, at: &At<'_>) -> Checked {
        for place in places {
            if self.holds(*place, value, at)? {
                return Ok(());
            }
        }
        self.wrong(at, || format!("{} is like none of the {} of `anyOf`", show(value), places.len()))
    }

    fn one_of(&mut self, places: &[Place], value: &Value, at: &At<'_>) -> Checked {
        let mut held = 0;
        for place in places {
            held += usize::from(self.holds(*place, value, at)?);
        }
        if held == 1 {
            return Ok(());
        }
        self.wrong(at, || format!("{} is like {held} of the {} of `oneOf`", show(value), places.len()))
    }
}

/// What comparing with this value costs beyond one step.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() / STEP_BYTES,
        Value::Array(items) => items.iter().map(|item| 1 + size(item)).sum(),
        Value::Object(members) => members.values().map(|member| 1 + size(member)).sum(),
        _ => 0,
    }
}

/// A value, shortened.
fn show(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(members) => format!("an object of {}", members.len()),
        other => cut(&other.to_string()),
    }
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(FINDING_VALUE_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
