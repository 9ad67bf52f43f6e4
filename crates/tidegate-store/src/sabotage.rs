//! Lines that protect a promise, which a test build can switch off.
//!
//! A campaign that finds nothing proves something only if it finds what is there to be found. So in a build with the feature
//! `sabotage`, and in no other, `TIDEGATE_SABOTAGE` names one line that does not do its work, and `cargo xtask chaos replicas`,
//! `counters` or `failover` with `--sabotage` must find the promise that is broken by it. In every other build [`is`] is a constant
//! and costs nothing.

use std::borrow::Cow;

#[cfg(all(feature = "sabotage", not(debug_assertions)))]
compile_error!("the feature `sabotage` is for test builds: nobody shall run it as the product");

/// A line that protects a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing that a dead life writes counts.
    Fencing,
    /// Ids and lanes are taken in one order by everybody.
    Sorted,
    /// Nobody acts on what may be another's by now.
    Lease,
    /// What was counted is not counted again.
    Watermark,
    /// A process notices that the database went back in time.
    Rewind,
}

/// Whether this line is switched off.
#[cfg(not(feature = "sabotage"))]
pub const fn is(_line: Line) -> bool {
    false
}

/// Whether this line is switched off.
#[cfg(feature = "sabotage")]
pub fn is(line: Line) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<Line>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("TIDEGATE_SABOTAGE").ok()?;
        let line = [Line::Fencing, Line::Sorted, Line::Lease, Line::Watermark, Line::Rewind]
            .into_iter()
            .find(|line| format!("{line:?}").eq_ignore_ascii_case(&name));
        tracing::error!(
            ?line,
            "this is a build for tests, and a line that protects a promise is switched off"
        );
        line
    });
    *chosen == Some(line)
}

/// A statement, or the same with other words in the place of its guards.
pub(crate) fn unless(line: Line, sql: &'static str, guards: &[(&str, &str)]) -> Cow<'static, str> {
    if !is(line) {
        return Cow::Borrowed(sql);
    }
    let replace = |sql: String, (guard, instead): &(&str, &str)| {
        assert!(sql.contains(guard), "the guard is not where it is looked for");
        sql.replace(guard, instead)
    };
    Cow::Owned(guards.iter().fold(sql.to_owned(), replace))
}
