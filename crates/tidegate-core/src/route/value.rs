//! JSON as CEL sees it, without copying it, and on a budget.
//!
//! CEL has no limit on the work of an evaluation, so the values it works on count it: handing out an element,
//! walking a list or a map, comparing and searching spend steps, and long text spends more. When the steps are used
//! up, lists look empty and look-ups fail, so that the evaluation ends soon; its result is then void.
//! Numbers become int, uint or double, whichever holds them; CEL compares the three by value.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use cel::ExecutionError;
use cel::common::traits::{Adder, Container, Indexer, Iterable, Iterator as CelIterator, Sizer};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt, LIST_TYPE, MAP_TYPE,
    Type,
};
use cel::common::value::{BuiltinRef, CowVal, Val};
use serde_json::{Map, Value};

/// Bytes of text that cost one step.
const TEXT_BYTES_PER_STEP: usize = 64;

static LIST: Type = LIST_TYPE;
static MAP: Type = MAP_TYPE;

/// The steps left of one evaluation.
#[derive(Debug)]
pub(super) struct Budget(AtomicI64);

impl Budget {
    pub(super) fn new(steps: u32) -> Self {
        Self(AtomicI64::new(i64::from(steps)))
    }

    /// Spends steps; false when there were too few, from then on for ever.
    pub(super) fn spend(&self, steps: usize) -> bool {
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        let left = self.0.load(Ordering::Relaxed).saturating_sub(steps);
        self.0.store(left, Ordering::Relaxed);
        left >= 0
    }

    pub(super) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) < 0
    }

    fn error(function: &str) -> ExecutionError {
        ExecutionError::function_error(function, "too much work")
    }
}

/// A JSON value as a CEL value that borrows it.
pub(super) fn wrap<'v>(value: &'v Value, budget: &'v Budget) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(value) => Box::new(CelBool::from(*value)),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => Box::new(CelInt::from(int)),
            (None, Some(uint)) => Box::new(CelUInt::from(uint)),
            (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
        },
        Value::String(value) => Box::new(text(value, budget)),
        Value::Array(items) => Box::new(List { items, budget, built: OnceLock::new() }),
        Value::Object(members) => {
            Box::new(Object { members, budget, keys: OnceLock::new(), built: OnceLock::new() })
        }
    }
}

/// Text as a CEL value that borrows it.
pub(super) fn text<'v>(value: &'v str, budget: &Budget) -> CelString<'v> {
    budget.spend(value.len() / TEXT_BYTES_PER_STEP);
    CelString::from(value)
}

#[derive(Debug)]
struct List<'v> {
    items: &'v [Value],
    budget: &'v Budget,
    built: OnceLock<CelList<'v>>,
}

impl<'v> List<'v> {
    /// CEL's own list of the same elements, made when something needs it.
    fn built(&self) -> &CelList<'v> {
        let affordable = self.budget.spend(self.items.len());
        self.built.get_or_init(|| {
            let items = if affordable { self.items } else { &[] };
            CelList::from(items.iter().map(|item| wrap(item, self.budget)).collect::<Vec<_>>())
        })
    }
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
        self.built().equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(List { items: self.items, budget: self.budget, built: OnceLock::new() })
    }

    fn as_builtin<'b, 'w>(&'b self) -> BuiltinRef<'b, 'w>
    where
        Self: 'w,
    {
        BuiltinRef::List(self.built())
    }
}

impl Adder for List<'_> {
    fn add<'b, 'w>(&'b self, rhs: &(dyn Val + 'w)) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.built().add(rhs)
    }
}

impl Container for List<'_> {
    fn contains(&self, value: &dyn Val) -> Result<bool, ExecutionError> {
        let found = self.built().contains(value);
        if self.budget.is_exhausted() { Err(Budget::error("in")) } else { found }
    }
}

impl Indexer for List<'_> {
    fn get<'b, 'w>(&'b self, index: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        // CEL's own list knows which kinds of numbers count; a whole number in range, the usual case, skips it.
        let usual = index.downcast_ref::<CelInt>().and_then(|index| usize::try_from(*index.inner()).ok());
        if !self.budget.spend(1) {
            return Err(Budget::error("_[_]"));
        }
        match usual.and_then(|index| self.items.get(index)) {
            Some(item) => Ok(CowVal::Owned(wrap(item, self.budget))),
            None => self.built().get(index),
        }
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
        self.built().iter()
    }
}

impl Sizer for List<'_> {
    fn size(&self) -> CelInt {
        count(self.items.len())
    }
}

#[derive(Debug)]
struct Object<'v> {
    members: &'v Map<String, Value>,
    budget: &'v Budget,
    keys: OnceLock<Vec<CelString<'v>>>,
    built: OnceLock<CelMap<'v>>,
}

impl<'v> Object<'v> {
    /// CEL's own map of the same members, made when something needs it.
    fn built(&self) -> &CelMap<'v> {
        let affordable = self.budget.spend(self.members.len());
        self.built.get_or_init(|| {
            let members = self.members.iter().take(if affordable { usize::MAX } else { 0 });
            let pairs: HashMap<_, _> = members
                .map(|(name, value)| (CelMapKey::String(text(name, self.budget)), wrap(value, self.budget)))
                .collect();
            CelMap::from(pairs)
        })
    }

    /// The names, in their order: CEL's own map would shuffle them.
    fn keys(&self) -> &[CelString<'v>] {
        if !self.budget.spend(self.members.len()) {
            return &[];
        }
        self.keys.get_or_init(|| self.members.keys().map(|name| text(name, self.budget)).collect())
    }

    fn find(&self, key: &dyn Val) -> Option<&'v Value> {
        self.members.get(key.downcast_ref::<CelString<'_>>()?.inner())
    }
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
        self.built().equals(other)
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(Object {
            members: self.members,
            budget: self.budget,
            keys: OnceLock::new(),
            built: OnceLock::new(),
        })
    }

    fn as_builtin<'b, 'w>(&'b self) -> BuiltinRef<'b, 'w>
    where
        Self: 'w,
    {
        BuiltinRef::Map(self.built())
    }
}

impl Container for Object<'_> {
    fn contains(&self, key: &dyn Val) -> Result<bool, ExecutionError> {
        if self.budget.spend(1) { Ok(self.find(key).is_some()) } else { Err(Budget::error("in")) }
    }
}

impl Indexer for Object<'_> {
    fn get<'b, 'w>(&'b self, key: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        if !self.budget.spend(1) {
            return Err(Budget::error("_[_]"));
        }
        match self.find(key) {
            Some(value) => Ok(CowVal::Owned(wrap(value, self.budget))),
            None => Err(ExecutionError::no_such_key(
                key.downcast_ref::<CelString<'_>>().map_or("(not a string)", CelString::inner),
            )),
        }
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
        Box::new(Keys(self.keys().iter()))
    }
}

struct Keys<'b, 'v>(std::slice::Iter<'b, CelString<'v>>);

impl<'b, 'v: 'w, 'w> CelIterator<'b, 'w> for Keys<'b, 'v> {
    fn next(&mut self) -> Option<&'b (dyn Val + 'w)> {
        self.0.next().map(|key| key as &(dyn Val + 'w))
    }
}

impl Sizer for Object<'_> {
    fn size(&self) -> CelInt {
        count(self.members.len())
    }
}

fn count(len: usize) -> CelInt {
    CelInt::from(i64::try_from(len).unwrap_or(i64::MAX))
}
