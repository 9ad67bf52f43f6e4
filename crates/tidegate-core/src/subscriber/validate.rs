//! The bounds of a definition: everything that its types alone do not rule out.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::breaker::Breaker;
use super::definition::{Definition, Destination, Limits, Match, Missing, OnFailure, OrderBy, Retry};
use super::disable::DisableAfter;
use super::invalid::Invalid;
use super::patch::Section;
use super::signing::{Algorithm, validate_signing};
use crate::fold::Fold;
use crate::gate::check_name;
use crate::limits;
use crate::route::{Condition, ConditionProblem, Path};
use crate::sign::Signer;

/// Says why an endpoint may not be called; the egress policy's word.
pub type CheckUrl<'a> = &'a dyn Fn(&str) -> Result<(), String>;
/// Says why headers may not be sent; the egress policy's word.
pub type CheckHeaders<'a> = &'a dyn Fn(&BTreeMap<String, String>) -> Result<(), String>;

/// Checks a whole definition.
pub fn validate(
    definition: &Definition,
    check_url: CheckUrl<'_>,
    check_headers: CheckHeaders<'_>,
) -> Result<(), Invalid> {
    Section::ALL
        .into_iter()
        .try_for_each(|section| validate_section(definition, section, check_url, check_headers))
}

/// A secret that its owner brings along: `whsec_` and 24 to 64 bytes in base64, or an Ed25519 key.
pub fn check_secret(secret: &str, algorithm: Algorithm) -> Result<(), String> {
    if algorithm == Algorithm::Ed25519 {
        let is_key = Signer::parse(secret).is_ok_and(|signer| !signer.is_hmac());
        let remedy = "`secret` must be an Ed25519 key: `whsk_` and the base64 of its 32-byte seed and its public key; \
             leave it out to get a new one";
        return if is_key { Ok(()) } else { Err(remedy.to_owned()) };
    }
    let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    match bytes {
        Some(bytes) if (limits::SECRET_BYTES_MIN..=limits::SECRET_BYTES_MAX).contains(&bytes.len()) => Ok(()),
        _ => Err(format!(
            "`secret` must be `whsec_` and the base64 of {} to {} bytes; leave it out to get a new one",
            limits::SECRET_BYTES_MIN,
            limits::SECRET_BYTES_MAX
        )),
    }
}

pub(super) fn validate_section(
    definition: &Definition,
    section: Section,
    check_url: CheckUrl<'_>,
    check_headers: CheckHeaders<'_>,
) -> Result<(), Invalid> {
    match section {
        Section::Name => name(&definition.name),
        Section::Match => matching(&definition.matching),
        Section::Destination => {
            destination(&definition.destination, check_url, check_headers)?;
            validate_signing(definition)
        }
        Section::Signing => validate_signing(definition),
        Section::Gate => {
            definition.gate.as_deref().map_or(Ok(()), |name| check_name(name, "gate"))?;
            adapts_to_something(definition)
        }
        Section::Limits => bounds(&definition.limits),
        Section::Retry => retry(&definition.retry),
        Section::Breaker => breaker(definition.breaker),
        Section::DisableAfter => disable_after(definition.disable_after),
        Section::Fold => {
            fold(&definition.fold)?;
            adapts_to_something(definition)?;
            folds_its_lanes(definition)
        }
        Section::Order => order(definition),
        // Whatever this can hold is fine.
        Section::Verification => Ok(()),
    }
}

fn name(name: &str) -> Result<(), Invalid> {
    if name.len() > limits::SUBSCRIBER_NAME_BYTES_MAX {
        let detail = format!("`name` has at most {} bytes", limits::SUBSCRIBER_NAME_BYTES_MAX);
        return Err(Invalid::new("field_too_long", "name", detail));
    }
    if name.contains(char::is_control) {
        return Err(Invalid::new(
            "field_characters",
            "name",
            "`name` contains a control character; remove it",
        ));
    }
    Ok(())
}

fn matching(matching: &Match) -> Result<(), Invalid> {
    for (field, patterns) in [("match.types", &matching.types), ("match.sources", &matching.sources)] {
        if patterns.len() > limits::MATCH_PATTERNS_MAX {
            let detail = format!("`{field}` has at most {} patterns", limits::MATCH_PATTERNS_MAX);
            return Err(Invalid::new("field_too_many", field, detail));
        }
    }
    check_condition("match.where", matching.condition.as_deref())
}

/// Whether a condition compiles and can be true at all.
pub(crate) fn check_condition(field: &str, source: Option<&str>) -> Result<(), Invalid> {
    let invalid =
        |problem: &ConditionProblem| Err(Invalid::new("condition_invalid", field, problem.to_string()));
    match source.map(Condition::compile) {
        Some(Err(problem)) => invalid(&problem),
        Some(Ok(condition)) => condition.never_boolean().map_or(Ok(()), invalid),
        None => Ok(()),
    }
}

fn fold(fold: &Fold) -> Result<(), Invalid> {
    let Fold::Many(folded) = fold else { return Ok(()) };
    if let Some((field, detail)) = folded.problem() {
        return Err(Invalid::new("field_range", field, detail));
    }
    let misleading = |(place, path): (usize, &Path)| Some((place, path.misleads()?));
    if let Some((place, detail)) = folded.by.iter().enumerate().find_map(misleading) {
        return Err(Invalid::new("path_invalid", &format!("fold.by[{place}]"), detail));
    }
    let is_again = |place: &usize| folded.by[..*place].contains(&folded.by[*place]);
    if let Some(place) = (1..folded.by.len()).find(is_again) {
        let detail = format!("`{}` stands in `fold.by` already; name each path once", folded.by[place]);
        return Err(Invalid::new("field_repeated", &format!("fold.by[{place}]"), detail));
    }
    if folded.leading && folded.cancel_on.is_some() {
        let detail = "with `fold.leading` the first event is sent at once, so there is nothing left to cancel: \
             set `fold.cancel_on` to null, or `fold.leading` to false";
        return Err(Invalid::new("field_conflict", "fold.cancel_on", detail));
    }
    check_condition("fold.bypass", folded.bypass.as_deref())?;
    check_condition("fold.cancel_on", folded.cancel_on.as_deref())
}

/// An adaptive fold follows its subscriber's gate.
fn adapts_to_something(definition: &Definition) -> Result<(), Invalid> {
    let is_adaptive = matches!(&definition.fold, Fold::Many(folded) if folded.adaptive);
    if !is_adaptive || definition.gate.is_some() {
        return Ok(());
    }
    let detail = "`fold.adaptive` follows the subscriber's gate, and it has none: name one in `gate`, or set \
         `fold.adaptive` to false";
    Err(Invalid::new("fold_term", "fold.adaptive", detail))
}

fn order(definition: &Definition) -> Result<(), Invalid> {
    if let OnFailure::SkipAfter(failures) = definition.order.on_failure
        && !(1..=limits::RETRIES_MAX as u32).contains(&failures)
    {
        let detail = format!("`order.on_failure.skip_after` is 1 to {}", limits::RETRIES_MAX);
        return Err(Invalid::new("field_range", "order.on_failure.skip_after", detail));
    }
    if definition.order.by == OrderBy::None && definition.order.on_failure != OnFailure::Block {
        let detail = "`order.on_failure` is about those behind a delivery in its lane, and with `order.by` `none` there \
             are no lanes: set `order.by`, or `order.on_failure` to null";
        return Err(Invalid::new("field_conflict", "order.on_failure", detail));
    }
    misses_something(definition)?;
    folds_its_lanes(definition)
}

/// A window has one lane, so what makes the lane is part of what makes the window.
fn folds_its_lanes(definition: &Definition) -> Result<(), Invalid> {
    let OrderBy::Path(path) = &definition.order.by else { return Ok(()) };
    if let Some(detail) = path.misleads() {
        return Err(Invalid::new("path_invalid", "order.by", detail));
    }
    let Fold::Many(folded) = &definition.fold else { return Ok(()) };
    if folded.by.contains(path) {
        return Ok(());
    }
    let detail = format!("with a fold, `order.by` is one of `fold.by`; add `{path}` to `fold.by`");
    Err(Invalid::new("order_not_folded", "order.by", detail))
}

/// Without an attribute there is none to miss.
fn misses_something(definition: &Definition) -> Result<(), Invalid> {
    if definition.order.missing == Missing::default() || matches!(definition.order.by, OrderBy::Path(_)) {
        return Ok(());
    }
    let detail = format!(
        "`order.missing` is about events without the attribute that makes their lane, and `order.by` is `{}`, which is none: \
         set `order.by` to a path such as `data.customer`, or `order.missing` to null",
        definition.order.by
    );
    Err(Invalid::new("field_conflict", "order.missing", detail))
}

fn destination(
    destination: &Destination,
    check_url: CheckUrl<'_>,
    check_headers: CheckHeaders<'_>,
) -> Result<(), Invalid> {
    if destination.url.len() > limits::URL_BYTES_MAX {
        let detail = format!("`destination.url` has at most {} bytes", limits::URL_BYTES_MAX);
        return Err(Invalid::new("field_too_long", "destination.url", detail));
    }
    let headers = &destination.headers;
    let size: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    if headers.len() > limits::HEADERS_MAX || size > limits::HEADERS_BYTES_MAX {
        let detail = format!(
            "`destination.headers` has at most {} headers of {} bytes together",
            limits::HEADERS_MAX,
            limits::HEADERS_BYTES_MAX
        );
        return Err(Invalid::new("field_too_many", "destination.headers", detail));
    }
    check_url(&destination.url).map_err(|detail| Invalid::new("url_refused", "destination.url", detail))?;
    check_headers(headers).map_err(|detail| Invalid::new("header_refused", "destination.headers", detail))
}

fn bounds(bounds: &Limits) -> Result<(), Invalid> {
    if !(1..=limits::CONCURRENCY_MAX).contains(&bounds.concurrency) {
        let detail = format!("`limits.concurrency` is 1 to {}", limits::CONCURRENCY_MAX);
        return Err(Invalid::new("field_range", "limits.concurrency", detail));
    }
    if let Some(rate) = bounds.rate
        && u64::from(rate.count) > u64::from(limits::RATE_PER_SECOND_MAX) * rate.per.as_secs()
    {
        let detail = format!("`limits.rate` is at most {}/s", limits::RATE_PER_SECOND_MAX);
        return Err(Invalid::new("field_range", "limits.rate", detail));
    }
    let timeout = bounds.timeout.0.as_millis();
    if !(u128::from(limits::TIMEOUT_MIN_MS)..=u128::from(limits::TIMEOUT_MAX_MS)).contains(&timeout) {
        let detail =
            format!("`limits.timeout` is {}ms to {}s", limits::TIMEOUT_MIN_MS, limits::TIMEOUT_MAX_MS / 1000);
        return Err(Invalid::new("field_range", "limits.timeout", detail));
    }
    Ok(())
}

fn retry(retry: &Retry) -> Result<(), Invalid> {
    if retry.schedule.len() > limits::RETRIES_MAX {
        let detail = format!("`retry.schedule` has at most {} delays", limits::RETRIES_MAX);
        return Err(Invalid::new("field_too_many", "retry.schedule", detail));
    }
    let too_long = |delay: &crate::time::Span| delay.0.as_millis() > u128::from(limits::RETRY_DELAY_MAX_MS);
    if let Some(place) = retry.schedule.iter().position(too_long) {
        let days = limits::RETRY_DELAY_MAX_MS / (24 * 3_600_000);
        let detail = format!("a delay of `retry.schedule` is at most {days}d");
        return Err(Invalid::new("field_range", &format!("retry.schedule[{place}]"), detail));
    }
    Ok(())
}

fn breaker(breaker: Breaker) -> Result<(), Invalid> {
    let Breaker::On(on) = breaker else { return Ok(()) };
    if !(1..=limits::BREAKER_FAILURES_MAX).contains(&on.failures) {
        let max = limits::BREAKER_FAILURES_MAX;
        let detail = format!("`breaker.failures` is 1 to {max}; `\"breaker\":\"off\"` never opens it");
        return Err(Invalid::new("field_range", "breaker.failures", detail));
    }
    let probe = on.probe.0.as_millis();
    if !(u128::from(limits::PROBE_MIN_MS)..=u128::from(limits::PROBE_MAX_MS)).contains(&probe) {
        let (min, max) = (limits::PROBE_MIN_MS / 1000, limits::PROBE_MAX_MS / 60_000);
        let detail = format!("`breaker.probe` is {min}s to {max}m");
        return Err(Invalid::new("field_range", "breaker.probe", detail));
    }
    Ok(())
}

fn disable_after(after: DisableAfter) -> Result<(), Invalid> {
    let DisableAfter::Span(span) = after else { return Ok(()) };
    let range = u128::from(limits::DISABLE_AFTER_MIN_MS)..=u128::from(limits::DISABLE_AFTER_MAX_MS);
    if range.contains(&span.0.as_millis()) {
        return Ok(());
    }
    let (min, max) = (limits::DISABLE_AFTER_MIN_MS / 1000, limits::DISABLE_AFTER_MAX_MS / (24 * 3_600_000));
    let detail = format!("`disable_after` is {min}s to {max}d, or `never`");
    Err(Invalid::new("field_range", "disable_after", detail))
}
