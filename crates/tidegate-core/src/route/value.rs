//! JSON as CEL sees it: read once, borrowed from the event's body, and on a budget.
//!
//! CEL has no limit on the work of an evaluation, so the values it works on count it: looking something up, walking
//! a list or a map, comparing and searching spend steps, and long text spends more. When the steps are used up,
//! lists look empty and look-ups fail, so that the evaluation ends soon; its result is then void.
//! Numbers become int, uint or double, whichever holds them; CEL compares the three by value.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cel::ExecutionError;
use cel::common::traits::{Adder, Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt, LIST_TYPE, MAP_TYPE,
    Type,
};
use cel::common::value::{Builtin, BuiltinRef, CowVal, Val};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Bytes of text that cost one step.
const TEXT_BYTES_PER_STEP: usize = 1024;

static LIST: Type = LIST_TYPE;
static MAP: Type = MAP_TYPE;

/// The steps left of one evaluation.
#[derive(Debug, Default)]
pub(super) struct Budget(AtomicI64);

impl Budget {
    /// Begins a new evaluation.
    pub(super) fn refill(&self, steps: u32) {
        self.0.store(i64::from(steps), Ordering::Relaxed);
    }

    /// Spends steps; false when there were too few, and from then on.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        let left = self.0.load(Ordering::Relaxed).saturating_sub(steps);
        self.0.store(left, Ordering::Relaxed);
        left >= 0
    }

    pub(super) fn spend_text(&self, text: &str) -> bool {
        self.spend(text.len() / TEXT_BYTES_PER_STEP)
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) < 0
    }

    /// Hands out `value` for one step, or more if it is long text.
    fn hand_out<'b, 'v>(&self, value: CowVal<'b, 'v>) -> Result<CowVal<'b, 'v>, ExecutionError> {
        let length = value.downcast_ref::<CelString<'_>>().map_or(0, |text| text.inner().len());
        if self.spend(1 + length / TEXT_BYTES_PER_STEP) { Ok(value) } else { Err(too_much("_[_]")) }
    }
}

fn too_much(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, "too much work")
}

/// Reads JSON text as a CEL value.
pub(super) fn read<'v>(text: &'v str, budget: &Arc<Budget>) -> Result<Box<dyn Val + 'v>, serde_json::Error> {
    Reader(budget).deserialize(&mut serde_json::Deserializer::from_str(text))
}

/// A list of texts as a CEL value.
pub(super) fn texts<'v>(items: &[String], budget: &Arc<Budget>) -> Box<dyn Val + 'v> {
    let items: Vec<Box<dyn Val + 'v>> =
        items.iter().map(|item| Box::new(CelString::from(item.clone())) as Box<dyn Val + 'v>).collect();
    Box::new(List { items: Arc::new(CelList::from(items)), budget: Arc::clone(budget) })
}

#[derive(Clone, Copy)]
struct Reader<'r>(&'r Arc<Budget>);

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Box<dyn Val + 'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Box<dyn Val + 'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        match i64::try_from(value) {
            Ok(value) => Ok(Box::new(CelInt::from(value))),
            Err(_) => Ok(Box::new(CelUInt::from(value))),
        }
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Box::new(CelString::from(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Box::new(List { items: Arc::new(CelList::from(items)), budget: Arc::clone(self.0) }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut names, mut members) = (Vec::new(), HashMap::new());
        while let Some(Name(name)) = map.next_key()? {
            let value = map.next_value_seed(self)?;
            if members.insert(CelMapKey::String(name.clone()), value).is_none() {
                names.push(name);
            }
        }
        let members = Members { names, map: CelMap::from(members) };
        Ok(Box::new(Object { members: Arc::new(members), budget: Arc::clone(self.0) }))
    }
}

/// The name of a member, borrowed if it has no escapes.
struct Name<'v>(CelString<'v>);

impl<'de: 'v, 'v> serde::Deserialize<'de> for Name<'v> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(CelString::from(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Name<'de>, E> {
                Ok(Name(CelString::from(value.to_owned())))
            }
        }
        deserializer.deserialize_str(NameVisitor)
    }
}

/// CEL's own list, counted. Clones share it: a loop clones each element it visits.
#[derive(Clone, Debug)]
struct List<'v> {
    items: Arc<CelList<'v>>,
    budget: Arc<Budget>,
}

impl Val for List<'_> {
    fn get_type(&self) -> &Type {
        &LIST
    }

    fn cel_type() -> &'static Type {
        &LIST
    }

    fn as_adder<'b, 'w>(&'b self) -> Option<&'b (dyn Adder + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn into_indexer<'w>(self: Box<Self>) -> Option<Box<dyn Indexer + 'w>>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.budget.spend(self.items.len()) && self.items.equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }

    fn as_builtin<'b, 'w>(&'b self) -> BuiltinRef<'b, 'w>
    where
        Self: 'w,
    {
        BuiltinRef::List(&self.items)
    }

    fn into_builtin<'w>(self: Box<Self>) -> Option<Builtin<'w>>
    where
        Self: 'w,
    {
        self.budget.spend(self.items.len());
        Some(Builtin::List(Arc::unwrap_or_clone(self.items)))
    }
}

impl Adder for List<'_> {
    fn add<'b, 'w>(&'b self, rhs: &(dyn Val + 'w)) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        if self.budget.spend(self.items.len()) { self.items.add(rhs) } else { Err(too_much("_+_")) }
    }
}

impl Container for List<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        if self.budget.spend(self.items.len()) { self.items.contains(value) } else { Err(too_much("in")) }
    }
}

impl Indexer for List<'_> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.budget.hand_out(self.items.get(index)?)
    }

    fn steal<'w>(self: Box<Self>, index: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.get(index).map(CowVal::into_owned)
    }
}

impl Iterable for List<'_> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn CelIterator<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        Box::new(Walk { items: self.items.inner().iter(), budget: &self.budget })
    }
}

impl Sizer for List<'_> {
    fn size(&self) -> CelInt {
        self.items.size()
    }
}

/// CEL's own map, counted, with the order of its members.
#[derive(Clone, Debug)]
struct Object<'v> {
    members: Arc<Members<'v>>,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Members<'v> {
    names: Vec<CelString<'v>>,
    map: CelMap<'v>,
}

impl Val for Object<'_> {
    fn get_type(&self) -> &Type {
        &MAP
    }

    fn cel_type() -> &'static Type {
        &MAP
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn into_indexer<'w>(self: Box<Self>) -> Option<Box<dyn Indexer + 'w>>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        Some(self)
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.budget.spend(self.members.names.len()) && self.members.map.equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }

    fn as_builtin<'b, 'w>(&'b self) -> BuiltinRef<'b, 'w>
    where
        Self: 'w,
    {
        BuiltinRef::Map(&self.members.map)
    }

    fn into_builtin<'w>(self: Box<Self>) -> Option<Builtin<'w>>
    where
        Self: 'w,
    {
        self.budget.spend(self.members.names.len());
        Some(Builtin::Map(self.members.map.clone()))
    }
}

impl Container for Object<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        if self.budget.spend(1) { self.members.map.contains(key) } else { Err(too_much("in")) }
    }
}

impl Indexer for Object<'_> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.budget.hand_out(self.members.map.get(key)?)
    }

    fn steal<'w>(self: Box<Self>, key: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.get(key).map(CowVal::into_owned)
    }
}

impl Iterable for Object<'_> {
    fn iter<'b, 'w>(&'b self) -> Box<dyn CelIterator<'b, 'w> + 'b>
    where
        Self: 'w,
    {
        // In the order of the text, where CEL's own map would shuffle them.
        Box::new(Walk { items: self.members.names.iter(), budget: &self.budget })
    }
}

impl Sizer for Object<'_> {
    fn size(&self) -> CelInt {
        self.members.map.size()
    }
}

/// Visits elements as long as there are steps.
struct Walk<'b, T> {
    items: std::slice::Iter<'b, T>,
    budget: &'b Budget,
}

impl<'b, 'v: 'w, 'w> CelIterator<'b, 'w> for Walk<'b, Box<dyn Val + 'v>> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        let item = self.items.next()?;
        let length = item.downcast_ref::<CelString<'_>>().map_or(0, |text| text.inner().len());
        self.budget.spend(1 + length / TEXT_BYTES_PER_STEP).then_some(item.as_ref())
    }
}

impl<'b, 'v: 'w, 'w> CelIterator<'b, 'w> for Walk<'b, CelString<'v>> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        let name = self.items.next()?;
        self.budget.spend(1 + name.inner().len() / TEXT_BYTES_PER_STEP).then_some(name)
    }
}
