//! Deliveries that failed before they left.

use serde_json::json;

use super::stage::{Reply, Stage};

/// An attempt may fail by an error of ours before its fold is sealed. The next one seals it.
#[tokio::test(start_paused = true)]
async fn a_fold_that_failed_before_it_was_sealed_is_sealed_before_it_is_sent() {
    let mut stage = Stage::new().await;
    let terms = json!({
        "fold": {"mode": "window", "window": "10s"}, "order": {"by": "subscriber"},
        "retry": {"schedule": ["10s", "10s"]},
    });
    stage.subscribe("people", terms).await;
    let people = stage.number_of("people");
    stage.post("a", "t", json!({})).await;
    stage.stop().await;
    stage.at(20.0).await;
    stage.fail_unsealed(people).await;
    stage.will_answer("people", vec![Reply { status: 500, ..Reply::default() }, Reply::default()]);
    stage.start().await;
    stage.at(21.0).await;
    stage.post("b", "t", json!({})).await;
    stage.at(80.0).await;
    let sent: Vec<String> = stage.story().into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(sent, ["a", "a", "b"], "what was sent once never changes");
}
