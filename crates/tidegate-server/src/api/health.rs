//! `/livez`, `/readyz`, `/metrics`: for those who watch.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{RawQuery, State as Axum};
use axum::response::{IntoResponse, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde_json::{Map, Value, json};
use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::{CLOCK_JUMP_MAX, DEAD_LETTERS_MANY, STUCK_AFTER_MS, TROUBLE_LOOK_EVERY_MS};
use tidegate_core::time::Timestamp;
use tidegate_store::{Error, StorePart, Vital};

use super::census::Figures;
use super::problem::Answer;
use super::request::Query;
use super::{App, json_answer};
use crate::checkup::{self, Symptom};
use crate::clock::Clock;
use crate::metrics::scrape::Scrape;
use crate::settings::store::Address;

/// How long readiness waits for what the store has to tell.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// How long a scrape waits for that: less than scrapers wait for a scrape.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(6);

/// The process runs.
pub(super) async fn livez() -> Response {
    json_answer(StatusCode::OK, &json!({ "status": "ok" }))
}

/// Events are accepted. Only what keeps them from being accepted makes this 503; other trouble is told, with 200.
pub(super) async fn readyz(Axum(app): Axum<Arc<App>>, RawQuery(raw): RawQuery) -> Answer {
    let is_verbose = Query::parse(raw.as_deref())?.take("verbose").is_some();
    let now = app.parts.clock.now();
    let mut checks = vec![accepting(&app), store(&app), disk(&app, now), deliver(&app)];
    checks.extend(tls(&app));
    checks.extend(lease(&app));
    checks.extend(redis(&app, is_verbose).await);
    checks.extend(observing(&app));
    checks.extend(retention(&app));
    // A store that does not answer is not asked what else may be wrong.
    if app.parts.standing.is_heard() {
        checks.extend(looking(&app, is_verbose, now).await);
    }
    let worst = checks.iter().map(|check| check.state).max().unwrap_or(State::Ok);
    let (status, word) = match worst {
        State::Ok | State::Noted => (StatusCode::OK, "ready"),
        State::Degraded => (StatusCode::OK, "degraded"),
        State::Failing => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let mut answer = json!({ "status": word });
    let shown = checks.iter().filter(|check| is_verbose || check.state != State::Ok);
    let shown: Map<String, Value> = shown.map(|check| (check.name.to_owned(), check.json())).collect();
    if !shown.is_empty() {
        answer["checks"] = shown.into();
    }
    Ok(json_answer(status, &answer))
}

/// What the store tells, if it does so soon: whoever asks whether this process is ready does not wait for somebody's lock.
async fn looking(app: &App, is_verbose: bool, now: Timestamp) -> Vec<Check> {
    let asked = async {
        let mut checks = app.troubles.look(app, now).await.to_vec();
        if is_verbose && !app.parts.standing.is_alone() {
            checks.extend(sharing(app).await);
        }
        checks
    };
    tokio::select! {
        biased;
        checks = asked => checks,
        () = app.parts.clock.pause(LOOK_PATIENCE) => {
            let detail = "whether work is stuck can not be seen: the store takes too long to tell".to_owned();
            let remedy = "see whether somebody has locked a table, or whether the database is overloaded";
            vec![Check::new("stuck", false, State::Degraded, detail, remedy)]
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Ok,
    /// Everything works all the same, by another way.
    Noted,
    /// Events are accepted, yet somebody should look.
    Degraded,
    /// Events are not accepted.
    Failing,
}

/// One thing that is looked at, and what to do about it.
#[derive(Clone, Debug)]
struct Check {
    name: &'static str,
    state: State,
    detail: String,
    remedy: Cow<'static, str>,
    /// What there is to say while it is as it should be.
    note: Option<String>,
}

impl Check {
    /// As it should be, or `state` with the reason and the remedy.
    fn new(
        name: &'static str,
        is_fine: bool,
        state: State,
        detail: String,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        let state = if is_fine { State::Ok } else { state };
        Self { name, state, detail, remedy: remedy.into(), note: None }
    }

    fn noting(self, note: String) -> Self {
        Self { note: Some(note), ..self }
    }

    fn json(&self) -> Value {
        match self.state {
            State::Ok => match &self.note {
                Some(note) => json!({ "state": "ok", "detail": note }),
                None => json!({ "state": "ok" }),
            },
            State::Noted | State::Degraded => {
                json!({ "state": "degraded", "detail": self.detail, "remedy": self.remedy })
            }
            State::Failing => json!({ "state": "failing", "detail": self.detail, "remedy": self.remedy }),
        }
    }
}

fn accepting(app: &App) -> Check {
    let is_fine = !app.is_stopping.load(Ordering::Relaxed);
    let detail = "the process is stopping".to_owned();
    Check::new(
        "accepting",
        is_fine,
        State::Failing,
        detail,
        "send to another instance, or wait for the next start",
    )
}

fn store(app: &App) -> Check {
    if let Some(weakness) = app.parts.standing.weakness() {
        let detail = format!("{weakness} in PostgreSQL: an event could be lost, so none is accepted");
        let remedy =
            "set it to on and let PostgreSQL read its settings again; events are accepted a second later";
        return Check::new("store", false, State::Failing, detail, remedy);
    }
    let persist = &app.pipeline.persist;
    // Something may keep the heartbeat alone from coming through; then `lease` tells.
    let answers = app.parts.standing.is_heard() || persist.has_just_committed();
    let what = if answers { "the last commit failed" } else { "the database does not answer" };
    let detail = format!("{what}: events can not be accepted");
    let remedy = "see the log for the error of the store; events are accepted again as soon as it works";
    Check::new("store", answers && persist.is_healthy(), State::Failing, detail, remedy)
}

/// Only for a store that is shared. Events are accepted without it, and sent when it is back.
fn lease(app: &App) -> Option<Check> {
    let standing = &app.parts.standing;
    let age = standing.lease_age()?;
    let note = format!("the last heartbeat came through {} ms ago", age.as_millis());
    let detail = format!("{note}: nothing is sent");
    let remedy = "it is back with the next heartbeat; if it is not, look at the database and the way to it";
    Some(Check::new("lease", standing.may_act(), State::Degraded, detail, remedy).noting(note))
}

/// What a shared store is like, for whoever looks closely: told, not judged. `tidegate doctor` judges it.
async fn sharing(app: &App) -> [Check; 3] {
    let told = |name, note| Check::new(name, true, State::Ok, String::new(), "").noting(note);
    let vitals = app.vitals.look(&*app.parts.store, &app.parts.clock).await;
    let of = |name: &str| vitals.iter().filter(move |vital| vital.name == name).collect::<Vec<_>>();
    let dead: Vec<String> = of("postgres_dead_rows")
        .iter()
        .map(|vital| format!("{} {:.0}", vital.part.unwrap_or("all"), vital.value))
        .collect();
    let oldest = match of("postgres_oldest_transaction_seconds").first() {
        Some(vital) => format!("the oldest transaction is {:.0} s old", vital.value),
        None => "how old the oldest transaction is can not be seen, see `tidegate doctor --store`".to_owned(),
    };
    let cleaning = format!("dead rows: {}; {oldest}", dead.join(", "));
    let (takeovers, deliveries) = app.parts.metrics.takeovers();
    let taken = format!("{takeovers} processes were taken over here, with {deliveries} deliveries");
    // By the number of a life: whose it is stands in `/v1/replicas`, which asks for a key.
    let fellows = app.parts.standing.fellows();
    let loads = fellows.replicas.iter().map(|replica| {
        let load = &replica.load;
        format!("{} sends {} and holds {}", replica.incarnation, load.in_flight, load.queued)
    });
    let loads = format!("{} live: {}", fellows.replicas.len(), loads.collect::<Vec<_>>().join(", "));
    [told("cleaning", cleaning), told("takeovers", taken), told("replicas", loads)]
}

/// Only for a store that is shared. While processes are restarted one after the other with another setting it is as it should be.
fn observing(app: &App) -> Option<Check> {
    let standing = &app.parts.standing;
    let discord = (!standing.is_alone()).then(|| standing.fellows().discord())?;
    let is_fine = discord.is_none();
    let detail = format!(
        "the processes do not agree about what is counted: {}; the settings of the one that started last hold for all",
        discord.unwrap_or_default()
    );
    let remedy = "give all processes the same observe settings, and start one of them again";
    let note = "all processes count the same".to_owned();
    Some(Check::new("observing", is_fine, State::Noted, detail, remedy).noting(note))
}

/// Only where there is a Redis. Nothing depends on it, so its absence changes nothing about being ready. Whoever looks closely
/// is told what Redis itself says; others must not wait for that.
async fn redis(app: &App, is_verbose: bool) -> Option<Check> {
    const MEANWHILE: &str = "rates and wake-ups go through PostgreSQL meanwhile";
    let is_connected = app.parts.coordination.as_ref()?.is_connected_to_redis()?;
    let mut detail = format!("Redis can not be used: {MEANWHILE}");
    let mut remedy =
        "see /readyz?verbose or the log for the reason; it is taken up again by itself".to_owned();
    if let Some(url) = app.redis.as_ref().filter(|_| is_verbose && !is_connected)
        && let Some(symptom) = app.redis_refusal.look(url, &app.parts.clock).await
    {
        detail = format!("Redis can not be used ({}): {MEANWHILE}", symptom.detail);
        remedy = symptom.remedy.unwrap_or(remedy);
    }
    let note = "it answers".to_owned();
    Some(Check::new("redis", is_connected, State::Noted, detail, remedy).noting(note))
}

/// What Redis last said of itself, so that whoever asks often does not burden it.
#[derive(Default)]
pub(super) struct Refusal(tokio::sync::Mutex<Option<(Duration, Option<Symptom>)>>);

impl Refusal {
    async fn look(&self, url: &Address, clock: &Clock) -> Option<Symptom> {
        let mut known = self.0.lock().await;
        let (now, fresh) = (clock.elapsed(), Duration::from_millis(TROUBLE_LOOK_EVERY_MS));
        if let Some((_, symptom)) = known.as_ref().filter(|(at, _)| now < *at + fresh) {
            return symptom.clone();
        }
        let symptom = checkup::redis_refusal(url).await;
        *known = Some((now, symptom.clone()));
        symptom
    }
}

fn disk(app: &App, now: Timestamp) -> Check {
    let is_fine = !app.disk.is_low(0, now);
    let (reserve, free) = app.disk.state().unwrap_or_default();
    let detail = format!("{free} bytes are free on the disk and {reserve} are kept (store.disk_reserve)");
    Check::new(
        "disk",
        is_fine,
        State::Failing,
        detail,
        "free some space or enlarge the disk; no restart is needed",
    )
}

fn deliver(app: &App) -> Check {
    let detail = "deliver.enabled is false: everything is kept and nothing is sent".to_owned();
    let remedy = "start without --no-deliver and with deliver.enabled true";
    Check::new("deliver", app.delivers, State::Degraded, detail, remedy)
}

/// Only while it waits because a clock jumped, or because the process has just started. A short wait is nothing to worry about.
fn retention(app: &App) -> Option<Check> {
    let wait = app.parts.clock.removal_wait();
    let minutes = wait.as_secs().div_ceil(60);
    let note =
        format!("a clock jumped, or nothing was written for long: nothing is removed for {minutes} minutes");
    let remedy = "see whether the clock is right now, and let its machine follow NTP; a time that is wrong for longer is believed";
    let check =
        Check::new("retention", wait <= CLOCK_JUMP_MAX, State::Noted, note.clone(), remedy).noting(note);
    (minutes > 0).then_some(check)
}

/// Only for a door with a certificate.
fn tls(app: &App) -> Option<Check> {
    let is_fine = app.certificate.as_ref()?.is_current();
    let detail =
        "tls.cert and tls.key can not be used as they are; the certificate read before stays".to_owned();
    let remedy = "see the log for what is wrong, mend the files and send SIGHUP";
    Some(Check::new("tls", is_fine, State::Degraded, detail, remedy))
}

/// What was last found in the store, so that whoever asks often does not burden it.
#[derive(Default)]
pub(super) struct Troubles(tokio::sync::Mutex<Option<(Timestamp, [Check; 2])>>);

impl Troubles {
    async fn look(&self, app: &App, now: Timestamp) -> [Check; 2] {
        let mut known = self.0.lock().await;
        let fresh = Duration::from_millis(TROUBLE_LOOK_EVERY_MS);
        if let Some((_, checks)) = known.as_ref().filter(|(at, _)| now.since(*at) < fresh) {
            return checks.clone();
        }
        let checks = [stuck(app, now).await, dead_letters(app).await];
        *known = Some((now, checks.clone()));
        checks
    }
}

/// The oldest due delivery of a subscriber that is active and not left alone. What is in memory is on its way.
async fn stuck(app: &App, now: Timestamp) -> Check {
    let due = app.parts.store.due().await.unwrap_or_default();
    let roster = app.parts.rosters.current();
    let is_healthy = |subscriber: SubscriberNo| {
        let is_active = roster.endpoint(subscriber).is_some_and(|endpoint| endpoint.active);
        let breaker = app.pipeline.desk.breaker(subscriber);
        app.delivers && is_active && breaker.is_none_or(|breaker| breaker.state == "closed")
    };
    let oldest = due.into_iter().filter(|(subscriber, _)| is_healthy(*subscriber)).map(|(_, at)| at).min();
    let waited = oldest.map_or(Duration::ZERO, |at| now.since(at));
    let is_fine = waited < Duration::from_millis(STUCK_AFTER_MS);
    let detail = format!("the oldest due delivery has waited for {} seconds", waited.as_secs());
    let remedy =
        "a receiver takes less than it gets: raise limits.concurrency or limits.rate, or see its attempts";
    Check::new("stuck", is_fine, State::Degraded, detail, remedy)
}

async fn dead_letters(app: &App) -> Check {
    let count = app.parts.store.dead_letters(DEAD_LETTERS_MANY + 1).await.unwrap_or_default();
    let detail = format!("more than {DEAD_LETTERS_MANY} deliveries are exhausted");
    let remedy = "see GET /v1/deliveries?status=exhausted, mend the receivers and retry them";
    Check::new("dead_letters", count <= DEAD_LETTERS_MANY, State::Degraded, detail, remedy)
}

/// Everything that is counted, in the text format of Prometheus.
pub(super) async fn metrics(Axum(app): Axum<Arc<App>>, headers: HeaderMap) -> Answer {
    let known = look(&app).await;
    let desk = &app.pipeline.desk;
    let backlog = known.as_ref().map(|known| known.figures.all);
    let mut text = app.parts.metrics.render(desk.in_flight(), desk.breakers_open(), backlog);
    let scrape = Scrape {
        roster: &app.parts.rosters.current(),
        backlogs: known.as_ref().map_or(&[], |known| &known.figures.each),
        sizes: known.as_ref().map_or(&[], |known| &known.sizes),
        streams: app.parts.watch.open(),
        windows: known.as_ref().and_then(|known| known.figures.windows),
        at_gates: desk.waiting_at_gates(),
        is_store_up: known.is_some(),
        standing: &app.parts.standing,
        is_redis_up: app.parts.coordination.as_ref().and_then(|by| by.is_connected_to_redis()),
        vitals: known.as_ref().map_or(&[], |known| &known.vitals),
        spans: app.parts.spans.is_on().then(|| app.parts.spans.counts()),
    };
    scrape.add(&mut text);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (kind, text) = if accepted.into_iter().any(|kinds| kinds.contains(OPENMETRICS)) {
        (format!("{OPENMETRICS}; version=1.0.0; charset=utf-8"), text.into_openmetrics())
    } else {
        ("text/plain; version=0.0.4; charset=utf-8".to_owned(), text.into_prometheus())
    };
    Ok((StatusCode::OK, [(CONTENT_TYPE, kind)], text).into_response())
}

/// What a scrape asks the store.
struct Known {
    figures: Arc<Figures>,
    sizes: Vec<StorePart>,
    vitals: Vec<Vital>,
}

/// Nothing, when it does not answer: the scrape tells so, and the rest.
async fn look(app: &App) -> Option<Known> {
    let (store, clock) = (&app.parts.store, &app.parts.clock);
    if !app.parts.standing.is_heard() {
        return None;
    }
    let asked = async {
        let (figures, sizes) = (app.census.figures(store, clock).await?, store.sizes().await?);
        Ok(Known { figures, sizes, vitals: app.vitals.look(&**store, clock).await })
    };
    let told: tidegate_store::Result<Known> = tokio::select! {
        biased;
        told = asked => told,
        () = clock.pause(SCRAPE_PATIENCE) => Err(Error::Unavailable("it takes too long to tell".to_owned())),
    };
    told.inspect_err(|error| tracing::warn!(%error, "a scrape can not look into the store")).ok()
}

/// What scrapers that know it ask for.
const OPENMETRICS: &str = "application/openmetrics-text";

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_core::ingest::Request;
    use tidegate_store::{Change, SubscriberUpdate};

    use super::super::events::store_unavailable;
    use super::super::stage::Stage;
    use super::*;

    async fn ready(stage: &Stage) -> (u16, Value) {
        let answer = readyz(Axum(Arc::clone(&stage.app)), RawQuery(Some("verbose".to_owned()))).await;
        let answer = answer.unwrap_or_else(IntoResponse::into_response);
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 10_000).await.expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_could_lose_events_gets_none_until_it_keeps_them_again() {
        let stage = Stage::new().await;
        let (standing, ingest) = (&stage.app.parts.standing, &stage.app.pipeline.ingest);
        let send = async || {
            let body = Bytes::from_static(br#"{"source":"s","type":"t"}"#);
            let request = Request { content_type: None, headers: &[], body: &body };
            ingest.accept(1, ingest.decode(&request).expect("an event")).await.is_ok()
        };
        assert!(send().await);
        assert!(standing.set_weakness(Some("fsync is off")) && !standing.set_weakness(Some("fsync is off")));
        assert!(!send().await, "it could be lost");
        let (status, answer) = ready(&stage).await;
        assert_eq!((status, &answer["checks"]["store"]["state"]), (503, &"failing".into()), "{answer}");
        let detail = answer["checks"]["store"]["detail"].as_str().expect("why");
        assert!(detail.starts_with("fsync is off"), "{detail}");
        let problem = store_unavailable(&stage.app).into_response();
        assert_eq!((problem.status().as_u16(), problem.headers().contains_key("retry-after")), (503, true));
        assert!(standing.set_weakness(None));
        assert!(send().await);
        assert_eq!(ready(&stage).await.0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn retention_that_waits_after_a_jump_is_told() {
        let stage = Stage::new().await;
        let clock = &stage.app.parts.clock;
        clock.check();
        assert!(ready(&stage).await.1["checks"]["retention"].is_null(), "there is nothing to tell");
        clock.jump(40 * 24 * 3_600_000);
        clock.check();
        let (status, answer) = ready(&stage).await;
        let check = &answer["checks"]["retention"];
        assert_eq!((status, &answer["status"], &check["state"]), (200, &"ready".into(), &"degraded".into()));
        assert!(check["detail"].as_str().is_some_and(|detail| detail.contains("1440 minutes")), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_stuck_is_told_and_events_are_still_accepted() {
        let stage = Stage::new().await;
        let clock = &stage.app.parts.clock;
        let subscriber = stage.subscribe("sub_1").await;
        stage.publish(r#"{"source":"s","type":"t"}"#).await;
        clock.pause(Duration::from_millis(STUCK_AFTER_MS - 1_000)).await;
        let (status, answer) = ready(&stage).await;
        assert_eq!(
            (status, &answer["status"], &answer["checks"]["stuck"]["state"]),
            (200, &"ready".into(), &"ok".into())
        );
        clock.pause(Duration::from_millis(TROUBLE_LOOK_EVERY_MS)).await;
        let (status, answer) = ready(&stage).await;
        assert_eq!((status, &answer["status"]), (200, &"degraded".into()), "{answer}");
        let stuck = &answer["checks"]["stuck"];
        assert_eq!(
            (&stuck["state"], &stuck["detail"]),
            (&"degraded".into(), &"the oldest due delivery has waited for 301 seconds".into())
        );
        assert!(stuck["remedy"].is_string(), "{answer}");

        let update =
            SubscriberUpdate { active: Some(Err("paused".to_owned())), ..SubscriberUpdate::default() };
        stage.change(Change::UpdateSubscriber { project: 1, no: subscriber, update }).await;
        clock.pause(Duration::from_millis(TROUBLE_LOOK_EVERY_MS)).await;
        assert_eq!(ready(&stage).await.1["status"], "ready", "what is held is meant to wait");
    }
}
