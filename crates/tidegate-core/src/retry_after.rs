//! `Retry-After`: a receiver's word on when to come back.

use std::time::{Duration, UNIX_EPOCH};

use crate::limits::RETRY_AFTER_MAX_MS;
use crate::time::Timestamp;

/// The earliest time the header allows: whole seconds from `wall`, or a date in any of the three forms of HTTP. At
/// most [`RETRY_AFTER_MAX_MS`] ahead; `None` when it names no time that lies ahead, or is not understood.
pub fn not_before(header: &str, wall: Timestamp) -> Option<Timestamp> {
    let header = header.trim_matches([' ', '\t']);
    let asked =
        if header.bytes().all(|byte| byte.is_ascii_digit()) { seconds(header, wall) } else { date(header) };
    let latest = wall.plus(Duration::from_millis(RETRY_AFTER_MAX_MS));
    asked.filter(|asked| *asked > wall).map(|asked| asked.min(latest))
}

fn seconds(digits: &str, wall: Timestamp) -> Option<Timestamp> {
    if digits.is_empty() {
        return None;
    }
    // More digits than fit still mean "much later", which the caller clamps.
    let seconds = digits.parse().unwrap_or(u64::MAX / 1000);
    Some(wall.plus(Duration::from_secs(seconds)))
}

fn date(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok()?;
    let ms = date.duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some(Timestamp::from_ms(i64::try_from(ms).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, expected: Option<&str>) {
        let wall = Timestamp::parse("2026-11-15T08:49:37.250Z").unwrap();
        assert_eq!(not_before(header, wall).map(|at| at.to_string()).as_deref(), expected, "{header}");
    }

    #[test]
    fn seconds_count_from_now() {
        check("120", Some("2026-11-15T08:51:37.250Z"));
        check(" 1 ", Some("2026-11-15T08:49:38.250Z"));
        check("0", None);
        check("3600", Some("2026-11-15T09:49:37.250Z"));
        check("3601", Some("2026-11-15T09:49:37.250Z"));
        check("99999999999999999999999", Some("2026-11-15T09:49:37.250Z"));
    }

    #[test]
    fn dates_come_in_three_forms() {
        check("Sun, 15 Nov 2026 08:50:00 GMT", Some("2026-11-15T08:50:00.000Z"));
        check("Sunday, 15-Nov-26 08:50:00 GMT", Some("2026-11-15T08:50:00.000Z"));
        check("Sun Nov 15 08:50:00 2026", Some("2026-11-15T08:50:00.000Z"));
        check("Mon, 15 Nov 2027 08:50:00 GMT", Some("2026-11-15T09:49:37.250Z"));
        check("Sun, 15 Nov 2026 08:49:37 GMT", None);
        check("Thu, 01 Jan 1970 00:00:00 GMT", None);
    }

    #[test]
    fn anything_else_names_no_time() {
        for header in
            ["", " ", "-1", "+1", "1.5", "1e3", "0x10", "soon", "１２", "1 2", "120s", "2026-11-15T09:00:00Z"]
        {
            check(header, None);
        }
    }
}
