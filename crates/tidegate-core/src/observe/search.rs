//! Search: a condition in CEL over indexed attributes, as sets of events.
//!
//! Each comparison of an attribute with something fixed is a [`Leaf`]: a few stretches of an index. And, or and not are
//! unions, intersections and differences of what the leaves find. What can not be answered from indexes alone is refused,
//! in words, rather than answered by reading everything.
//!
//! Promises: of the events whose type indexes what a condition names, those are found for which it is true; what is true by
//! source and type alone ([`Plan::holds_by_name`]) is true of any event. As in
//! CEL an error, such as a missing attribute, is neither true nor false: `data.a != 1` finds no event without
//! `data.a`. Three liberties: an attribute is missing also where what it would stand in is; the names in an object are no
//! elements of it; and numbers beyond 2⁵³ are told apart where CEL would round them.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, Expr, LiteralValue, operators};
use serde_json::Number;

use super::definition::IMPLICIT_PATHS;
use super::value::{self, Stretch};
use crate::id::Seq;
use crate::limits::OBSERVED_VALUE_BYTES_MAX;
use crate::route::{Condition, ConditionProblem};
use crate::subscriber::Invalid;

/// The parameter that a search is given by.
const FIELD: &str = "where";

/// How events are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Those in all of them.
    And(Vec<Plan>),
    /// Those in any of them.
    Or(Vec<Plan>),
    /// Those in the first that are not in the second.
    Without(Box<Plan>, Box<Plan>),
    /// Those with certain values of an attribute.
    Leaf(Leaf),
}

/// Events with certain values of one attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaf {
    /// Which attribute.
    pub path: String,
    /// Its values: in order, none twice.
    pub stretches: Vec<Stretch>,
}

impl Plan {
    /// Plans a search, where `is_indexed` knows the paths by which it may go.
    pub fn compile(source: &str, is_indexed: &dyn Fn(&str) -> bool) -> Result<Self, Invalid> {
        let invalid =
            |problem: &ConditionProblem| Invalid::new("condition_invalid", FIELD, problem.to_string());
        let condition = Condition::compile(source).map_err(|problem| invalid(&problem))?;
        if let Some(problem) = condition.never_boolean() {
            return Err(invalid(problem));
        }
        Planner { is_indexed }
            .plan(condition.tree(), true)
            .map_err(|detail| Invalid::new("where_not_searchable", FIELD, detail))
    }

    /// All its leaves, some perhaps twice.
    pub fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().flat_map(Self::leaves).collect(),
            Self::Without(these, those) => [these.leaves(), those.leaves()].concat(),
            Self::Leaf(leaf) => vec![leaf],
        }
    }

    /// Whether it can be true of an event by its source and type alone, which it has also where no index knows it.
    pub fn may_hold_by_name(&self) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(Self::may_hold_by_name),
            Self::Or(parts) => parts.iter().any(Self::may_hold_by_name),
            Self::Without(these, _) => these.may_hold_by_name(),
            Self::Leaf(leaf) => IMPLICIT_PATHS.contains(&leaf.path.as_str()),
        }
    }

    /// Whether it is true of every event of this source and type.
    pub fn holds_by_name(&self, source: &str, type_name: &str) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.holds_by_name(source, type_name)),
            Self::Or(parts) => parts.iter().any(|part| part.holds_by_name(source, type_name)),
            Self::Without(these, those) => {
                let is_known = those.leaves().iter().all(|leaf| IMPLICIT_PATHS.contains(&leaf.path.as_str()));
                these.holds_by_name(source, type_name) && is_known && !those.holds_by_name(source, type_name)
            }
            Self::Leaf(leaf) => {
                let text = match leaf.path.as_str() {
                    "source" => source,
                    "type" => type_name,
                    _ => return false,
                };
                let value = value::of_text(text);
                leaf.stretches.iter().any(|stretch| stretch.contains(&value))
            }
        }
    }

    /// The one text that an attribute must be, if there is one.
    pub fn named(&self, path: &str) -> Option<String> {
        match self {
            Self::And(parts) => parts.iter().find_map(|part| part.named(path)),
            Self::Leaf(leaf) if leaf.path == path => {
                let [stretch] = &leaf.stretches[..] else { return None };
                let text = value::decode(&stretch.from)?.as_str()?.to_owned();
                (*stretch == Stretch::only(value::of_text(&text))).then_some(text)
            }
            _ => None,
        }
    }

    /// The events it finds, in order, where `find` knows those of a leaf, in any order.
    pub fn evaluate(&self, find: &mut impl FnMut(&Leaf) -> Vec<Seq>) -> Vec<Seq> {
        match self {
            Self::Leaf(leaf) => {
                let mut found = find(leaf);
                found.sort_unstable();
                found.dedup();
                found
            }
            Self::Or(parts) => {
                let mut found: Vec<Seq> = parts.iter().flat_map(|part| part.evaluate(find)).collect();
                found.sort_unstable();
                found.dedup();
                found
            }
            Self::And(parts) => {
                let mut found: Option<Vec<Seq>> = None;
                for part in parts {
                    if found.as_ref().is_some_and(Vec::is_empty) {
                        break;
                    }
                    let more = part.evaluate(find);
                    found = Some(found.map_or(more.clone(), |found| common(found, &more, true)));
                }
                found.unwrap_or_default()
            }
            Self::Without(these, those) => match these.evaluate(find) {
                these if these.is_empty() => these,
                these => common(these, &those.evaluate(find), false),
            },
        }
    }
}

/// Keeps what is in the other list, or what is not. Both are sorted.
fn common(mut found: Vec<Seq>, others: &[Seq], is_in: bool) -> Vec<Seq> {
    let mut rest = others;
    found.retain(|event| {
        rest = &rest[rest.partition_point(|other| other < event)..];
        (rest.first() == Some(event)) == is_in
    });
    found
}

/// Why a condition can not be searched by, for people.
type Refused = String;

struct Planner<'i> {
    is_indexed: &'i dyn Fn(&str) -> bool,
}

impl Planner<'_> {
    /// The events for which the condition is `truth`. Negation goes down to the leaves, because what is an error there is
    /// neither.
    fn plan(&self, node: &IdedExpr, truth: bool) -> Result<Plan, Refused> {
        match &node.expr {
            Expr::Call(call) => self.call(node, call, truth),
            Expr::Select(select) if select.test => {
                let parent = path_of(&select.operand).ok_or_else(|| refused(node))?;
                let path = self.indexed(&format!("{parent}.{}", select.field))?;
                let stretch = if truth { Stretch::present() } else { Stretch::missing() };
                Ok(leaf(path, vec![stretch]))
            }
            Expr::Literal(LiteralValue::Boolean(constant)) if *constant.inner() == truth => {
                Ok(leaf("type".to_owned(), vec![Stretch::anything()]))
            }
            Expr::Literal(_) => Ok(Plan::Or(Vec::new())),
            // An attribute that is itself true or false.
            _ => {
                let path = self.indexed(&path_of(node).ok_or_else(|| refused(node))?)?;
                Ok(leaf(path, vec![Stretch::only(value::of_bool(truth))]))
            }
        }
    }

    fn call(&self, node: &IdedExpr, call: &CallExpr, truth: bool) -> Result<Plan, Refused> {
        let parts = || call.args.iter().map(|part| self.plan(part, truth)).collect::<Result<Vec<_>, _>>();
        match (call.func_name.as_str(), &call.args[..]) {
            (operators::LOGICAL_AND, _) => parts().map(if truth { Plan::And } else { Plan::Or }),
            (operators::LOGICAL_OR, _) => parts().map(if truth { Plan::Or } else { Plan::And }),
            (operators::LOGICAL_NOT, [inner]) => self.plan(inner, !truth),
            (operators::IN, [item, list]) => self.membership(node, item, list, truth),
            ("startsWith", [prefix]) => self.beginning(node, call, prefix, truth),
            (operators::INDEX, _) => {
                let path = self.indexed(&path_of(node).ok_or_else(|| refused(node))?)?;
                Ok(leaf(path, vec![Stretch::only(value::of_bool(truth))]))
            }
            (name, [left, right]) => {
                let comparison = Comparison::parse(name).ok_or_else(|| refused(node))?;
                self.comparison(node, comparison, (left, right), truth)
            }
            _ => Err(refused(node)),
        }
    }

    fn comparison(
        &self,
        node: &IdedExpr,
        comparison: Comparison,
        (left, right): (&IdedExpr, &IdedExpr),
        truth: bool,
    ) -> Result<Plan, Refused> {
        let (path, literal, comparison) = match (path_of(left), path_of(right)) {
            (Some(_), Some(_)) => return Err(two_attributes(left, right)),
            (Some(path), None) => (path, right, comparison),
            (None, Some(path)) => (path, left, comparison.turned()),
            (None, None) => return Err(refused(unsearchable(left).unwrap_or(node))),
        };
        let literal = literal_of(literal).ok_or_else(|| refused(literal))?;
        let path = self.indexed(&path)?;
        let comparison = if truth { comparison } else { comparison.denied() };
        let stretches = match comparison {
            Comparison::Equal => vec![own(&path, &literal)],
            Comparison::Unequal => Stretch::gaps(whole(&path), vec![own(&path, &literal)]),
            ordering => vec![ordered(ordering, &literal)?],
        };
        Ok(leaf(path, stretches))
    }

    /// `data.a in ['x', 'y']` or `'x' in data.tags`.
    fn membership(
        &self,
        node: &IdedExpr,
        item: &IdedExpr,
        list: &IdedExpr,
        truth: bool,
    ) -> Result<Plan, Refused> {
        if let (Some(path), Expr::List(list)) = (path_of(item), &list.expr) {
            let path = self.indexed(&path)?;
            let values = list.elements.iter().map(|item| match literal_of(item) {
                Some(literal) => Ok(own(&path, &literal)),
                None => Err(refused(item)),
            });
            let mut stretches = values.collect::<Result<Vec<_>, _>>()?;
            stretches.sort();
            stretches.dedup();
            let stretches = if truth { stretches } else { Stretch::gaps(whole(&path), stretches) };
            return Ok(leaf(path, stretches));
        }
        let Some(path) = path_of(list) else { return Err(refused(node)) };
        let literal = match path_of(item) {
            Some(_) => return Err(two_attributes(item, list)),
            None => literal_of(item).ok_or_else(|| refused(item))?,
        };
        let path = self.indexed(&path)?;
        let element = leaf(path.clone(), vec![Stretch::only(value::as_element(literal.bytes()))]);
        if truth {
            return Ok(element);
        }
        Ok(Plan::Without(Box::new(leaf(path, vec![Stretch::list()])), Box::new(element)))
    }

    fn beginning(
        &self,
        node: &IdedExpr,
        call: &CallExpr,
        prefix: &IdedExpr,
        truth: bool,
    ) -> Result<Plan, Refused> {
        let path = call.target.as_deref().and_then(path_of).ok_or_else(|| refused(node))?;
        let Some(Literal::Text(prefix)) = literal_of(prefix) else { return Err(refused(prefix)) };
        let path = self.indexed(&path)?;
        short(&prefix)?;
        let stretch = Stretch::beginning_with(&value::of_text(&prefix));
        let texts = Stretch::beginning_with(&value::of_text(""));
        Ok(leaf(path, if truth { vec![stretch] } else { Stretch::gaps(texts, vec![stretch]) }))
    }

    fn indexed(&self, path: &str) -> Result<String, Refused> {
        if (self.is_indexed)(path) {
            return Ok(path.to_owned());
        }
        Err(match path {
            "id" => "`id` is not searched by: ask for the event at `/v1/events/{id}`".to_owned(),
            "time" | "ended" => format!("`{path}` is not searched by: give `from` and `to` instead"),
            "parents" => "`parents` are not indexed and can not be searched by".to_owned(),
            path => format!(
                "`{path}` is not indexed: declare it in `index` of the types whose events shall be found by it"
            ),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            operators::EQUALS => Self::Equal,
            operators::NOT_EQUALS => Self::Unequal,
            operators::LESS => Self::Less,
            operators::LESS_EQUALS => Self::LessOrEqual,
            operators::GREATER => Self::Greater,
            operators::GREATER_EQUALS => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    /// The same with its sides exchanged.
    fn turned(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    /// True where this is false, of what can be compared at all.
    fn denied(self) -> Self {
        match self {
            Self::Equal => Self::Unequal,
            Self::Unequal => Self::Equal,
            Self::Less => Self::GreaterOrEqual,
            Self::LessOrEqual => Self::Greater,
            Self::Greater => Self::LessOrEqual,
            Self::GreaterOrEqual => Self::Less,
        }
    }
}

/// What attributes are compared with.
enum Literal {
    Null,
    Truth(bool),
    Number(Number),
    Text(String),
}

impl Literal {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Null => value::of_null(),
            Self::Truth(truth) => value::of_bool(*truth),
            Self::Number(number) => value::of_number(number),
            Self::Text(text) => value::of_text(text),
        }
    }
}

fn literal_of(node: &IdedExpr) -> Option<Literal> {
    Some(match &node.expr {
        Expr::Literal(LiteralValue::Null) => Literal::Null,
        Expr::Literal(LiteralValue::Boolean(truth)) => Literal::Truth(*truth.inner()),
        Expr::Literal(LiteralValue::String(text)) => Literal::Text(text.inner().to_owned()),
        Expr::Literal(LiteralValue::Int(number)) => Literal::Number((*number.inner()).into()),
        Expr::Literal(LiteralValue::UInt(number)) => Literal::Number((*number.inner()).into()),
        Expr::Literal(LiteralValue::Double(number)) => Literal::Number(Number::from_f64(*number.inner())?),
        Expr::Call(call) if call.func_name == operators::NEGATE => match literal_of(call.args.first()?)? {
            Literal::Number(number) => Literal::Number(negated(&number)?),
            _ => return None,
        },
        _ => return None,
    })
}

fn negated(number: &Number) -> Option<Number> {
    match number.as_i64() {
        Some(whole) => whole.checked_neg().map(Number::from),
        None => Number::from_f64(-number.as_f64()?),
    }
}

/// The attribute that an expression names.
fn path_of(node: &IdedExpr) -> Option<String> {
    match &node.expr {
        Expr::Ident(name) => Condition::VARIABLES.contains(&name.as_str()).then(|| name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", path_of(&select.operand)?, select.field))
        }
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [operand, key] = &call.args[..] else { return None };
            let operand = path_of(operand)?;
            match literal_of(key)? {
                // A dot would make it two names.
                Literal::Text(name) if !name.is_empty() && !name.contains('.') => {
                    Some(format!("{operand}.{name}"))
                }
                Literal::Number(place) => place.as_u64().map(|place| format!("{operand}.{place}")),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Everything that the attribute can be for which a comparison is not an error. Attributes of the event itself are null
/// where they are missing.
fn whole(path: &str) -> Stretch {
    if path.contains('.') { Stretch::present() } else { Stretch::anything() }
}

/// Where the attribute is this value.
fn own(path: &str, literal: &Literal) -> Stretch {
    let stretch = Stretch::only(literal.bytes());
    match literal {
        Literal::Null if !path.contains('.') => Stretch { from: Stretch::missing().from, ..stretch },
        _ => stretch,
    }
}

fn ordered(comparison: Comparison, literal: &Literal) -> Result<Stretch, Refused> {
    match literal {
        Literal::Number(_) => {}
        Literal::Text(text) => short(text)?,
        Literal::Null | Literal::Truth(_) => {
            return Err("only numbers and texts are compared by `<`, `<=`, `>` and `>=`; use `==`".to_owned());
        }
    }
    let stretch = Stretch::only(literal.bytes());
    Ok(match comparison {
        Comparison::Less => Stretch::before(stretch.from),
        Comparison::LessOrEqual => Stretch::before(stretch.to),
        Comparison::Greater => Stretch::from(stretch.to),
        _ => Stretch::from(stretch.from),
    })
}

/// Of a longer text only the hash is known, which has no order.
fn short(text: &str) -> Result<(), Refused> {
    if text.len() <= OBSERVED_VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "a text of more than {OBSERVED_VALUE_BYTES_MAX} bytes is searched by `==` only; shorten it or compare the whole"
    ))
}

fn leaf(path: String, stretches: Vec<Stretch>) -> Plan {
    Plan::Leaf(Leaf { path, stretches })
}

fn two_attributes(left: &IdedExpr, right: &IdedExpr) -> Refused {
    let name = |node| path_of(node).unwrap_or_default();
    let (left, right) = (name(left), name(right));
    format!(
        "`{left}` is compared with `{right}`: an index knows attributes one by one; compare with something fixed"
    )
}

/// The part of a comparison that is neither an attribute nor fixed.
fn unsearchable(left: &IdedExpr) -> Option<&IdedExpr> {
    literal_of(left).is_none().then_some(left)
}

/// Why a part is not a matter for indexes.
fn refused(node: &IdedExpr) -> Refused {
    const CAN: &str = "compare indexed attributes with fixed values by ==, !=, <, <=, >, >=, in, startsWith and has, \
        joined by &&, || and !";
    match &node.expr {
        Expr::Comprehension(_) => {
            format!(
                "macros such as `exists` are not answered by an index; write `'x' in data.list`, or {CAN}"
            )
        }
        Expr::Call(call) => match call.func_name.as_str() {
            operators::ADD
            | operators::SUBSTRACT
            | operators::MULTIPLY
            | operators::DIVIDE
            | operators::MODULO => {
                format!("arithmetic is not answered by an index: compute the value first; {CAN}")
            }
            operators::CONDITIONAL => format!("`?:` is not answered by an index: use && and ||; {CAN}"),
            name if name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                format!("`{name}` is not answered by an index; {CAN}")
            }
            _ => format!("a comparison without an attribute is not answered by an index; {CAN}"),
        },
        _ => format!("this is not answered by an index; {CAN}"),
    }
}
