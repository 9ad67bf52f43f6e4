//! Scenes, second by second: what the systems that Tidegate unifies say they do, done by the real pipeline on virtual
//! time. Each test tells its story as a list of arrivals.

mod gate;
mod log;
mod stage;
mod suspects;
mod unsealed;

use serde_json::{Value, json};
use stage::{Reply, Stage};
use tidegate_core::route::Judgement;

fn story(expected: &[(f64, &str)]) -> Vec<(f64, String)> {
    expected.iter().map(|(at, ids)| (*at, (*ids).to_owned())).collect()
}

fn debounced() -> Value {
    json!({"fold": {"mode": "window", "window": "60s"}})
}

/// Alerts: one event alone is told when its window has passed.
#[tokio::test(start_paused = true)]
async fn an_alert_waits_for_its_window() {
    let stage = Stage::new().await;
    stage.subscribe("alert", debounced()).await;
    stage.post("a", "trace.errors", json!({})).await;
    stage.at(59.9).await;
    assert_eq!(stage.story(), []);
    stage.at(61.0).await;
    assert_eq!(stage.story(), story(&[(60.0, "a")]));
}

/// Alerts: whatever comes within the window is told together, and does not make it longer.
#[tokio::test(start_paused = true)]
async fn alerts_within_a_window_are_told_together() {
    let stage = Stage::new().await;
    stage.subscribe("alert", debounced()).await;
    stage.post("a", "trace.errors", json!({})).await;
    stage.at(10.0).await;
    stage.post("b", "trace.errors", json!({})).await;
    stage.at(12.0).await;
    stage.post("other", "prompt.created", json!({})).await;
    stage.at(15.0).await;
    stage.post("c", "trace.errors", json!({})).await;
    stage.at(80.0).await;
    assert_eq!(stage.story(), story(&[(60.0, "a b c"), (72.0, "other")]), "types stay apart");
    let body = &stage.arrivals()[0].body;
    assert_eq!((&body["count"], &body["fold"]["closed_by"]), (&json!(3), &json!("window")));
    assert_eq!(body["fold"]["key"], json!({"type": "trace.errors"}));
}

/// Alerts: without debouncing each goes at once.
#[tokio::test(start_paused = true)]
async fn without_a_fold_each_goes_at_once() {
    let stage = Stage::new().await;
    stage.subscribe("alert", json!({})).await;
    stage.post("a", "trace.errors", json!({})).await;
    stage.at(10.0).await;
    stage.post("b", "trace.errors", json!({})).await;
    stage.at(20.0).await;
    assert_eq!(stage.story(), story(&[(0.0, "a"), (10.0, "b")]));
}

/// A window whose process was away for ten times its length is told late, and whole.
#[tokio::test(start_paused = true)]
async fn a_window_survives_an_absence_of_ten_times_its_length() {
    let mut stage = Stage::new().await;
    stage.subscribe("alert", debounced()).await;
    stage.post("a", "trace.errors", json!({})).await;
    stage.at(20.0).await;
    stage.post("b", "trace.errors", json!({})).await;
    stage.stop().await;
    stage.at(600.0).await;
    stage.start().await;
    stage.at(601.0).await;
    assert_eq!(stage.story(), story(&[(600.0, "a b")]));
}

/// A change of the fold leaves open windows on the terms they opened with.
#[tokio::test(start_paused = true)]
async fn an_open_window_keeps_its_terms() {
    let stage = Stage::new().await;
    stage.subscribe("alert", debounced()).await;
    stage.post("a", "trace.errors", json!({})).await;
    stage.at(1.0).await;
    stage.redefine("alert", json!({"fold": {"mode": "window", "window": "5s"}})).await;
    stage.at(2.0).await;
    stage.post("b", "trace.errors", json!({})).await;
    stage.at(61.0).await;
    assert_eq!(stage.story(), story(&[(60.0, "a b")]));
    stage.post("c", "trace.errors", json!({})).await;
    stage.at(70.0).await;
    assert_eq!(stage.story()[1..], story(&[(66.0, "c")]));
}

/// Releases: batches of a thousand go as they fill, and the rest at the next regular time.
#[tokio::test(start_paused = true)]
async fn batches_of_a_thousand_and_the_rest_in_time() {
    let stage = Stage::new().await;
    stage.subscribe("mirror", json!({"fold": {"mode": "batch"}, "limits": {"concurrency": 1}})).await;
    let event =
        |n: usize| json!({"id": format!("v{n}"), "source": "meta", "type": "NEW_VERSION", "data": {"n": n}});
    stage.post_all((0..2_500).map(event).collect()).await;
    stage.at(0.5).await;
    let counts = |stage: &Stage| -> Vec<u64> {
        stage.arrivals().iter().map(|arrival| arrival.body["count"].as_u64().unwrap_or(0)).collect()
    };
    assert_eq!(counts(&stage), [1_000, 1_000]);
    stage.at(31.0).await;
    assert_eq!(counts(&stage), [1_000, 1_000, 500]);
    let arrivals = stage.arrivals();
    assert_eq!(arrivals[2].body["fold"]["closed_by"], "every");
    let ids: Vec<String> = arrivals.iter().flat_map(stage::Arrival::ids).collect();
    assert_eq!(ids, (0..2_500).map(|n| format!("v{n}")).collect::<Vec<_>>(), "all of them, in order");
}

fn per_user() -> Value {
    json!({
        "fold": {"mode": "quiet", "quiet": "10s", "max_wait": "2m", "by": ["data.assignee"]},
        "order": {"by": "data.assignee"},
        "limits": {"concurrency": 1},
    })
}

fn edit(user: &str) -> Value {
    json!({"assignee": user})
}

/// Tasks: a burst of edits of one user is one run.
#[tokio::test(start_paused = true)]
async fn a_burst_of_one_user_is_one_run() {
    let stage = Stage::new().await;
    stage.subscribe("nextup", per_user()).await;
    for second in 0..6 {
        stage.at(f64::from(second)).await;
        stage.post(&format!("e{second}"), "page.edited", edit("ann")).await;
    }
    stage.at(30.0).await;
    assert_eq!(stage.story(), story(&[(15.0, "e0 e1 e2 e3 e4 e5")]));
}

/// Tasks: users that alternate are served in the order in which they became ready.
#[tokio::test(start_paused = true)]
async fn alternating_users_are_served_as_they_become_ready() {
    let stage = Stage::new().await;
    stage.subscribe("nextup", per_user()).await;
    stage.will_answer("nextup", vec![Reply { after_ms: 4_000, ..Reply::default() }]);
    stage.post("ann1", "page.edited", edit("ann")).await;
    stage.at(1.0).await;
    stage.post("bob1", "page.edited", edit("bob")).await;
    stage.at(2.0).await;
    stage.post("ann2", "page.edited", edit("ann")).await;
    // While bob runs (from 11 s to 15 s), ann becomes ready at 12 s and waits for her turn.
    stage.at(13.0).await;
    stage.post("ann3", "page.edited", edit("ann")).await;
    // While ann runs (from 15 s to 19 s), she is edited once more: her quiet period begins anew.
    stage.at(16.0).await;
    stage.post("ann4", "page.edited", edit("ann")).await;
    stage.at(40.0).await;
    assert_eq!(stage.story(), story(&[(11.0, "bob1"), (15.0, "ann1 ann2 ann3"), (26.0, "ann4")]));
}

/// Tasks: what comes during a run makes the user ready again, at the tail and never beside the run.
#[tokio::test(start_paused = true)]
async fn edits_during_a_run_lead_to_another_one_at_the_tail() {
    let stage = Stage::new().await;
    stage.subscribe("nextup", per_user()).await;
    stage.will_answer("nextup", vec![Reply { after_ms: 15_000, ..Reply::default() }]);
    stage.post("ann1", "page.edited", edit("ann")).await;
    stage.at(11.0).await;
    stage.post("ann2", "page.edited", edit("ann")).await;
    stage.at(12.0).await;
    stage.post("bob1", "page.edited", edit("bob")).await;
    stage.at(13.0).await;
    stage.post("cid1", "page.edited", edit("cid")).await;
    stage.at(100.0).await;
    // ann runs from 10 s to 25 s. Her second window is ready at 21 s, before bob's at 22 s and cid's at 23 s, but it has to wait
    // for her run: when that is over she comes behind those who were ready to go.
    let expected = [(10.0, "ann1"), (25.0, "bob1"), (40.0, "cid1"), (55.0, "ann2")];
    assert_eq!(stage.story(), story(&expected));
}

/// Tasks: 429 makes a user wait as long as it asks for, and everything goes on.
#[tokio::test(start_paused = true)]
async fn progress_continues_after_429() {
    let stage = Stage::new().await;
    stage.subscribe("nextup", per_user()).await;
    let busy = Reply { status: 429, retry_after: Some("30"), ..Reply::default() };
    stage.will_answer("nextup", vec![busy, Reply::default()]);
    stage.post("ann1", "page.edited", edit("ann")).await;
    stage.at(3.0).await;
    stage.post("bob1", "page.edited", edit("bob")).await;
    stage.at(20.0).await;
    assert_eq!(stage.story(), story(&[(10.0, "ann1"), (13.0, "bob1")]), "ann alone waits");
    stage.post("ann2", "page.edited", edit("ann")).await;
    stage.at(400.0).await;
    let arrivals = stage.story();
    assert_eq!(arrivals[2].1, "ann1", "what was sent once is sent again unchanged");
    assert!(arrivals[2].0 >= 40.0, "not before it was asked for");
    assert_eq!(arrivals[3].1, "ann2", "and what came meanwhile follows it");
    assert_eq!(arrivals.len(), 4);
}

/// Tasks: an edit without an assignee is skipped, and its trace says so.
#[tokio::test(start_paused = true)]
async fn without_an_assignee_it_is_skipped() {
    let stage = Stage::new().await;
    stage.subscribe("nextup", per_user()).await;
    stage.post("nobody", "page.edited", json!({})).await;
    stage.post("ann1", "page.edited", edit("ann")).await;
    stage.at(60.0).await;
    assert_eq!(stage.story(), story(&[(10.0, "ann1")]));
    let trace = stage.trace("nobody").await;
    assert!(trace.deliveries.is_empty() && trace.windows.is_empty());
    let reason = "order.by data.assignee is missing".to_owned();
    assert_eq!(stage.judgements("nobody").await, [Judgement::Skipped { reason }]);
    assert_eq!(stage.trace("ann1").await.deliveries.len(), 1);
}

/// Deployments: a failure is told even if its plan ends while the window of the failure is open. Only what the subscriber
/// itself takes for the all-clear ends the window, not every end of a plan.
#[tokio::test(start_paused = true)]
async fn a_failure_is_told_although_its_plan_has_ended() {
    let stage = Stage::new().await;
    let failures = json!({
        "match": {"types": ["task.failed", "plan.*"]},
        "fold": {
            "mode": "window", "window": "5m", "by": ["data.plan"],
            "cancel_on": "type == 'plan.completed'",
        },
    });
    stage.subscribe("people", failures).await;
    for plan in [7, 8] {
        stage.post(&format!("first{plan}"), "task.failed", json!({"plan": plan})).await;
    }
    stage.at(60.0).await;
    stage.post("second7", "task.failed", json!({"plan": 7})).await;
    stage.at(90.0).await;
    stage.post("closed7", "plan.closed", json!({"plan": 7})).await;
    stage.post("completed8", "plan.completed", json!({"plan": 8})).await;
    stage.at(299.9).await;
    assert_eq!(stage.story(), [], "the end of a plan closes no window");
    stage.at(900.0).await;
    assert_eq!(stage.story(), story(&[(300.0, "first7 second7 closed7")]));
    let windows = stage.trace("first8").await.windows;
    assert_eq!(windows[0].closed.map(|(_, by)| by.name()), Some("cancel_on"), "that one went well after all");
}

/// Somebody is told in five minutes that a host is down, unless it is up by then, and at once of what is critical.
async fn a_host_is_down() -> Stage {
    let stage = Stage::new().await;
    let fold = json!({
        "mode": "window", "window": "5m", "by": ["data.host"], "cancel_on": "type == 'host.up'",
        "bypass": "data.critical == true",
    });
    stage.subscribe("pager", json!({ "fold": fold })).await;
    stage.post("down", "host.down", json!({"host": "a"})).await;
    stage
}

/// Deployments: a recovery before the notification makes it unnecessary, if the subscriber says so.
#[tokio::test(start_paused = true)]
async fn a_recovery_cancels_what_nobody_was_told_of() {
    let stage = a_host_is_down().await;
    stage.at(30.0).await;
    stage.post("critical", "host.down", json!({"host": "a", "critical": true})).await;
    stage.at(60.0).await;
    stage.post("up", "host.up", json!({"host": "a"})).await;
    stage.at(900.0).await;
    assert_eq!(stage.story(), story(&[(30.0, "critical")]), "only what could not wait");
    let windows = stage.trace("down").await.windows;
    assert_eq!(windows[0].closed.map(|(_, by)| by.name()), Some("cancel_on"));
}

/// A recovery that must not wait goes at once, and what it makes irrelevant does not follow it.
#[tokio::test(start_paused = true)]
async fn a_recovery_that_is_not_folded_cancels_too() {
    let stage = a_host_is_down().await;
    stage.post("other", "host.down", json!({"host": "b"})).await;
    stage.at(30.0).await;
    stage.post("up", "host.up", json!({"host": "a", "critical": true})).await;
    stage.at(900.0).await;
    assert_eq!(stage.story(), story(&[(30.0, "up"), (300.0, "other")]));
    let windows = stage.trace("down").await.windows;
    assert_eq!(windows[0].closed.map(|(_, by)| by.name()), Some("cancel_on"));
    assert!(stage.trace("up").await.windows.is_empty(), "it was in none");
}

/// A failing head holds its lane, unless its owner would rather have the others in time.
#[tokio::test(start_paused = true)]
async fn a_failing_head_blocks_its_lane_or_steps_aside() {
    let stage = Stage::new().await;
    let ordered = |on_failure: Value| {
        json!({
            "order": {"by": "data.plan", "on_failure": on_failure},
            "retry": {"schedule": ["10s", "10s", "10s"]}, "breaker": "off",
        })
    };
    let failing = Reply { status: 500, ..Reply::default() };
    for (id, on_failure) in [("blocks", json!("block")), ("skips", json!({"skip_after": 2}))] {
        stage.subscribe(id, ordered(on_failure)).await;
        stage.will_answer(id, vec![failing, failing, Reply::default()]);
    }
    stage.post("first", "plan.step", json!({"plan": 1})).await;
    stage.post("second", "plan.step", json!({"plan": 1})).await;
    stage.at(120.0).await;
    assert_eq!(stage.ids_of("blocks"), ["first", "first", "first", "second"]);
    assert_eq!(stage.ids_of("skips"), ["first", "first", "second", "first"]);
    let marked: Vec<bool> = stage.deliveries().await.iter().map(|row| row.out_of_order).collect();
    assert_eq!(marked.iter().filter(|marked| **marked).count(), 1, "and says so");
}

/// The same with folds: what was sent stays as it is and comes later, marked, and what gathered behind it goes on in order.
#[tokio::test(start_paused = true)]
async fn a_failing_fold_steps_aside_for_what_gathered_behind_it() {
    let stage = Stage::new().await;
    let mut subscriber = per_user();
    subscriber["order"]["on_failure"] = json!({"skip_after": 2});
    subscriber["retry"] = json!({"schedule": ["1s", "1s", "1s"]});
    subscriber["breaker"] = json!("off");
    stage.subscribe("nextup", subscriber).await;
    // It says when to come again, so that chance has no part in it.
    let failing = Reply { status: 503, retry_after: Some("20"), ..Reply::default() };
    stage.will_answer("nextup", vec![failing, failing, Reply::default()]);
    stage.post("ann1", "page.edited", edit("ann")).await;
    // She is tried at 10 s and 30 s; what comes meanwhile is ready at 25 s and waits for her.
    for (second, id) in [(11.0, "ann2"), (15.0, "ann3"), (28.0, "ann4")] {
        stage.at(second).await;
        stage.post(id, "page.edited", edit("ann")).await;
    }
    stage.at(120.0).await;
    let expected = [(10.0, "ann1"), (30.0, "ann1"), (30.0, "ann2 ann3 ann4"), (50.0, "ann1")];
    assert_eq!(stage.story(), story(&expected));
    let marked: Vec<(Vec<String>, bool)> =
        stage.deliveries().await.into_iter().map(|row| (row.events, row.out_of_order)).collect();
    let ids = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(marked, [(ids("ann2 ann3 ann4"), false), (ids("ann1"), true)]);
}

/// Tasks: while the gate is congested, quiet periods of those who adapt grow, up to a bound, and shrink back.
#[tokio::test(start_paused = true)]
async fn congestion_at_the_gate_stretches_quiet_periods() {
    let stage = Stage::new().await;
    stage.gate("notion", json!({"rate": "6/m", "burst": 1})).await;
    let mut subscriber = per_user();
    subscriber["gate"] = json!("notion");
    subscriber["limits"] = json!({"concurrency": 16});
    stage.subscribe("steady", subscriber.clone()).await;
    subscriber["fold"]["adaptive"] = json!(true);
    subscriber["match"] = json!({"types": ["page.adaptive"]});
    stage.subscribe("adaptive", subscriber).await;
    for user in 0..8 {
        stage.post(&format!("e{user}"), "page.edited", edit(&format!("user{user}"))).await;
    }
    stage.at(11.0).await;
    assert_eq!(stage.arrivals().len(), 1, "one passes, seven wait for ten seconds each");
    stage.post("late", "page.adaptive", edit("ann")).await;
    assert!((21.0..22.0).contains(&stage.closes_at("steady", "late").await));
    let due = stage.closes_at("adaptive", "late").await;
    assert!(
        (60.0..72.0).contains(&due),
        "it would wait for a minute anyway, so it gathers for that long: {due}"
    );
    stage.at(150.0).await;
    stage.post("calm", "page.adaptive", edit("bob")).await;
    let due = stage.closes_at("adaptive", "calm").await;
    assert!((160.0..162.0).contains(&due), "and when nobody waits, ten seconds are ten seconds: {due}");
}
