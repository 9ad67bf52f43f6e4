//! From a parsed draft to a checked unit: the event, its sub-events, their bodies and one fingerprint.
//!
//! Every rule about an event's fields is here, whichever way it came in. The fingerprint covers the fields as
//! sent, `data` and `extensions` without insignificant white space, and nothing that the server set.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::draft::Draft;
use super::key::not_the_id;
use super::refusal::{Refusal, RefusalKind};
use super::{extensions, rules};
use crate::event::{self, Data, Event, Fields, Fingerprinter, Unit};
use crate::time::Timestamp;
use crate::{id, json, limits};

/// Turns drafts of one request into units.
pub(super) struct Assembler<'a> {
    now: Timestamp,
    chance: &'a mut dyn FnMut() -> u128,
    /// The request has insignificant white space somewhere, so each `data` must be looked at.
    spaced: bool,
    /// Events this request may still hold.
    room: usize,
    /// The id of an event that has none.
    key: Option<&'a str>,
}

/// What a sub-event has from the event it stands in.
struct Parent<'a> {
    id: &'a str,
    source: &'a str,
    time: &'a str,
}

impl<'a> Assembler<'a> {
    pub(super) fn new(now: Timestamp, chance: &'a mut dyn FnMut() -> u128, spaced: bool) -> Self {
        Self { now, chance, spaced, room: limits::REQUEST_EVENTS_MAX, key: None }
    }

    /// The same, for a request that names the id of its one event.
    pub(super) fn keyed(mut self, key: Option<&'a str>) -> Self {
        self.key = key;
        self
    }

    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Refuses an event of too many bytes, counted as sent; asked before it is parsed.
    pub(super) fn fits(&self, size: usize) -> Result<(), Refusal> {
        if size > limits::EVENT_BYTES_MAX {
            let detail = format!(
                "the event has {size} bytes and {} are allowed, sub-events included; send a link to large payloads",
                limits::EVENT_BYTES_MAX
            );
            return Err(Refusal::new(RefusalKind::TooLarge, "event_too_large", detail));
        }
        Ok(())
    }

    /// The unit of one top-level event.
    pub(super) fn unit(&mut self, draft: &Draft<'_>) -> Result<Unit, Refusal> {
        let source = draft.source.as_deref().ok_or_else(|| Refusal::missing("source"))?;
        rules::name("source", source, limits::SOURCE_BYTES_MAX)?;
        rules::source(source)?;
        let sent_id = draft.id.as_deref().or(self.key);
        if self.key.is_some_and(|key| sent_id != Some(key)) {
            return Err(not_the_id());
        }
        let id = match sent_id {
            Some(id) => {
                rules::text("id", id, limits::EVENT_ID_BYTES_MAX)?;
                Cow::Borrowed(id)
            }
            None => Cow::Owned(id::event_id(self.now, (self.chance)())),
        };
        let parents: Vec<String> = match &draft.parents {
            Some(list) => rules::parents(&list.0)?,
            None => Vec::new(),
        };
        let mut unit = Building { events: Vec::with_capacity(1), print: Fingerprinter::default() };
        unit.print.field(sent_id.map(str::as_bytes));
        unit.print.field(Some(source.as_bytes()));
        let sent = draft.time.as_deref().map(|time| rules::time("time", time)).transpose()?;
        let time = sent.unwrap_or_else(|| Cow::Owned(self.now.to_string()));
        self.add(&mut unit, draft, &Parent { id: &id, source, time: &time }, &parents)?;
        Ok(Unit { events: unit.events, fingerprint: unit.print.finish() })
    }

    /// Adds one event, whose id, source and time are in `own`, and everything inside it.
    fn add(
        &mut self,
        unit: &mut Building,
        draft: &Draft<'_>,
        own: &Parent<'_>,
        parents: &[String],
    ) -> Result<(), Refusal> {
        self.room = self.room.checked_sub(1).ok_or_else(too_many_events)?;
        let type_name = draft.type_name.as_deref().ok_or_else(|| Refusal::missing("type"))?;
        rules::name("type", type_name, limits::TYPE_BYTES_MAX)?;
        let subject = draft.subject.as_deref();
        if let Some(subject) = subject {
            rules::text("subject", subject, limits::SUBJECT_BYTES_MAX)?;
        }
        let ended = draft.ended.as_deref().map(|ended| rules::time("ended", ended)).transpose()?;
        if let Some(text) = draft.extensions.as_deref() {
            extensions::check(text)?;
        }
        let body = event::render(&Fields {
            id: own.id,
            source: own.source,
            type_name,
            subject,
            time: own.time,
            ended: ended.as_deref(),
            parents,
            extensions: draft.extensions.as_deref(),
            data: payload(draft)?,
        });
        unit.events.push(Event {
            id: own.id.to_owned(),
            source: own.source.to_owned(),
            type_name: type_name.to_owned(),
            subject: subject.map(str::to_owned),
            time: Timestamp::parse(own.time).unwrap_or(self.now),
            body,
        });
        self.print(unit, draft);
        self.add_inner(unit, draft, own)
    }

    fn add_inner(
        &mut self,
        unit: &mut Building,
        draft: &Draft<'_>,
        parent: &Parent<'_>,
    ) -> Result<(), Refusal> {
        let Some(list) = &draft.events else {
            return Ok(());
        };
        let parents = [parent.id.to_owned()];
        for (place, raw) in list.0.iter().enumerate() {
            Draft::read(raw.get())
                .and_then(|inner| {
                    refuse_own_identity(&inner)?;
                    let id = format!("{}~{}", parent.id, place + 1);
                    rules::inner_id(&id)?;
                    let sent = inner.time.as_deref().map(|time| rules::time("time", time)).transpose()?;
                    let time = sent.as_deref().unwrap_or(parent.time);
                    self.add(unit, &inner, &Parent { id: &id, source: parent.source, time }, &parents)
                })
                .map_err(|refusal| refusal.inside(place))?;
        }
        Ok(())
    }

    /// Adds the fields as sent to the fingerprint. Counts stand before lists, so that no two units read alike.
    fn print(&self, unit: &mut Building, draft: &Draft<'_>) {
        for text in [&draft.type_name, &draft.subject, &draft.time, &draft.ended] {
            unit.print.field(text.as_deref().map(str::as_bytes));
        }
        let parents = draft.parents.as_ref().map_or(&[][..], |list| &list.0);
        unit.print.field(Some(&parents.len().to_le_bytes()));
        for parent in parents {
            unit.print.field(Some(parent.as_bytes()));
        }
        unit.print.field(draft.extensions.as_deref().map(|text| self.squeezed(text)).as_deref());
        unit.print.field(draft.data.map(|raw| self.squeezed(raw.get())).as_deref());
        unit.print.field(draft.data_base64.as_deref().map(str::as_bytes));
        let inner = draft.events.as_ref().map_or(0, |list| list.0.len());
        unit.print.field(Some(&inner.to_le_bytes()));
    }

    fn squeezed<'t>(&self, text: &'t str) -> Cow<'t, [u8]> {
        if self.spaced && json::scan(text.as_bytes()).spaced {
            Cow::Owned(json::minify(text.as_bytes()))
        } else {
            Cow::Borrowed(text.as_bytes())
        }
    }
}

struct Building {
    events: Vec<Event>,
    print: Fingerprinter,
}

pub(super) fn too_many_events() -> Refusal {
    let detail = format!(
        "the request has more than {} events, sub-events counted; split it",
        limits::REQUEST_EVENTS_MAX
    );
    Refusal::new(RefusalKind::TooLarge, "too_many_events", detail)
}

fn refuse_own_identity(inner: &Draft<'_>) -> Result<(), Refusal> {
    let given = [
        ("id", inner.id.is_some()),
        ("source", inner.source.is_some()),
        ("parents", inner.parents.is_some()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((field, _)) => Err(Refusal::invalid(
            "field_unknown",
            field,
            format!("a sub-event has no `{field}` of its own; it takes it from the event it stands in"),
        )),
        None => Ok(()),
    }
}

fn payload<'d>(draft: &'d Draft<'_>) -> Result<Data<'d>, Refusal> {
    match (draft.data, draft.data_base64.as_deref()) {
        (Some(_), Some(_)) => Err(Refusal::invalid(
            "field_conflict",
            "data_base64",
            "an event has `data` or `data_base64`, not both",
        )),
        (Some(raw), None) => Ok(Data::Json(raw.get())),
        (None, Some(text)) => match STANDARD.decode(text) {
            Ok(_) => Ok(Data::Base64(text)),
            Err(error) => Err(Refusal::invalid(
                "field_base64",
                "data_base64",
                format!(
                    "`data_base64` is not base64 of the standard alphabet with padding: {}",
                    error.to_string().to_lowercase()
                ),
            )),
        },
        (None, None) => Ok(Data::Json("null")),
    }
}
