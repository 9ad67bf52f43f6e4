//! The receivers: a transport without a network, that misbehaves as the plan says and notes everything.
//!
//! What a receiver does depends on its mood at that time and on a throw of dice that belongs to this attempt at this
//! delivery alone, so that unrelated traffic does not change it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::attempt::{ErrorClass, Phases, ResponseHead};
use tidegate_core::id::Mint;
use tidegate_destinations::{Answer, Exchange, Failure, MayLeave, Outbound, Transport};

use super::dice::Dice;
use super::history::{Heard, Histories, Sent};
use super::life::Life;

/// A delivery that was picked is put together and connects for no longer than this.
const UNDER_WAY_MS: i64 = 150;

/// How a receiver behaves for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// 200 within this many milliseconds.
    Healthy(i64),
    /// 200, often only after the deadline.
    Slow,
    /// 500.
    Failing,
    /// 429 or 503, with a time to come back.
    Busy,
    /// 200 at this moment, whenever it came.
    Until(i64),
    /// No answer, ever.
    Hanging,
    /// No connection.
    Unreachable,
    /// Takes it, then breaks the connection.
    Forgetful,
    /// 410.
    Gone,
    /// 500 for this key, 200 for all others.
    Poisoned(&'static str),
    /// Any of the above, request by request; but 410 seldom.
    Mixed,
}

/// The moods of every receiver over time.
pub(crate) type Moods = BTreeMap<String, Vec<(i64, Mood)>>;

/// The transport.
pub(crate) struct Receivers {
    pub(crate) seed: u64,
    pub(crate) moods: Arc<Moods>,
    pub(crate) life: Arc<Life>,
    pub(crate) history: Histories,
    pub(crate) mint: Mint,
    /// What folds under way may have together.
    pub(crate) fold_bytes: usize,
}

/// What a receiver does with one request, once it has it.
enum Reply {
    Status(u16),
    /// 429 or 503, with a time to come back that is told when it answers.
    Busy,
    Silence,
    Reset,
}

#[async_trait]
impl Transport for Receivers {
    async fn send_if(&self, outbound: Outbound, may_leave: MayLeave<'_>) -> Option<Exchange> {
        // Whoever falls asleep here, where others connect, is asked again when it wakes up.
        self.life.point().await;
        if !may_leave() {
            return None;
        }
        let began = self.life.clock.elapsed();
        if outbound.headers["webhook-id"].as_bytes().starts_with(b"vfy_") {
            let result = tokio::time::timeout(outbound.timeout, self.consent(&outbound)).await;
            let result = result.unwrap_or_else(|_| Err(failure(ErrorClass::Timeout)));
            self.life.point().await;
            return Some(Exchange { phases: Phases::default(), result });
        }
        self.check_results();
        if super::folds::is_folded(&outbound) {
            let index = self.note_fold(&outbound);
            let result = tokio::time::timeout(outbound.timeout, self.serve_fold(&outbound, index)).await;
            let result = result.unwrap_or_else(|_| Err(failure(ErrorClass::Timeout)));
            self.history.lock().folds_under_way.remove(&index);
            self.life.point().await;
            return Some(Exchange { phases: Phases::default(), result });
        }
        let (index, dice) = self.note_send(&outbound);
        let result = tokio::time::timeout(outbound.timeout, self.serve(&outbound, index, dice)).await;
        let result = result.unwrap_or_else(|_| Err(failure(ErrorClass::Timeout)));
        self.note_told(index, &result);
        self.life.point().await;
        let total_us = u32::try_from((self.life.clock.elapsed() - began).as_micros()).unwrap_or(u32::MAX);
        Some(Exchange { phases: Phases { total_us, ..Phases::default() }, result })
    }
}

impl Receivers {
    /// A delivery whose result can not be written would be sent again after a crash: no more of them begin.
    fn check_results(&self) {
        let ms = self.life.fails_for_ms();
        if ms > UNDER_WAY_MS {
            let text = format!("P3 a delivery begins though nothing could be written for {ms} ms");
            self.history.lock().violation(text);
        }
    }

    async fn serve(&self, outbound: &Outbound, index: usize, mut dice: Dice) -> Result<Answer, Failure> {
        let (id, key) = {
            let history = self.history.lock();
            let sent = &history.sends[index];
            let key = history.index.get(&sent.event).and_then(|at| history.accepted[*at].content.key.clone());
            (history.subs[&sent.subscriber].id.clone(), key)
        };
        let mood = settle(&self.mood(&id), &mut dice);
        self.wait(dice.between(0, 4)).await;
        if mood == Mood::Unreachable {
            return Err(failure(dice.pick(&[ErrorClass::Connect, ErrorClass::Dns, ErrorClass::Reset])));
        }
        let timeout_ms = i64::try_from(outbound.timeout.as_millis()).expect("timeouts are short");
        let (reply, after_ms) = reply(&mood, key.as_deref(), timeout_ms, &mut dice);
        let after_ms = if let Mood::Until(t) = mood { (t - self.life.t()).max(0) } else { after_ms };
        self.note_arrival(index, &reply);
        self.life.point().await;
        self.wait(after_ms).await;
        let (status, retry_after) = match reply {
            Reply::Status(status) => (status, None),
            Reply::Busy => (dice.pick(&[429, 503]), self.retry_after(&mut dice)),
            Reply::Silence => std::future::pending().await,
            Reply::Reset => return Err(failure(ErrorClass::Reset)),
        };
        self.note_asked(index, retry_after.as_deref());
        Ok(Answer { status, retry_after, head: ResponseHead::default(), grant: None })
    }

    pub(crate) fn mood(&self, id: &str) -> Mood {
        let t = self.life.t();
        let moods = self.moods.get(id).into_iter().flatten();
        moods.into_iter().find(|(until, _)| t < *until).map_or(Mood::Healthy(20), |(_, mood)| mood.clone())
    }

    fn retry_after(&self, dice: &mut Dice) -> Option<String> {
        let seconds = dice.between(1, 12);
        match dice.below(8) {
            0 => None,
            1 => Some("soon".to_owned()),
            2 | 3 => {
                let at = self.life.clock.wall().as_ms() / 1000 + seconds;
                let at = std::time::UNIX_EPOCH + Duration::from_secs(at.unsigned_abs());
                Some(httpdate::fmt_http_date(at))
            }
            _ => Some(seconds.to_string()),
        }
    }

    pub(crate) async fn wait(&self, ms: i64) {
        if ms > 0 {
            self.life.clock.pause(Duration::from_millis(ms.unsigned_abs())).await;
        }
    }

    fn note_send(&self, outbound: &Outbound) -> (usize, Dice) {
        let id = outbound.target.url().path().trim_start_matches('/').to_owned();
        let webhook_id = outbound.headers["webhook-id"].to_str().expect("ids are ASCII").to_owned();
        let delivery = self.mint.parse_delivery(&webhook_id).expect("webhook ids are ours").no;
        let event: serde_json::Value = serde_json::from_slice(&outbound.body).expect("bodies are JSON");
        let mut history = self.history.lock();
        let subscriber = history.sub_no(&id).expect("nobody sends to a subscriber that was never made");
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let truth = &history.subs[&subscriber];
        let key = (truth.project, text("source"), text("id"));
        let content = super::spec::Content::of(&event);
        let version = history.index.get(&key).map_or(0, |at| history.accepted[*at].version);
        let is_replay = outbound.headers.contains_key("tidegate-replay");
        let lane = if is_replay { truth.lane_of_replay(&content) } else { truth.lane_of(&content, version) };
        let is_notice = content.about.is_some();
        let before = history.attempts.get(&delivery).copied().unwrap_or(0);
        let sent = Sent {
            t: self.life.t(),
            now: self.life.clock.now().as_ms(),
            life: self.life.no(),
            subscriber,
            id: webhook_id,
            delivery,
            event: key,
            lane,
            is_replay,
            body: outbound.body.clone(),
            arrived: None,
            answered: None,
            told: None,
            asked: None,
            recorded: None,
        };
        if is_notice {
            history.reach("a notice delivered");
        }
        self.check_consent(&mut history, subscriber, outbound);
        let index = history.begin(sent);
        (index, Dice::new(self.seed, &format!("{delivery}/{before}")))
    }

    fn note_arrival(&self, index: usize, reply: &Reply) {
        let mut history = self.history.lock();
        history.sends[index].arrived = Some(self.life.t());
        history.sends[index].answered = match reply {
            Reply::Status(status) => Some(*status),
            Reply::Busy => Some(503),
            // It has taken it; only its answer gets lost.
            Reply::Reset => Some(200),
            Reply::Silence => None,
        };
    }

    /// The wish of a receiver, in the product's time: judged at this very instant.
    fn note_asked(&self, index: usize, retry_after: Option<&str>) {
        let Some(text) = retry_after else { return };
        let (now, wall) = (self.life.clock.now().as_ms(), self.life.clock.wall().as_ms());
        let wait_ms = match text.parse::<i64>() {
            Ok(seconds) => seconds * 1000,
            Err(_) => match httpdate::parse_http_date(text) {
                Ok(date) => {
                    let date = date.duration_since(std::time::UNIX_EPOCH).expect("dates lie ahead");
                    i64::try_from(date.as_millis()).expect("dates are near") - wall
                }
                Err(_) => return,
            },
        };
        self.history.lock().sends[index].asked = Some(now + wait_ms);
    }

    fn note_told(&self, index: usize, result: &Result<Answer, Failure>) {
        let heard = match result {
            Ok(answer) => Heard::Status(answer.status),
            Err(failure) => Heard::Failure(failure.class),
        };
        let t = self.life.t();
        let mut history = self.history.lock();
        history.sends[index].told = Some((t, heard));
        history.under_way.retain(|other| *other != index);
        history.beats.push((index, false));
        let delivery = history.sends[index].delivery;
        history.line(t, format_args!("{delivery} is answered {heard:?}"));
        match heard {
            Heard::Failure(ErrorClass::Timeout) => history.reach("a timeout"),
            Heard::Status(410) => history.reach("a receiver gone"),
            _ => {}
        }
    }
}

/// What it answers, and after how many milliseconds.
fn reply(mood: &Mood, key: Option<&str>, timeout_ms: i64, dice: &mut Dice) -> (Reply, i64) {
    let soon = dice.between(0, 30);
    match mood {
        Mood::Healthy(max_ms) => (Reply::Status(200), dice.between(0, *max_ms)),
        Mood::Until(_) => (Reply::Status(200), 0),
        Mood::Slow => (Reply::Status(204), dice.between(0, timeout_ms * 3 / 2)),
        Mood::Busy => (Reply::Busy, soon),
        Mood::Hanging => (Reply::Silence, 0),
        Mood::Forgetful => (Reply::Reset, soon),
        Mood::Gone => (Reply::Status(410), soon),
        Mood::Poisoned(poison) if key != Some(poison) => (Reply::Status(200), soon),
        _ => (Reply::Status(dice.pick(&[500, 502, 404, 301])), soon),
    }
}

pub(crate) fn settle(mood: &Mood, dice: &mut Dice) -> Mood {
    if *mood != Mood::Mixed {
        return mood.clone();
    }
    match dice.below(40) {
        0..14 => Mood::Healthy(200),
        14..20 => Mood::Slow,
        20..25 => Mood::Failing,
        25..30 => Mood::Busy,
        30..32 => Mood::Hanging,
        32..35 => Mood::Unreachable,
        35..39 => Mood::Forgetful,
        _ => Mood::Gone,
    }
}

pub(crate) fn failure(class: ErrorClass) -> Failure {
    Failure { class, detail: "as the plan says".to_owned() }
}
