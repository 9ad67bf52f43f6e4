//! What a parsed CEL condition may consist of.
//!
//! A condition that can never work (a variable or a function that does not exist, a broken regular expression) is
//! refused when it is saved, with its position, and so is one whose evaluation could take too much stack or time.
//! On the way, each `matches` gets its regular expression compiled once and put in place of the literal.

use cel::IdedExpr;
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators};
use regex::{Regex, RegexBuilder};

use crate::limits::{WHERE_MACRO_DEPTH_MAX, WHERE_REGEX_BYTES_MAX, WHERE_REGEXES_MAX, WHERE_TREE_DEPTH_MAX};

/// What a condition can name, and nothing else.
pub(super) const VARIABLES: [&str; 9] =
    ["id", "source", "type", "subject", "time", "ended", "parents", "extensions", "data"];
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
const FUNCTIONS: [&str; 12] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bool",
    "type",
    "dyn",
];
const OPERATORS: [&str; 18] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::IN,
];

/// The name under which regular expression number `index` stands in the tree; no source can spell it.
pub(super) fn regex_name(index: usize) -> String {
    format!("@regex{index}")
}

/// The number of the regular expression with this name.
pub(super) fn regex_index(name: &str) -> Option<usize> {
    name.strip_prefix("@regex")?.parse().ok()
}

/// A problem and the node it is about.
pub(super) struct Found {
    pub(super) node: u64,
    pub(super) detail: String,
}

/// Checks a tree and compiles its regular expressions.
pub(super) fn check(root: &mut IdedExpr) -> Result<Vec<Regex>, Found> {
    let mut checker = Checker { scope: Vec::new(), macros: 0, regexes: Vec::new() };
    checker.visit(root, 1)?;
    Ok(checker.regexes)
}

/// What a tree always is, when that is known and neither true nor false.
pub(super) fn never_boolean(node: &IdedExpr) -> Option<&'static str> {
    match &node.expr {
        Expr::Literal(LiteralValue::Boolean(_)) => None,
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::String(_) => "text",
            LiteralValue::Null => "null",
            LiteralValue::Bytes(_) => "bytes",
            _ => "a number",
        }),
        Expr::List(_) => Some("a list"),
        Expr::Map(_) => Some("a map"),
        Expr::Ident(name) => match name.as_str() {
            "id" | "source" | "type" | "time" => Some("text"),
            "parents" => Some("a list"),
            "extensions" => Some("a map"),
            name if TYPES.contains(&name) => Some("a type"),
            _ => None,
        },
        Expr::Call(call) => never_boolean_call(call),
        // `map` and `filter` gather a list; the other macros end in true or false.
        Expr::Comprehension(comprehension) => {
            matches!(comprehension.accu_init.expr, Expr::List(_)).then_some("a list")
        }
        Expr::Select(_) | Expr::Struct(_) | Expr::Unspecified => None,
    }
}

fn never_boolean_call(call: &CallExpr) -> Option<&'static str> {
    match call.func_name.as_str() {
        operators::SUBSTRACT
        | operators::MULTIPLY
        | operators::DIVIDE
        | operators::MODULO
        | operators::NEGATE => Some("a number"),
        operators::ADD => Some("a sum"),
        "size" | "int" | "uint" | "double" => Some("a number"),
        "string" => Some("text"),
        "type" => Some("a type"),
        "dyn" => call.args.first().and_then(never_boolean),
        operators::CONDITIONAL => {
            let branches =
                call.args.get(1).and_then(never_boolean).zip(call.args.get(2).and_then(never_boolean));
            branches.map(|(first, _)| first)
        }
        _ => None,
    }
}

struct Checker {
    /// Variables that the macros around the current node bring along.
    scope: Vec<String>,
    /// Macros around the current node.
    macros: usize,
    regexes: Vec<Regex>,
}

impl Checker {
    fn visit(&mut self, node: &mut IdedExpr, depth: usize) -> Result<(), Found> {
        let id = node.id;
        if depth > WHERE_TREE_DEPTH_MAX {
            return found(id, format!("nested more than {WHERE_TREE_DEPTH_MAX} levels deep; split it up"));
        }
        match &mut node.expr {
            Expr::Ident(name) => self.ident(id, name),
            Expr::Select(select) => self.visit(&mut select.operand, depth + 1),
            Expr::Call(call) => self.call(id, call, depth),
            Expr::List(list) => list.elements.iter_mut().try_for_each(|item| self.visit(item, depth + 1)),
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.visit(&mut entry.key, depth + 1)?;
                    self.visit(&mut entry.value, depth + 1)
                }
                EntryExpr::StructField(_) => found(id, "messages are not supported"),
            }),
            Expr::Comprehension(comprehension) => self.comprehension(id, comprehension, depth),
            Expr::Literal(_) => Ok(()),
            Expr::Struct(_) | Expr::Unspecified => found(id, "messages are not supported"),
        }
    }

    fn ident(&self, id: u64, name: &str) -> Result<(), Found> {
        let known = self.scope.iter().any(|known| known == name)
            || VARIABLES.contains(&name)
            || TYPES.contains(&name);
        if known {
            return Ok(());
        }
        found(id, format!("unknown variable `{name}`; known are {}", VARIABLES.join(", ")))
    }

    fn call(&mut self, id: u64, call: &mut CallExpr, depth: usize) -> Result<(), Found> {
        let name = call.func_name.as_str();
        let internal = name == operators::NOT_STRICTLY_FALSE;
        if !internal && !OPERATORS.contains(&name) && !FUNCTIONS.contains(&name) {
            let detail = format!(
                "unknown function `{name}`; known are {}, and the macros has, all, exists, exists_one, map and filter",
                FUNCTIONS.join(", ")
            );
            return found(id, detail);
        }
        if name == "matches" {
            self.regex(id, call)?;
        }
        if let Some(target) = &mut call.target {
            self.visit(target, depth + 1)?;
        }
        let args = call.args.iter_mut();
        args.filter(|arg| !is_regex(arg)).try_for_each(|arg| self.visit(arg, depth + 1))
    }

    /// Puts a compiled expression in place of the literal: compiling one for each event would cost more than
    /// everything else, and one made of the event's own text could cost anything.
    fn regex(&mut self, id: u64, call: &mut CallExpr) -> Result<(), Found> {
        let count = call.args.len() + usize::from(call.target.is_some());
        let Some(IdedExpr { expr, .. }) = call.args.last_mut().filter(|_| count == 2) else {
            return found(id, "`matches` takes a text and a pattern, as in subject.matches('^a')");
        };
        let Expr::Literal(LiteralValue::String(pattern)) = expr else {
            return found(id, "the pattern of `matches` must be a literal, as in subject.matches('^a')");
        };
        if self.regexes.len() == WHERE_REGEXES_MAX {
            return found(
                id,
                format!("at most {WHERE_REGEXES_MAX} `matches` in a condition; join their patterns with `|`"),
            );
        }
        let regex = RegexBuilder::new(pattern.inner())
            .size_limit(WHERE_REGEX_BYTES_MAX)
            .build()
            .map_err(|error| Found { node: id, detail: regex_problem(&error) })?;
        *expr = Expr::Ident(regex_name(self.regexes.len()));
        self.regexes.push(regex);
        Ok(())
    }

    fn comprehension(
        &mut self,
        id: u64,
        comprehension: &mut ComprehensionExpr,
        depth: usize,
    ) -> Result<(), Found> {
        self.visit(&mut comprehension.iter_range, depth + 1)?;
        self.visit(&mut comprehension.accu_init, depth + 1)?;
        if self.macros == WHERE_MACRO_DEPTH_MAX {
            let detail = format!("macros stand inside each other more than {WHERE_MACRO_DEPTH_MAX} deep");
            return found(id, detail);
        }
        let outer = self.scope.len();
        self.scope.push(comprehension.iter_var.clone());
        self.scope.extend(comprehension.iter_var2.clone());
        self.scope.push(comprehension.accu_var.clone());
        self.macros += 1;
        for part in [&mut comprehension.loop_cond, &mut comprehension.loop_step, &mut comprehension.result] {
            self.visit(part, depth + 1)?;
        }
        self.macros -= 1;
        self.scope.truncate(outer);
        Ok(())
    }
}

fn is_regex(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Ident(name) if regex_index(name).is_some())
}

fn regex_problem(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "the pattern of `matches` is too large; simplify it".to_owned(),
        // The library draws a picture over several lines; its last says what is wrong.
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("the pattern of `matches` is not a regular expression: {last}")
        }
    }
}

fn found(node: u64, detail: impl Into<String>) -> Result<(), Found> {
    Err(Found { node, detail: detail.into() })
}
