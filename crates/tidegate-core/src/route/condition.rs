//! A subscriber's `where`: a condition in CEL (Common Expression Language) over the event.
//!
//! Compiled once, when the subscriber is saved or loaded, on a thread of its own with room for the parser; judged
//! for every event whose type and source match. Absent `subject` and `ended` are null, absent `parents` and
//! `extensions` empty, so that conditions can ask for them.
//! Promises: neither compiling nor judging panics, overflows the stack or takes unbounded time. An error, such as a
//! missing attribute, is not a match.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::{any::Any, fmt, thread};

use cel::common::types::{CelBool, CelNull, CelString, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::context::VariableResolver;
use cel::{Context, Env, ExecutionError, IdedExpr, ParseErrors, Program, Value};
use regex::Regex;

use super::check::{self, Found};
use super::nesting;
use super::value::Budget;
use super::view::View;
use crate::limits::{WHERE_BYTES_MAX, WHERE_DEPTH_MAX, WHERE_STEPS_MAX};

/// Stack of the compiling thread: the parser of an unoptimised build takes half of it at the allowed nesting.
const COMPILE_STACK_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of text that cost one step when a regular expression runs over them.
const REGEX_BYTES_PER_STEP: usize = 64;
/// Characters of a reason that are kept: CEL puts whole values in its errors.
const REASON_CHARS_MAX: usize = 200;

/// A compiled condition.
#[derive(Clone)]
pub struct Condition {
    source: String,
    tree: IdedExpr,
    regexes: Vec<Regex>,
    never_boolean: Option<ConditionProblem>,
}

/// Why a condition was refused, and where in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} (line {line}, column {column})")]
pub struct ConditionProblem {
    /// What is wrong.
    pub detail: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl Condition {
    /// What it can name.
    pub(crate) const VARIABLES: [&str; 9] = check::VARIABLES;

    /// Parses and checks a condition.
    pub fn compile(source: &str) -> Result<Self, ConditionProblem> {
        let at_start = |detail: String| ConditionProblem { detail, line: 1, column: 1 };
        if source.len() > WHERE_BYTES_MAX {
            return Err(at_start(format!("a condition has at most {WHERE_BYTES_MAX} bytes")));
        }
        if nesting::depth(source) > WHERE_DEPTH_MAX {
            return Err(at_start(format!("a condition nests at most {WHERE_DEPTH_MAX} levels")));
        }
        let owned = source.to_owned();
        thread::Builder::new()
            .name("compile-condition".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(move || parse(&owned))
            .map_err(|error| at_start(format!("no thread to compile the condition: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(at_start("the condition cannot be parsed; rewrite it".to_owned())))
    }

    /// Why it can never be fulfilled, when its result is known to be neither true nor false. One that was saved before
    /// this was refused goes on matching nothing.
    pub fn never_boolean(&self) -> Option<&ConditionProblem> {
        self.never_boolean.as_ref()
    }

    /// The condition as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What was parsed.
    pub(crate) fn tree(&self) -> &IdedExpr {
        &self.tree
    }

    /// Whether the event fulfils the condition, or why that cannot be said.
    pub fn judge(&self, view: &View<'_>) -> Result<bool, String> {
        catch_unwind(AssertUnwindSafe(|| self.evaluate(view)))
            .unwrap_or_else(|_| Err("the condition cannot be evaluated on this event".to_owned()))
    }

    fn evaluate(&self, view: &View<'_>) -> Result<bool, String> {
        view.budget().refill(WHERE_STEPS_MAX);
        let roots = Roots { view, condition: self };
        let mut context = Context::with_env(Arc::clone(&ENV));
        context.set_variable_resolver(&roots);
        let result = Value::resolve_val(&self.tree, &context);
        if view.budget().is_exhausted() {
            return Err(format!("it takes more than {WHERE_STEPS_MAX} steps on this event"));
        }
        match result {
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(truth) => Ok(*truth.inner()),
                None => Err(format!("it is neither true nor false, but of type {}", value.get_type().name())),
            },
            Err(error) => Err(roots.reason(&error)),
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.source).finish()
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

fn parse(source: &str) -> Result<Condition, ConditionProblem> {
    let program: Program = ENV.compile(source).map_err(|errors| syntax(&errors))?;
    let mut tree = program.expression().clone();
    let problem = |node: u64, detail: String| {
        let offset = program.source_info().offset_for(node).map_or(0, |(start, _)| start);
        let (line, column) = position(source, offset as usize);
        ConditionProblem { detail, line, column }
    };
    let regexes = check::check(&mut tree).map_err(|Found { node, detail }| problem(node, detail))?;
    let never_boolean = check::never_boolean(&tree).map(|what| {
        problem(tree.id, format!("the condition is {what}, never true or false; compare it with something"))
    });
    Ok(Condition { source: source.to_owned(), tree, regexes, never_boolean })
}

fn syntax(errors: &ParseErrors) -> ConditionProblem {
    let Some(first) = errors.errors.first() else {
        return ConditionProblem { detail: "not a CEL expression".to_owned(), line: 1, column: 1 };
    };
    let number = |value: isize| usize::try_from(value).unwrap_or(1).max(1);
    ConditionProblem { detail: shortened(&first.msg), line: number(first.pos.0), column: number(first.pos.1) }
}

/// Line and column of the character at byte `offset`.
fn position(source: &str, offset: usize) -> (usize, usize) {
    let before = source.get(..offset).unwrap_or(source);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

/// One line, beginning in lower case, of bounded length.
fn shortened(text: &str) -> String {
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let first = chars.next().map(|c| c.to_ascii_lowercase());
    let mut short: String = first.into_iter().chain(chars).take(REASON_CHARS_MAX).collect();
    if text.chars().nth(REASON_CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

/// The standard functions, and `matches` for what [`check`] has compiled.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib().with_optional_support(false);
    cel::add_overload!(env, fn matches: (CelString, Matcher) -> Result<CelBool>, id = "matches_compiled")
        .expect("the standard library has no such overload");
    cel::add_member_overload!(env, fn matches: (CelString, Matcher) -> Result<CelBool>, id = "string_matches_compiled")
        .expect("the standard library has no such overload");
    Arc::new(env)
});

/// A compiled regular expression as a CEL value.
#[derive(Clone, Debug)]
struct Matcher {
    regex: Regex,
    budget: Arc<Budget>,
}

static MATCHER: Type = Type::new_unspecified_type("regex");

impl Val for Matcher {
    fn get_type(&self) -> &Type {
        &MATCHER
    }

    fn cel_type() -> &'static Type {
        &MATCHER
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Matcher {}

fn matches(text: &CelString<'_>, matcher: &Matcher) -> Result<CelBool, ExecutionError> {
    if !matcher.budget.spend(1 + text.inner().len() / REGEX_BYTES_PER_STEP) {
        return Err(ExecutionError::function_error("matches", "too much work"));
    }
    Ok(CelBool::from(matcher.regex.is_match(text.inner())))
}

/// The variables of one evaluation.
struct Roots<'e, 'a> {
    view: &'e View<'a>,
    condition: &'e Condition,
}

impl VariableResolver for Roots<'_, '_> {
    fn resolve<'b>(&'b self, name: &str) -> Option<CowVal<'b, 'b>> {
        let event = self.view.event;
        let text = |value: &'b str| {
            self.view.budget().spend_text(value);
            Some(CowVal::owned(CelString::from(value)))
        };
        let optional = |value: Option<&'b str>| value.map_or_else(|| Some(CowVal::owned(CelNull)), text);
        match name {
            "data" => self.view.data().ok().map(CowVal::Borrowed),
            "type" => text(&event.type_name),
            "source" => text(&event.source),
            "subject" => optional(event.subject.as_deref()),
            "extensions" => self.view.extensions().ok().map(CowVal::Borrowed),
            "id" => text(&event.id),
            "time" => text(self.view.time()),
            "ended" => optional(self.view.ended()),
            "parents" => Some(CowVal::Borrowed(self.view.parents())),
            other => {
                let regex = self.condition.regexes.get(check::regex_index(other)?)?.clone();
                Some(CowVal::owned(Matcher { regex, budget: Arc::clone(self.view.budget()) }))
            }
        }
    }
}

impl Roots<'_, '_> {
    /// CEL's error in words, or the deeper reason: `data` that no JSON value can hold looks undeclared to it.
    fn reason(&self, error: &ExecutionError) -> String {
        let unreadable = match error {
            ExecutionError::UndeclaredReference(name) => match name.as_str() {
                "data" => self.view.data().err(),
                "extensions" => self.view.extensions().err(),
                _ => None,
            },
            _ => None,
        };
        unreadable.map_or_else(|| shortened(&words(error)), str::to_owned)
    }
}

/// CEL prints whole values, in no particular order, where their types say enough.
fn words(error: &ExecutionError) -> String {
    match error {
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!("cannot {operator} {} and {}", left.type_of(), right.type_of())
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            format!("cannot compare {} and {}", left.type_of(), right.type_of())
        }
        ExecutionError::UnsupportedIndex(index, value) => {
            format!("cannot index {} with {}", value.type_of(), index.type_of())
        }
        ExecutionError::UnsupportedKeyType(key) => format!("{} cannot be a key", key.type_of()),
        other => other.to_string(),
    }
}
