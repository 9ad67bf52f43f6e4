//! Where spans go: the section `otlp:` and what it becomes.

use serde::Deserialize;
use tidegate_core::egress::Url;

/// Where a collector listens for spans, below its base address.
const PATH: &str = "v1/traces";

/// `otlp:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtlpSection {
    /// The base address of a collector that speaks OTLP over HTTP, for example `http://127.0.0.1:4318`. Absent means
    /// that no spans are recorded.
    pub endpoint: Option<String>,
    /// `name=value,…` to be sent along, for example a key. From the environment only, never from a file.
    #[serde(skip)]
    pub headers: Option<String>,
    /// Of requests that bring no context of their own, the share that begins a trace: 0 to 1, by default all.
    pub sample: Option<f64>,
}

/// A collector, ready for use.
#[derive(Clone, Debug)]
pub struct Collector {
    /// Where spans are posted.
    pub(super) url: Url,
    /// What it wants to be told, for example a key.
    pub(super) headers: Vec<(String, String)>,
    sample: f64,
}

impl OtlpSection {
    /// What `over` says wins over what this says.
    #[must_use]
    pub fn overridden_by(self, over: Self) -> Self {
        Self {
            endpoint: over.endpoint.or(self.endpoint),
            headers: over.headers.or(self.headers),
            sample: over.sample.or(self.sample),
        }
    }

    /// Checks it.
    pub fn settle(self) -> Result<Option<Collector>, String> {
        let sample = self.sample.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sample) {
            return Err(format!("otlp.sample: {sample} is not between 0 and 1"));
        }
        let Some(endpoint) = self.endpoint.filter(|endpoint| !endpoint.is_empty()) else { return Ok(None) };
        let wrong = || format!("otlp.endpoint: {endpoint} is not an address such as http://127.0.0.1:4318");
        let mut url = Url::parse(&endpoint).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(wrong());
        }
        url.path_segments_mut().map_err(|()| wrong())?.pop_if_empty().extend(PATH.split('/'));
        let pairs = self
            .headers
            .as_deref()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty());
        let headers = pairs.map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned())),
            None => Err("OTEL_EXPORTER_OTLP_HEADERS is not name=value,name=value".to_owned()),
        });
        Ok(Some(Collector { url, headers: headers.collect::<Result<_, _>>()?, sample }))
    }
}

impl Collector {
    /// The share of chances to take, as a number to compare them with.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the whole range")]
    pub(super) fn threshold(&self) -> u64 {
        (self.sample * u64::MAX as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_completed_and_nonsense_is_refused() {
        let section = |endpoint: &str, headers: &str| OtlpSection {
            endpoint: Some(endpoint.to_owned()),
            headers: Some(headers.to_owned()),
            sample: None,
        };
        for (endpoint, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://otel.example.com/base/", "https://otel.example.com/base/v1/traces"),
        ] {
            let collector = section(endpoint, "api-key=a=b, X=y").settle().unwrap().unwrap();
            assert_eq!(collector.url.as_str(), url);
            assert_eq!(collector.headers[0], ("api-key".to_owned(), "a=b".to_owned()));
            assert_eq!(collector.threshold(), u64::MAX);
        }
        assert!(OtlpSection::default().settle().unwrap().is_none());
        assert!(section("", "").settle().unwrap().is_none());
        assert!(section("127.0.0.1:4318", "").settle().is_err());
        assert!(section("http://x", "key").settle().is_err());
        assert!(OtlpSection { sample: Some(1.5), ..section("http://x", "") }.settle().is_err());
    }
}
