//! What the log tells of folds, to whoever runs the server and to those who debug.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use crate::stage::Stage;

/// What is logged on this thread, which is where all of a scene happens.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn listening(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_max_level(level);
        let guard = tracing::subscriber::set_default(lines.with_writer(move || writer.clone()).finish());
        (log, guard)
    }

    /// The lines with these words.
    fn lines(&self, words: &str) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&log);
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

/// More keys than a project may have windows: each event closes the oldest, and the log says so once, not for each.
#[tokio::test(start_paused = true)]
async fn too_many_windows_are_warned_of_once_with_the_remedy() {
    let (log, _guard) = Log::listening(Level::INFO);
    let stage = Stage::new().await;
    stage.limit_windows(3);
    let fold = json!({"mode": "window", "window": "1h", "by": ["data.user"]});
    stage.subscribe("crowd", json!({ "fold": fold })).await;
    let post = async |n: u32| stage.post(&format!("e{n}"), "t", json!({ "user": n })).await;
    for n in 0..3 {
        post(n).await;
    }
    assert_eq!(log.lines("as many windows"), Vec::<String>::new());
    for n in 3..10 {
        post(n).await;
        stage.at(f64::from(n)).await;
    }
    assert_eq!(stage.story().len(), 7, "they closed early");
    let told = log.lines("as many windows");
    assert_eq!(told.len(), 1, "{told:?}");
    for part in ["WARN", "crowd", "fold.by", "tidegate windows"] {
        assert!(told[0].contains(part), "no {part} in {told:?}");
    }
    // It is told again when it is still so much later.
    stage.at(700.0).await;
    post(10).await;
    stage.at(701.0).await;
    assert_eq!(log.lines("as many windows").len(), 2);
}

/// A fold's life stands in the log as it happened, under the name that the API knows.
#[tokio::test(start_paused = true)]
async fn a_fold_is_ready_before_it_starts() {
    let (log, _guard) = Log::listening(Level::DEBUG);
    let stage = Stage::new().await;
    let fold = json!({"mode": "window", "window": "1s", "by": ["data.user"]});
    stage.subscribe("users", json!({ "fold": fold, "order": {"by": "data.user"} })).await;
    for n in 0..5 {
        stage.post(&format!("e{n}"), "t", json!({ "user": n })).await;
    }
    stage.at(5.0).await;
    let arrivals = stage.arrivals();
    assert_eq!(arrivals.len(), 5);
    for arrival in arrivals {
        let id = arrival.body["delivery"].as_str().expect("an id");
        let told = log.lines(id);
        let told: Vec<&str> = told
            .iter()
            .filter_map(|line| line.split("a fold is ").nth(1)?.split_whitespace().next())
            .collect();
        assert_eq!(told, ["ready", "started", "finished"], "{id}: {:?}", log.lines("a fold is"));
    }
}
