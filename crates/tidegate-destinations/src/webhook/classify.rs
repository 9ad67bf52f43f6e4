//! What a webhook's answer means.
//!
//! 2xx is delivered, 410 is gone, everything else is tried again: a receiver under maintenance answers anything.
//! 429 and 503 may name a time. Reads no clock: `wall` is when the answer was in.

use tidegate_core::attempt::{Attempt, ErrorClass, Verdict};
use tidegate_core::retry_after;
use tidegate_core::time::Timestamp;

use crate::transport::{Answer, Exchange};

/// What the exchange means for its delivery.
pub fn judge(exchange: &Exchange, wall: Timestamp) -> Verdict {
    let Ok(answer) = &exchange.result else {
        return Verdict::RetryLater { not_before: None };
    };
    match answer.status {
        200..=299 => Verdict::Delivered,
        410 => Verdict::Gone,
        429 | 503 => {
            let asked = answer.retry_after.as_deref();
            Verdict::RetryLater { not_before: asked.and_then(|text| retry_after::not_before(text, wall)) }
        }
        _ => Verdict::RetryLater { not_before: None },
    }
}

/// What is remembered of a try that began at `at`.
pub fn attempt(exchange: Exchange, at: Timestamp) -> Attempt {
    let phases = exchange.phases;
    match exchange.result {
        Ok(answer) => {
            let (error, detail) = describe(&answer);
            Attempt { at, status: Some(answer.status), error, detail, phases, response: Some(answer.head) }
        }
        Err(failure) => Attempt {
            at,
            status: None,
            error: Some(failure.class),
            detail: failure.detail,
            phases,
            response: None,
        },
    }
}

fn describe(answer: &Answer) -> (Option<ErrorClass>, String) {
    let status = answer.status;
    let detail = match status {
        200..=299 => return (None, String::new()),
        300..=399 => "redirects are not followed; point the subscriber at the final address".to_owned(),
        410 => "the receiver answered 410: it is gone for good".to_owned(),
        _ => format!("the receiver answered {status}"),
    };
    (Some(ErrorClass::Status), detail)
}

#[cfg(test)]
mod tests {
    use tidegate_core::attempt::{Phases, ResponseHead};

    use super::*;
    use crate::transport::Failure;

    fn answered(status: u16, retry_after: Option<&str>) -> Exchange {
        let head = ResponseHead { body: "hi".to_owned(), ..ResponseHead::default() };
        let answer = Answer { status, retry_after: retry_after.map(str::to_owned), head, grant: None };
        Exchange { phases: Phases { total_us: 9, ..Phases::default() }, result: Ok(answer) }
    }

    fn failed() -> Exchange {
        let failure = Failure { class: ErrorClass::Dns, detail: "why".to_owned() };
        Exchange { phases: Phases::default(), result: Err(failure) }
    }

    #[test]
    fn statuses_have_their_verdicts() {
        let wall = Timestamp::from_ms(1_000);
        let later = |ms: Option<i64>| Verdict::RetryLater { not_before: ms.map(Timestamp::from_ms) };
        let table = [
            (200, None, Verdict::Delivered),
            (202, None, Verdict::Delivered),
            (299, Some("5"), Verdict::Delivered),
            (410, Some("5"), Verdict::Gone),
            (429, Some("5"), later(Some(6_000))),
            (503, Some("5"), later(Some(6_000))),
            (503, Some("soon"), later(None)),
            (429, None, later(None)),
            (500, Some("5"), later(None)),
            (101, None, later(None)),
            (301, None, later(None)),
            (404, None, later(None)),
            (600, None, later(None)),
        ];
        for (status, retry_after, verdict) in table {
            assert_eq!(judge(&answered(status, retry_after), wall), verdict, "{status}");
        }
        assert_eq!(judge(&failed(), wall), later(None));
    }

    #[test]
    fn attempts_say_what_happened() {
        let at = Timestamp::from_ms(7);
        let good = attempt(answered(204, None), at);
        assert_eq!((good.status, good.error, good.detail.as_str()), (Some(204), None, ""));
        assert_eq!((good.at, good.phases.total_us, good.response.unwrap().body), (at, 9, "hi".to_owned()));
        let moved = attempt(answered(307, None), at);
        assert_eq!(moved.error, Some(ErrorClass::Status));
        assert!(moved.detail.contains("redirects are not followed"));
        assert_eq!(attempt(answered(500, None), at).detail, "the receiver answered 500");
        let none = attempt(failed(), at);
        assert_eq!((none.status, none.error, none.response), (None, Some(ErrorClass::Dns), None));
        assert_eq!(none.detail, "why");
    }
}
