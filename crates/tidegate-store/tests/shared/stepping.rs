//! A group that goes step by step, because of its lanes, is on disk with its COMMIT alone: when the way to the database is
//! cut there, what became of it is read back, never guessed.

use tidegate_store::{JobStep, NewJob, Past, Selector, What};

use super::*;

/// A lane with one event that is in hand, and a group that ends this, sends more to the lane and elsewhere, and asks for more.
async fn stepping(store: &PostgresStore, is_laned: bool) -> (Vec<Route>, Group) {
    let subscriber = subscriber(store).await;
    let to = vec![Route::alone(subscriber, is_laned.then_some(7))];
    let jobs = send(store, &["0"], &to).await.jobs;
    assert_eq!(jobs.len(), 1);
    let results = jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    let refills = vec![Refill { subscriber, jobs: 10 }];
    let group = group(store, &["1", "0", "2"], &to).await;
    (to, Group { results, refills, ..group })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_adopted_with_all_its_steps() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    let (to, group) = stepping(&store, true).await;
    proxy.cut_at_next_commit(true);
    let committed = store.commit(Arc::new(group)).await.expect("it is there, and is found");
    assert!(proxy.has_cut(), "the answer was lost");
    assert_eq!(statuses(&committed), [UnitStatus::Accepted, UnitStatus::Duplicate, UnitStatus::Accepted]);
    let bodies: Vec<&[u8]> = committed.jobs.iter().map(|job| &job.body[..]).collect();
    assert_eq!(bodies, [b"{\"id\":\"1\"}"], "what it claimed is handed over, and one of a lane alone");
    assert_eq!(committed.stale, 0);
    // The results it brought count: the lane goes on behind them, in order, and nobody finds the first one due again.
    let results = committed.jobs.iter().map(|job| finished(job, Next::Delivered, NOW)).collect();
    let refills = vec![Refill { subscriber: to[0].subscriber, jobs: 10 }];
    let next = Group { now: NOW, results, refills, room: Room::new(1 << 20), ..Group::default() };
    let done = store.commit(Arc::new(next)).await.unwrap();
    assert_eq!(done.stale, 0, "its claims hold");
    let bodies: Vec<&[u8]> = done.jobs.iter().map(|job| &job.body[..]).collect();
    assert_eq!(bodies, [b"{\"id\":\"2\"}"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_never_arrived_undoes_all_its_steps() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    // Outside lanes, so that the first group is one statement and no COMMIT has gone that way before.
    let (_, group) = stepping(&store, false).await;
    let group = Arc::new(group);
    proxy.cut_at_next_commit(false);
    let refused = store.commit(Arc::clone(&group)).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert!(proxy.has_cut());
    assert!(store.event(1, "1".to_owned()).await.unwrap().is_empty());
    let again = store.commit(group).await.unwrap();
    assert_eq!(statuses(&again), [UnitStatus::Accepted, UnitStatus::Duplicate, UnitStatus::Accepted]);
    assert_eq!((again.jobs.len(), again.stale), (2, 0), "nothing of it was there before");
}

/// A step that an old configuration chose comes to nothing, and is not called written because an answer was lost: its job
/// would never be taken further.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_came_to_nothing_is_not_adopted() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let store = schema.open(&proxy.url(), NOW).await;
    let subscriber = subscriber(&store).await;
    send(&store, &["1"], &[]).await;
    let what = What::Replay { subscriber, past: Past::Any };
    let selector = Selector { what, types: Vec::new(), from: None, to: None };
    let scope = store.scope(1, selector, NOW).await.unwrap();
    let (after, until) = (scope.begin, scope.until);
    let job = store.start_job(NewJob { id: "job_1".to_owned(), scope }, NOW).await.unwrap().no;
    let version = store.configuration(0).await.unwrap().version;
    store.change(new_subscriber("other"), NOW).await.unwrap();
    let step = JobStep {
        job,
        project: 1,
        version,
        after,
        through: until,
        until,
        looked: 1,
        replays: Vec::new(),
        retries: Vec::new(),
        failure: None,
    };
    proxy.cut_at_next_commit(true);
    let group = Group { now: NOW, steps: vec![step], ..Group::default() };
    let committed = store.commit(Arc::new(group)).await.expect("it is there, and is found");
    assert!(proxy.has_cut(), "the answer was lost");
    assert!(committed.stepped.is_empty());
    assert_eq!(
        store.job_by_no(job).await.unwrap().expect("it is there").after,
        after,
        "and nothing was done"
    );
}

/// Of two groups that change the same subscribers in opposite order, none waits for the other with one of them in hand.
#[tokio::test(flavor = "multi_thread")]
async fn the_subscribers_that_a_group_changes_are_held_in_order() {
    let schema = Schema::new();
    let store = Arc::new(schema.open(schema.url(), NOW).await);
    send(&store, &["1", "2"], &[]).await;
    let mut change = new_subscriber("low");
    if let Change::CreateSubscriber(new) = &mut change {
        new.backfill_from = Some(Timestamp::from_ms(0));
    }
    let low = store.change(change, NOW).await.unwrap().no;
    let high = subscriber(&store).await;
    assert!(low < high);
    let (step, _) = store.backfill(low, 1).await.unwrap().expect("it has begun");
    let (session, looker) = (connect(&schema).await, connect(&schema).await);
    session.client.batch_execute("BEGIN").await.unwrap();
    let hold = "SELECT no FROM subscribers WHERE no = $1 FOR UPDATE NOWAIT";
    session.client.query_one(hold, &[&low]).await.unwrap();
    // It writes about the failing one first.
    let streaks = vec![(high, Some(NOW))];
    let group = Arc::new(Group { now: NOW, streaks, backfills: vec![step], ..Group::default() });
    let waiting = {
        let (store, group) = (Arc::clone(&store), Arc::clone(&group));
        tokio::spawn(async move { store.commit(group).await })
    };
    until_somebody_waits_for(&session.client, &looker.client).await;
    looker.client.query_one(hold, &[&high]).await.expect("nobody has it who waits for a lower one");
    session.client.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap().expect("it is written");
}
