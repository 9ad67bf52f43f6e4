//! Subscribers that fold: what they are, what reaches their receivers, and what must hold of it.
//!
//! Their attempts are noted apart, because a delivery carries many events here. The rules: every event that was accepted
//! for them is in exactly one delivery, and that one arrives (P2, P6); a delivery never changes once it was sent (P3); of a
//! lane one is under way at a time, and later deliveries carry later events (P5); nothing closes before its time. Every window
//! is judged by itself in `windows`, what somebody cancels is noted in `endings`. What passes a fold by is judged as any single
//! event is (`checkers`). Some pass a gate, whose rules are judged with everybody else's (`gates`).
//!
//! They take part in both kinds of runs. What only PostgreSQL's own statements can break is asked elsewhere:
//! `tidegate-store/src/conformance/folds/restart.rs` asks it of both stores, `tidegate-store/tests/shared/folds.rs` of two
//! processes on one database, and `cargo xtask chaos folds` of three real ones that are killed under load.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_core::attempt::{ErrorClass, ResponseHead};
use tidegate_core::delivery::Status;
use tidegate_core::id::{DeliveryNo, ProjectNo, SubscriberNo};
use tidegate_core::limits::DELIVERY_EVENTS_LISTED_MAX;
use tidegate_core::time::Timestamp;
use tidegate_destinations::{Answer, Failure, Outbound};
use tidegate_store::{DeliveryFilter, DeliveryRow};

use super::acts::Site;
use super::consent::Asked;
use super::dice::Dice;
use super::endings;
use super::history::{EventKey, Fact, History};
use super::plan::{Act, Crash, END_T, KEYS, Plan};
use super::receivers::{Mood, Receivers, failure};
use super::spec::{Content, Lanes, Spec};
use super::terms::{FoldSpec, Mode};
use super::windows::{self, Windows};

/// Whether an id is that of a subscriber which folds.
pub(crate) fn is_fold(id: &str) -> bool {
    id.starts_with("fold-")
}

/// Whether a request carries what a window gathered. What passes a fold by comes as it would to anybody.
pub(crate) fn is_folded(outbound: &Outbound) -> bool {
    is_fold(outbound.target.url().path().trim_start_matches('/'))
        && serde_json::from_slice::<Value>(&outbound.body).is_ok_and(|body| !body["fold"].is_null())
}

/// Adds some.
pub(crate) fn plan(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "folds");
    plan.bounds.fold_bytes = Dice::new(seed, "bulk").pick(&[1_000, 4_000, 1 << 20]);
    plan.windows_max = windows::plan(seed);
    let flurries = flurries(plan);
    for index in 0..dice.below(2) + 1 {
        let mut exceptions = Dice::new(seed, &format!("exceptions/{index}"));
        let spec = spec(format!("fold-{index}"), &mut dice, &mut exceptions);
        let mut moods = Vec::new();
        let mut t = 0;
        while t < END_T {
            t = (t + dice.between(2_000, 14_000)).min(END_T);
            let mood = dice.pick(&[
                Mood::Healthy(400),
                Mood::Slow,
                Mood::Failing,
                Mood::Busy,
                Mood::Forgetful,
                Mood::Mixed,
            ]);
            moods.push((t, mood));
        }
        plan.moods.insert(spec.id.clone(), moods);
        if dice.percent(30) {
            let t = dice.between(5_000, END_T - 15_000);
            let pause = |active| Act::SetActive { id: spec.id.clone(), active, patience_ms: None };
            plan.acts.push((t, pause(false)));
            plan.acts.push((t + dice.between(500, 9_000), pause(true)));
        }
        let (project, active, patience_ms) = ("default", true, None);
        let mut past = Dice::new(seed, &format!("past/{index}"));
        let mut t = dice.between(1, 40);
        // Some come late and want what was there before them.
        let from_ms = past.percent(35).then(|| past.pick(&[i64::MAX, 10_000]));
        if from_ms.is_some() {
            t = past.between(3_000, END_T - 8_000);
            rush(plan, t, &mut past);
        }
        changes(plan, (&spec, t), &flurries, &format!("terms/{index}"));
        plan.acts.push((t, Act::Create { project, spec, from_ms, active, patience_ms }));
    }
    endings::plan(seed, plan);
}

/// In half of the runs the process dies again and again while a late subscriber with lanes catches up. Its windows stay open
/// meanwhile, live events wait behind its past, and others join a window that no past is brought to.
pub(crate) fn restarts(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "folds/restarts");
    let mut deaths = Vec::new();
    for (t, act) in &mut plan.acts {
        let Act::Create { spec, from_ms: Some(_), .. } = act else { continue };
        if is_fold(&spec.id) && dice.percent(50) {
            spec.lanes = Lanes::PerKey;
            spec.fold = Some(FoldSpec::long());
            let count = dice.below(3) + 2;
            deaths.extend((0..count).scan(*t, |t, _| {
                *t += dice.between(30, 400);
                Some(*t)
            }));
        }
    }
    if deaths.is_empty() {
        return;
    }
    let spec = Spec { lanes: Lanes::None, fold: Some(FoldSpec::long()), ..Spec::plain("fold-beside") };
    plan.moods.insert(spec.id.clone(), vec![(END_T, Mood::Healthy(100))]);
    let beside = Act::Create { project: "default", spec, from_ms: None, active: true, patience_ms: None };
    plan.acts.push((20, beside));
    for t in deaths {
        let how = Crash::AfterPoints(dice.below(8) as u32);
        plan.acts.push((t, Act::Crash { how, down_ms: dice.between(1, 50) }));
        rush(plan, t + 60, &mut dice);
    }
}

/// Now and then many events come at once, and again a little later: enough to fill a window, and to find it open.
fn flurries(plan: &mut Plan) -> Vec<i64> {
    let mut dice = Dice::new(plan.seed, "flurries");
    let moments: Vec<i64> = (0..dice.below(4)).map(|_| dice.between(500, END_T - 5_000)).collect();
    for t in &moments {
        rush(plan, *t, &mut dice);
        rush(plan, *t + dice.between(200, 1_500), &mut dice);
    }
    moments
}

/// Its owner changes the terms, most of the time while windows are open.
fn changes(plan: &mut Plan, (spec, created): (&Spec, i64), flurries: &[i64], name: &str) {
    let mut dice = Dice::new(plan.seed, name);
    let mut exceptions = Dice::new(plan.seed, &format!("{name}/exceptions"));
    let mut moments = Vec::new();
    for _ in 0..dice.below(4) {
        let any = dice.between(created + 500, END_T - 1_000);
        let near = flurries.get(dice.below(4)).map(|t| *t + dice.between(50, 1_500));
        moments.push(near.filter(|t| *t > created + 200).unwrap_or(any));
    }
    moments.sort_unstable();
    let mut spec = spec.clone();
    for t in moments {
        // Its receiver reads one form only.
        spec.edition += 2;
        spec.fold = Some(FoldSpec::any(&mut dice, &mut exceptions));
        plan.acts.push((t, Act::Patch { spec: spec.clone(), patience_ms: None }));
    }
}

/// What comes while somebody catches up would overtake the past if it could.
fn rush(plan: &mut Plan, t: i64, dice: &mut Dice) {
    for n in 0..12 {
        let data = json!({"n": 10_000 + n, "key": dice.pick(&KEYS)});
        let id = format!("rush-{t}-{n}");
        let body = json!({"id": id, "source": "shop", "type": "order.paid", "data": data}).to_string();
        let post = Act::Post { project: "default", body, patience_ms: None };
        plan.acts.push((t + dice.between(0, 120), post));
    }
}

fn spec(id: String, dice: &mut Dice, exceptions: &mut Dice) -> Spec {
    let fold = FoldSpec::any(dice, exceptions);
    Spec {
        id,
        types: dice.pick(&[vec![], vec!["order.*"]]),
        only_key: None,
        lanes: dice.pick(&[Lanes::None, Lanes::PerKey, Lanes::PerKey]),
        concurrency: dice.pick(&[1, 4]),
        rate: dice.pick(&[None, Some((2, "s"))]),
        timeout_ms: 1_000,
        retries_ms: vec![700; 40],
        breaker: dice.pick(&[None, Some((3, 1_000))]),
        disable_after_ms: None,
        edition: 0,
        asked: Asked::Never,
        is_gated: false,
        fold: Some(if dice.percent(20) { fold.led() } else { fold }),
    }
}

/// One attempt at a folded delivery.
pub(crate) struct FoldSent {
    pub(crate) life: usize,
    /// True time, and the product's.
    pub(crate) t: i64,
    pub(crate) now: i64,
    pub(crate) subscriber: SubscriberNo,
    /// Its `webhook-id`.
    pub(crate) id: String,
    pub(crate) delivery: DeliveryNo,
    pub(crate) is_replay: bool,
    /// The receiver asked everybody to wait, from then until then, in the product's time.
    pub(crate) closes: Option<(i64, i64)>,
    pub(crate) body: Bytes,
    pub(crate) events: Vec<EventKey>,
    pub(crate) has_arrived: bool,
    pub(crate) is_recorded: bool,
}

impl Receivers {
    /// What a receiver of folds does with a request.
    pub(crate) async fn serve_fold(&self, outbound: &Outbound, index: usize) -> Result<Answer, Failure> {
        let id = outbound.target.url().path().trim_start_matches('/').to_owned();
        let (delivery, before) = {
            let history = self.history.lock();
            let delivery = history.folds[index].delivery;
            (delivery, history.folds.iter().filter(|sent| sent.delivery == delivery).count())
        };
        let mut dice = Dice::new(self.seed, &format!("fold/{delivery}/{before}"));
        self.wait(dice.between(0, 4)).await;
        let mood = super::receivers::settle(&self.mood(&id), &mut dice);
        let soon = dice.between(0, 300);
        let (status, taken) = match mood {
            Mood::Unreachable => return Err(failure(ErrorClass::Connect)),
            Mood::Hanging => (None, false),
            Mood::Forgetful => (None, true),
            Mood::Healthy(_) | Mood::Slow => (Some(200), true),
            Mood::Busy => (Some(429), false),
            _ => (Some(500), false),
        };
        self.history.lock().folds[index].has_arrived |= taken;
        self.wait(if mood == Mood::Slow { dice.between(0, 1_500) } else { soon }).await;
        let Some(status) = status else {
            if taken {
                return Err(failure(ErrorClass::Reset));
            }
            std::future::pending().await
        };
        let wait_s = (status == 429).then(|| dice.between(1, 3));
        let now = self.life.clock.now().as_ms();
        self.history.lock().folds[index].closes = wait_s.map(|seconds| (now, now + seconds * 1_000));
        let retry_after = wait_s.map(|seconds| seconds.to_string());
        Ok(Answer { status, retry_after, head: ResponseHead::default(), grant: None })
    }

    /// Notes an attempt; lanes are judged on the spot.
    pub(crate) fn note_fold(&self, outbound: &Outbound) -> usize {
        let id = outbound.target.url().path().trim_start_matches('/').to_owned();
        let webhook_id = outbound.headers["webhook-id"].to_str().expect("ids are ASCII").to_owned();
        let delivery = self.mint.parse_delivery(&webhook_id).expect("webhook ids are ours").no;
        let body: Value = serde_json::from_slice(&outbound.body).expect("bodies are JSON");
        let mut history = self.history.lock();
        let subscriber = history.sub_no(&id).expect("nobody sends to a subscriber that was never made");
        let project = history.subs[&subscriber].project;
        let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let events = body["events"].as_array().into_iter().flatten();
        let events: Vec<EventKey> =
            events.map(|event| (project, text(event, "source"), text(event, "id"))).collect();
        if body["delivery"] != webhook_id || body["count"] != json!(events.len()) || events.is_empty() {
            history.violation(format!("P6 the body of {webhook_id} does not say what it is"));
        }
        let sent = FoldSent {
            life: self.life.no(),
            t: self.life.t(),
            now: self.life.clock.now().as_ms(),
            subscriber,
            id: webhook_id,
            delivery,
            closes: None,
            is_replay: outbound.headers.contains_key("tidegate-replay"),
            body: outbound.body.clone(),
            events,
            has_arrived: false,
            is_recorded: false,
        };
        let names: Vec<&str> = sent.events.iter().map(|(_, _, id)| id.as_str()).collect();
        let line = format!("life {} sends fold {delivery} {names:?} to {id}", sent.life);
        history.line(self.life.t(), format_args!("{line}"));
        let index = history.folds.len();
        let key = body["fold"]["key"].to_string();
        let is_laned = history.subs[&subscriber].specs.iter().any(|(_, spec)| spec.lanes == Lanes::PerKey);
        if is_laned && history.folds_under_way.values().any(|other| *other == (subscriber, key.clone())) {
            history.violation(format!("P5 two folds at once in lane {key} of {id}"));
        }
        if let Some(event) = history.alone_in_lane(subscriber, &key).map(str::to_owned) {
            history.violation(format!("P5 a fold goes beside {event} in lane {key} of {id}"));
        }
        if let Some(text) = history.unheld(delivery, sent.life) {
            history.violation(text);
        }
        let own = history.folds_under_way.keys().map(|index| &history.folds[*index]);
        let others = own.filter(|other| other.life == sent.life).map(|other| other.body.len());
        let bytes: Vec<usize> = others.chain([sent.body.len()]).collect();
        // Each counts twice, as events and as a body; the largest may go alone.
        if bytes.len() > 1 && 2 * bytes.iter().sum::<usize>() > self.fold_bytes {
            history.violation(format!("P8 folds of {bytes:?} bytes are under way at once"));
        }
        if bytes.len() > 1 {
            history.reach("two folds under way");
        }
        history.folds_under_way.insert(index, (subscriber, key));
        check_timing(&mut history, &sent, &body);
        history.folds.push(sent);
        index
    }
}

/// Nothing closes before its time.
fn check_timing(history: &mut History, sent: &FoldSent, body: &Value) {
    let FoldSent { subscriber, delivery, is_replay, .. } = *sent;
    let fold = &body["fold"];
    let time = |value: &Value| value.as_str().and_then(Timestamp::parse).map_or(0, Timestamp::as_ms);
    let (opened, closed) = (time(&fold["opened_at"]), time(&fold["closed_at"]));
    let first = body["events"].as_array().and_then(|events| events.first()).and_then(|event| {
        let (source, id) = (event["source"].as_str()?.to_owned(), event["id"].as_str()?.to_owned());
        history.index.get(&(history.subs[&subscriber].project, source, id))
    });
    let first = first.map(|place| &history.accepted[*place]);
    let truth = &history.subs[&subscriber];
    // What is replayed is folded on the terms of that day, and what follows an event that went ahead on those of that one.
    let is_opener = |fact: &&Fact| !is_replay && (fact.now == opened || truth.specs.len() == 1);
    let Some(spec) = first.filter(is_opener).and_then(|fact| truth.fold_of(fact)) else { return };
    let is_early = match (fold["closed_by"].as_str().unwrap_or_default(), spec.mode) {
        ("window", Mode::Window(ms)) => closed - opened < ms,
        ("quiet", Mode::Quiet(ms, _)) => {
            let project = history.subs[&subscriber].project;
            let mut joined = body["events"].as_array().into_iter().flatten().filter_map(|event| {
                let key = (project, event["source"].as_str()?.to_owned(), event["id"].as_str()?.to_owned());
                history.index.get(&key).map(|index| history.accepted[*index].now)
            });
            // A jump reaches processes that share a store one after the other.
            let is_moved = history.apart_ms > 0 && !history.jumps.is_empty();
            // What a backfill brings joins later than it came, and what came after the end joins what waits.
            let is_past = history.subs[&subscriber].backfill.is_some();
            let apart_ms = history.apart_ms;
            let mut is_early = |now: i64| now + apart_ms < closed && now + ms > closed + apart_ms;
            !is_moved && !is_past && joined.any(&mut is_early)
        }
        ("max_wait", Mode::Quiet(_, most)) => closed - opened < most,
        _ => false,
    };
    if is_early {
        history.violation(format!("P6 window of delivery {delivery} closed before its time: {fold}"));
    }
    history.reach("a window closed");
}

/// What must hold at the end.
pub(crate) async fn check(site: &Site, found: &mut Vec<String>) {
    let mut rows: BTreeMap<DeliveryNo, DeliveryRow> = BTreeMap::new();
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let filter = DeliveryFilter { limit: 10_000, ..DeliveryFilter::default() };
        let page = site.parts.store.deliveries(project, filter).await.expect("the store works again");
        for row in page.items.into_iter().filter(|row| row.fold.is_some()) {
            rows.insert(row.no, whole(site, project, row).await);
        }
    }
    let traced = windows::traced(site, &rows).await;
    let mut history = site.history.lock();
    let windows = Windows::of(&history, traced);
    bodies_never_change(&history, found);
    for (no, truth) in history.subs.iter().filter(|(_, truth)| is_fold(&truth.id)) {
        let Some((_, spec)) = truth.specs.first() else { continue };
        for (place, fact) in history.accepted.iter().enumerate().filter(|(_, fact)| truth.is_owed(fact)) {
            if spec.wants(&fact.content).is_some() {
                let kept = kept_in(&history, &rows, *no, &fact.key, found);
                windows.check_event(&history, (*no, place), kept, found);
            }
        }
        if spec.lanes == Lanes::PerKey {
            lanes_keep_order(&history, *no, found);
        }
    }
    windows.check(&history, found).into_iter().for_each(|path| history.reach(path));
}

/// A list does not tell all events of a delivery that carries many.
async fn whole(site: &Site, project: ProjectNo, row: DeliveryRow) -> DeliveryRow {
    if row.events.len() < DELIVERY_EVENTS_LISTED_MAX {
        return row;
    }
    let read = site.parts.store.delivery(project, row.no).await.expect("the store works again");
    read.expect("it was there a moment ago").0
}

/// The delivery that an event is in, which is the only one and arrives.
fn kept_in(
    history: &History,
    rows: &BTreeMap<DeliveryNo, DeliveryRow>,
    subscriber: SubscriberNo,
    key: &EventKey,
    found: &mut Vec<String>,
) -> Option<DeliveryNo> {
    let carries =
        |row: &&DeliveryRow| !row.replay && row.subscriber == subscriber && row.events.contains(&key.2);
    let kept: Vec<&DeliveryRow> = rows.values().filter(carries).collect();
    let first = kept.first().map(|row| row.no);
    if kept.len() > 1 {
        found.push(format!("P6 event {} is in {} deliveries to {subscriber}", key.2, kept.len()));
    }
    let own = history.folds.iter().filter(|sent| sent.subscriber == subscriber && !sent.is_replay);
    let carriers: BTreeSet<DeliveryNo> =
        own.clone().filter(|sent| sent.events.contains(key)).map(|sent| sent.delivery).collect();
    if carriers.len() > 1 {
        found.push(format!("P6 event {} was sent to {subscriber} by {carriers:?}", key.2));
    }
    let kept = kept.first().filter(|row| !history.endings.is_unsent(row, found));
    if kept.is_none() && !carriers.is_empty() {
        found.push(format!("P6 event {} was sent to {subscriber} though it was cancelled", key.2));
    }
    let is_owed = kept.is_some_and(|row| !has_run_out(history, row));
    if is_owed && !own.into_iter().any(|sent| sent.has_arrived && sent.events.contains(key)) {
        found.push(format!("P2 event {} never reached {subscriber}, which folds", key.2));
    }
    first
}

/// Whether all attempts of its schedule were made and failed, which it shows.
fn has_run_out(history: &History, row: &DeliveryRow) -> bool {
    let specs = &history.subs[&row.subscriber].specs;
    let least = specs.iter().map(|(_, spec)| spec.retries_ms.len() as u32).min().unwrap_or(0);
    row.status == Status::Exhausted && row.attempts > least
}

fn bodies_never_change(history: &History, found: &mut Vec<String>) {
    let mut bodies: BTreeMap<DeliveryNo, &Bytes> = BTreeMap::new();
    for sent in &history.folds {
        if **bodies.entry(sent.delivery).or_insert(&sent.body) != sent.body {
            found.push(format!("P3 fold {} was sent with two bodies", sent.delivery));
        }
    }
}

/// Of a key, later deliveries carry later events.
fn lanes_keep_order(history: &History, subscriber: SubscriberNo, found: &mut Vec<String>) {
    let mut last: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for sent in history.folds.iter().filter(|sent| sent.subscriber == subscriber && !sent.is_replay) {
        if !seen.insert(sent.delivery) {
            continue;
        }
        for event in &sent.events {
            let Some(index) = history.index.get(event) else { continue };
            let content: &Content = &history.accepted[*index].content;
            let before = last.entry(content.key.clone()).or_insert(*index);
            if *before > *index {
                found.push(format!("P5 fold {} carries {} too late", sent.delivery, event.2));
            }
            *before = (*before).max(*index);
        }
    }
}
