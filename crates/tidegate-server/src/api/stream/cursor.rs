//! Where a stream stands: after which event, and after which change of a delivery in which life of the process.
//!
//! Written `c<event>` or `c<event>.<life>.<change>`, numbers in base 36. Callers pass it on as it is.

use std::fmt;

use tidegate_core::id::{Incarnation, Seq};

/// A place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Events up to this one have been seen.
    pub(super) event: Seq,
    /// The life of the process that `change` is of; 0 is none.
    pub(super) life: Incarnation,
    /// Changes before this one have been seen.
    pub(super) change: u64,
}

impl Cursor {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix('c')?.split('.');
        let event = number(parts.next()?)?;
        let (life, change) = match (parts.next(), parts.next()) {
            (None, None) => (0, 0),
            (Some(life), Some(change)) => (number(life)?, number(change)?.unsigned_abs()),
            _ => return None,
        };
        parts.next().is_none().then_some(Self { event, life, change })
    }

    /// Goes on in another life, whose changes before `change` are not told.
    pub(super) fn restart(&mut self, life: Incarnation, change: u64) {
        (self.life, self.change) = (life, change);
    }
}

/// A number that is not negative, without a sign.
fn number(digits: &str) -> Option<i64> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    i64::from_str_radix(digits, 36).ok().filter(|_| is_plain)
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (event, life) = (self.event.unsigned_abs(), self.life.unsigned_abs());
        write!(f, "c{}.{}.{}", digits(event), digits(life), digits(self.change))
    }
}

fn digits(mut number: u64) -> String {
    let mut digits = Vec::new();
    while number > 0 || digits.is_empty() {
        digits.push(char::from_digit((number % 36) as u32, 36).expect("a digit below 36"));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back() {
        for cursor in [
            Cursor { event: 0, life: 0, change: 0 },
            Cursor { event: i64::MAX, life: 36, change: i64::MAX as u64 },
        ] {
            assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        }
        assert_eq!(Cursor::parse("cz"), Some(Cursor { event: 35, life: 0, change: 0 }));
        for bad in ["", "1", "c", "c-1", "c+1", "c1.2", "c1.2.3.4", "c1.2.-3", "cé", "c99999999999999"] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }
}
