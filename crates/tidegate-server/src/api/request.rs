//! Reading requests: bodies with limits, queries without surprises.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams};
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tidegate_core::limits::{PAGE_DEFAULT, PAGE_MAX, REQUEST_BYTES_MAX};
use tidegate_core::time::Timestamp;

use super::App;
use super::intake::Intake;
use super::problem::Problem;
use crate::pipeline::ingest::{Ingest, Reservation};

/// Room is taken in steps of at least this while a body arrives.
pub(super) const RESERVE_STEP: usize = 64 * 1024;

/// Reads a body to its end, within the limits on one request and on all of them together.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    ingest: &Ingest,
) -> Result<(Bytes, Vec<Reservation>), Problem> {
    let mut intake = Intake::new(body, ingest.clock());
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
    if length > REQUEST_BYTES_MAX {
        // A sender that asks first has sent nothing yet, and need not.
        if !headers.contains_key(EXPECT) {
            intake.discard().await;
        }
        return Err(too_large());
    }
    // Room is taken for what arrives, not for what is announced: announcing costs nothing.
    let mut reserved = length.min(RESERVE_STEP);
    let mut reservations = vec![ingest.reserve(reserved).ok_or_else(overloaded)?];
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(data) = intake.next().await? {
        let total = first.len() + all.len() + data.len();
        if total > REQUEST_BYTES_MAX {
            drop((all, reservations));
            intake.discard().await;
            return Err(too_large());
        }
        if total > reserved {
            let step = (total - reserved).max(RESERVE_STEP);
            reservations.push(ingest.reserve(step).ok_or_else(overloaded)?);
            reserved += step;
        }
        // Nearly every body is one frame, which is then used as it is.
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
    }
    let body = if all.is_empty() { first } else { all.freeze() };
    Ok((body, reservations))
}

pub(super) fn too_large() -> Problem {
    let detail = format!("a request has at most {REQUEST_BYTES_MAX} bytes; split it");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", detail)
}

pub(crate) fn overloaded() -> Problem {
    Problem::unavailable(
        "overloaded",
        "too much is under way; nothing of this request was accepted, send it again",
    )
}

/// Reads a small JSON body; an empty one is `{}`.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    Ok(tidegate_core::subscriber::read(body)?)
}

/// The parameters of a query, each given once; a route is only given those it knows.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Refuses a parameter that stands twice.
    pub(crate) fn parse(raw: Option<&str>) -> Result<Self, Problem> {
        let mut values = BTreeMap::new();
        for (name, value) in url::form_urlencoded::parse(raw.unwrap_or_default().as_bytes()) {
            if values.insert(name.to_string(), value.into_owned()).is_some() {
                return Err(Problem::invalid("parameter_repeated", &name, "give it once"));
            }
        }
        Ok(Self(values))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// What must be given.
    pub(crate) fn needed(&mut self, name: &str) -> Result<String, Problem> {
        self.take(name).ok_or_else(|| Problem::invalid("field_missing", name, format!("add `?{name}=`")))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        Ok(self.choice(name)?.unwrap_or(false))
    }

    /// Yes, no, or either.
    pub(crate) fn choice(&mut self, name: &str) -> Result<Option<bool>, Problem> {
        match self.take(name).as_deref() {
            None => Ok(None),
            Some("false") => Ok(Some(false)),
            Some("true") => Ok(Some(true)),
            Some(_) => Err(Problem::invalid("flag_invalid", name, "expected true or false")),
        }
    }

    pub(crate) fn time(&mut self, name: &str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        // A plus sign in a query means a space; in a time it can only have been a plus sign.
        Timestamp::parse(&text.replace(' ', "+")).map(Some).ok_or_else(|| {
            Problem::invalid("time_invalid", name, "expected an RFC 3339 time such as 2026-01-31T09:30:00Z")
        })
    }

    /// `from` and `to`, in this order.
    pub(crate) fn range(&mut self) -> Result<(Option<Timestamp>, Option<Timestamp>), Problem> {
        let (from, to) = (self.time("from")?, self.time("to")?);
        if from.zip(to).is_some_and(|(from, to)| from > to) {
            return Err(Problem::invalid("field_range", "from", "`from` lies before `to`"));
        }
        Ok((from, to))
    }

    pub(crate) fn limit(&mut self) -> Result<usize, Problem> {
        let Some(text) = self.take("limit") else { return Ok(PAGE_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| Problem::invalid("limit_invalid", "limit", format!("expected 1 to {PAGE_MAX}")))
    }

    /// What narrows the list down, in order; its pages are not part of that.
    pub(crate) fn filters(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        all.filter(|(name, _)| !matches!(*name, "cursor" | "limit"))
    }
}

/// The one variable segment of a path.
pub(crate) struct Segment(pub(crate) String);

impl FromRequestParts<Arc<App>> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let params =
            RawPathParams::from_request_parts(parts, app).await.map_err(|_| Problem::not_found("thing"))?;
        let segment = params.iter().next().map(|(_, value)| value.to_owned());
        segment.map(Self).ok_or_else(|| Problem::not_found("thing"))
    }
}

/// The two variable segments of a path.
pub(crate) struct Pair(pub(crate) String, pub(crate) String);

impl FromRequestParts<Arc<App>> for Pair {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let params =
            RawPathParams::from_request_parts(parts, app).await.map_err(|_| Problem::not_found("thing"))?;
        let mut values = params.iter().map(|(_, value)| value.to_owned());
        values.next().zip(values.next()).map(|(a, b)| Self(a, b)).ok_or_else(|| Problem::not_found("thing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_each_thing_once() {
        assert!(Query::parse(Some("limit=1&limit=2")).is_err());
        assert!(Query::parse(Some("limit=0")).unwrap().limit().is_err());
        let mut query = Query::parse(Some("from=2026-01-01T00:00:00+01:00")).unwrap();
        assert!(query.time("from").unwrap().is_some());
    }
}
