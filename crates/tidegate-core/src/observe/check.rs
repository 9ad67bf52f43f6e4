//! The bounds of what a type declares to be observed: everything that its JSON types alone do not rule out.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Counter, Extraction, Histogram, Measured, Observing, Term};
use crate::limits::{
    ACCURACY_MAX, ACCURACY_MIN, COUNTERS_PER_TYPE_MAX, DIMENSIONS_MAX, EXTRACTIONS_PER_TYPE_MAX,
    HISTOGRAMS_PER_TYPE_MAX, INDEX_PATHS_PER_TYPE_MAX, METRIC_KEYS_MAX, METRIC_NAME_BYTES_MAX,
    OBSERVED_VALUE_BYTES_MAX, RETENTION_MAX, STATE_ATTRIBUTES_MAX, STATE_TOKENS_MAX,
};
use crate::route::Path;
use crate::subscriber::{Invalid, check_condition};
use crate::time::Span;

/// How much of a name that is refused is repeated in the refusal.
const NAME_CHARS_SHOWN: usize = 40;

impl Observing {
    /// Checks everything that was written.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if let Some(paths) = &self.index {
            many("index", paths.len(), INDEX_PATHS_PER_TYPE_MAX)?;
            distinct_paths("index", paths)?;
        }
        if let Some(counters) = &self.counters {
            many("counters", counters.len(), COUNTERS_PER_TYPE_MAX)?;
            counters.iter().try_for_each(|(name, counter)| counter.check(&named("counters", name)?))?;
        }
        if let Some(histograms) = &self.histograms {
            many("histograms", histograms.len(), HISTOGRAMS_PER_TYPE_MAX)?;
            histograms
                .iter()
                .try_for_each(|(name, histogram)| histogram.check(&named("histograms", name)?))?;
        }
        let Some(states) = &self.states else { return Ok(()) };
        many("states", states.len(), EXTRACTIONS_PER_TYPE_MAX)?;
        states
            .iter()
            .enumerate()
            .try_for_each(|(at, extraction)| extraction.check(&format!("states[{at}]")))?;
        apart(states)
    }
}

impl Counter {
    fn check(&self, field: &str) -> Result<(), Invalid> {
        dimensions(field, self.dimensions.as_deref())?;
        self.sum.as_ref().map_or(Ok(()), |path| followed(&format!("{field}.sum"), path))?;
        check_condition(&format!("{field}.where"), self.condition.as_deref())?;
        keys_max(field, self.keys_max)?;
        retention(&format!("{field}.retention"), self.retention.as_ref())
    }
}

impl Histogram {
    fn check(&self, field: &str) -> Result<(), Invalid> {
        dimensions(field, self.dimensions.as_deref())?;
        if let Some(Measured::At(path)) = &self.value {
            followed(&format!("{field}.value"), path)?;
        }
        if self.accuracy.is_some_and(|accuracy| !(ACCURACY_MIN..=ACCURACY_MAX).contains(&accuracy)) {
            let detail = format!(
                "`{field}.accuracy` is {ACCURACY_MIN} to {ACCURACY_MAX}: how far a quantile may be from the true one, as a share of it"
            );
            return Err(Invalid::new("field_range", &format!("{field}.accuracy"), detail));
        }
        keys_max(field, self.keys_max)?;
        retention(&format!("{field}.retention"), self.retention.as_ref())
    }
}

impl Extraction {
    fn check(&self, field: &str) -> Result<(), Invalid> {
        plain(&format!("{field}.object"), &self.object)?;
        followed(&format!("{field}.id"), &self.id)?;
        let attributes = format!("{field}.attributes");
        if self.attributes.is_empty() {
            let detail = format!("`{attributes}` is empty; name the attribute that holds the state");
            return Err(Invalid::new("field_empty", &attributes, detail));
        }
        many(&attributes, self.attributes.len(), STATE_ATTRIBUTES_MAX)?;
        distinct_paths(&attributes, &self.attributes)?;
        tokens(&format!("{field}.additional"), self.additional.as_deref())?;
        tokens(&format!("{field}.only"), self.only.as_deref())?;
        keys_max(field, self.keys_max)?;
        retention(&format!("{field}.retention"), self.retention.as_ref())
    }
}

/// How long raw events or rollups are kept.
pub(crate) fn retention(field: &str, term: Option<&Term>) -> Result<(), Invalid> {
    let is_fine = |term: &Term| !term.length().is_zero() && term.length() <= RETENTION_MAX;
    if term.is_none_or(is_fine) {
        return Ok(());
    }
    let days = Span(RETENTION_MAX).0.as_secs() / 86_400;
    let detail = format!("`{field}` is longer than zero and at most {days}d");
    Err(Invalid::new("field_range", field, detail))
}

/// Two extractions that read the same state of the same object would count it twice; with other ids they count together
/// and are kept together.
fn apart(states: &[Extraction]) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    let mut terms: BTreeMap<_, (Option<u32>, Option<i64>)> = BTreeMap::new();
    for (place, extraction) in states.iter().enumerate() {
        for (at, attribute) in extraction.attributes.iter().enumerate() {
            if !seen.insert((&extraction.object, &extraction.id, attribute)) {
                let field = format!("states[{place}].attributes[{at}]");
                let detail = format!(
                    "`{field}`: `{attribute}` of this object is in another entry of `states`; keep one of them"
                );
                return Err(Invalid::new("field_repeated", &field, detail));
            }
            let own = (extraction.keys_max, extraction.retention.as_ref().map(Term::length_ms));
            if *terms.entry((&extraction.object, attribute)).or_insert(own) != own {
                let field = format!("states[{place}]");
                let detail = format!(
                    "`{field}`: `{attribute}` of this object is in another entry of `states` with another `keys_max` or `retention`; say the same in both"
                );
                return Err(Invalid::new("field_conflict", &field, detail));
            }
        }
    }
    Ok(())
}

fn dimensions(field: &str, paths: Option<&[Path]>) -> Result<(), Invalid> {
    let field = format!("{field}.dimensions");
    let paths = paths.unwrap_or_default();
    many(&field, paths.len(), DIMENSIONS_MAX)?;
    distinct_paths(&field, paths)
}

fn distinct_paths(field: &str, paths: &[Path]) -> Result<(), Invalid> {
    for (at, path) in paths.iter().enumerate() {
        followed(&format!("{field}[{at}]"), path)?;
    }
    distinct(field, paths.iter().map(Path::as_str))
}

/// A path is what its writer takes it for.
fn followed(field: &str, path: &Path) -> Result<(), Invalid> {
    path.misleads().map_or(Ok(()), |detail| Err(Invalid::new("path_invalid", field, detail)))
}

fn keys_max(field: &str, keys_max: Option<u32>) -> Result<(), Invalid> {
    if keys_max.is_none_or(|keys| (1..=METRIC_KEYS_MAX).contains(&keys)) {
        return Ok(());
    }
    let field = format!("{field}.keys_max");
    let detail = format!("`{field}` is 1 to {METRIC_KEYS_MAX}; keys beyond it are counted as `(other)`");
    Err(Invalid::new("field_range", &field, detail))
}

fn tokens(field: &str, tokens: Option<&[String]>) -> Result<(), Invalid> {
    let Some(tokens) = tokens else { return Ok(()) };
    many(field, tokens.len(), STATE_TOKENS_MAX)?;
    if tokens.is_empty() {
        let detail = format!(
            "`{field}` is empty; name states, `?` for the one before or `*` for all before, or leave it out"
        );
        return Err(Invalid::new("field_empty", field, detail));
    }
    for (at, token) in tokens.iter().enumerate() {
        let place = format!("{field}[{at}]");
        if token.is_empty() {
            return Err(Invalid::new("field_empty", &place, format!("`{place}` is empty; name a state")));
        }
        if token.len() > OBSERVED_VALUE_BYTES_MAX {
            let detail = format!("`{place}` has at most {OBSERVED_VALUE_BYTES_MAX} bytes");
            return Err(Invalid::new("field_too_long", &place, detail));
        }
    }
    distinct(field, tokens.iter().map(String::as_str))
}

/// The field of a metric, if its name can stand in paths, files and logs.
fn named(kind: &str, name: &str) -> Result<String, Invalid> {
    let shown: String = name.chars().take(NAME_CHARS_SHOWN).collect();
    let field = format!("{kind}.{shown}");
    plain(&field, name)?;
    Ok(format!("{kind}.{name}"))
}

fn plain(field: &str, name: &str) -> Result<(), Invalid> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if (1..=METRIC_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let detail = format!(
        "`{}`: a name has 1 to {METRIC_NAME_BYTES_MAX} letters, digits, `_`, `-` and `.`",
        field.escape_debug()
    );
    Err(Invalid::new("id_invalid", field, detail))
}

fn many(field: &str, count: usize, max: usize) -> Result<(), Invalid> {
    if count <= max {
        return Ok(());
    }
    let detail = format!("`{field}` has {count} entries and {max} are allowed; remove some");
    Err(Invalid::new("field_too_many", field, detail))
}

fn distinct<'a>(field: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Invalid> {
    let mut seen = BTreeSet::new();
    for (at, name) in names.enumerate() {
        if !seen.insert(name) {
            let place = format!("{field}[{at}]");
            let detail = format!("`{place}` repeats `{}`; remove it", name.escape_debug());
            return Err(Invalid::new("field_repeated", &place, detail));
        }
    }
    Ok(())
}
