//! `unevaluatedItems` and `unevaluatedProperties`: what no other keyword looked at.
//!
//! Found out by asking again, only where a schema has these keywords, which branches held and what they looked at.
//! Every look is paid for like any other.

use std::collections::BTreeSet;

use serde_json::Value;

use super::check::{At, Check, Checked, Stop};
use super::{Place, Rule};

/// What was looked at: items by index, members by name.
#[derive(Default)]
struct Seen {
    items: BTreeSet<usize>,
    members: BTreeSet<String>,
}

impl Check<'_> {
    pub(super) fn unevaluated_items(
        &mut self,
        place: Place,
        rest: Place,
        value: &Value,
        at: &At<'_>,
    ) -> Checked {
        let Value::Array(items) = value else { return Ok(()) };
        let mut seen = Seen::default();
        self.look(place, value, at, &mut seen, true)?;
        for (index, item) in items.iter().enumerate().filter(|(index, _)| !seen.items.contains(index)) {
            self.apply(rest, item, &At::Item(at, index))?;
        }
        Ok(())
    }

    pub(super) fn unevaluated_members(
        &mut self,
        place: Place,
        rest: Place,
        value: &Value,
        at: &At<'_>,
    ) -> Checked {
        let Value::Object(members) = value else { return Ok(()) };
        let mut seen = Seen::default();
        self.look(place, value, at, &mut seen, true)?;
        for (name, member) in members.iter().filter(|(name, _)| !seen.members.contains(*name)) {
            self.apply(rest, member, &At::Member(at, name))?;
        }
        Ok(())
    }

    /// Gathers what the rules at `place`, which hold, looked at. `is_asking` leaves out the rule that asks.
    fn look(
        &mut self,
        place: Place,
        value: &Value,
        at: &At<'_>,
        seen: &mut Seen,
        is_asking: bool,
    ) -> Checked {
        let schema = self.schema;
        for rule in &schema.nodes[place] {
            self.pay(1)?;
            match rule {
                Rule::Ref(place) => self.look(*place, value, at, seen, false)?,
                Rule::AllOf(places) => {
                    for place in places {
                        self.look(*place, value, at, seen, false)?;
                    }
                }
                Rule::AnyOf(places) | Rule::OneOf(places) => {
                    for place in places {
                        self.look_if_it_holds(*place, value, at, seen)?;
                    }
                }
                Rule::If { condition, then, otherwise } => {
                    let held = self.look_if_it_holds(*condition, value, at, seen)?;
                    if let Some(place) = if held { then } else { otherwise } {
                        self.look(*place, value, at, seen, false)?;
                    }
                }
                rule => self.look_inside(rule, value, at, seen, is_asking)?,
            }
        }
        Ok(())
    }

    fn look_if_it_holds(
        &mut self,
        place: Place,
        value: &Value,
        at: &At<'_>,
        seen: &mut Seen,
    ) -> Result<bool, Stop> {
        let holds = self.holds(place, value, at)?;
        if holds {
            self.look(place, value, at, seen, false)?;
        }
        Ok(holds)
    }

    fn look_inside(
        &mut self,
        rule: &Rule,
        value: &Value,
        at: &At<'_>,
        seen: &mut Seen,
        is_asking: bool,
    ) -> Checked {
        match (rule, value) {
            (Rule::Items(items), Value::Array(list)) => {
                self.pay(list.len())?;
                let count = if items.rest.is_some() { list.len() } else { items.first.len().min(list.len()) };
                seen.items.extend(0..count);
            }
            (Rule::Contains { place, .. }, Value::Array(list)) => {
                for (index, item) in list.iter().enumerate() {
                    if self.holds(*place, item, &At::Item(at, index))? {
                        seen.items.insert(index);
                    }
                }
            }
            (Rule::UnevaluatedItems(_), Value::Array(list)) if !is_asking => {
                self.pay(list.len())?;
                seen.items.extend(0..list.len());
            }
            (Rule::Members(rules), Value::Object(members)) => {
                for name in members.keys() {
                    self.pay(1 + rules.patterns.len() * (1 + name.len() / 4))?;
                    let is_seen = rules.rest.is_some()
                        || rules.named.contains_key(name)
                        || rules.patterns.iter().any(|(regex, _)| regex.is_match(name));
                    if is_seen {
                        seen.members.insert(name.clone());
                    }
                }
            }
            (Rule::UnevaluatedProperties(_), Value::Object(members)) if !is_asking => {
                self.pay(members.len())?;
                seen.members.extend(members.keys().cloned());
            }
            (Rule::DependentSchemas(places), Value::Object(members)) => {
                self.pay(places.len())?;
                for (_, place) in places.iter().filter(|(name, _)| members.contains_key(*name)) {
                    self.look(*place, value, at, seen, false)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
