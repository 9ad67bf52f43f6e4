//! However long a window gathers, a start finds it as it was and reads a bounded number of events for it.

use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use tidegate_core::fold::{Appending, CancelOn, Key, Mode, Terms, Window};
use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::TELLING_EVENTS_PER_WINDOW;
use tidegate_core::payload::Payload;
use tidegate_core::route::Route;
use tidegate_core::time::Span;

use super::{NOW, open};
use crate::conformance::Scratch;
use crate::conformance::bench::{Draft, PROJECT, draft, new_subscriber, submission};
use crate::sqlite::{SqliteStore, telling};
use crate::{Change, Group, Room, Store};

/// Windows that stay open.
const KEYS: usize = 5;
/// Events of one commit.
const GROUP: usize = 4;
/// Events of a round: a window's share for each of them and for the end.
const ROUND: usize = (KEYS + 1) * TELLING_EVENTS_PER_WINDOW;

pub(super) fn folded(n: usize, subscriber: SubscriberNo) -> Draft {
    let mode = Mode::Quiet { quiet: Span::from_ms(60_000), max_wait: Span::from_ms(3_600_000) };
    let terms = Terms {
        mode,
        max_events: 10_000,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::Never,
        payload: Payload::Full,
    };
    // The first key is heard of once, then never again.
    let key = Key::from_text(&if n < KEYS { n } else { 1 + n * 7 / 3 % (KEYS - 1) }.to_string());
    let fold = Appending { key, terms: Arc::new(terms), cancels: Vec::new() };
    let mut draft = draft(format!("e{n}"));
    draft.routes.push(Route::folded(subscriber, None, fold));
    draft
}

fn windows(store: &SqliteStore) -> Vec<Window> {
    let book = store.book.lock().unwrap_or_else(PoisonError::into_inner);
    book.of_project(PROJECT).cloned().collect()
}

/// Events that a start would read, and that there are.
fn to_read(dir: &Scratch) -> (usize, usize) {
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    let count = |after| {
        let sql = "SELECT count(*) FROM events WHERE seq > ?1";
        conn.query_row(sql, [after], |row| row.get::<_, usize>(0)).unwrap()
    };
    (count(telling::mark(&conn).unwrap()), count(0))
}

#[tokio::test]
async fn a_start_reads_few_events_and_finds_every_window() {
    let dir = Scratch::new();
    let mut store = open(&dir).unwrap();
    let to = store.change(Change::CreateSubscriber(new_subscriber("s")), NOW).await.unwrap().no;
    let version = store.configuration(i64::MAX).await.unwrap().version;
    for commit in 0..300 {
        store.writer.lock().unwrap_or_else(PoisonError::into_inner).telling.events_min = 1;
        let drafts = (0..GROUP).map(|n| folded(commit * GROUP + n, to));
        let submissions = vec![submission(drafts)];
        let group = Group { submissions, now: NOW, version, room: Room::default(), ..Group::default() };
        store.commit(Arc::new(group)).await.unwrap();
        let (read, all) = to_read(&dir);
        assert!(read <= 2 * ROUND + GROUP, "{read} of {all} events after commit {commit}");
        // Lives that are shorter than a round, and then longer ones.
        if commit % (if commit < 100 { 7 } else { 21 }) == 0 {
            let before = windows(&store);
            drop(store);
            store = open(&dir).unwrap();
            assert_eq!(windows(&store), before, "after commit {commit}");
        }
    }
    let held: usize = windows(&store).iter().map(|window| window.count as usize).sum();
    assert_eq!((windows(&store).len(), held), (KEYS, 300 * GROUP));
}
