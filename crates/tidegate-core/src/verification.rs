//! Verification: whether an endpoint wants what it would get, asked before it gets anything.
//!
//! A `challenge` must be repeated by the receiver; `cloudevents` asks with OPTIONS, as the CloudEvents webhook
//! specification does, and obeys the rate that the receiver grants. Here are the words and the decisions; the asking is
//! done by the loop of the same name in the server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{RATE_PER_SECOND_MAX, VERIFICATION_TRIES_MAX};
use crate::subscriber::Rate;

/// How an endpoint is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// Not at all: whoever may make subscribers is trusted.
    #[default]
    None,
    /// A signed POST with a random text, which the answer must repeat.
    Challenge,
    /// The handshake of the CloudEvents webhook specification.
    Cloudevents,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerificationStatus {
    /// Not yet; it is being tried.
    Pending,
    /// The endpoint has agreed.
    Verified,
    /// Not in any of the tries; the next one is asked for by hand.
    Failed,
}

impl VerificationStatus {
    /// The stable name in the API and the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Verified => "verified",
            Self::Failed => "failed",
        }
    }

    /// The status with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Pending, Self::Verified, Self::Failed].into_iter().find(|status| status.name() == name)
    }
}

/// What an endpoint has agreed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// Requests per minute at most; absent means any number.
    pub per_minute: Option<u32>,
}

impl Consent {
    /// The rate to keep: the smaller of what the subscriber says and what the receiver allows.
    pub fn within(self, rate: Option<Rate>) -> Option<Rate> {
        let granted = self.per_minute.map(|count| Rate { count, per: Duration::from_secs(60) });
        match (rate, granted) {
            (Some(rate), Some(granted)) if granted.interval() > rate.interval() => Some(granted),
            (None, granted) => granted,
            (rate, _) => rate,
        }
    }
}

/// How long after so many failed tries the next one is due; `None` when there is none but by hand.
pub fn next_try_in(tries: u32) -> Option<Duration> {
    const DELAYS_S: [u64; VERIFICATION_TRIES_MAX - 1] = [10, 60, 300, 1800];
    let place = usize::try_from(tries).ok()?.checked_sub(1)?;
    DELAYS_S.get(place).copied().map(Duration::from_secs)
}

/// What an answer to a challenge means: it must be 2xx and repeat the text, alone or as `{"challenge":…}`.
pub fn judge_challenge(status: u16, body: &str, challenge: &str) -> Result<Consent, String> {
    #[derive(Deserialize)]
    struct Repeated {
        challenge: String,
    }
    if !(200..=299).contains(&status) {
        return Err(format!("the receiver answered {status} to the challenge"));
    }
    let text = body.trim();
    let is_repeated = text.trim_matches('"') == challenge
        || serde_json::from_str::<Repeated>(text).is_ok_and(|repeated| repeated.challenge == challenge);
    if is_repeated {
        return Ok(Consent::default());
    }
    Err("the answer does not repeat the challenge: send it back as text, or as {\"challenge\":…}".to_owned())
}

/// What an answer to the handshake means; `origin` is ours. Its status does not matter, by the specification.
pub fn judge_handshake(
    allowed_origin: Option<&str>,
    allowed_rate: Option<&str>,
    origin: &str,
) -> Result<Consent, String> {
    match allowed_origin.map(str::trim) {
        None => return Err("the answer has no header webhook-allowed-origin".to_owned()),
        Some(allowed) if allowed == "*" || allowed.eq_ignore_ascii_case(origin) => {}
        Some(_) => return Err(format!("webhook-allowed-origin names another origin than {origin}")),
    }
    match allowed_rate.map(str::trim) {
        None | Some("*") => Ok(Consent::default()),
        Some(text) => {
            let count = text.parse::<u32>().ok().filter(|count| *count > 0);
            let count =
                count.ok_or("webhook-allowed-rate is neither * nor a number of requests per minute")?;
            Ok(Consent { per_minute: Some(count.min(RATE_PER_SECOND_MAX * 60)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_must_be_repeated() {
        for (status, body) in
            [(200, "abc"), (204, " abc\n"), (200, "\"abc\""), (201, r#"{"challenge":"abc","a":1}"#)]
        {
            assert_eq!(judge_challenge(status, body, "abc"), Ok(Consent::default()), "{body}");
        }
        for (status, body) in [(500, "abc"), (301, "abc"), (200, ""), (200, "abcd"), (200, r#"{"x":"abc"}"#)]
        {
            assert!(judge_challenge(status, body, "abc").is_err(), "{status} {body}");
        }
    }

    #[test]
    fn a_handshake_grants_an_origin_and_a_rate() {
        let judge = |origin, rate| judge_handshake(origin, rate, "gate.example.com");
        let granted = |per_minute| Ok(Consent { per_minute });
        assert_eq!(judge(Some("*"), None), granted(None));
        assert_eq!(judge(Some("Gate.Example.com"), Some("*")), granted(None));
        assert_eq!(judge(Some("*"), Some("120")), granted(Some(120)));
        assert_eq!(judge(Some("*"), Some("4294967295")), granted(Some(RATE_PER_SECOND_MAX * 60)));
        for (origin, rate) in
            [(None, None), (Some("other.example.com"), None), (Some("*"), Some("0")), (Some("*"), Some("-1"))]
        {
            assert!(judge(origin, rate).is_err(), "{origin:?} {rate:?}");
        }
    }

    #[test]
    fn the_smaller_rate_holds() {
        let rate = |text: &str| Rate::parse(text);
        let consent = Consent { per_minute: Some(120) };
        assert_eq!(consent.within(None), rate("120/m"));
        assert_eq!(consent.within(rate("10/s")), rate("120/m"));
        assert_eq!(consent.within(rate("1/s")), rate("1/s"));
        assert_eq!(Consent::default().within(rate("1/s")), rate("1/s"));
    }

    #[test]
    fn tries_are_few_and_come_later_and_later() {
        let delays: Vec<Duration> = (1..).map_while(next_try_in).collect();
        assert_eq!(delays.len(), VERIFICATION_TRIES_MAX - 1);
        assert!(delays.is_sorted());
        assert_eq!(next_try_in(0), None);
    }
}
