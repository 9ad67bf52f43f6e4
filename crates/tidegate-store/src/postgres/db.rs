//! How PostgreSQL is asked: sessions with prepared statements, lent out one at a time.
//!
//! Whatever changes something runs in a task of its own, so that a caller that goes away neither stops it half-way nor
//! leaves a session inside a transaction. A session whose transaction did not come to its end is closed, not lent again.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::id::Nonce;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::connect::{Session, Target, failed};
use super::reach::Opening;
use crate::Error;
use crate::coordination::timer::pause;

/// Sessions beside the one that writes groups: lists, traces, changes and sweeps side by side.
pub(super) const SESSIONS_MAX: usize = 6;

/// The server ends what it does before this, see the settings of a session. One that says nothing is gone, or the way to it is.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(35);

/// What went wrong, with what the database said about it.
#[derive(Debug)]
pub(super) enum Fault {
    /// It says nothing.
    Silent,
    /// The database, or the way to it.
    Database(tokio_postgres::Error),
    /// Whatever a caller can act on.
    Store(Error),
}

/// The answer of the database.
pub(super) type Asked<T> = Result<T, Fault>;

impl Fault {
    /// Whether somebody wanted to take an id that is known.
    pub(super) fn is_known_id(&self) -> bool {
        matches!(self, Self::Database(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
    }

    /// Whether the server does not have, or does not allow, what it was asked.
    pub(super) fn is_unsupported(&self) -> bool {
        let lacking = [
            &SqlState::FEATURE_NOT_SUPPORTED,
            &SqlState::INSUFFICIENT_PRIVILEGE,
            &SqlState::UNDEFINED_FUNCTION,
        ];
        matches!(self, Self::Database(error) if error.code().is_some_and(|code| lacking.contains(&code)))
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Silent => Error::Unavailable("the database does not answer".to_owned()),
            Fault::Database(error) => failed(error),
            Fault::Store(error) => error,
        }
    }
}

/// The values of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement with its values.
pub(super) type Ask<'a> = (&'a str, Values<'a>);

/// Those that are needed.
pub(super) fn needed<'a, const N: usize>(asks: [(bool, Ask<'a>); N]) -> Vec<Ask<'a>> {
    asks.into_iter().filter_map(|(is_needed, ask)| is_needed.then_some(ask)).collect()
}

/// Work with a session.
pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Asked<T>> + Send + 'a>>;

/// 32 random bits; those of the server are good ones.
const NONCE: &str = "SELECT ('x' || left(gen_random_uuid()::text, 8))::bit(32)::int";

/// A session with its prepared statements.
pub(super) struct Conn {
    session: Session,
    /// What deliveries that are made here carry. No session lives on when the database goes back in time.
    nonce: Nonce,
    statements: Mutex<BTreeMap<String, Statement>>,
    is_dirty: bool,
    is_prepared: AtomicBool,
    is_silent: AtomicBool,
}

impl Conn {
    pub(super) async fn open(target: &Target) -> Asked<Self> {
        let mut conn = Self {
            session: target.connect().await?,
            nonce: 0,
            statements: Mutex::default(),
            is_dirty: false,
            is_prepared: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        };
        // 0 stands for deliveries from before there were nonces.
        conn.nonce = conn.only(NONCE, &[]).await?.get::<_, i32>(0).cast_unsigned().max(1);
        Ok(conn)
    }

    /// As a column keeps it.
    pub(super) fn nonce(&self) -> i32 {
        self.nonce.cast_signed()
    }

    /// Everybody else asks through what waits for an answer for a bounded time only.
    fn client(&self) -> &Client {
        &self.session.client
    }

    /// For tests that look at what a session does.
    #[cfg(test)]
    pub(super) fn bare_client(&self) -> &Client {
        self.client()
    }

    /// Whether nothing can be asked on it any more.
    pub(super) fn is_over(&self) -> bool {
        self.client().is_closed() || self.is_silent.load(Ordering::Relaxed)
    }

    /// Waits for an answer for as long as one may come. Nobody asks again on a session that gave none.
    async fn answered<T>(&self, asked: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Asked<T> {
        tokio::select! {
            biased;
            answer = asked => Ok(answer?),
            () = pause(ANSWER_MAX) => {
                self.is_silent.store(true, Ordering::Relaxed);
                Err(Fault::Silent)
            }
        }
    }

    /// Statements without values or answers.
    pub(super) async fn tell(&self, sql: &str) -> Asked<()> {
        self.answered(self.client().batch_execute(sql)).await
    }

    /// The statement, prepared once per session.
    pub(super) async fn prepared(&self, sql: &str) -> Asked<Statement> {
        let lock = || self.statements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = lock().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.answered(self.client().prepare(sql)).await?;
        lock().insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Whether somebody has prepared all that it needs here.
    pub(super) fn is_prepared(&self) -> bool {
        self.is_prepared.load(Ordering::Relaxed)
    }

    pub(super) fn set_prepared(&self) {
        self.is_prepared.store(true, Ordering::Relaxed);
    }

    pub(super) async fn rows(&self, sql: &str, values: Values<'_>) -> Asked<Vec<Row>> {
        let statement = self.prepared(sql).await?;
        self.answered(self.client().query(&statement, values)).await
    }

    pub(super) async fn row(&self, sql: &str, values: Values<'_>) -> Asked<Option<Row>> {
        let statement = self.prepared(sql).await?;
        self.answered(self.client().query_opt(&statement, values)).await
    }

    /// A row that is always there.
    pub(super) async fn only(&self, sql: &str, values: Values<'_>) -> Asked<Row> {
        let statement = self.prepared(sql).await?;
        self.answered(self.client().query_one(&statement, values)).await
    }

    /// How many rows it changed.
    pub(super) async fn execute(&self, sql: &str, values: Values<'_>) -> Asked<u64> {
        let statement = self.prepared(sql).await?;
        self.answered(self.client().execute(&statement, values)).await
    }

    /// Rows of a statement that names a table of one period: it is not worth keeping prepared.
    pub(super) async fn rows_once(&self, sql: &str, values: Values<'_>) -> Asked<Vec<Row>> {
        self.answered(self.client().query(sql, values)).await
    }

    /// The same, of a row that is always there.
    pub(super) async fn only_once(&self, sql: &str, values: Values<'_>) -> Asked<Row> {
        self.answered(self.client().query_one(sql, values)).await
    }

    /// The same, of a statement that changes rows.
    pub(super) async fn execute_once(&self, sql: &str, values: Values<'_>) -> Asked<u64> {
        self.answered(self.client().execute(sql, values)).await
    }

    /// Several at once, for the time of one: the database works through them in this order. The first that fails fails all in
    /// its transaction.
    pub(super) async fn together(&self, asks: &[Ask<'_>]) -> Asked<Vec<Vec<Row>>> {
        let mut statements = Vec::with_capacity(asks.len());
        for (sql, _) in asks {
            statements.push(self.prepared(sql).await?);
        }
        let asked = statements.iter().zip(asks);
        let asked = asked.map(|(statement, (_, values))| Box::pin(self.client().query(statement, values)));
        self.answered(in_order(asked.collect())).await
    }

    /// Whether there is such a row.
    pub(super) async fn exists(&self, sql: &str, values: Values<'_>) -> Asked<bool> {
        Ok(self.row(sql, values).await?.is_some())
    }

    pub(super) async fn begin(&mut self) -> Asked<()> {
        self.is_dirty = true;
        self.tell("BEGIN").await
    }

    pub(super) async fn commit(&mut self) -> Asked<()> {
        self.tell("COMMIT").await?;
        self.is_dirty = false;
        Ok(())
    }

    /// Ends a transaction that shall change nothing.
    pub(super) async fn roll_back(&mut self) -> Asked<()> {
        self.tell("ROLLBACK").await?;
        self.is_dirty = false;
        Ok(())
    }

    /// A transaction is under way on this session, which is not lent again before it has ended.
    pub(super) fn mark(&mut self, is_dirty: bool) {
        self.is_dirty = is_dirty;
    }
}

/// The session that beats, or that will.
#[derive(Default)]
pub(super) struct Pulse {
    conn: Option<Conn>,
    opening: Opening<Conn>,
}

impl Pulse {
    /// The caller returns it when done.
    pub(super) async fn take(&mut self, target: &Target) -> Asked<Conn> {
        if let Some(conn) = self.conn.take().filter(|conn| !conn.is_over()) {
            return Ok(conn);
        }
        let target = target.clone();
        Ok(self.opening.open(async move { Ok(Conn::open(&target).await?) }).await?)
    }

    pub(super) fn keep(&mut self, conn: Conn) {
        self.conn = Some(conn);
    }
}

/// Begins all of them, in this order, and waits for all.
async fn in_order<T, E>(mut begun: Vec<Pin<Box<impl Future<Output = Result<T, E>>>>>) -> Result<Vec<T>, E> {
    let mut answers: Vec<Option<Result<T, E>>> = begun.iter().map(|_| None).collect();
    std::future::poll_fn(|task| {
        for (future, answer) in begun.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(task)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// Sessions that wait for somebody to need them.
pub(super) struct Pool {
    target: Target,
    idle: Mutex<Vec<Conn>>,
    places: Arc<Semaphore>,
}

/// A session on loan.
pub(super) struct Loan {
    conn: Option<Conn>,
    pool: Arc<Pool>,
    _place: OwnedSemaphorePermit,
}

impl std::ops::Deref for Loan {
    type Target = Conn;
    fn deref(&self) -> &Conn {
        self.conn.as_ref().expect("a loan has its session until it ends")
    }
}

impl std::ops::DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut Conn {
        self.conn.as_mut().expect("a loan has its session until it ends")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let conn = self.conn.take().filter(|conn| !conn.is_dirty && !conn.is_over());
        if let Some(conn) = conn {
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(conn);
        }
    }
}

impl Pool {
    pub(super) fn new(target: Target) -> Arc<Self> {
        Arc::new(Self { target, idle: Mutex::default(), places: Arc::new(Semaphore::new(SESSIONS_MAX)) })
    }

    pub(super) async fn lend(self: &Arc<Self>) -> Asked<Loan> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| closed())?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let conn = match idle.filter(|conn| !conn.is_over()) {
            Some(conn) => conn,
            None => Conn::open(&self.target).await?,
        };
        Ok(Loan { conn: Some(conn), pool: Arc::clone(self), _place: place })
    }

    /// Runs `work` to its end in a transaction, whatever becomes of the caller. It is committed if `work` is well.
    pub(super) async fn transact<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl for<'a> FnOnce(&'a Conn) -> Work<'a, T> + Send + 'static,
    ) -> Asked<T> {
        let pool = Arc::clone(self);
        let running = tokio::spawn(async move {
            let mut conn = pool.lend().await?;
            conn.begin().await?;
            match work(&conn).await {
                Ok(value) => conn.commit().await.map(|()| value),
                Err(error) => {
                    // If even that fails the session is closed, which ends the transaction as well.
                    let _ = conn.roll_back().await;
                    Err(error)
                }
            }
        });
        running.await.unwrap_or_else(|error| {
            Err(Error::Unavailable(format!("database work ended early: {error}")).into())
        })
    }
}

fn closed() -> Error {
    Error::Unavailable("the store is closed".to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::io::copy_bidirectional;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    fn url() -> url::Url {
        let url = std::env::var("TIDEGATE_TEST_POSTGRES").expect(
            "set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run `cargo xtask test`",
        );
        url::Url::parse(&url).unwrap()
    }

    /// A session, and what makes its server silent: both ends stay open, and nothing passes.
    async fn fragile() -> (Conn, oneshot::Sender<()>) {
        let mut url = url();
        let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(listener.local_addr().unwrap().port())).unwrap();
        let (silence, is_silent) = oneshot::channel();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::select! {
                _ = copy_bidirectional(&mut client, &mut server) => {}
                _ = is_silent => {}
            }
            std::future::pending::<()>().await;
        });
        (Conn::open(&Target::parse(url.as_str()).unwrap()).await.unwrap(), silence)
    }

    /// From the silence on time is virtual: it passes when nobody has anything to do but wait.
    #[tokio::test]
    async fn nothing_waits_for_a_silent_server_for_longer_than_for_an_answer() {
        for which in 0..7 {
            let (mut conn, silence) = fragile().await;
            let prepared = "SELECT 1";
            conn.only(prepared, &[]).await.unwrap();
            silence.send(()).unwrap();
            tokio::time::pause();
            let asking = async {
                match which {
                    0 => conn.tell("SELECT 1").await,
                    1 => conn.rows_once("SELECT 1", &[]).await.map(drop),
                    2 => conn.only_once("SELECT 1", &[]).await.map(drop),
                    3 => conn.execute_once("SELECT 1", &[]).await.map(drop),
                    4 => conn.only(prepared, &[]).await.map(drop),
                    5 => conn.together(&[(prepared, &[]), (prepared, &[])]).await.map(drop),
                    _ => conn.begin().await,
                }
            };
            let asked = timeout(2 * ANSWER_MAX, asking).await;
            tokio::time::resume();
            assert!(matches!(asked, Ok(Err(Fault::Silent))), "{which}: {asked:?}");
            assert!(conn.is_over(), "nobody asks there again");
        }
    }

    #[tokio::test]
    async fn a_server_notices_that_a_session_is_gone() {
        let conn = Conn::open(&Target::parse(url().as_str()).unwrap()).await.unwrap();
        for (name, expected) in [
            ("tcp_keepalives_idle", "15"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "15000"),
        ] {
            let row = conn.only("SELECT current_setting($1)", &[&name]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn all_are_begun_in_order_before_one_is_waited_for_and_the_first_failure_counts() {
        let begun = RefCell::new(Vec::new());
        let ask = |number: u32, fails: bool| {
            let begun = &begun;
            Box::pin(async move {
                begun.borrow_mut().push(number);
                // The later ones are answered first.
                for _ in number..9 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(begun.borrow().len(), 3);
                if fails { Err(number) } else { Ok(number) }
            })
        };
        assert_eq!(in_order(vec![ask(1, false), ask(2, false), ask(3, false)]).await, Ok(vec![1, 2, 3]));
        assert_eq!(begun.take(), [1, 2, 3]);
        assert_eq!(in_order(vec![ask(1, false), ask(2, true), ask(3, true)]).await, Err(2));
    }
}
