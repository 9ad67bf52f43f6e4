//! Lines at a bucket, on several replicas: who has waited longest is served first, and nobody waits for those who do not come.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::gate::Flow;
use tidegate_core::time::Timestamp;

use super::super::{BucketKey, timer};
use super::{Fixture, REPLICAS, bucket, join, look, rate, within_bound};

/// Lines of three replicas, at each of which somebody becomes ready in turn: nobody is overtaken, whoever asks first.
pub(super) async fn first_come_first_served(fixture: &dyn Fixture) {
    const EACH: i64 = 6;
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("served"), Flow::from(rate("20/s")));
    // Whoever asks for the first time has to connect, which may take longer than a token.
    for replica in &replicas {
        look(replica, &bucket, flow).await;
    }
    replicas[0].take(&bucket, flow, flow.burst()).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut lines = tokio::task::JoinSet::new();
    for (n, replica) in replicas.iter().enumerate() {
        let (replica, bucket, order) = (Arc::clone(replica), bucket.clone(), Arc::clone(&order));
        // One after the other, and each of them a little later than it was told.
        let firsts = (0..EACH).map(move |round| round * REPLICAS as i64 + n as i64);
        lines.spawn(async move {
            for first in firsts {
                loop {
                    let grant = replica.take_in_line(&bucket, flow, 1, Some(at(first))).await;
                    if grant.granted > 0 {
                        order.lock().unwrap_or_else(PoisonError::into_inner).push(first);
                        break;
                    }
                    timer::pause(grant.next_in + Duration::from_millis(n as u64)).await;
                }
            }
        });
    }
    while let Some(ended) = lines.join_next().await {
        ended.expect("taking never fails");
    }
    let order = order.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let later = |place: usize| order[..place].iter().filter(|other| **other > order[place]).count();
    let overtaken = (0..order.len()).map(later).max().unwrap_or(0);
    // A busy machine may be too late for its token.
    assert!(overtaken <= 2, "{order:?}");
}

pub(super) async fn who_waits_longest_is_served_first(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let flow = Flow::new(rate("2/s"), 2);
    undisturbed("longest", flow, async |bucket| {
        assert_eq!(replicas[0].take(&bucket, flow, 2).await.granted, 2);
        let told = replicas[0].take_in_line(&bucket, flow, 1, Some(at(9))).await;
        assert_eq!(told.granted, 0);
        assert!(replicas[1].take_in_line(&bucket, flow, 1, Some(at(5))).await.next_in <= told.next_in);
        assert_eq!(replicas[2].take(&bucket, flow, 0).await.first, Some(at(5)), "all know how long it takes");
        timer::pause(told.next_in).await;
        let mut later = Vec::new();
        for younger in [&replicas[0], &replicas[2]] {
            later.push(younger.take_in_line(&bucket, flow, 1, Some(at(9))).await);
        }
        let longest = replicas[1].take_in_line(&bucket, flow, 1, Some(at(5))).await;
        let after = replicas[0].take_in_line(&bucket, flow, 1, Some(at(9))).await;
        move || {
            for later in later {
                assert_eq!((later.granted, later.next_in), (0, flow.moment()), "somebody else is next");
                assert_eq!(later.standing.expect("it is there").tokens, 1, "and the token is still there");
            }
            assert_eq!(longest.granted, 1);
            assert!(after.granted == 0 && after.next_in > flow.moment(), "{after:?}");
        }
    })
    .await;
}

pub(super) async fn one_that_does_not_come_costs_a_moment(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let flow = Flow::new(rate("5/s"), 5);
    let (began, bucket) = undisturbed("absent", flow, async |bucket| {
        assert_eq!(replicas[0].take(&bucket, flow, 5).await.granted, 5);
        let told = replicas[0].take_in_line(&bucket, flow, 1, Some(at(1))).await;
        timer::pause(told.next_in).await;
        let began = timer::now();
        let first = replicas[1].take_in_line(&bucket, flow, 1, Some(at(2))).await;
        move || {
            assert_eq!(first.granted, 0, "it steps back");
            (began, bucket)
        }
    })
    .await;
    let mut looks = 1;
    while replicas[1].take_in_line(&bucket, flow, 1, Some(at(2))).await.granted == 0 {
        looks += 1;
        timer::pause(flow.moment()).await;
    }
    let patience = timer::duration(flow.patience_us());
    assert!(began.elapsed() >= patience && looks <= 20, "{looks} in {:?}", began.elapsed());
    let wait = replicas[1].take_in_line(&bucket, flow, 1, Some(at(3))).await;
    timer::pause(if wait.granted == 0 { wait.next_in } else { Duration::ZERO }).await;
    let next = replicas[2].take_in_line(&bucket, flow, 1, Some(at(3))).await;
    assert!(wait.granted + next.granted > 0 || next.next_in == flow.moment(), "{next:?}");
    assert_eq!(replicas[1].take_in_line(&bucket, flow, 0, Some(at(9))).await.granted, 0);
}

pub(super) async fn an_empty_line_is_not_waited_for(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let flow = Flow::new(rate("5/s"), 5);
    undisturbed("deserted", flow, async |bucket| {
        assert_eq!(replicas[0].take(&bucket, flow, 5).await.granted, 5);
        let told = replicas[0].take_in_line(&bucket, flow, 1, Some(at(1))).await;
        replicas[1].take_in_line(&bucket, flow, 0, Some(at(2))).await;
        timer::pause(told.next_in).await;
        let waits = replicas[1].take_in_line(&bucket, flow, 1, Some(at(2))).await;
        replicas[0].take_in_line(&bucket, flow, 0, Some(at(2))).await;
        let alone = replicas[1].take_in_line(&bucket, flow, 1, Some(at(2))).await;
        move || assert_eq!((waits.next_in, alone.granted), (flow.moment(), 1))
    })
    .await;
}

/// Does something with a bucket until a token has come, and judges it. If the machine stood still so long meanwhile that the
/// token may not have been kept, or another has come, that proves nothing: it is done again, with another bucket.
async fn undisturbed<T, J: FnOnce() -> T>(name: &str, flow: Flow, case: impl AsyncFn(BucketKey) -> J) -> T {
    let token = flow.interval(8);
    let kept = timer::duration(flow.patience_us()).min(token) / 2;
    for attempt in 0..20 {
        let began = timer::now();
        let judge = case(bucket(&format!("{name} {attempt}"))).await;
        if began.elapsed() < token + kept {
            return judge();
        }
    }
    panic!("{name}: this machine is never quick enough");
}

/// Three long lines take together what a fast bucket gives: nobody is waited for in vain.
pub(super) async fn a_fast_bucket_is_emptied_by_lines_too(fixture: &dyn Fixture) {
    const SPAN: Duration = Duration::from_millis(600);
    let replicas = join(fixture).await;
    let (rate, bucket) = (rate("1000/s"), bucket("fast"));
    let flow = Flow::from(rate);
    let began = timer::now();
    replicas[0].take(&bucket, flow, flow.burst()).await;
    let mut lines = tokio::task::JoinSet::new();
    for (n, replica) in replicas.iter().enumerate() {
        let (replica, bucket) = (Arc::clone(replica), bucket.clone());
        lines.spawn(async move {
            let (mut taken, mut first) = (0, n as i64);
            while began.elapsed() < SPAN {
                let grant = replica.take_in_line(&bucket, flow, 1_000, Some(at(first))).await;
                (taken, first) = (taken + u64::from(grant.granted), first + i64::from(grant.granted) * 3);
                if grant.granted == 0 {
                    timer::pause(grant.next_in.max(Duration::from_millis(1))).await;
                }
            }
            taken
        });
    }
    let taken: Vec<u64> = lines.join_all().await;
    let total: u64 = taken.iter().sum();
    within_bound(total, rate, 0, began.elapsed());
    assert!(total >= 200, "{taken:?} in {:?}", began.elapsed());
    assert!(taken.iter().all(|taken| *taken > 0), "{taken:?}");
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_ms(ms)
}
