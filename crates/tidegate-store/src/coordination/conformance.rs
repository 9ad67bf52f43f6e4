//! The contract of coordination, executable: every way passes every case, on real servers.
//!
//! A case gets replicas from a [`Fixture`], which can also end their connections and empty what the server remembers. Rates
//! are judged by the time that really passed: what was granted is at most a burst and the rate's worth of it.

mod lines;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::{Flow, Standing};
use tidegate_core::subscriber::Rate;

use super::{BucketKey, Coordination, News, timer};

/// How a case gets at replicas. One fixture is one installation.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// One more replica, connected, with nothing left to hear.
    async fn join(&self) -> Arc<dyn Coordination>;
    /// Whether replicas have connections, which can be lost.
    fn has_connections(&self) -> bool;
    /// Ends the connections of all replicas; they may connect again.
    async fn cut(&self);
    /// Empties whatever the server remembers.
    async fn wipe(&self);
}

/// Replicas in a case.
const REPLICAS: usize = 3;
/// Those who take at once, on each replica.
const TAKERS: usize = 6;
/// From one message to the next, with a little less than promised for the grain of timers.
const SPACING: Duration = Duration::from_millis(4);

/// Runs every case. Panics where the contract is broken.
pub async fn run(fixture: &dyn Fixture) {
    tellings_reach_all_others(fixture).await;
    many_tellings_are_few_messages(fixture).await;
    a_bucket_gives_a_burst_and_then_its_rate(fixture).await;
    buckets_do_not_mix(fixture).await;
    a_new_rate_holds_at_once(fixture).await;
    takers_stay_within_the_rate(fixture).await;
    a_wiped_bucket_costs_one_burst(fixture).await;
    a_burst_is_what_it_is_said_to_be(fixture).await;
    lines::first_come_first_served(fixture).await;
    lines::who_waits_longest_is_served_first(fixture).await;
    lines::one_that_does_not_come_costs_a_moment(fixture).await;
    lines::an_empty_line_is_not_waited_for(fixture).await;
    lines::a_fast_bucket_is_emptied_by_lines_too(fixture).await;
    a_penalty_is_seen_by_all_and_ends(fixture).await;
    a_penalty_can_be_lifted_by_anybody(fixture).await;
    a_bucket_recovers_step_by_step(fixture).await;
    a_wiped_penalty_heals(fixture).await;
    no_stretch_sees_more_than_a_burst_and_the_rate(fixture).await;
    if fixture.has_connections() {
        after_a_gap_there_may_be_anything(fixture).await;
        takers_survive_lost_connections(fixture).await;
    }
}

async fn tellings_reach_all_others(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let news = News { jobs: true, gates: [3].into(), ..News::work([1, 2]) };
    replicas[0].tell(news.clone());
    for other in &replicas[1..] {
        assert_eq!(other.hear().await, news);
    }
    replicas[1].tell(News::configuration());
    assert_eq!(replicas[0].hear().await, News::configuration(), "and nothing of its own");
    assert_eq!(replicas[2].hear().await, News::configuration());
}

async fn many_tellings_are_few_messages(fixture: &dyn Fixture) {
    const TELLING: Duration = Duration::from_millis(100);
    const SUBSCRIBERS: i64 = 100;
    let replicas = join(fixture).await;
    let began = timer::now();
    let sent = replicas[0].tally().sent;
    let mut tellings = 0;
    while tellings < SUBSCRIBERS || began.elapsed() < TELLING {
        replicas[0].tell(News::work([tellings % SUBSCRIBERS]));
        tellings += 1;
        tokio::task::yield_now().await;
    }
    replicas[0].tell(News::configuration());
    let mut all = News::default();
    while !(all.configuration && all.subscribers == (0..SUBSCRIBERS).collect::<BTreeSet<_>>()) {
        let news = replicas[1].hear().await;
        assert!(!news.everything, "nothing was lost");
        all.merge(news);
    }
    let most = began.elapsed().as_micros() / SPACING.as_micros() + 2;
    let messages = u128::from(replicas[0].tally().sent - sent);
    assert!(messages <= most, "{messages} messages of {tellings} tellings, {most} at most");
}

async fn after_a_gap_there_may_be_anything(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    fixture.cut().await;
    for replica in &replicas {
        hear_everything(replica).await;
    }
    // From here on they hear each other again. What was told while one was being connected is in its everything.
    let mut round = 0;
    loop {
        round += 1;
        replicas[0].tell(News::work([round]));
        let news = replicas[1].hear().await;
        if news.subscribers.contains(&round) {
            break;
        }
        assert!(round < 50, "{news:?} instead of what was told");
    }
}

async fn a_bucket_gives_a_burst_and_then_its_rate(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (bucket, rate) = (bucket("burst"), rate("20/s"));
    let began = timer::now();
    let first = replicas[0].take(&bucket, rate.into(), 100).await;
    assert_eq!(first.granted, rate.burst(), "a new bucket is full");
    assert!(first.next_in > Duration::ZERO && first.next_in <= rate.interval(), "{first:?}");
    let mut total = u64::from(first.granted);
    for replica in replicas.iter().cycle().take(30) {
        let grant = replica.take(&bucket, rate.into(), 100).await;
        total += u64::from(grant.granted);
        assert!(grant.next_in > Duration::ZERO && grant.next_in <= rate.interval(), "{grant:?}");
    }
    within_bound(total, rate, 1, began.elapsed());
    let wait = replicas[1].take(&bucket, rate.into(), 1).await;
    if wait.granted == 0 {
        timer::pause(wait.next_in).await;
        assert_eq!(replicas[2].take(&bucket, rate.into(), 1).await.granted, 1, "it said so");
    }
}

async fn buckets_do_not_mix(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let hourly = Flow::from(rate("1/h"));
    for name in ["one", "two"] {
        assert_eq!(replicas[0].take(&bucket(name), hourly, 1).await.granted, 1);
        let again = replicas[1].take(&bucket(name), hourly, 1).await;
        assert_eq!(again.granted, 0);
        assert!(again.next_in > Duration::from_secs(3_500), "{again:?}");
    }
}

async fn a_new_rate_holds_at_once(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let bucket = bucket("changed");
    assert_eq!(replicas[0].take(&bucket, rate("1/h").into(), 1).await.granted, 1);
    let wait = replicas[0].take(&bucket, rate("100/s").into(), 1).await;
    assert!(
        wait.granted == 1 || wait.next_in <= Duration::from_millis(10),
        "{wait:?}: an hour's wait is no more"
    );
}

async fn takers_stay_within_the_rate(fixture: &dyn Fixture) {
    let (total, elapsed) = take_for(fixture, "bound", 300, async {}).await;
    within_bound(total, rate("200/s"), 1, elapsed);
    assert!(elapsed < Duration::from_secs(10), "waiting for {elapsed:?} is no way to keep 200/s");
}

async fn a_wiped_bucket_costs_one_burst(fixture: &dyn Fixture) {
    let (total, elapsed) = take_for(fixture, "wiped", 600, fixture.wipe()).await;
    within_bound(total, rate("200/s"), 2, elapsed);
}

async fn takers_survive_lost_connections(fixture: &dyn Fixture) {
    let (total, elapsed) = take_for(fixture, "cut", 600, fixture.cut()).await;
    within_bound(total, rate("200/s"), 1, elapsed);
}

async fn a_burst_is_what_it_is_said_to_be(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("deep"), Flow::new(rate("1/h"), 7));
    assert_eq!(look(&replicas[1], &bucket, flow).await.tokens, 7);
    assert_eq!(replicas[0].take(&bucket, flow, 5).await.granted, 5);
    let left = replicas[1].take(&bucket, flow, 5).await;
    assert_eq!((left.granted, left.standing.expect("it is there").tokens), (2, 0));
    assert_eq!(
        look(&replicas[2], &bucket, Flow::new(rate("1/h"), 9)).await.tokens,
        0,
        "no deeper than it was"
    );
}

async fn a_penalty_is_seen_by_all_and_ends(fixture: &dyn Fixture) {
    const LASTS: Duration = Duration::from_millis(400);
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("penalised"), Flow::new(rate("100/s"), 100));
    let began = timer::now();
    replicas[0].penalize(&bucket, flow, LASTS).await;
    replicas[1].penalize(&bucket, flow, LASTS / 8).await;
    let standing = look(&replicas[2], &bucket, flow).await;
    assert!(standing.penalized_for <= LASTS, "{standing:?}");
    let mut is_over = false;
    while !is_over {
        for replica in &replicas {
            let grant = replica.take(&bucket, flow, 100).await;
            is_over |= grant.granted > 0;
            if grant.granted > 0 {
                assert!(began.elapsed() >= LASTS, "{grant:?} after {:?}", began.elapsed());
                let since = began.elapsed() - LASTS;
                let most = 1 + since.as_micros() * 100 / 8 / 1_000_000 + 1;
                assert!(u128::from(grant.granted) <= most, "{grant:?}: one, and then slowly more");
                break;
            }
            assert!(grant.next_in <= LASTS, "{grant:?}");
        }
        timer::pause(Duration::from_millis(5)).await;
    }
    assert!(began.elapsed() < LASTS * 10, "{:?}", began.elapsed());
    assert_eq!(look(&replicas[1], &bucket, flow).await.eighths, 1);
}

async fn a_penalty_can_be_lifted_by_anybody(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("lifted"), Flow::new(rate("1/s"), 100));
    assert!(replicas[0].lift(&bucket, flow).await, "one that is not there");
    assert_eq!(look(&replicas[1], &bucket, flow).await.eighths, 8);
    replicas[0].penalize(&bucket, flow, Duration::from_secs(3_600)).await;
    assert!(look(&replicas[2], &bucket, flow).await.penalized_for > Duration::from_secs(3_500));
    for replica in [&replicas[1], &replicas[2]] {
        assert!(replica.lift(&bucket, flow).await);
        let standing = look(&replicas[0], &bucket, flow).await;
        assert_eq!((standing.penalized_for, standing.eighths), (Duration::ZERO, 1));
    }
    assert_eq!(replicas[0].take(&bucket, flow, 100).await.granted, 1, "one, and then slowly more");
    replicas[1].penalize(&bucket, flow, Duration::from_secs(60)).await;
    assert_eq!(replicas[2].take(&bucket, flow, 1).await.granted, 0, "it can be penalised again");
}

async fn a_bucket_recovers_step_by_step(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("recovering"), Flow::new(rate("800/s"), 800));
    let (began, mut total) = (timer::now(), 0);
    replicas[0].penalize(&bucket, flow, Duration::from_millis(1)).await;
    while began.elapsed() < Duration::from_millis(500) || total < 20 {
        assert!(began.elapsed() < Duration::from_secs(10), "{total}");
        total += replicas[1].take(&bucket, flow, 800).await.granted;
        timer::pause(Duration::from_millis(5)).await;
    }
    // An eighth of the rate, and the one that goes when a penalty ends.
    within_bound(total.into(), rate("100/s"), 0, began.elapsed() + Duration::from_millis(20));
}

async fn a_wiped_penalty_heals(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (bucket, flow) = (bucket("wiped penalty"), Flow::new(rate("1/h"), 3));
    replicas[0].penalize(&bucket, flow, Duration::from_secs(60)).await;
    fixture.wipe().await;
    let mut granted = 0;
    for replica in replicas.iter().cycle().take(9) {
        granted += replica.take(&bucket, flow, 3).await.granted;
    }
    assert!(granted <= 3, "{granted} are more than a burst");
    replicas[1].penalize(&bucket, flow, Duration::from_secs(60)).await;
    let grant = replicas[2].take(&bucket, flow, 1).await;
    assert_eq!(grant.granted, 0, "it can be penalised again");
}

/// Every stretch between two askings, not only from the beginning.
async fn no_stretch_sees_more_than_a_burst_and_the_rate(fixture: &dyn Fixture) {
    let replicas = join(fixture).await;
    let (rate, burst) = (rate("100/s"), 5);
    let began = timer::now();
    let mut takers = tokio::task::JoinSet::new();
    for (n, replica) in replicas.iter().enumerate() {
        let (replica, bucket) = (Arc::clone(replica), bucket("stretches"));
        takers.spawn(async move {
            let mut taken = Vec::new();
            for round in 0..60_u64 {
                let asked = began.elapsed();
                let grant = replica.take(&bucket, Flow::new(rate, burst), 5).await;
                taken.push((asked, began.elapsed(), grant.granted));
                timer::pause(Duration::from_millis((round * 7 + n as u64 * 5) % 40)).await;
            }
            taken
        });
    }
    let mut all = takers.join_all().await.concat();
    all.sort_unstable_by_key(|(_, answered, _)| *answered);
    for (first, (from, ..)) in all.iter().enumerate() {
        let mut total = 0;
        for (_, until, granted) in all[first..].iter().filter(|(asked, ..)| asked >= from) {
            total += u64::from(*granted);
            let most =
                u128::from(burst) + until.saturating_sub(*from).as_micros() / rate.interval().as_micros() + 1;
            assert!(u128::from(total) <= most, "{total} from {from:?} to {until:?}, {most} at most");
        }
    }
}

async fn look(replica: &Arc<dyn Coordination>, bucket: &BucketKey, flow: Flow) -> Standing {
    replica.take(bucket, flow, 0).await.standing.expect("it can be reached")
}

/// Takes tokens at 200 a second on all replicas at once until so many were granted, with something happening after the first
/// half; says how many it really were and how long it took.
async fn take_for(
    fixture: &dyn Fixture,
    name: &str,
    enough: u64,
    event: impl Future<Output = ()>,
) -> (u64, Duration) {
    let replicas = join(fixture).await;
    let total = Arc::new(AtomicU64::new(0));
    let began = timer::now();
    let mut takers = tokio::task::JoinSet::new();
    for taker in 0..REPLICAS * TAKERS {
        let replica = Arc::clone(&replicas[taker % REPLICAS]);
        let (bucket, total) = (bucket(name), Arc::clone(&total));
        let wanted = u32::try_from(taker % 4 + 1).unwrap_or(1);
        takers.spawn(async move {
            while total.load(Ordering::Relaxed) < enough {
                let grant = replica.take(&bucket, rate("200/s").into(), wanted).await;
                total.fetch_add(u64::from(grant.granted), Ordering::Relaxed);
                if grant.granted == 0 {
                    timer::pause(grant.next_in.max(Duration::from_millis(1))).await;
                }
            }
        });
    }
    while total.load(Ordering::Relaxed) < enough / 2 {
        timer::pause(Duration::from_millis(1)).await;
    }
    event.await;
    while let Some(ended) = takers.join_next().await {
        ended.expect("taking never fails");
    }
    (total.load(Ordering::Relaxed), began.elapsed())
}

/// What a rate allows over a time, with so many bursts. One more may be due at the very end.
fn within_bound(total: u64, rate: Rate, bursts: u32, elapsed: Duration) {
    let flow = elapsed.as_micros() / rate.interval().as_micros() + 1;
    let most = u128::from(bursts * rate.burst()) + flow;
    assert!(u128::from(total) <= most, "{total} were granted in {elapsed:?}, {most} at most");
}

async fn hear_everything(replica: &Arc<dyn Coordination>) {
    while !replica.hear().await.everything {}
}

async fn join(fixture: &dyn Fixture) -> Vec<Arc<dyn Coordination>> {
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(fixture.join().await);
    }
    replicas
}

fn bucket(name: &str) -> BucketKey {
    BucketKey(name.to_owned())
}

fn rate(text: &str) -> Rate {
    Rate::parse(text).expect("a rate")
}
