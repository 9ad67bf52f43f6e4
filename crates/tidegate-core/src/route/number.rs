//! Numbers as keys see them: exact decimals, one spelling each.
//!
//! A number that goes through a double comes back as its neighbour, and two neighbours as one. So keys are made of the
//! digits as they were sent: equal numbers are spelled alike, however they were written, and different ones never are.

use std::borrow::Cow;

use serde_json::Number;

/// Digits, with the sign, up to which a whole number is written out: then `"number:…"` is not longer than a key's value may be.
const WRITTEN_OUT_MAX: i128 = 247;
/// Digits that every whole number of 64 bits has room for.
const PLAIN_DIGITS_MAX: usize = 18;
/// No double is shown with more.
const DOUBLE_DIGITS_MAX: usize = 17;

/// The one spelling of a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Spelling<'t> {
    /// A JSON number that everybody reads back as it is.
    Plain(Cow<'t, str>),
    /// One that neither 64 bits nor a double hold exactly.
    Long(String),
}

/// How a JSON number is spelled; nothing for what is none.
pub(crate) fn spell(raw: &str) -> Option<Spelling<'_>> {
    let digits = raw.strip_prefix('-').unwrap_or(raw);
    if is_digits(digits) && digits.len() <= PLAIN_DIGITS_MAX && !digits.starts_with('0') {
        return Some(Spelling::Plain(Cow::Borrowed(raw)));
    }
    Some(match Decimal::parse(raw)? {
        Parsed::Zero => Spelling::Plain(Cow::Borrowed("0")),
        Parsed::Other(decimal) => decimal.spell(),
        // No two of these that anybody sends are equal, so each stands as it is written.
        Parsed::Beyond => Spelling::Long(raw.to_owned()),
    })
}

/// What the lane of a number is made from. Whole numbers beyond 64 bits have always stood by a double near them, and what
/// waits in their lanes must stay before what comes: neighbours share a lane, which keeps their order as well.
pub(super) fn spell_for_lane(raw: &str) -> Cow<'_, str> {
    match spell(raw) {
        Some(Spelling::Plain(text)) => text,
        Some(Spelling::Long(text)) => near(&text).map_or(text, |near| near.to_string()).into(),
        None => Cow::Borrowed(raw),
    }
}

/// The double that a long whole number was first read as: its leading digits that 64 bits hold, times a power of ten.
/// Not always the nearest.
fn near(whole: &str) -> Option<Number> {
    let (sign, digits) = whole.strip_prefix('-').map_or((1.0, whole), |digits| (-1.0, digits));
    if !is_digits(digits) || whole.len() as i128 > WRITTEN_OUT_MAX {
        return None;
    }
    let add = |kept: u64, digit: u8| kept.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    let mut kept = 0;
    let mut left = digits.bytes();
    while let Some(more) = left.clone().next().and_then(|digit| add(kept, digit)) {
        kept = more;
        left.next();
    }
    let power: f64 = format!("1e{}", left.len()).parse().ok()?;
    Number::from_f64(sign * (kept as f64 * power))
}

/// A number other than zero: its digits, which neither begin nor end with a zero, times a power of ten.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    exponent: i128,
}

enum Parsed {
    Zero,
    Other(Decimal),
    /// Its exponent has more than 38 digits.
    Beyond,
}

impl Decimal {
    fn parse(text: &str) -> Option<Parsed> {
        let (is_negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, power) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return None,
            None => (mantissa, ""),
        };
        if !is_digits(whole) || !is_digits(power.strip_prefix(['+', '-']).unwrap_or(power)) {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        let kept = digits.trim_end_matches('0');
        if kept.is_empty() {
            return Some(Parsed::Zero);
        }
        let shift = (digits.len() - kept.len()) as i128 - fraction.len() as i128;
        let exponent = power.parse::<i128>().ok().and_then(|power| power.checked_add(shift));
        // Room for what is added to it below.
        let exponent = exponent.filter(|exponent| exponent.unsigned_abs() < u128::MAX >> 2);
        let other = |exponent| Parsed::Other(Self { is_negative, digits: kept.to_owned(), exponent });
        Some(exponent.map_or(Parsed::Beyond, other))
    }

    fn spell<'t>(&self) -> Spelling<'t> {
        let written_out = self.sign().len() as i128 + self.point();
        if self.exponent >= 0 && written_out <= WRITTEN_OUT_MAX {
            let text = self.text();
            let is_held = text.parse::<u64>().is_ok() || text.parse::<i64>().is_ok();
            return if is_held { Spelling::Plain(text.into()) } else { Spelling::Long(text) };
        }
        match self.as_double() {
            Some(text) => Spelling::Plain(text.into()),
            None => Spelling::Long(self.text()),
        }
    }

    fn sign(&self) -> &'static str {
        if self.is_negative { "-" } else { "" }
    }

    /// How many digits stand before the point.
    fn point(&self) -> i128 {
        self.digits.len() as i128 + self.exponent
    }

    /// How the nearest double is shown, if that is this number.
    fn as_double(&self) -> Option<String> {
        if self.digits.len() > DOUBLE_DIGITS_MAX {
            return None;
        }
        let float: f64 = format!("{}{}e{}", self.sign(), self.digits, self.exponent).parse().ok()?;
        let shown = Number::from_f64(float)?.to_string();
        matches!(Self::parse(&shown)?, Parsed::Other(decimal) if decimal == *self).then_some(shown)
    }

    /// All its digits, without an exponent unless that would add very many zeros.
    fn text(&self) -> String {
        let Self { digits, exponent, .. } = self;
        let (sign, point) = (self.sign(), self.point());
        let zeros = |count: i128| "0".repeat(usize::try_from(count).unwrap_or(0));
        if (0..=WRITTEN_OUT_MAX).contains(exponent) {
            return format!("{sign}{digits}{}", zeros(*exponent));
        }
        if *exponent < 0 && point > 0 {
            let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
            return format!("{sign}{whole}.{fraction}");
        }
        if *exponent < 0 && point > -WRITTEN_OUT_MAX {
            return format!("{sign}0.{}{digits}", zeros(-point));
        }
        let (first, more) = digits.split_at(1);
        let dot = if more.is_empty() { "" } else { "." };
        format!("{sign}{first}{dot}{more}e{:+}", point - 1)
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(raw: &str) -> String {
        match spell(raw) {
            Some(Spelling::Plain(text)) => text.into_owned(),
            Some(Spelling::Long(text)) => format!("number:{text}"),
            None => format!("no number: {raw}"),
        }
    }

    #[test]
    fn numbers_are_spelled_in_one_way() {
        let (long, longer) = ("1".repeat(300), format!("1{}", "0".repeat(300)));
        for (raw, expected) in [
            ("0", "0"),
            ("-0", "0"),
            ("0e99999999999999999999999999999999999999999999", "0"),
            ("7", "7"),
            ("-7.00", "-7"),
            ("70e-1", "7"),
            ("1.50", "1.5"),
            ("1e-7", "1e-7"),
            ("675621566002.70100", "675621566002.701"),
            ("9007199254740993.0", "9007199254740993"),
            ("18446744073709551615", "18446744073709551615"),
            ("18446744073709551616", "number:18446744073709551616"),
            ("-9223372036854775809", "number:-9223372036854775809"),
            ("1e20", "number:100000000000000000000"),
            ("1e300", "1e+300"),
            (&longer, "1e+300"),
            (&long, &format!("number:{long}")),
            ("1301257937266654.2", "1301257937266654.2"),
            ("1301257937266654.3", "number:1301257937266654.3"),
            ("1e400", "number:1e+400"),
            ("-12.5e-400", "number:-1.25e-399"),
            ("0.1000000000000000000000001", "number:0.1000000000000000000000001"),
            ("-1234567890123456789.5", "number:-1234567890123456789.5"),
            ("1e-324", "number:1e-324"),
            ("1e99999999999999999999", "number:1e+99999999999999999999"),
            (
                "1E9999999999999999999999999999999999999999",
                "number:1E9999999999999999999999999999999999999999",
            ),
        ] {
            assert_eq!(text(raw), expected, "{raw}");
        }
        for raw in ["", "-", ".5", "5.", "1e", "1e+", "+1", "inf", "NaN", "0x1", "1 ", "1_0", "--1", "1e1.5"]
        {
            assert_eq!(spell(raw), None, "{raw}");
        }
    }

    /// A number that is written with these digits, times ten to the power, in several ways.
    fn writings(sign: &str, digits: &str, power: i32) -> [String; 5] {
        let len = i32::try_from(digits.len()).unwrap();
        [
            format!("{sign}{digits}e{power}"),
            format!("{sign}{digits}000E{}", power - 3),
            format!("{sign}0.00{digits}e+{}", power + len + 2).replace("+-", "-"),
            format!("{sign}{}.{}0e{}", &digits[..1], &digits[1..], power + len - 1),
            format!("{sign}{digits}.0e{power}"),
        ]
    }

    proptest! {
        #[test]
        fn equal_numbers_are_spelled_alike(
            sign in "-?", digits in "[1-9][0-9]{0,30}", power in prop_oneof![-30..30, -400..400],
        ) {
            let writings = writings(&sign, &digits, power);
            for written in &writings {
                prop_assert_eq!(spell(written), spell(&writings[0]), "{}", written);
                prop_assert_eq!(spell_for_lane(written), spell_for_lane(&writings[0]), "{}", written);
            }
            // What is shown is the number itself.
            let shown = text(&writings[0]);
            prop_assert_eq!(text(shown.trim_start_matches("number:")), shown);
        }

        #[test]
        fn different_numbers_are_spelled_differently(
            digits in "[1-9][0-9]{0,30}", power in prop_oneof![-30..30, -400..400], place in 0..31_usize, by in 1..10_u8,
        ) {
            let place = place % digits.len();
            let mut other = digits.clone().into_bytes();
            other[place] = b'0' + (other[place] - b'0' + by) % 10;
            let other = String::from_utf8(other).unwrap();
            let (one, other) = (format!("{digits}e{power}"), format!("{other}e{power}"));
            prop_assert_ne!(text(&one), text(&other));
            prop_assert_ne!(text(&one), text(&format!("-{one}")));
            prop_assert_ne!(text(&one), text(&format!("{digits}e{}", power + 1)));
        }

        /// What waits under a key that was made before is met by what comes now.
        #[test]
        fn ordinary_numbers_are_spelled_as_they_always_were(
            whole in any::<i64>(), large in any::<u64>(), short in -999_999_999_999_999_i64..1_000_000_000_000_000, places in 1..16_usize,
            float in any::<f64>().prop_filter("JSON has no such number", |float| float.is_finite()),
        ) {
            prop_assert_eq!(text(&whole.to_string()), whole.to_string());
            prop_assert_eq!(text(&large.to_string()), large.to_string());
            let digits = format!("{:016}", short.abs());
            let (before, after) = digits.split_at(16 - places);
            let written = format!("{}{}.{after}", if short < 0 { "-" } else { "" }, if before.is_empty() { "0" } else { before.trim_start_matches('0') });
            let written = written.replace("-.", "-0.");
            let written = if written.starts_with('.') { format!("0{written}") } else { written };
            let number: f64 = written.parse().unwrap();
            if number.fract() != 0.0 {
                prop_assert_eq!(text(&written), Number::from_f64(number).unwrap().to_string());
            }
            // As JSON writes it: of two shortest decimals that are equally near, others may show the other one.
            if float.fract() != 0.0 {
                let shown = Number::from_f64(float).unwrap().to_string();
                prop_assert_eq!(text(&shown), shown);
            }
        }

        #[test]
        fn any_text_is_spelled_or_no_number(text in "[-+0-9.eE]{0,12}") {
            prop_assert_eq!(spell(&text).is_some(), text.parse::<f64>().is_ok() && is_strict(&text));
        }
    }

    /// More than JSON allows, and less than Rust does.
    fn is_strict(text: &str) -> bool {
        let text = text.to_ascii_lowercase();
        !text.starts_with('+')
            && !text.trim_start_matches('-').starts_with('.')
            && !text.contains(".e")
            && !text.ends_with('.')
    }
}
