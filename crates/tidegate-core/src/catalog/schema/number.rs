//! Numbers as JSON Schema sees them: one kind, whatever their spelling, compared without rounding where they are
//! whole.

use std::cmp::Ordering;

use serde_json::Number;

pub(super) fn is_integer(number: &Number) -> bool {
    whole(number).is_some() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

pub(super) fn compare(a: &Number, b: &Number) -> Ordering {
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => float(a).total_cmp(&float(b)),
    }
}

/// Whether `number` is a whole multiple of `divisor`, which is above zero. Exact for both as they are written.
pub(super) fn is_multiple(number: &Number, divisor: &Number) -> bool {
    let (Some((digits, scale)), Some((unit, unit_scale))) = (decimal(number), decimal(divisor)) else {
        return false;
    };
    if digits == 0 {
        return true;
    }
    if scale < unit_scale {
        // The divisor's digits grow; when they outgrow the number's, it is no multiple.
        let grown = u32::try_from(unit_scale - scale).ok().and_then(|power| 10_u128.checked_pow(power));
        let grown = grown.and_then(|factor| factor.checked_mul(unit));
        return grown.is_some_and(|unit| digits.is_multiple_of(unit));
    }
    remainder(digits, scale - unit_scale, unit) == 0
}

/// `digits * 10^power mod unit`. Digits have 64 bits at most, so no product leaves 128.
fn remainder(digits: u128, power: i32, unit: u128) -> u128 {
    (0..power).fold(digits % unit, |rest, _| rest * 10 % unit)
}

/// A spelling that equal numbers share.
pub(super) fn spelling(number: &Number) -> String {
    match whole(number) {
        Some(whole) => whole.to_string(),
        None => float(number).to_string(),
    }
}

fn whole(number: &Number) -> Option<i128> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    // Up to 2^53 every whole float is that number exactly.
    integer.or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && float.abs() <= 9_007_199_254_740_992.0).then_some(float as i128)
    })
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

/// Digits and power of ten of the shortest spelling; the sign means nothing to a multiple.
fn decimal(number: &Number) -> Option<(u128, i32)> {
    let text = number.to_string();
    let text = text.trim_start_matches('-');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let scale = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
    Some((digits.into(), scale))
}
