//! `POST /v1/query/…`: what was counted, in one call.
//!
//! A question names a metric that the catalog declares; everything that was accepted here before is counted before it is
//! answered. Buckets are read in portions, and few questions at a time, so that no question takes more memory than it should.
//! Does not: know how an answer comes about. [`Plan`] does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use http::{HeaderMap, StatusCode};
use tidegate_core::id::MetricNo;
use tidegate_core::limits::QUERY_PORTION_BYTES;
use tidegate_core::observe::page::Torn;
use tidegate_core::observe::query::{self, Ask, Named, Plan, Resume, Stretch, Subject, Unanswered};
use tidegate_core::observe::{Kept, Kind};
use tidegate_store::{Buckets, ENDED_GRACE, Rollups};

use super::auth::Caller;
use super::pages::{Pages, refused};
use super::problem::{Answer, Problem};
use super::request::read_body;
use super::{App, json_text};

/// Buckets of the first portion: it shows how large they are.
const PROBE_BUCKETS: i64 = 128;
/// How many times as many the next one may have.
const PORTION_GROWTH: i64 = 12;
/// Pages that are summed before others get their turn on this thread.
const STRIDE: usize = 32;

/// How often, and how much in all.
pub(super) async fn counters(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    app.query(&caller, Kind::Counter, &headers, body).await
}

/// How a value is distributed.
pub(super) async fn histograms(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    app.query(&caller, Kind::Histogram, &headers, body).await
}

/// How many objects are, or were, in each state.
pub(super) async fn states(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    app.query(&caller, Kind::State, &headers, body).await
}

/// How often objects went from one state to another.
pub(super) async fn transitions(
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    app.query(&caller, Kind::Transition, &headers, body).await
}

impl App {
    async fn query(&self, caller: &Caller, kind: Kind, headers: &HeaderMap, body: Body) -> Answer {
        caller.must_read()?;
        let (body, _room) = read_body(headers, body, &self.pipeline.ingest).await?;
        let ask = Ask::parse(kind, &body)?;
        // What a question is about, and what of it is kept, may change while it waits for its turn.
        let _turn = self.questions.acquire().await;
        let asked_at = self.parts.clock.now();
        let (metric, subject, own) = self.metric(caller, &ask)?;
        let pages = Pages::of_body(self, caller, &format!("{kind:?}"), &body);
        let resume = ask.cursor.as_deref().map(|cursor| resumed(&pages, cursor)).transpose()?;
        let term = own.unwrap_or(self.parts.retention.rollups);
        let plan = Plan::new(ask, subject, Kept::new(kind, term, asked_at), resume)?;
        let complete_until = self.pipeline.observe.catch_up().await?;
        let text = self.fold(metric, &plan, |answer| {
            let next = answer.next().map(|resume| pages.name_cursor(&resume.text()));
            answer.json(Some(complete_until), next.as_deref())
        });
        let text = text.await?;
        // What it has read may have been on its way out.
        if self.parts.clock.now() > asked_at.plus(ENDED_GRACE / 2) {
            let detail = "it took too long to read what was counted: ask again, or for less at once";
            return Err(Problem::unavailable("overloaded", detail));
        }
        Ok(json_text(StatusCode::OK, text))
    }

    /// Reads what a plan wants, portion by portion, and lets others have their turn meanwhile.
    async fn fold(
        &self,
        metric: MetricNo,
        plan: &Plan,
        write: impl FnOnce(&query::Answer<'_>) -> String,
    ) -> Result<String, Problem> {
        let mut left = VecDeque::from(plan.stretches.clone());
        let mut buckets = PROBE_BUCKETS;
        let mut portion = self.portion(metric, &mut left, buckets).await?;
        let mut fold = plan.fold(&portion.keys).map_err(|torn| torn_page(torn, metric))?;
        loop {
            let mut bytes = 0;
            for pages in portion.pages.chunks(STRIDE) {
                for (_, bucket, page) in pages {
                    fold.add(*bucket, page).map_err(|torn| torn_page(torn, metric))?;
                    bytes += page.len() as i64;
                }
                tokio::task::yield_now().await;
            }
            if left.is_empty() {
                break;
            }
            let fitting = buckets.saturating_mul(QUERY_PORTION_BYTES) / bytes.max(1);
            buckets = fitting.clamp(1, buckets * PORTION_GROWTH);
            portion = self.portion(metric, &mut left, buckets).await?;
        }
        match fold.finish() {
            Ok(answer) => Ok(write(&answer)),
            Err(Unanswered::TooLarge(invalid)) => Err(invalid.into()),
            Err(Unanswered::Torn(torn)) => Err(torn_page(torn, metric)),
        }
    }

    /// The next so many buckets.
    async fn portion(
        &self,
        metric: MetricNo,
        left: &mut VecDeque<Stretch>,
        buckets: i64,
    ) -> Result<Rollups, Problem> {
        let taken = query::take(left, buckets);
        let wanted = taken.into_iter().map(|Stretch { grain, from, to }| Buckets { grain, from, to });
        Ok(self.parts.store.rollups(metric, wanted.collect()).await?)
    }

    /// The metric that a question is about, and how long it is kept if it has its own term; or 404.
    fn metric(&self, caller: &Caller, ask: &Ask) -> Result<(MetricNo, Subject, Option<Duration>), Problem> {
        let catalog = self.catalog(caller);
        match &ask.named {
            Named::OfType { type_name, name } => {
                let declared = catalog.get(&ask.service, type_name);
                let declared = declared.ok_or_else(|| Problem::not_found("type"))?;
                let observing = &declared.definition.observing;
                let found = declared.metric(ask.kind, name).zip(Subject::declared(ask.kind, name, observing));
                let (number, subject) = found.ok_or_else(|| Problem::not_found(ask.kind.name()))?;
                Ok((number, subject, observing.retention(ask.kind, name)))
            }
            Named::OfObject { object, attribute } => {
                let name = format!("{object} {attribute}");
                let types = catalog.services().get(&ask.service);
                let types = types.ok_or_else(|| Problem::not_found("service"))?;
                let telling =
                    types.values().filter_map(|declared| Some((declared, declared.metric(ask.kind, &name)?)));
                // Of those that tell of it the one that was declared last says how long it is kept.
                let (last, number) = telling
                    .max_by_key(|(declared, _)| declared.updated_at)
                    .ok_or_else(|| Problem::not_found("state of objects"))?;
                let own = last.definition.observing.retention(ask.kind, &name);
                Ok((number, Subject::of_objects(ask.kind), own))
            }
        }
    }
}

fn resumed(pages: &Pages, cursor: &str) -> Result<Resume, Problem> {
    Resume::parse(&pages.name_of(cursor)?).ok_or_else(refused)
}

/// What is stored is not what was stored: nothing that whoever asks could do about it.
fn torn_page(torn: Torn, metric: MetricNo) -> Problem {
    tracing::error!(metric, %torn, "a question can not be answered");
    Problem::unavailable("store_unavailable", "what was counted can not be read; see the server's log")
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use tidegate_core::limits::QUERIES_AT_ONCE;
    use tidegate_store::Change;
    use tower::ServiceExt as _;

    use super::super::router;
    use super::super::stage::Stage;
    use super::*;

    /// What it asks about is another metric by the time it has its turn.
    #[tokio::test(start_paused = true)]
    async fn a_question_is_about_what_is_declared_when_it_has_its_turn() {
        let stage = Stage::new().await;
        let key = stage.admin_key().await;
        let (project, service, type_name) = (1, "shop".to_owned(), "order.paid".to_owned());
        let definition = json!({"counters": {"all": {}}}).to_string();
        let metrics =
            serde_json::from_str::<tidegate_core::catalog::Definition>(&definition).unwrap().specs();
        let put = Change::PutType {
            project,
            service: service.clone(),
            type_name: type_name.clone(),
            definition,
            metrics,
            keep_ms: None,
        };
        stage.change(put.clone()).await;
        let others = stage.app.questions.acquire_many(QUERIES_AT_ONCE as u32).await;
        let (from, to) = ("2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z");
        let ask = json!({"service": "shop", "type": "order.paid", "counter": "all", "from": from, "to": to,
            "every": "1d", "fill": "none"});
        let request = Request::post("/v1/query/counters")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(Body::from(ask.to_string()))
            .unwrap();
        let asking = tokio::spawn(router(Arc::clone(&stage.app)).oneshot(request));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        stage.change(Change::DeleteType { project, service, type_name }).await;
        stage.change(put).await;
        stage.publish(r#"{"id":"1","source":"shop","type":"order.paid"}"#).await;
        drop(others);
        let answer = asking.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["buckets"][0]["series"][0]["count"], 1, "{answer}");
    }
}
