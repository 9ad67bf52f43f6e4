//! Coordination by PostgreSQL, for replicas that share a database and nothing else.
//!
//! One session listens and tells. However much there is to tell, it sends one message in [`SPACING`] at most, for every
//! NOTIFY stops all others in the database for a moment. Another session, opened when somebody first wants a token, keeps
//! the buckets ([`tokens`](super::tokens)). Both are opened again when they are lost, and who listened to nothing for a while
//! says so.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_core::gate::Flow;
use tidegate_core::time::Timestamp;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, Statement};

use super::home::{self, Home, Mark};
use super::mailbox::Mailbox;
use super::timer::{self, Backoff};
use super::tokens::{ANSWER_TIMEOUT, Moving, Tokens, Wish};
use super::{BucketKey, Coordination, Grant, News, Tally};
use crate::postgres::Opening;
use crate::postgres::connect::{Target, failed};
use crate::{Error, Result};

/// From one message to the next.
pub(super) const SPACING: Duration = Duration::from_millis(5);
/// How often a silent session is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(10);
/// How long an answer to that may take, and to a message.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nobody tries to reach PostgreSQL for tokens after it could not be reached.
const TOKENS_RETRY: Duration = Duration::from_millis(500);

/// One replica's end.
pub struct Postgres {
    shared: Arc<Shared>,
    ear: JoinHandle<()>,
}

struct Shared {
    target: Target,
    /// Tells one's own messages from others'.
    me: u64,
    inbox: Mailbox,
    outbox: Mailbox,
    tokens: tokio::sync::Mutex<Kept>,
    /// Not to be tried before.
    tokens_again: Mutex<Option<Instant>>,
    /// Whether others have a Redis.
    mark: tokio::sync::Mutex<Option<Mark>>,
    sent: AtomicU64,
    heard: AtomicU64,
    gaps: AtomicU64,
}

/// The session that takes tokens, or that will.
#[derive(Default)]
struct Kept {
    tokens: Option<Arc<Tokens>>,
    opening: Opening<Tokens>,
}

impl Postgres {
    /// Begins to listen, and goes on until it is dropped. `me` is different for each replica.
    pub fn start(target: Target, me: u64) -> Self {
        let shared = Arc::new(Shared {
            target,
            me,
            inbox: Mailbox::default(),
            outbox: Mailbox::default(),
            tokens: tokio::sync::Mutex::default(),
            tokens_again: Mutex::default(),
            mark: tokio::sync::Mutex::default(),
            sent: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
        });
        let ear = tokio::spawn(keep_listening(Arc::clone(&shared)));
        Self { shared, ear }
    }

    /// Asks a bucket that was empty at `empty_us`, by PostgreSQL's clock.
    pub(super) async fn ask_since(&self, bucket: &BucketKey, flow: Flow, wish: Wish, empty_us: i64) -> Grant {
        let answer = self.asking(async |tokens| tokens.ask(bucket, flow, wish, empty_us).await).await;
        answer.unwrap_or(Grant::nothing_for(TOKENS_RETRY))
    }

    /// Where the buckets are; `None` when PostgreSQL can not be asked.
    pub(super) async fn look(&self) -> Option<Mark> {
        self.asking(Tokens::look).await
    }

    /// Moves the buckets here, or lets them stay, and says which Redis is theirs otherwise (0: as before); `None` when PostgreSQL
    /// can not be asked.
    pub(super) async fn mark(&self, redis: i64) -> Option<Mark> {
        self.asking(async |tokens| tokens.mark(redis).await).await
    }

    /// The buckets that are not as new; `None` when PostgreSQL can not be asked.
    pub(super) async fn basins(&self) -> Option<Vec<Moving>> {
        self.asking(Tokens::basins).await
    }

    /// Takes from a bucket, which is here: also if others have a Redis, for this one has none.
    async fn ask_here(&self, bucket: &BucketKey, flow: Flow, wish: Wish) -> Grant {
        let Some(mark) = self.shared.fresh_mark(self).await else { return Grant::nothing_for(TOKENS_RETRY) };
        if mark.redis == 0 {
            return self.ask_since(bucket, flow, wish, 0).await;
        }
        match mark.home(timer::now()) {
            Home::Postgres { since_us } => self.ask_since(bucket, flow, wish, since_us).await,
            Home::Nowhere(wait) => Grant::nothing_for(wait),
            // The mark ran out while it was waited for.
            Home::Redis => Grant::nothing_for(TOKENS_RETRY),
        }
    }

    /// What is heard without waiting.
    pub(super) fn heard(&self) -> News {
        self.shared.inbox.take()
    }

    async fn asking<T>(&self, question: impl AsyncFnOnce(&Tokens) -> Result<T>) -> Option<T> {
        let tokens = self.shared.tokens().await?;
        match question(&tokens).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.shared.give_up(&tokens, &error).await;
                None
            }
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.ear.abort();
    }
}

#[async_trait]
impl Coordination for Postgres {
    fn tell(&self, news: News) {
        self.shared.outbox.put(news);
    }

    async fn hear(&self) -> News {
        self.shared.inbox.wait().await
    }

    async fn take_in_line(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wanted: u32,
        since: Option<Timestamp>,
    ) -> Grant {
        let me = self.shared.me.cast_signed();
        self.ask_here(bucket, flow, Wish::tokens(wanted, since, me)).await
    }

    async fn penalize(&self, bucket: &BucketKey, flow: Flow, lasts: Duration) {
        self.ask_since(bucket, flow, Wish::penalty(lasts), 0).await;
    }

    async fn lift(&self, bucket: &BucketKey, flow: Flow) -> bool {
        self.ask_since(bucket, flow, Wish::lift(), 0).await.standing.is_some()
    }

    fn tally(&self) -> Tally {
        Tally {
            sent: self.shared.sent.load(Ordering::Relaxed),
            heard: self.shared.heard.load(Ordering::Relaxed),
            gaps: self.shared.gaps.load(Ordering::Relaxed),
            fallbacks: 0,
        }
    }
}

impl Shared {
    /// The session that takes tokens, opened if need be; `None` while PostgreSQL can not be reached.
    async fn tokens(&self) -> Option<Arc<Tokens>> {
        let mut kept = self.tokens.lock().await;
        if let Some(tokens) = kept.tokens.as_ref().filter(|tokens| !tokens.is_closed()) {
            return Some(Arc::clone(tokens));
        }
        kept.tokens = None;
        if self.again().is_some_and(|again| timer::now() < again) {
            return None;
        }
        let target = self.target.clone();
        let opening = kept.opening.open(async move { Tokens::open(&target).await });
        let opened = match timeout(ANSWER_TIMEOUT, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(Error::Unavailable("PostgreSQL does not answer in time".to_owned())),
        };
        match opened {
            Ok(tokens) => {
                let tokens = Arc::new(tokens);
                kept.tokens = Some(Arc::clone(&tokens));
                Some(tokens)
            }
            Err(error) => {
                self.postpone(&error);
                None
            }
        }
    }

    /// A look at where the buckets are that is young enough to go by. If others have a Redis, they are moved here.
    async fn fresh_mark(&self, postgres: &Postgres) -> Option<Mark> {
        let mut kept = self.mark.lock().await;
        if let Some(mark) = kept.filter(|mark| mark.age(timer::now()) < home::FRESH) {
            return Some(mark);
        }
        let was_alone = kept.is_none_or(|mark| mark.redis == 0);
        *kept = postgres.look().await;
        if kept.is_some_and(|mark| mark.redis != 0) {
            if was_alone {
                tracing::warn!(
                    "a process of this installation keeps rates in Redis and this one has none: PostgreSQL keeps them \
                     for all; name the same Redis in all processes, or in none"
                );
            }
            *kept = postgres.mark(0).await;
        }
        *kept
    }

    /// The session failed: whoever comes next opens another, a little later.
    async fn give_up(&self, failed: &Arc<Tokens>, error: &Error) {
        let mut kept = self.tokens.lock().await;
        if kept.tokens.as_ref().is_some_and(|tokens| Arc::ptr_eq(tokens, failed)) {
            kept.tokens = None;
            self.postpone(error);
        }
    }

    fn postpone(&self, error: &Error) {
        tracing::warn!(%error, "no tokens can be taken from PostgreSQL for now");
        *self.tokens_again.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer::now() + TOKENS_RETRY);
    }

    fn again(&self) -> Option<Instant> {
        *self.tokens_again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, line: &str) {
        let news = News::read(line, self.me);
        if !news.is_empty() {
            self.heard.fetch_add(1, Ordering::Relaxed);
            self.inbox.put(news);
        }
    }
}

async fn keep_listening(shared: Arc<Shared>) {
    let mut backoff = Backoff::new();
    let mut is_first = true;
    loop {
        let gaps = shared.gaps.load(Ordering::Relaxed);
        let ended = listen(&shared, &mut backoff).await;
        if let Err(error) = ended {
            // Told once per outage.
            let was_heard = is_first || shared.gaps.load(Ordering::Relaxed) != gaps;
            is_first = false;
            if was_heard {
                tracing::warn!(%error, "the other replicas can not be heard through PostgreSQL for now");
            }
        }
        backoff.wait().await;
    }
}

/// Listens and tells until the session is lost.
async fn listen(shared: &Arc<Shared>, backoff: &mut Backoff) -> Result<()> {
    let (alive, ended) = oneshot::channel::<Infallible>();
    let receiver = Arc::clone(shared);
    let session = shared.target.connect_hearing(move |notification| {
        let _ends_with_the_session = &alive;
        receiver.receive(notification.payload());
    });
    let session = session.await?;
    let channel = channel(&shared.target);
    // A message is a transaction, and not worth waiting for a disk.
    let begin = format!("SET synchronous_commit = off; LISTEN {channel}");
    answered(session.client.batch_execute(&begin)).await?;
    let notify = format!("SELECT pg_notify('{channel}', $1)");
    let notify = answered(session.client.prepare(&notify)).await?;
    backoff.reset();
    shared.gaps.fetch_add(1, Ordering::Relaxed);
    shared.inbox.put(News::everything());
    tokio::pin!(ended);
    loop {
        tokio::select! {
            biased;
            _ = &mut ended => return Err(Error::Unavailable("the session has ended".to_owned())),
            news = shared.outbox.wait() => {
                if let Err(error) = tell(&session.client, &notify, &news, shared.me).await {
                    shared.outbox.put(news);
                    return Err(error);
                }
                shared.sent.fetch_add(1, Ordering::Relaxed);
                timer::pause(SPACING).await;
            }
            () = timer::pause(PING_EVERY) => answered(session.client.batch_execute("")).await?,
        }
    }
}

async fn tell(client: &Client, notify: &Statement, news: &News, me: u64) -> Result<()> {
    answered(client.execute(notify, &[&news.write(me)])).await.map(drop)
}

async fn answered<T>(
    asking: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
) -> Result<T> {
    match timeout(PING_TIMEOUT, asking).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::Unavailable("PostgreSQL does not answer in time".to_owned())),
    }
}

/// Installations in one database have schemas of their own, and so channels.
fn channel(target: &Target) -> String {
    format!("tidegate_{}", target.schema())
}
