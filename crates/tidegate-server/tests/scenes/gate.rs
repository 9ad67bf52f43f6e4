//! Many users, one API that allows three requests a second, and what happens when it says "too many".

use serde_json::{Value, json};

use crate::stage::{Arrival, Reply, Stage};

/// A subscriber that writes to the API, a lane for each user, through a gate of three a second.
async fn gated() -> Stage {
    let stage = Stage::new().await;
    stage.gate("notion", json!({"rate": "3/s", "burst": 3})).await;
    stage.subscribe("api", json!({"order": {"by": "data.assignee"}, "gate": "notion"})).await;
    stage.will_answer("api", vec![Reply { after_ms: 200, ..Reply::default() }]);
    stage
}

async fn update(stage: &Stage, user: &str, n: u32) {
    stage.post(&format!("{user}-{n}"), "task", json!({"assignee": user, "n": n})).await;
}

fn call(arrival: &Arrival) -> (String, u64) {
    let data: &Value = &arrival.body["data"];
    (data["assignee"].as_str().expect("a user").to_owned(), data["n"].as_u64().expect("a number"))
}

fn of<'a>(arrivals: &'a [Arrival], user: &'a str) -> impl Iterator<Item = &'a Arrival> {
    arrivals.iter().filter(move |arrival| call(arrival).0 == user)
}

/// No second sees more than the rate and a burst.
fn within_the_cap(arrivals: &[Arrival]) {
    for (first, arrival) in arrivals.iter().enumerate() {
        let span = arrivals[first..].iter().take_while(|other| other.ms < arrival.ms + 1_000);
        assert!(span.count() <= 6, "{arrivals:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn alternating_users_are_served_in_the_order_in_which_they_came() {
    let stage = gated().await;
    for (user, n) in [("u1", 0), ("u2", 0), ("u1", 1), ("u3", 0), ("u2", 1), ("u1", 2)] {
        update(&stage, user, n).await;
    }
    stage.at(10.0).await;
    let arrivals = stage.arrivals();
    let order: Vec<String> = arrivals.iter().map(call).map(|(user, n)| format!("{user}-{n}")).collect();
    assert_eq!(order[..3], ["u1-0", "u2-0", "u3-0"], "one of each user at once, first come first served");
    assert_eq!(order[3..], ["u1-1", "u2-1", "u1-2"], "whose work is done goes on at the tail");
    for user in ["u1", "u2", "u3"] {
        let own: Vec<u64> = of(&arrivals, user).map(|arrival| arrival.ms).collect();
        assert!(own.windows(2).all(|pair| pair[1] - pair[0] >= 200), "one at a time: {own:?}");
    }
    within_the_cap(&arrivals);
}

#[tokio::test(start_paused = true)]
async fn after_too_many_everybody_waits_and_progress_continues() {
    let stage = gated().await;
    stage.will_be_busy(1_000..1_500, Reply { status: 429, retry_after: Some("5"), after_ms: 0 });
    for n in 0..6 {
        for user in ["u1", "u2", "u3", "u4"] {
            update(&stage, user, n).await;
        }
    }
    stage.at(120.0).await;
    let arrivals = stage.arrivals();
    let refused: Vec<u64> =
        arrivals.iter().filter(|arrival| !arrival.is_taken).map(|arrival| arrival.ms).collect();
    let (said, last) = (refused[0], refused[refused.len() - 1]);
    let until = last + 5_000;
    let between = arrivals.iter().filter(|arrival| (said + 1..until).contains(&arrival.ms));
    assert!(between.clone().all(|arrival| !arrival.is_taken), "nobody passes a closed gate");
    let after: Vec<u64> = arrivals.iter().map(|arrival| arrival.ms).filter(|ms| *ms >= until).collect();
    assert!(after[0] <= until + 50, "somebody goes as soon as it may: {} after {until}", after[0]);
    let within = |ms: u64| after.iter().filter(|at| **at < until + ms).count();
    assert!(within(10_000) <= 5, "an eighth of the rate at first: {after:?}");
    assert!(within(20_000) >= 8, "more and more: {after:?}");
    within_the_cap(&arrivals);
    for user in ["u1", "u2", "u3", "u4"] {
        let taken: Vec<u64> =
            of(&arrivals, user).filter(|arrival| arrival.is_taken).map(|arrival| call(arrival).1).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5], "nothing is lost and the order of {user} is kept");
    }
}
