//! Coordination by Redis, on top of PostgreSQL, for those who have one.
//!
//! Redis carries the messages and keeps the buckets, by a script on its own clock, in keys that expire when they are full.
//! It holds nothing that could not be lost: emptied, it costs a burst. Out of reach or too slow, it is left alone and tried
//! again in the background; until then PostgreSQL carries the messages, and all replicas together take from its buckets
//! ([`home`](super::home)). Who can not hear Redis assumes once a second that something was said.
//!
//! One connection does all: it speaks RESP3, in which messages come between answers, so Redis must be 6 or newer. A
//! Redis Cluster is not understood.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult, Script, TlsCertificates, Value,
};
use tidegate_core::gate::{ASTRAY_US, Basin, Flow, Front, Given, PENALTY_MAX_US, Reservoir, STEP_US, TOKEN};
use tidegate_core::time::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use url::Url;

use super::home::{self, Home, Mark};
use super::mailbox::Mailbox;
use super::postgres::SPACING;
use super::timer::{self, Backoff};
use super::tokens::Wish;
use super::{BucketKey, Coordination, Grant, News, Postgres, Tally};
use crate::{Error, Result};

/// How long Redis may take to answer: longer, and it is no faster than PostgreSQL.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// How often a silent connection is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How often somebody who hears nothing assumes that there was something.
const DEAF_EVERY: Duration = Duration::from_secs(1);

/// The twin of `Basin`: brings a bucket up to now, takes what there is unless somebody else is next, and closes it for a while or
/// opens it if that is the wish. What it is given: how it fills and how much it holds, how many are wanted, for how long it is to be
/// closed (below 0 to open it), how long ago it was empty; which replica asks, when the first in its line became ready, and how long it has patience with
/// others; then what is the same for all. It says -1 to whoever steps back. A key outlives its bucket by as long as somebody
/// could be waited for.
const ASK: &str = r"
local drops, depth, wanted, penalty, settled = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local who, ready, patience = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local token, step, longest, astray = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local function filled(x) return math.max(0, x, 2 * x - step, 4 * x - 5 * step, 8 * x - 17 * step) end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level, at, til, front, since, awaited = depth, now, 0, '0', 0, 0
local kept = redis.call('GET', KEYS[1])
if kept then
    local a, b, c, d, e, f = string.match(kept, '^(%d+) (%d+) (%d+) (%-?%d+) (%-?%d+) (%d+)$')
    if a then level, at, til, front, since, awaited = tonumber(a), tonumber(b), tonumber(c), d, tonumber(e), tonumber(f) end
end
if at - now > astray then til = math.max(0, til - (at - now)); at = now end
now = math.max(now, at)
til = math.min(til, now + longest)
local shut = math.min(now, til)
if shut > at then level = math.min(level + (shut - at) * drops * 8, token) end
local past = math.min(at - til, 3 * step)
level = math.min(level + (filled(past + now - at) - filled(past)) * drops, depth, settled * drops * 8)
local there = 0
if now >= til then there = math.min(wanted, math.floor(level / token)) end
local waited = math.min(awaited, now)
local is_other = front ~= '0' and front ~= who
local is_before = ready < since or (ready == since and who < front)
local is_behind = is_other and not is_before and not (waited > 0 and now - waited >= patience)
local granted, is_changed = there, penalty ~= 0 or there > 0
if who ~= '0' and is_behind and there > 0 then
    granted, there, is_changed = -1, 0, true
    awaited = waited > 0 and waited or now
elseif who ~= '0' then
    local is_next
    if wanted == 0 then is_next = is_other
    elseif there == 0 then is_next = is_behind and awaited == 0
    else is_next = there == wanted and is_other and is_before end
    if not is_next then
        is_changed = true
        front, since, awaited = who, ready, there > 0 and now or 0
        if there == wanted then front = '0' end
    end
end
level = level - there * token
if penalty > 0 then til = math.max(til, now + penalty) elseif penalty < 0 then til = math.min(til, now) end
local full = math.max(0, til + 3 * step - now) + (depth - level) / (drops * 8)
if is_changed then
    redis.call('SET', KEYS[1], string.format('%.0f %.0f %.0f %s %.0f %.0f', level, now, til, front, since, awaited), 'PX', math.ceil((full + 2 * patience) / 1000) + 1)
end
return {granted, level, now, til, front ~= '0' and 1 or 0, since}
";

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
            link: Mutex::default(),
            connections: AtomicU64::new(0),
            lost: Notify::new(),
            inbox: Mailbox::default(),
            outbox: Mailbox::default(),
            mark: tokio::sync::Mutex::default(),
            takes: AtomicBool::new(false),
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
        let Some(mark) = self.shared.fresh_mark(&self.postgres, link.is_some()).await else {
            // Where the buckets are is not known while PostgreSQL can not be asked.
            return Grant::nothing_for(home::FRESH);
        };
        match (mark.home(timer::now()), link) {
            (Home::Nowhere(wait), _) => Grant::nothing_for(wait),
            (Home::Postgres { since_us }, _) => {
                self.shared.fallbacks.fetch_add(1, Ordering::Relaxed);
                self.postgres.ask_since(bucket, flow, wish, since_us).await
            }
            (Home::Redis { settled_us }, Some(mut link)) => {
                match self.shared.ask(&mut link, bucket, flow, wish, settled_us).await {
                    Ok(grant) => grant,
                    Err(error) => {
                        self.shared.give_up(link.no, &error.to_string());
                        self.shared.move_buckets(&self.postgres).await;
                        Grant::nothing_for(home::QUIET)
                    }
                }
            }
            // The mark ran out while it was waited for.
            (Home::Redis { .. }, None) => Grant::nothing_for(ANSWER_TIMEOUT),
        }
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

    /// A look at where the buckets are that is young enough to go by. Whoever can not reach Redis moves them.
    async fn fresh_mark(&self, postgres: &Postgres, is_connected: bool) -> Option<Mark> {
        let mut kept = self.mark.lock().await;
        let now = timer::now();
        if let Some(mark) = kept.filter(|mark| mark.age(now) < home::FRESH)
            && (is_connected || !matches!(mark.home(now), Home::Redis { .. }))
        {
            return Some(mark);
        }
        *kept = if is_connected { postgres.look().await } else { postgres.mark().await };
        *kept
    }

    async fn ask(
        &self,
        link: &mut Link,
        bucket: &BucketKey,
        flow: Flow,
        wish: Wish,
        settled_us: i64,
    ) -> RedisResult<Grant> {
        let key = format!("{}{}", self.prefix, bucket.as_str());
        let mut asking = self.ask.key(key);
        let settled_us = settled_us.clamp(0, flow.depth / flow.drops.max(1) + 1);
        asking.arg(flow.drops).arg(flow.depth).arg(wish.wanted).arg(wish.penalty_us).arg(settled_us);
        let (who, since_ms) = wish.who();
        asking.arg(who).arg(since_ms).arg(flow.patience_us());
        asking.arg(TOKEN).arg(STEP_US).arg(PENALTY_MAX_US).arg(ASTRAY_US);
        let answer = asking.invoke_async::<(i64, i64, i64, i64, i64, i64)>(&mut link.connection).await?;
        let (granted, level, at_us, until_us, who, since_ms) = answer;
        let given = u32::try_from(granted).map_or(Given::Later, Given::Tokens);
        let front = Front { who, since_ms, awaited_us: 0 };
        Ok(Grant::of(given, Basin { reservoir: Reservoir { level, at_us, until_us }, front }, flow))
    }

    /// Marks that the buckets are in PostgreSQL.
    async fn move_buckets(&self, postgres: &Postgres) {
        *self.mark.lock().await = postgres.mark().await;
    }

    fn channel(&self) -> String {
        format!("{}news", self.prefix)
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
    let mut link = Link { no, connection };
    let (bucket, flow) = (BucketKey("probe".to_owned()), Flow { drops: TOKEN, depth: TOKEN });
    shared.ask(&mut link, &bucket, flow, Wish::tokens(1, None, 0), 1).await?;
    Ok(link)
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
