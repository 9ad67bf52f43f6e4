//! Indexed attributes: which there are, which values they have, and events found by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_core::catalog::Catalog;
use tidegate_core::id::MetricNo;
use tidegate_core::observe::search::Plan;
use tidegate_core::observe::{IMPLICIT_PATHS, Kind, value};
use tidegate_core::time::Timestamp;
use tidegate_store::{EventFilter, EventRow, Page, Search, ValueFilter};

use super::auth::Caller;
use super::pages::{Pages, page};
use super::problem::{Answer, Problem};
use super::request::{Pair, Query, Segment};
use super::{App, json_answer};

/// Where each path is indexed: of one service, or of all.
fn indexes(catalog: &Catalog, service: Option<&str>) -> BTreeMap<String, Vec<MetricNo>> {
    let mut found: BTreeMap<String, BTreeSet<MetricNo>> = BTreeMap::new();
    let services =
        catalog.services().iter().filter(|(name, _)| service.is_none_or(|service| service == *name));
    for event_type in services.flat_map(|(_, types)| types.values()) {
        for (_, path, no) in event_type.metrics.iter().filter(|(kind, ..)| *kind == Kind::Index) {
            found.entry(path.clone()).or_default().insert(*no);
        }
    }
    found.into_iter().map(|(path, numbers)| (path, numbers.into_iter().collect())).collect()
}

impl App {
    /// Events for which a condition over indexed attributes is true, and up to when all are among them that any process
    /// accepted; where nothing is indexed there is nothing to wait for.
    pub(super) async fn search(
        &self,
        caller: &Caller,
        condition: &str,
        filter: EventFilter,
    ) -> Result<(Page<EventRow>, Option<Timestamp>), Problem> {
        let indexes = indexes(&self.catalog(caller), filter.source.as_deref());
        let is_indexed = |path: &str| indexes.contains_key(path) || IMPLICIT_PATHS.contains(&path);
        let plan = Plan::compile(condition, &is_indexed).map_err(|invalid| {
            let is_refused = invalid.code == "where_not_searchable";
            if !is_refused || !indexes.is_empty() {
                return Problem::from(invalid);
            }
            let detail = "no type declares an `index`: declare the attributes to search by in the catalog";
            Problem::invalid("where_not_searchable", "where", detail)
        })?;
        let (mut page, mut until) = (Page { items: Vec::new(), next: None }, None);
        if !indexes.is_empty() {
            until = Some(self.pipeline.observe.catch_up().await?);
            let search = Search { plan: plan.clone(), indexes, filter: filter.clone() };
            page = self.parts.store.search(caller.project, search).await?;
        }
        if plan.may_hold_by_name() {
            let limit = filter.limit;
            page = merged(page, self.named(caller, &plan, filter).await?, limit);
        }
        Ok((page, until))
    }

    /// Events of which a condition is true by their source and type alone: they need no index, and may have none.
    async fn named(
        &self,
        caller: &Caller,
        plan: &Plan,
        mut filter: EventFilter,
    ) -> Result<Page<EventRow>, Problem> {
        filter.type_name = filter.type_name.or_else(|| plan.named("type"));
        filter.source = filter.source.or_else(|| plan.named("source"));
        let mut found = Vec::new();
        for _ in 0..PORTIONS_MAX {
            let page = self.parts.store.events(caller.project, filter.clone()).await?;
            let is_meant = |event: &EventRow| plan.holds_by_name(&event.source, &event.type_name);
            found.extend(page.items.into_iter().filter(is_meant));
            filter.before = page.next;
            if page.next.is_none() || found.len() >= filter.limit {
                break;
            }
        }
        Ok(Page { items: found, next: filter.before })
    }
}

/// Portions of events that one page looks through at most.
const PORTIONS_MAX: usize = 20;

/// Two pages of the same list, newest first, as one. Each is whole down to where it would go on.
fn merged(one: Page<EventRow>, other: Page<EventRow>, limit: usize) -> Page<EventRow> {
    let mut next = one.next.max(other.next);
    let mut items: Vec<EventRow> = one.items.into_iter().chain(other.items).collect();
    items.sort_by_key(|event| std::cmp::Reverse(event.seq));
    items.dedup_by_key(|event| event.seq);
    items.retain(|event| next.is_none_or(|next| event.seq >= next));
    if items.len() > limit {
        items.truncate(limit);
        next = items.last().map(|event| event.seq);
    }
    Page { items, next }
}

/// The indexed attributes of a service, and which of its types have them.
pub(super) async fn names(
    State(app): State<Arc<App>>,
    caller: Caller,
    Segment(service): Segment,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, &format!("attributes of {service}"), &query);
    let (limit, after) = (query.limit()?, pages.name(&mut query)?);
    let catalog = app.catalog(&caller);
    let types = catalog.services().get(&service).ok_or_else(|| Problem::not_found("service"))?;
    let mut names: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (name, event_type) in types {
        for (_, path, _) in event_type.metrics.iter().filter(|(kind, ..)| *kind == Kind::Index) {
            names.entry(path.clone()).or_default().push(name);
        }
    }
    let all = names.iter().map(|(name, types)| (name, json!({ "name": name, "types": types })));
    Ok(page(all, limit, after.as_deref(), &pages))
}

/// The values of one attribute in order, and how many events have each.
pub(super) async fn values(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pair(service, path): Pair,
    RawQuery(raw): RawQuery,
) -> Answer {
    caller.must_read()?;
    let mut query = Query::parse(raw.as_deref())?;
    let pages = Pages::of(&app, &caller, &format!("values of {path} of {service}"), &query);
    let after = pages.name(&mut query)?.and_then(|name| URL_SAFE_NO_PAD.decode(name).ok());
    let (limit, prefix) = (query.limit()?, query.take("prefix"));
    let catalog = app.catalog(&caller);
    if !catalog.services().contains_key(&service) {
        return Err(Problem::not_found("service"));
    }
    let found = indexes(&catalog, Some(&service)).remove(&path);
    let indexes = found.ok_or_else(|| Problem::not_found("attribute"))?;
    let stretches = prefix.as_deref().map_or_else(value::listed, value::listed_with).to_vec();
    app.pipeline.observe.catch_up().await?;
    let filter = ValueFilter { indexes, stretches, after, limit: limit + 1 };
    let mut found = app.parts.store.values(filter).await?;
    let is_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| is_more);
    let next = next.map(|(bytes, _)| pages.name_cursor(&URL_SAFE_NO_PAD.encode(bytes)));
    let items: Vec<Value> = found
        .iter()
        .filter_map(|(bytes, count)| Some(json!({ "value": value::decode(bytes)?, "count": count })))
        .collect();
    Ok(json_answer(StatusCode::OK, &json!({ "items": items, "next": next })))
}
