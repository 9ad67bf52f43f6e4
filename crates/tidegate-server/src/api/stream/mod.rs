//! `/v1/stream`: events and results of attempts as they happen, as server-sent events.
//!
//! Events come from the store, from the stream's own cursor on: none is missed or repeated, however slow the reader
//! and however often it comes back. Results of attempts come from the memory of [`crate::watch`]; what it no longer
//! knows is a `gap`. Nothing runs beside the connection: the next piece is made when the last one was taken, so a
//! stream holds one piece and ends with its connection.

mod cursor;
mod frame;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::response::IntoResponse;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use hyper::body::Frame;
use tidegate_core::id::{SubscriberNo, Version};
use tidegate_core::limits::{
    MATCH_PATTERNS_MAX, STREAM_BYTES_MAX, STREAM_EVENTS_MAX, STREAMS_MAX, STREAMS_PER_PROJECT_MAX,
};
use tidegate_core::route::Pattern;

use super::App;
use super::auth::Caller;
use super::problem::{Answer, Problem};
use super::request::Query;
use crate::watch::{Change, Seat};
use cursor::Cursor;
use frame::Frames;

/// A stream without news says this often that it is alive: proxies cut what is silent for a minute.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// All streams together read the store at most once in this time, unless they are catching up.
const READ_EVERY: Duration = Duration::from_millis(5);

/// Events and results of attempts from now on, or from where the caller left off.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let wanted = Wanted::read(&app, &caller, &mut query)?;
    let resumed = resumed(&headers, query.take("after"))?;
    let seat = app.parts.watch.join(caller.project).ok_or_else(full)?;
    let cursor = match resumed {
        Some(cursor) => cursor,
        None => Cursor {
            event: app.parts.store.newest().await?,
            life: app.parts.store.incarnation(),
            change: app.parts.watch.present(),
        },
    };
    let opening = Frames::opening(&cursor);
    let tail =
        Tail { app, caller, wanted, seat, cursor, version: 0, opening: Some(opening), is_behind: true };
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store"), (ACCEL, "no")];
    Ok((StatusCode::OK, headers, Body::new(Pieces { next: Some(Box::pin(tail.step())) })).into_response())
}

/// Tells nginx, which many stand behind, not to gather the stream into large pieces.
const ACCEL: http::HeaderName = http::HeaderName::from_static("x-accel-buffering");

fn full() -> Problem {
    let detail = format!(
        "at most {STREAMS_PER_PROJECT_MAX} streams of a project and {STREAMS_MAX} in all; close one and try again"
    );
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "streams_exhausted", detail)
}

/// Where the caller left off. A browser that comes back sends its last id and the address it began with: the id wins.
fn resumed(headers: &HeaderMap, after: Option<String>) -> Result<Option<Cursor>, Problem> {
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("unreadable").to_owned());
    let Some(text) = header.filter(|text| !text.is_empty()).or(after) else { return Ok(None) };
    Cursor::parse(&text).map(Some).ok_or_else(|| {
        let detail = "pass on an `id` of the stream, or `c0` for everything that is kept";
        Problem::invalid("cursor_invalid", "after", detail)
    })
}

/// What a stream shows.
struct Wanted {
    events: bool,
    deliveries: bool,
    types: Vec<Pattern>,
    sources: Vec<Pattern>,
    subscriber: Option<SubscriberNo>,
}

impl Wanted {
    fn read(app: &App, caller: &Caller, query: &mut Query) -> Result<Self, Problem> {
        let (events, deliveries) = kinds(query.take("kinds").as_deref())?;
        let subscriber = match query.take("subscriber") {
            Some(id) => Some(app.endpoint(caller, &id)?.rule.no),
            None => None,
        };
        let (types, sources) = (patterns(query, "types")?, patterns(query, "sources")?);
        Ok(Self { events, deliveries, types, sources, subscriber })
    }

    fn has_event(&self, type_name: &str, source: &str) -> bool {
        let fits = |patterns: &[Pattern], name| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
        };
        fits(&self.types, type_name) && fits(&self.sources, source)
    }

    fn has_change(&self, change: &Change) -> bool {
        self.subscriber.is_none_or(|subscriber| subscriber == change.subscriber)
    }
}

fn kinds(text: Option<&str>) -> Result<(bool, bool), Problem> {
    let Some(text) = text else { return Ok((true, true)) };
    let mut wanted = (false, false);
    for kind in text.split(',') {
        match kind.trim() {
            "event" => wanted.0 = true,
            "delivery" => wanted.1 = true,
            _ => {
                let detail = "expected `event`, `delivery` or both, separated by a comma";
                return Err(Problem::invalid("kind_unknown", "kinds", detail));
            }
        }
    }
    Ok(wanted)
}

fn patterns(query: &mut Query, name: &str) -> Result<Vec<Pattern>, Problem> {
    let Some(text) = query.take(name) else { return Ok(Vec::new()) };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.len() > MATCH_PATTERNS_MAX {
        let detail = format!("at most {MATCH_PATTERNS_MAX} patterns");
        return Err(Problem::invalid("pattern_invalid", name, detail));
    }
    let patterns = parts.into_iter().map(Pattern::parse).collect::<Result<_, _>>();
    patterns.map_err(|detail| Problem::invalid("pattern_invalid", name, detail))
}

/// One stream.
struct Tail {
    app: Arc<App>,
    caller: Caller,
    wanted: Wanted,
    seat: Seat,
    cursor: Cursor,
    /// The configuration in which the caller was last found to be known.
    version: Version,
    opening: Option<Frames>,
    /// There is more in the store than was read.
    is_behind: bool,
}

impl Tail {
    /// The next piece, and the stream that goes on after it.
    async fn step(mut self) -> (Self, Option<Bytes>) {
        let piece = self.next().await;
        (self, piece)
    }

    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening.into());
        }
        loop {
            let read = self.read().await;
            // Looked at after reading: what was read while the key went away is not shown any more.
            if self.seat.is_closed() || !self.is_allowed() {
                return None;
            }
            match read {
                Ok(frames) if frames.is_empty() => {}
                Ok(frames) => return Some(frames.into()),
                Err(error) => {
                    // Whoever reads comes back and goes on from its last id.
                    tracing::warn!(%error, "a stream ends because the store does not answer");
                    return None;
                }
            }
            if self.is_behind {
                continue;
            }
            tokio::select! {
                biased;
                () = self.seat.stirred() => {}
                () = self.app.parts.clock.pause(HEARTBEAT) => return Some(Frames::alive(&self.cursor).into()),
            }
        }
    }

    /// A key that has been deleted, or whose project has, opens nothing any more.
    fn is_allowed(&mut self) -> bool {
        let roster = self.app.parts.rosters.current();
        if roster.version != self.version && !self.caller.is_known(&roster) {
            return false;
        }
        self.version = roster.version;
        true
    }

    /// What there is after the cursor, as much as one piece holds.
    async fn read(&mut self) -> tidegate_store::Result<Frames> {
        if !self.is_behind {
            let streams = u32::try_from(self.app.parts.watch.open()).unwrap_or(u32::MAX);
            self.app.parts.clock.pause(READ_EVERY.saturating_mul(streams)).await;
        }
        let mut frames = Frames::default();
        // Looked at before the events are read: the event of a change before this mark is there to be read.
        let until = self.app.parts.watch.present();
        self.is_behind = false;
        if self.wanted.events {
            self.read_events(&mut frames).await?;
        }
        if self.wanted.deliveries {
            self.read_changes(&mut frames, until).await?;
        }
        Ok(frames)
    }

    async fn read_events(&mut self, frames: &mut Frames) -> tidegate_store::Result<()> {
        let store = &self.app.parts.store;
        let stretch = store
            .events_after(self.caller.project, self.cursor.event, STREAM_EVENTS_MAX, STREAM_BYTES_MAX)
            .await?;
        for event in &stretch.events {
            self.cursor.event = event.seq;
            if self.wanted.has_event(&event.type_name, &event.source) {
                frames.event(&self.cursor, &event.body);
            }
        }
        self.cursor.event = stretch.through;
        self.is_behind = !stretch.is_end;
        Ok(())
    }

    async fn read_changes(&mut self, frames: &mut Frames, until: u64) -> tidegate_store::Result<()> {
        let store = &self.app.parts.store;
        if self.cursor.life != store.incarnation() {
            let was_told = self.cursor.life != 0;
            self.cursor.restart(store.incarnation(), self.app.parts.watch.present());
            if was_told {
                frames.gap(&self.cursor);
            }
            return Ok(());
        }
        let recent = self.app.parts.watch.changes(self.cursor.change, until, STREAM_EVENTS_MAX);
        let last = recent.through;
        if recent.has_gap {
            self.cursor.change = last - recent.changes.len() as u64;
            frames.gap(&self.cursor);
        }
        let numbers = recent.changes.iter().filter(|change| self.wanted.has_change(change));
        let numbers: Vec<_> = numbers.map(|change| change.delivery).collect();
        if !numbers.is_empty() {
            let rows = store.deliveries_among(self.caller.project, numbers).await?;
            for change in &recent.changes {
                self.cursor.change += 1;
                let row = rows.binary_search_by_key(&change.delivery, |row| row.no);
                if let Ok(row) = row
                    && rows[row].nonce == change.nonce
                    && self.wanted.has_change(change)
                {
                    frames.delivery(&self.cursor, &self.app.pipeline.mint, &rows[row], change);
                }
            }
        }
        self.cursor.change = last;
        self.is_behind |= last < until;
        Ok(())
    }
}

/// The body of a stream: asks for the next piece when the last one was taken.
struct Pieces {
    next: Option<Step>,
}

type Step = Pin<Box<dyn Future<Output = (Tail, Option<Bytes>)> + Send>>;

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (tail, piece) = ready!(next.as_mut().poll(context));
        self.next = None;
        let Some(piece) = piece else { return Poll::Ready(None) };
        self.next = Some(Box::pin(tail.step()));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}
