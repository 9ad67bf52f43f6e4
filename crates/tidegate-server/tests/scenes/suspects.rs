//! Deliveries that were in hand when the process ended too often.

use serde_json::json;
use tidegate_core::delivery::Status;
use tidegate_core::limits::CLAIMS_LOST_MAX;

use super::stage::{Reply, Stage};

fn standing(first: Status, second: Status) -> Vec<(String, Status)> {
    let all = [("0", Status::Delivered), ("a", first), ("b", second)];
    all.map(|(id, status)| (id.to_owned(), status)).into()
}

/// Two deliveries wait at a gate that lets one pass every ten seconds, and the process has ended often while they did. Only the
/// one that is being sent is taken for what ends the process, and only while it is.
async fn only_what_is_being_sent_is_suspected(rest: serde_json::Value) {
    let mut stage = Stage::new().await;
    stage.gate("slow", json!({"rate": "6/m", "burst": 1})).await;
    let mut subscriber = json!({"gate": "slow", "limits": {"concurrency": 4}});
    subscriber.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    stage.subscribe("people", subscriber).await;
    let people = stage.number_of("people");
    stage.will_answer("people", vec![Reply { after_ms: 5_000, ..Reply::default() }]);
    for id in ["0", "a", "b"] {
        stage.post(id, "t", json!({"user": id})).await;
    }
    stage.at(7.0).await;
    stage.stop().await;
    assert_eq!(stage.story().len(), 1, "the gate has let one pass, and two wait");
    stage.lose_claims(people, CLAIMS_LOST_MAX + 4).await;
    stage.start().await;
    stage.at(8.0).await;
    assert_eq!(stage.after_crash().await, standing(Status::Pending, Status::Pending), "both only wait");
    let mut second = 8.0;
    while stage.story().len() < 2 && second < 60.0 {
        second += 0.5;
        stage.at(second).await;
    }
    assert_eq!(stage.arrivals()[1].ids(), ["a"], "in the order in which they came");
    assert_eq!(stage.after_crash().await, standing(Status::Exhausted, Status::Pending), "one is being sent");
    stage.at(second + 5.0).await;
    assert_eq!(stage.after_crash().await, standing(Status::Delivered, Status::Pending), "it has arrived");
    stage.at(second + 20.0).await;
    assert_eq!(stage.after_crash().await, standing(Status::Delivered, Status::Delivered));
    assert_eq!(stage.story().len(), 3, "each was sent once");
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_waits_at_a_gate_is_not_begun() {
    only_what_is_being_sent_is_suspected(json!({})).await;
}

/// A fold is sealed and put together in a turn of its own before it is begun.
#[tokio::test(start_paused = true)]
async fn a_suspected_fold_that_waits_at_a_gate_is_not_begun() {
    let fold = json!({"mode": "window", "window": "1s", "by": ["data.user"]});
    only_what_is_being_sent_is_suspected(json!({"fold": fold, "order": {"by": "data.user"}})).await;
}
