//! Numbers as they are written: read exactly, printed in one way.

use std::borrow::Cow;

use crate::limits::SUM_VALUE_MAX;
use crate::route::{Spelling, spell};

/// Digits after the point of a unit of a sum.
const PLACES: i64 = 9;

/// A decimal number, split where its parts meet.
struct Decimal<'t> {
    is_negative: bool,
    whole: &'t str,
    fraction: &'t str,
    /// Far beyond every number that fits, where the text has more digits than this.
    exponent: i64,
}

impl<'t> Decimal<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let (is_negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (number, exponent) = match rest.find(['e', 'E']) {
            Some(at) => (&rest[..at], power(&rest[at + 1..])?),
            None => (rest, 0),
        };
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return None,
            None => (number, ""),
        };
        is_digits(whole).then_some(Self { is_negative, whole, fraction, exponent })
    }

    fn digit(&self, place: usize) -> Option<u8> {
        let (whole, fraction) = (self.whole.as_bytes(), self.fraction.as_bytes());
        let digit = whole.get(place).or_else(|| fraction.get(place.checked_sub(whole.len())?));
        digit.map(|digit| digit - b'0')
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn power(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let size = is_digits(digits).then(|| digits.parse::<i64>().unwrap_or(i64::MAX / 4))?.min(i64::MAX / 4);
    Some(if text.starts_with('-') { -size } else { size })
}

/// The number in units of 10⁻⁹: exact, rounded half away from zero at the last of its places, and held within
/// [`SUM_VALUE_MAX`].
pub(super) fn units(text: &str) -> Option<i128> {
    let decimal = Decimal::parse(text)?;
    let count = decimal.whole.len() + decimal.fraction.len();
    // So many digits stand before the point when the number is in units.
    let before = decimal.exponent + decimal.whole.len() as i64 + PLACES;
    let mut units = 0i128;
    for place in 0..usize::try_from(before).unwrap_or(0) {
        if units == 0 && place >= count {
            break;
        }
        units = units * 10 + i128::from(decimal.digit(place).unwrap_or(0));
        if units > SUM_VALUE_MAX {
            break;
        }
    }
    let rounds_up = usize::try_from(before).ok().and_then(|place| decimal.digit(place)) >= Some(5);
    let units = (units + i128::from(rounds_up)).min(SUM_VALUE_MAX);
    Some(if decimal.is_negative { -units } else { units })
}

/// The nearest double.
pub(super) fn float(text: &str) -> Option<f64> {
    Decimal::parse(text)?;
    text.parse::<f64>().ok().map(|float| float.clamp(f64::MIN, f64::MAX))
}

/// A JSON number so that equal ones read alike: whole ones of 64 bits digit for digit, others by the nearest double. Nothing for
/// one that no double can hold.
pub(super) fn shown(text: &str) -> Option<Cow<'_, str>> {
    match spell(text)? {
        Spelling::Plain(text) => Some(text),
        Spelling::Long(text) => {
            let number: serde_json::Number = serde_json::from_str(&text).ok()?;
            Some(if number.as_f64() == Some(0.0) {
                Cow::Borrowed("0")
            } else {
                Cow::Owned(number.to_string())
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_to_the_last_place() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("1", 1_000_000_000),
            ("0.1", 100_000_000),
            ("41.5", 41_500_000_000),
            ("-2.000000001", -2_000_000_001),
            ("1.0000000005", 1_000_000_001),
            ("1.00000000049", 1_000_000_000),
            ("-0.0000000005", -1),
            ("1e3", 1_000_000_000_000),
            ("12.5E-1", 1_250_000_000),
            ("5e-10", 1),
            ("5e-11", 0),
            ("0e999999999999999999999", 0),
            ("1e-999999999999999999999", 0),
            ("18446744073709551615", 18_446_744_073_709_551_615_000_000_000),
            ("1e20", SUM_VALUE_MAX),
            ("1e21", SUM_VALUE_MAX),
            ("-1e999999999999999999999", -SUM_VALUE_MAX),
        ] {
            assert_eq!(units(text), Some(expected), "{text}");
        }
        for text in ["", "-", ".5", "5.", "1e", "1e+", "+1", "inf", "NaN", "0x1", "1 ", "1_0", "--1"] {
            assert_eq!((units(text), float(text)), (None, None), "{text}");
        }
        assert_eq!((float("1e999"), float("-2.5")), (Some(f64::MAX), Some(-2.5)));
    }

    #[test]
    fn equal_numbers_read_alike() {
        for (text, expected) in [
            ("7", "7"),
            ("7.0", "7"),
            ("70e-1", "7"),
            ("-0.0", "0"),
            ("-0", "0"),
            ("1.50", "1.5"),
            ("18446744073709551615", "18446744073709551615"),
            ("1e300", "1e+300"),
            ("675621566002.70100", "675621566002.701"),
            ("9007199254740993.0", "9007199254740993"),
            ("0.1000000000000000000000001", "0.1"),
            ("1e20", "1e+20"),
            ("123456789012345678901", "1.2345678901234568e+20"),
            ("1e-400", "0"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(shown("1e999"), None);
    }

    proptest! {
        #[test]
        fn sums_of_cents_are_exact(cents in proptest::collection::vec(-1_000_000_i64..1_000_000, 0..50)) {
            let written = |cents: &i64| {
                format!("{}{}.{:02}", if *cents < 0 { "-" } else { "" }, cents.abs() / 100, cents.abs() % 100)
            };
            let sum: i128 = cents.iter().map(|cents| units(&written(cents)).unwrap()).sum();
            prop_assert_eq!(sum, i128::from(cents.iter().sum::<i64>()) * 10_000_000);
        }

        #[test]
        fn any_text_is_read(text in "[-+0-9.eE]{0,12}") {
            let (units, float) = (units(&text), float(&text));
            prop_assert_eq!(units.is_some(), float.is_some());
            if let (Some(units), Some(float)) = (units, float) && float.abs() < 1e5 {
                prop_assert!((units as f64 / 1e9 - float).abs() < 1e-8);
            }
        }
    }
}
