//! Coordination by Redis, on top of PostgreSQL, for those who have one.
//!
//! Redis carries the messages and keeps the buckets, by a script on its own clock, in keys that expire when they are full.
//! It holds nothing that could not be lost: emptied, it costs a burst, and pauses are brought back from PostgreSQL, which keeps
//! them as well. Out of reach or too slow, it is left alone and tried again in the background; until then PostgreSQL carries the
//! messages, and all replicas together take from its buckets ([`home`](super::home)); so they do while replicas have different
//! servers. Who can not hear Redis assumes once a second that something was said.
//!
//! One connection does all: it speaks RESP3, in which messages come between answers, so Redis must be 6 or newer. A
//! Redis Cluster is not understood.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult, Script, TlsCertificates, Value,
};
use ring::digest;
use tidegate_core::gate::{ASTRAY_US, Basin, Flow, Front, Given, PENALTY_MAX_US, Reservoir, STEP_US, TOKEN};
use tidegate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use url::Url;

use super::home::{self, Home, Mark};
use super::mailbox::Mailbox;
use super::postgres::SPACING;
use super::scripts::{ASK, MOVE_IN};
use super::timer::{self, Backoff};
use super::tokens::{Moving, Wish};
use super::{BucketKey, Coordination, Grant, News, Postgres, Tally};
use crate::{Error, Result};

/// How long Redis may take to answer: longer, and it is no faster than PostgreSQL.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// How often a silent connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How often somebody who hears nothing assumes that there was something.
const DEAF_EVERY: Duration = Duration::from_secs(1);
/// The key that says since when the buckets are here.
const HOME: &str = "home";
/// What a bucket answers that is not here.
const ELSEWHERE: i64 = -2;

/// One replica's end.
pub struct Redis {
    shared: Arc<Shared>,
    postgres: Arc<Postgres>,
    tasks: [JoinHandle<()>; 2],
}

struct Shared {
    client: Client,
    me: u64,
    /// Of every key and of the channel.
    prefix: String,
    ask: Script,
    move_in: Script,
    /// The connection, while it works.
    link: Mutex<Option<Link>>,
    connections: AtomicU64,
    /// It works no longer.
    lost: Notify,
    inbox: Mailbox,
    outbox: Mailbox,
    mark: tokio::sync::Mutex<Option<Mark>>,
    /// Somebody takes tokens here.
    takes: AtomicBool,
    /// It has been told that others have another Redis.
    differs: AtomicBool,
    sent: AtomicU64,
    heard: AtomicU64,
    gaps: AtomicU64,
    fallbacks: AtomicU64,
}

/// A connection, told from those before it: what ends late must not be taken for the end of its successor.
#[derive(Clone)]
struct Link {
    no: u64,
    connection: MultiplexedConnection,
    /// Which Redis it leads to, never 0.
    identity: i64,
}

impl Redis {
    /// Begins to connect, and goes on until it is dropped. `prefix` is the installation's, `me` different for each
    /// replica; `postgres` is the same for nobody else.
    pub fn start(url: &str, prefix: &str, me: u64, postgres: Postgres) -> Result<Self> {
        let shared = Arc::new(Shared {
            client: client(url)?,
            me,
            prefix: format!("tidegate:{prefix}:"),
            ask: Script::new(ASK),
            move_in: Script::new(MOVE_IN),
            link: Mutex::default(),
            connections: AtomicU64::new(0),
            lost: Notify::new(),
            inbox: Mailbox::default(),
            outbox: Mailbox::default(),
            mark: tokio::sync::Mutex::default(),
            takes: AtomicBool::new(false),
            differs: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
        });
        let postgres = Arc::new(postgres);
        let tasks = [
            tokio::spawn(keep_connected(Arc::clone(&shared), Arc::clone(&postgres))),
            tokio::spawn(keep_telling(Arc::clone(&shared), Arc::clone(&postgres))),
        ];
        Ok(Self { shared, postgres, tasks })
    }

    async fn ask(&self, bucket: &BucketKey, flow: Flow, wish: Wish) -> Grant {
        self.shared.takes.store(true, Ordering::Relaxed);
        let link = self.shared.link();
        let Some(mark) = self.shared.fresh_mark(&self.postgres, link.as_ref()).await else {
            // Where the buckets are is not known while PostgreSQL can not be asked.
            return Grant::nothing_for(home::FRESH);
        };
        match (mark.home(timer::now()), link) {
            (Home::Nowhere(wait), _) => Grant::nothing_for(wait),
            (Home::Postgres { since_us }, _) => {
                self.shared.fallbacks.fetch_add(1, Ordering::Relaxed);
                self.postgres.ask_since(bucket, flow, wish, since_us).await
            }
            (Home::Redis, Some(mut link)) => match self.ask_redis(&mut link, &mark, bucket, flow, wish).await
            {
                Ok(grant) => grant,
                Err(error) => {
                    self.shared.give_up(link.no, &error.to_string());
                    self.shared.move_buckets(&self.postgres).await;
                    Grant::nothing_for(home::QUIET)
                }
            },
            // The mark ran out while it was waited for.
            (Home::Redis, None) => Grant::nothing_for(ANSWER_TIMEOUT),
        }
    }

    /// Asks a bucket in Redis; moves the buckets in first, if nobody has since they came back or Redis has been emptied.
    async fn ask_redis(
        &self,
        link: &mut Link,
        mark: &Mark,
        bucket: &BucketKey,
        flow: Flow,
        wish: Wish,
    ) -> RedisResult<Grant> {
        let stay = mark.stay();
        if let Some(grant) = self.shared.ask(link, &stay, bucket, flow, wish).await? {
            return Ok(grant);
        }
        let Some(basins) = self.postgres.basins().await else { return Ok(Grant::nothing_for(home::FRESH)) };
        if mark.age(timer::now()) >= home::FRESH {
            // Meanwhile somebody may have moved them away.
            return Ok(Grant::nothing_for(ANSWER_TIMEOUT));
        }
        self.shared.move_in(link, &stay, &basins).await?;
        let grant = self.shared.ask(link, &stay, bucket, flow, wish).await?;
        Ok(grant.unwrap_or(Grant::nothing_for(ANSWER_TIMEOUT)))
    }

    /// Whether Redis answers.
    pub fn is_connected(&self) -> bool {
        self.shared.link().is_some()
    }
}

/// Understands a URL, or says what is wrong with it. With `rediss`, `sslrootcert` names a file of certificates to trust
/// instead of the public ones, as for PostgreSQL.
pub(crate) fn client(url: &str) -> Result<Client> {
    let unusable = |error: RedisError| Error::Unusable(format!("the URL of Redis can not be used: {error}"));
    let info = url.into_connection_info().map_err(unusable)?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    let parsed = Url::parse(url).ok();
    let root = parsed.as_ref().and_then(|url| url.query_pairs().find(|(name, _)| name == "sslrootcert"));
    let Some((_, path)) = root else { return Client::open(info).map_err(unusable) };
    let unreadable = |error| Error::Unusable(format!("cannot read the certificates in {path}: {error}"));
    let root_cert = Some(std::fs::read(&*path).map_err(unreadable)?);
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert }).map_err(unusable)
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[async_trait]
impl Coordination for Redis {
    fn tell(&self, news: News) {
        self.shared.outbox.put(news);
    }

    async fn hear(&self) -> News {
        let mut news = tokio::select! {
            biased;
            news = self.shared.inbox.wait() => news,
            news = self.postgres.hear() => news,
        };
        news.merge(self.shared.inbox.take());
        news.merge(self.postgres.heard());
        news
    }

    async fn take_in_line(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wanted: u32,
        since: Option<Timestamp>,
    ) -> Grant {
        self.ask(bucket, flow, Wish::tokens(wanted, since, self.shared.me.cast_signed())).await
    }

    /// Kept in both places, so that a bucket that moves stays closed.
    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration) {
        let wish = Wish::penalty(lasts);
        self.ask(bucket, flow, wish).await;
        self.postgres.ask_since(bucket, flow, wish, 0).await;
    }

    /// In both places as well. A Redis that can not be reached now may still know of the penalty when it is back.
    async fn lift(&self, bucket: &BucketKey, flow: Flow) -> bool {
        let asked = self.ask(bucket, flow, Wish::lift()).await;
        self.postgres.lift(bucket, flow).await && asked.standing.is_some()
    }

    fn is_connected_to_redis(&self) -> Option<bool> {
        Some(self.is_connected())
    }

    fn tally(&self) -> Tally {
        let below = self.postgres.tally();
        Tally {
            sent: below.sent + self.shared.sent.load(Ordering::Relaxed),
            heard: below.heard + self.shared.heard.load(Ordering::Relaxed),
            gaps: below.gaps + self.shared.gaps.load(Ordering::Relaxed),
            fallbacks: self.shared.fallbacks.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn link(&self) -> Option<Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Nobody asks Redis any more until it is connected anew.
    fn give_up(&self, no: u64, problem: &str) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.take_if(|link| link.no == no).is_some() {
            tracing::warn!(problem, "going on without Redis for now");
            self.lost.notify_one();
        }
    }

    /// A look at where the buckets are that is young enough to go by. Whoever can not reach Redis, or reaches another one than
    /// the others, moves them; and whoever finds a mark that a clock has left behind, for it does not say where they are.
    async fn fresh_mark(&self, postgres: &Postgres, link: Option<&Link>) -> Option<Mark> {
        let mut kept = self.mark.lock().await;
        let now = timer::now();
        let is_right = |mark: &Mark| match link {
            Some(link) => mark.redis == link.identity,
            None => mark.home(now) != Home::Redis,
        };
        if let Some(mark) = kept.filter(|mark| mark.age(now) < home::FRESH && is_right(mark)) {
            return Some(mark);
        }
        let Some(link) = link else {
            *kept = postgres.mark(0).await;
            return *kept;
        };
        let (before, seen) = (*kept, postgres.look().await?);
        let was_ours = before.is_some_and(|mark| mark.redis == link.identity);
        // Told once: while they differ, it is so again every second.
        if !is_right(&seen) && was_ours && seen.redis != 0 && !self.differs.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "another process of this installation has another Redis: PostgreSQL keeps the rates for all; name the same \
                 Redis in all processes"
            );
        }
        let holds = is_right(&seen) && !seen.is_astray();
        *kept = if holds { Some(seen) } else { postgres.mark(link.identity).await };
        *kept
    }

    /// `None` when the buckets are not there.
    async fn ask(
        &self,
        link: &mut Link,
        stay: &str,
        bucket: &BucketKey,
        flow: Flow,
        wish: Wish,
    ) -> RedisResult<Option<Grant>> {
        let mut asking = self.ask.key(self.key(bucket.as_str()));
        asking.key(self.key(HOME));
        asking.arg(flow.drops).arg(flow.depth).arg(wish.wanted).arg(wish.penalty_us);
        let (who, since_ms) = wish.who();
        asking.arg(who).arg(since_ms).arg(flow.patience_us());
        asking.arg(TOKEN).arg(STEP_US).arg(PENALTY_MAX_US).arg(ASTRAY_US).arg(stay);
        let answer = asking.invoke_async::<(i64, i64, i64, i64, i64, i64)>(&mut link.connection).await?;
        let (granted, level, at_us, until_us, who, since_ms) = answer;
        if granted == ELSEWHERE {
            return Ok(None);
        }
        let given = u32::try_from(granted).map_or(Given::Later, Given::Tokens);
        let front = Front { who, since_ms, awaited_us: 0 };
        Ok(Some(Grant::of(given, Basin { reservoir: Reservoir { level, at_us, until_us }, front }, flow)))
    }

    async fn move_in(&self, link: &mut Link, stay: &str, basins: &[Moving]) -> RedisResult<()> {
        let mut moving = self.move_in.key(self.key(HOME));
        moving.arg(stay);
        for basin in basins {
            moving.key(self.key(&basin.name));
            moving.arg(basin.level).arg(basin.age_us).arg(basin.closed_us).arg(basin.lasts_us);
        }
        let moved: i64 = moving.invoke_async(&mut link.connection).await?;
        tracing::debug!(moved, "the rates are kept in Redis");
        Ok(())
    }

    /// Marks that the buckets are in PostgreSQL.
    async fn move_buckets(&self, postgres: &Postgres) {
        *self.mark.lock().await = postgres.mark(0).await;
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn channel(&self) -> String {
        self.key("news")
    }

    fn receive(&self, no: u64, push: &PushInfo) {
        match (&push.kind, push.data.as_slice()) {
            (PushKind::Message, [_, Value::BulkString(line)]) => {
                let news = News::read(&String::from_utf8_lossy(line), self.me);
                if !news.is_empty() {
                    self.heard.fetch_add(1, Ordering::Relaxed);
                    self.inbox.put(news);
                }
            }
            (PushKind::Disconnection, _) => self.give_up(no, "the connection has ended"),
            _ => {}
        }
    }
}

async fn keep_connected(shared: Arc<Shared>, postgres: Arc<Postgres>) {
    let mut backoff = Backoff::new();
    let mut deaf = timer::now();
    let mut is_known = false;
    loop {
        match connect(&shared).await {
            Ok(link) => {
                backoff.reset();
                *shared.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(link);
                shared.gaps.fetch_add(1, Ordering::Relaxed);
                shared.inbox.put(News::everything());
                tracing::info!("Redis is connected");
                is_known = false;
                watch(&shared).await;
            }
            Err(_) if is_known => {}
            Err(error) => {
                tracing::warn!(%error, "Redis can not be used for now");
                is_known = true;
            }
        }
        let now = timer::now();
        if now.saturating_duration_since(deaf) >= DEAF_EVERY {
            deaf = now;
            shared.inbox.put(News::everything());
            if shared.takes.load(Ordering::Relaxed) {
                shared.move_buckets(&postgres).await;
            }
        }
        backoff.wait().await;
    }
}

/// A connection that hears, and takes tokens: a Redis that is full, or a copy of another, answers and is of no use.
async fn connect(shared: &Arc<Shared>) -> RedisResult<Link> {
    let no = shared.connections.fetch_add(1, Ordering::Relaxed);
    let receiver = Arc::clone(shared);
    let receive = move |push: PushInfo| {
        receiver.receive(no, &push);
        Ok::<(), std::convert::Infallible>(())
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT))
        .set_push_sender(receive);
    let mut connection = shared.client.get_multiplexed_async_connection_with_config(&config).await?;
    connection.subscribe(shared.channel()).await?;
    redis::cmd("SET").arg(shared.key("probe")).arg(1).arg("PX").arg(1).exec_async(&mut connection).await?;
    let identity = identity(shared.client.get_connection_info(), &mut connection).await;
    let mut link = Link { no, connection, identity };
    let (bucket, flow) = (BucketKey("probe".to_owned()), Flow { drops: TOKEN, depth: TOKEN });
    shared.ask(&mut link, "", &bucket, flow, Wish::tokens(0, None, 0)).await?;
    Ok(link)
}

/// Tells one Redis from another, by the number it has given itself; where it does not say, by its address. Databases of one
/// server are different ones.
async fn identity(info: &ConnectionInfo, connection: &mut MultiplexedConnection) -> i64 {
    let said = redis::cmd("INFO").arg("server").query_async::<String>(connection).await.unwrap_or_default();
    let number = said.lines().find_map(|line| line.strip_prefix("run_id:")).map(str::to_owned);
    let server = number.unwrap_or_else(|| info.addr().to_string());
    let hash = digest::digest(&digest::SHA256, format!("{server}/{}", info.redis_settings().db()).as_bytes());
    let half = i64::from_le_bytes(hash.as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"));
    half | 1
}

/// Returns when the connection is lost.
async fn watch(shared: &Arc<Shared>) {
    while let Some(mut link) = shared.link() {
        tokio::select! {
            biased;
            () = shared.lost.notified() => {}
            () = timer::pause(PING_EVERY) => {
                if let Err(error) = redis::cmd("PING").query_async::<Value>(&mut link.connection).await {
                    shared.give_up(link.no, &error.to_string());
                }
            }
        }
    }
}

async fn keep_telling(shared: Arc<Shared>, postgres: Arc<Postgres>) {
    loop {
        let news = shared.outbox.wait().await;
        match shared.link() {
            None => postgres.tell(news),
            Some(mut link) => {
                let mut publish = redis::cmd("PUBLISH");
                publish.arg(shared.channel()).arg(news.write(shared.me));
                match publish.query_async::<Value>(&mut link.connection).await {
                    Ok(_) => {
                        shared.sent.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        shared.give_up(link.no, &error.to_string());
                        postgres.tell(news);
                    }
                }
            }
        }
        timer::pause(SPACING).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_url_is_refused_without_its_password() {
        for url in ["redis:", "http://u:hunter2@h/", "rediss://u:hunter2@h/?sslrootcert=/nowhere/at/all.pem"]
        {
            let error = client(url).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(client("rediss://u:p@h/2").is_ok());
    }
}
