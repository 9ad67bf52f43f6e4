//! A replica loses Redis while another keeps it: nothing told is lost for long, and the rate holds for both together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_core::gate::Flow;
use tidegate_core::subscriber::Rate;
use tidegate_store::coordination::{BucketKey, Coordination, News, Postgres, Redis};

use super::proxy::{Proxy, Way};
use super::servers::{self, Database, RedisServer};

/// One replica with a way to Redis that can be closed, and one without.
struct Scene {
    database: Database,
    proxy: Proxy,
    cut_off: Arc<Redis>,
    other: Arc<Redis>,
}

async fn scene() -> Scene {
    let (database, redis) = (Database::create().await, RedisServer::connect().await);
    let url = url::Url::parse(&redis.url).expect("a URL");
    let (host, port) = (url.host_str().expect("a host"), url.port().unwrap_or(6379));
    let proxy = Proxy::to(format!("{host}:{port}")).await;
    let mut through = url.clone();
    through.set_ip_host(proxy.address.ip()).expect("an address");
    through.set_port(Some(proxy.address.port())).expect("a port");
    let cut_off = Arc::new(servers::join(&database, through.as_str(), &redis.prefix).await);
    let other = Arc::new(servers::join(&database, &redis.url, &redis.prefix).await);
    Scene { database, proxy, cut_off, other }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_go_round_a_dead_redis() {
    let _alone = servers::REDIS.lock().await;
    for way in [Way::Closed, Way::Blocked] {
        let scene = scene().await;
        scene.proxy.set(way);
        until(|| !scene.cut_off.is_connected()).await;
        scene.cut_off.tell(News::work([5]));
        assert_eq!(scene.other.hear().await, News::work([5]), "PostgreSQL carries it");
        scene.other.tell(News::configuration());
        assert!(scene.cut_off.hear().await.everything, "who hears nothing assumes something");

        scene.proxy.set(Way::Open);
        until(|| scene.cut_off.is_connected()).await;
        let mut told = 10;
        loop {
            scene.other.tell(News::work([told]));
            let news = scene.cut_off.hear().await;
            if news.subscribers.contains(&told) {
                break;
            }
            told += 1;
            assert!(told < 100, "{news:?}");
        }
        drop((scene.cut_off, scene.other));
        scene.database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_holds_when_one_of_two_loses_redis() {
    let _alone = servers::REDIS.lock().await;
    let scene = scene().await;
    let rate = Rate::parse("100/s").expect("a rate");
    let began = now();
    let both: [Arc<dyn Coordination>; 2] = [scene.cut_off.clone(), scene.other.clone()];
    let takers = both.map(|replica| tokio::spawn(take_until(replica, rate, Duration::from_secs(9))));
    for (after_ms, way) in [(500, Way::Closed), (2_500, Way::Open)] {
        until(|| began.elapsed() > Duration::from_millis(after_ms)).await;
        scene.proxy.set(way);
    }
    let mut grants: Vec<(Duration, u32)> = Vec::new();
    let mut once_an_hour = 0;
    for taker in takers {
        let (some, hourly) = taker.await.expect("taking never fails");
        grants.extend(some);
        once_an_hour += hourly;
    }
    grants.sort_unstable();
    assert!(scene.other.tally().fallbacks > 0, "the other one moved to PostgreSQL as well");
    assert!(scene.cut_off.is_connected());
    check(&grants, rate);
    assert_eq!(once_an_hour, 1, "a bucket that moves arrives empty");
    drop((scene.cut_off, scene.other));
    scene.database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_go_round_a_full_redis() {
    let _alone = servers::REDIS.lock().await;
    let (database, redis) = (Database::create().await, RedisServer::connect().await);
    let replica = servers::join(&database, &redis.url, &redis.prefix).await;
    let (bucket, rate) = (BucketKey::subscriber(1), Rate::parse("100/s").expect("a rate"));
    assert_eq!(replica.take(&bucket, rate.into(), 1).await.granted, 1);
    redis.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(replica.take(&bucket, rate.into(), 1).await.granted, 0, "Redis answers that it is full");
    while replica.take(&bucket, rate.into(), 1).await.granted == 0 {
        moment(Duration::from_millis(10)).await;
    }
    assert!(replica.tally().fallbacks > 0 && !replica.is_connected());
    redis.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    until(|| replica.is_connected()).await;
    drop(replica);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_ends_no_pause() {
    let _alone = servers::REDIS.lock().await;
    let (database, redis) = (Database::create().await, RedisServer::connect().await);
    let one = servers::join(&database, &redis.url, &redis.prefix).await;
    let other = servers::join(&database, &redis.url, &redis.prefix).await;
    let (paused, free) = (BucketKey::gate(1), BucketKey::gate(2));
    let flow = Flow::new(Rate::parse("1/h").expect("a rate"), 2);
    one.penalize(&paused, flow, Duration::from_secs(60)).await;
    let mut granted = 0;
    for _ in 0..3 {
        redis.run(&["FLUSHALL"]).await;
        for replica in [&other, &one] {
            assert_eq!(replica.take(&paused, flow, 1).await.granted, 0);
            granted += replica.take(&free, flow, 9).await.granted;
        }
    }
    let standing = other.take(&paused, flow, 0).await.standing.expect("it can be reached");
    assert!(standing.next_in > Duration::from_secs(30), "{standing:?}");
    assert!((2..=3 * 2).contains(&granted), "{granted} are not a burst each time");
    assert_eq!(other.tally().fallbacks, 0, "it stays in Redis");
    drop((one, other));
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_was_lifted_meanwhile_does_not_come_back() {
    let _alone = servers::REDIS.lock().await;
    let scene = scene().await;
    let (bucket, flow) = (BucketKey::gate(1), Flow::new(Rate::parse("100/s").expect("a rate"), 5));
    scene.other.penalize(&bucket, flow, Duration::from_secs(600)).await;
    scene.proxy.set(Way::Closed);
    until(|| !scene.cut_off.is_connected()).await;
    while !scene.cut_off.lift(&bucket, flow).await {
        moment(Duration::from_millis(20)).await;
    }
    scene.proxy.set(Way::Open);
    until(|| scene.cut_off.is_connected()).await;
    servers::takes_from_redis(&scene.cut_off).await;
    let standing = scene.other.take(&bucket, flow, 0).await.standing.expect("it can be reached");
    assert!(standing.next_in < Duration::from_secs(1), "{standing:?}");
    drop((scene.cut_off, scene.other));
    scene.database.drop().await;
}

/// One has Redis, one another one, and one none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_holds_among_replicas_that_have_different_servers() {
    let _alone = servers::REDIS.lock().await;
    let (database, redis) = (Database::create().await, RedisServer::connect().await);
    let mut elsewhere = url::Url::parse(&redis.url).expect("a URL");
    elsewhere.set_path("/5");
    let without = Postgres::start(database.target(), servers::number());
    let one = servers::join(&database, &redis.url, &redis.prefix).await;
    let other = servers::connect(&database, elsewhere.as_str(), &redis.prefix).await;
    let all: [Arc<dyn Coordination>; 3] = [Arc::new(one), Arc::new(other), Arc::new(without)];
    let rate = Rate::parse("100/s").expect("a rate");
    for some in [&all[..2], &all[..]] {
        let takers: Vec<_> = some
            .iter()
            .map(|replica| tokio::spawn(take_until(Arc::clone(replica), rate, Duration::from_secs(8))))
            .collect();
        let mut grants = Vec::new();
        for taker in takers {
            grants.extend(taker.await.expect("taking never fails").0);
        }
        grants.sort_unstable();
        check(&grants, rate);
    }
    drop(all);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_of_the_database_that_goes_back_stops_no_rate() {
    let _alone = servers::REDIS.lock().await;
    let (database, redis) = (Database::create().await, RedisServer::connect().await);
    let one = servers::join(&database, &redis.url, &redis.prefix).await;
    let other = Postgres::start(database.target(), servers::number());
    let (bucket, rate) = (BucketKey::subscriber(1), Rate::parse("1000/s").expect("a rate"));
    // The other one has no Redis, and so the buckets are in PostgreSQL while it asks.
    let both: [&dyn Coordination; 2] = [&one, &other];
    for replicas in [&both[..1], &both[..]] {
        // The clock goes back by an hour: every time that was written by it lies an hour ahead.
        database
            .run(
                "UPDATE tidegate.rate_home SET (since_us, until_us) = (
                    SELECT now_us + 3600000000, now_us + 3605000000
                    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock)",
            )
            .await;
        for replica in replicas {
            until_granted(*replica, &bucket, rate).await;
        }
    }
    drop((one, other));
    database.drop().await;
}

/// Asks until something is given, as often as it is told that it is worth it.
async fn until_granted(replica: &dyn Coordination, bucket: &BucketKey, rate: Rate) {
    for _ in 0..60 {
        let grant = replica.take(bucket, rate.into(), 1).await;
        if grant.granted > 0 {
            return;
        }
        assert!(grant.next_in <= Duration::from_secs(2), "nobody waits for a clock: {grant:?}");
        moment(grant.next_in.max(Duration::from_millis(10))).await;
    }
    panic!("nothing is given");
}

/// Takes what it can get. Says when it got how much, and how much of what there is once an hour.
async fn take_until(
    replica: Arc<dyn Coordination>,
    rate: Rate,
    end: Duration,
) -> (Vec<(Duration, u32)>, u32) {
    let began = now();
    let hourly = Rate::parse("1/h").expect("a rate");
    let (mut grants, mut once_an_hour) = (Vec::new(), 0);
    while began.elapsed() < end {
        let grant = replica.take(&BucketKey::subscriber(1), rate.into(), 10).await;
        if grant.granted > 0 {
            grants.push((began.elapsed(), grant.granted));
        }
        once_an_hour += replica.take(&BucketKey::subscriber(2), hourly.into(), 10).await.granted;
        moment(grant.next_in.max(Duration::from_millis(1))).await;
    }
    (grants, once_an_hour)
}

/// Over any stretch of time, no more than a burst and the rate's worth of it, give or take how long an answer travels; and
/// the rate was used before and after.
fn check(grants: &[(Duration, u32)], rate: Rate) {
    const TRAVEL: Duration = Duration::from_millis(250);
    for (first, (from, _)) in grants.iter().enumerate() {
        let mut total = 0;
        for (at, granted) in &grants[first..] {
            total += granted;
            let flow = (*at - *from + TRAVEL).as_micros() / rate.interval().as_micros() + 1;
            let most = u128::from(rate.burst()) + flow;
            assert!(u128::from(total) <= most, "{total} between {from:?} and {at:?}, {most} at most");
        }
    }
    let total: u32 = grants.iter().map(|(_, granted)| granted).sum();
    assert!(total > 400, "only {total}: moving takes too long");
}

async fn until(mut done: impl FnMut() -> bool) {
    let patience = now();
    while !done() {
        assert!(patience.elapsed() < Duration::from_secs(30), "it does not happen");
        moment(Duration::from_millis(1)).await;
    }
}

/// Lets others go on.
async fn moment(duration: Duration) {
    tokio::time::timeout(duration, std::future::pending::<()>()).await.ok();
}

#[expect(clippy::disallowed_methods, reason = "rates of real servers are judged by real time")]
fn now() -> Instant {
    Instant::now()
}
