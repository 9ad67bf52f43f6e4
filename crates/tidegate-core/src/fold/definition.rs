//! A subscriber's `fold`, as its owner writes it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::window::{CancelOn, Terms};
use crate::limits::{
    BATCH_EVENTS_DEFAULT, BATCH_EVERY_DEFAULT_MS, FOLD_BYTES_DEFAULT, FOLD_BYTES_MAX, FOLD_BYTES_MIN,
    FOLD_EVENTS_MAX, FOLD_PATHS_MAX, FOLD_SPAN_MAX_MS, FOLD_SPAN_MIN_MS, MAX_WAIT_FACTOR, QUIET_DEFAULT_MS,
    WINDOW_DEFAULT_MS,
};
use crate::payload::Payload;
use crate::route::Path;
use crate::time::Span;

/// How many events become one delivery.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fold {
    /// One event, one delivery.
    #[default]
    Each,
    /// Many.
    Many(Box<Folded>),
}

/// When a window closes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// So long after its first event.
    Window {
        /// How long.
        window: Span,
    },
    /// When nothing came for a while.
    Quiet {
        /// How long nothing must come.
        quiet: Span,
        /// So long after its first event in any case.
        max_wait: Span,
    },
    /// At the next of regular times.
    Batch {
        /// How far they are apart.
        every: Span,
    },
}

impl Mode {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window { .. } => "window",
            Self::Quiet { .. } => "quiet",
            Self::Batch { .. } => "batch",
        }
    }
}

/// The terms of folding.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    /// When a window closes by itself.
    pub mode: Mode,
    /// What makes up the key.
    pub by: Vec<Path>,
    /// It closes when it holds so many events.
    pub max_events: u32,
    /// It closes before it holds more bytes than this, unless a single event does.
    pub max_bytes: u32,
    /// The first event is sent at once, alone, and the rest is folded.
    pub leading: bool,
    /// A CEL condition: events that fulfil it are not folded.
    pub bypass: Option<String>,
    /// A CEL condition: an event that fulfils it ends the window without a delivery.
    pub cancel_on: Option<String>,
    /// The quiet period grows while the subscriber's gate is congested.
    pub adaptive: bool,
    /// Nobody said `max_wait`: it is a number of quiet periods, also when those change.
    pub waits_by_default: bool,
}

impl Folded {
    /// The terms that a window opens with.
    pub fn terms(&self, payload: Payload) -> Terms {
        Terms {
            mode: self.mode,
            max_events: self.max_events,
            max_bytes: self.max_bytes,
            leading: self.leading,
            adaptive: self.adaptive,
            cancel_on: CancelOn::of(self.cancel_on.as_deref()),
            payload,
        }
    }

    /// The first of its bounds that it breaks, as field and detail.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        self.spans().into_iter().find_map(|(field, span)| span_problem(field, span)).or_else(|| {
            match self.mode {
                Mode::Quiet { quiet, max_wait } if max_wait < quiet => {
                    let detail = format!(
                        "`fold.max_wait` is at least `fold.quiet`, which is {quiet}: set it too, or to null for \
                         {MAX_WAIT_FACTOR} quiet periods"
                    );
                    Some(("fold.max_wait", detail))
                }
                _ if self.by.len() > FOLD_PATHS_MAX => {
                    Some(("fold.by", format!("`fold.by` has at most {FOLD_PATHS_MAX} paths")))
                }
                _ if !(1..=FOLD_EVENTS_MAX).contains(&self.max_events) => {
                    Some(("fold.max_events", format!("`fold.max_events` is 1 to {FOLD_EVENTS_MAX}")))
                }
                _ if !(FOLD_BYTES_MIN..=FOLD_BYTES_MAX).contains(&self.max_bytes) => {
                    let detail = format!("`fold.max_bytes` is {FOLD_BYTES_MIN} to {FOLD_BYTES_MAX}");
                    Some(("fold.max_bytes", detail))
                }
                _ => None,
            }
        })
    }

    fn spans(&self) -> Vec<(&'static str, Span)> {
        match self.mode {
            Mode::Window { window } => vec![("fold.window", window)],
            Mode::Quiet { quiet, max_wait } => vec![("fold.quiet", quiet), ("fold.max_wait", max_wait)],
            Mode::Batch { every } => vec![("fold.every", every)],
        }
    }
}

fn span_problem(field: &'static str, span: Span) -> Option<(&'static str, String)> {
    let is_fine = (u128::from(FOLD_SPAN_MIN_MS)..=u128::from(FOLD_SPAN_MAX_MS)).contains(&span.0.as_millis());
    let hours = FOLD_SPAN_MAX_MS / 3_600_000;
    (!is_fine).then(|| (field, format!("`{field}` is {FOLD_SPAN_MIN_MS}ms to {hours}h")))
}

/// Every term that any mode takes; those of other modes are refused by name.
#[derive(Deserialize, Serialize, Default)]
#[serde(deny_unknown_fields)]
struct Written {
    mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Vec<Path>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_events: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_bytes: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    leading: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bypass: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancel_on: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    adaptive: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_false(truth: &bool) -> bool {
    !truth
}

const MODES: [&str; 4] = ["each", "window", "quiet", "batch"];

impl<'de> Deserialize<'de> for Fold {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        match written.misfit() {
            Some(told) => Err(D::Error::custom(told)),
            None => Ok(written.into_fold()),
        }
    }
}

impl Written {
    /// A mode that does not exist, or the first term that belongs to another one. The words begin as
    /// `subscriber::invalid` knows them.
    fn misfit(&self) -> Option<String> {
        let mode = self.mode.as_str();
        if !MODES.contains(&mode) {
            let mode: String = mode.chars().take(40).collect();
            return Some(format!(
                "fold mode `{}` is not known; use `each`, `window`, `quiet` or `batch`",
                mode.escape_debug()
            ));
        }
        let stray = |(_, owner, is_given): &(&str, &str, bool)| *is_given && *owner != mode;
        if let Some((term, owner, _)) = self.own_terms().into_iter().find(stray) {
            return Some(format!(
                "fold term `{term}` belongs to mode `{owner}`, not to `{mode}`; remove it or set `fold.mode` to `{owner}`"
            ));
        }
        let (term, _) = self.shared_terms().into_iter().find(|(_, is_given)| *is_given && mode == "each")?;
        Some(format!(
            "fold term `{term}` needs a mode that folds, and `each` does not; remove it or set `fold.mode` to `window`, `quiet` or `batch`"
        ))
    }

    /// Terms that one mode alone takes, that mode, and whether they are given.
    fn own_terms(&self) -> [(&'static str, &'static str, bool); 5] {
        [
            ("window", "window", self.window.is_some()),
            ("quiet", "quiet", self.quiet.is_some()),
            ("max_wait", "quiet", self.max_wait.is_some()),
            ("adaptive", "quiet", self.adaptive),
            ("every", "batch", self.every.is_some()),
        ]
    }

    /// Terms that every mode but `each` takes, and whether they are given.
    fn shared_terms(&self) -> [(&'static str, bool); 6] {
        [
            ("by", self.by.is_some()),
            ("max_events", self.max_events.is_some()),
            ("max_bytes", self.max_bytes.is_some()),
            ("leading", self.leading),
            ("bypass", self.bypass.is_some()),
            ("cancel_on", self.cancel_on.is_some()),
        ]
    }

    fn into_fold(self) -> Fold {
        let waits_by_default = self.mode == "quiet" && self.max_wait.is_none();
        let span = |given: Option<Span>, default: u64| given.unwrap_or(Span::from_ms(default));
        let mode = match self.mode.as_str() {
            "window" => Mode::Window { window: span(self.window, WINDOW_DEFAULT_MS) },
            "quiet" => {
                let quiet = span(self.quiet, QUIET_DEFAULT_MS);
                let max_wait = self.max_wait.unwrap_or_else(|| {
                    Span((quiet.0 * MAX_WAIT_FACTOR).min(std::time::Duration::from_millis(FOLD_SPAN_MAX_MS)))
                });
                Mode::Quiet { quiet, max_wait }
            }
            "batch" => Mode::Batch { every: span(self.every, BATCH_EVERY_DEFAULT_MS) },
            _ => return Fold::Each,
        };
        let is_batch = matches!(mode, Mode::Batch { .. });
        let by_default = || if is_batch { Vec::new() } else { Path::parse("type").into_iter().collect() };
        Fold::Many(Box::new(Folded {
            mode,
            by: self.by.unwrap_or_else(by_default),
            max_events: self.max_events.unwrap_or(if is_batch {
                BATCH_EVENTS_DEFAULT
            } else {
                FOLD_EVENTS_MAX
            }),
            max_bytes: self.max_bytes.unwrap_or(FOLD_BYTES_DEFAULT),
            leading: self.leading,
            bypass: self.bypass,
            cancel_on: self.cancel_on,
            adaptive: self.adaptive,
            waits_by_default,
        }))
    }
}

impl Serialize for Fold {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self::Many(fold) = self else {
            return Written { mode: "each".to_owned(), ..Written::default() }.serialize(serializer);
        };
        let mut written = Written {
            mode: fold.mode.name().to_owned(),
            by: Some(fold.by.clone()),
            max_events: Some(fold.max_events),
            max_bytes: Some(fold.max_bytes),
            leading: fold.leading,
            bypass: fold.bypass.clone(),
            cancel_on: fold.cancel_on.clone(),
            adaptive: fold.adaptive,
            ..Written::default()
        };
        match fold.mode {
            Mode::Window { window } => written.window = Some(window),
            Mode::Quiet { quiet, max_wait } => {
                (written.quiet, written.max_wait) = (Some(quiet), Some(max_wait));
            }
            Mode::Batch { every } => written.every = Some(every),
        }
        written.serialize(serializer)
    }
}
