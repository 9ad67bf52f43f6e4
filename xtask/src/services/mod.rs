//! Throw-away PostgreSQL and Redis for tests and chaos.
//!
//! [`Services`] starts both on loopback with their data in a folder of their own under `target/services`; when it goes,
//! they go, folder and all, also on ctrl-c, and what a killed run left is cleared away by the next one. Where
//! `TIDEGATE_TEST_POSTGRES` or `TIDEGATE_TEST_REDIS` names a server, that one is used instead. PostgreSQL keeps its promises
//! here as it does elsewhere: it syncs, so that what survives a kill proves something.
//!
//! What is missing is installed, or named; it is never passed over. Linux only, for it finds its processes in `/proc`; elsewhere
//! the two variables do.

mod command;
mod failover;
mod home;
mod postgres;
mod programs;
mod redis;

use anyhow::{Context, Result};

pub(crate) use command::{Arguments, run};
use home::Home;
pub(crate) use home::free_port;
use postgres::Postgres;
use programs::Programs;
use redis::Redis;

/// Names a PostgreSQL for the tests. They make databases of their own in it.
const POSTGRES: &str = "TIDEGATE_TEST_POSTGRES";
/// Names a Redis for the tests. They may empty it.
const REDIS: &str = "TIDEGATE_TEST_REDIS";

/// Both servers, as long as this lives.
pub(crate) struct Services {
    postgres: Either<Postgres>,
    redis: Either<Redis>,
    /// Follows PostgreSQL, if there is one.
    standby: Option<Postgres>,
    /// How many there were.
    standbys: u32,
    /// Where the next one listens.
    spare_port: Option<u16>,
    programs: Programs,
    /// Ends whatever runs in it.
    _home: Option<Home>,
}

/// One that somebody else keeps, by its address, or one of ours.
enum Either<T> {
    Theirs(String),
    Ours(T),
}

impl Services {
    /// Starts what the environment does not name.
    pub(crate) fn start() -> Result<Self> {
        let named = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
        Self::start_beside(named(POSTGRES), named(REDIS))
    }

    /// Starts both, whatever the environment says: for those who are going to kill them.
    pub(crate) fn start_own() -> Result<Self> {
        Self::start_beside(None, None)
    }

    fn start_beside(postgres: Option<String>, redis: Option<String>) -> Result<Self> {
        if let (Some(postgres), Some(redis)) = (&postgres, &redis) {
            let (postgres, redis) = (Either::Theirs(postgres.clone()), Either::Theirs(redis.clone()));
            return Ok(Self::of(postgres, redis, Programs::default(), None));
        }
        let programs = programs::find_or_install(postgres.is_none(), redis.is_none())?;
        let home = Home::new()?;
        let postgres = match postgres {
            Some(url) => Either::Theirs(url),
            None => Either::Ours(Postgres::create(&programs.postgres, &home)?),
        };
        let redis = match redis {
            Some(url) => Either::Theirs(url),
            None => Either::Ours(Redis::create(&programs.redis, &home)?),
        };
        Ok(Self::of(postgres, redis, programs, Some(home)))
    }

    fn of(postgres: Either<Postgres>, redis: Either<Redis>, programs: Programs, home: Option<Home>) -> Self {
        Self { postgres, redis, standby: None, standbys: 0, spare_port: None, programs, _home: home }
    }

    /// Where PostgreSQL is, with a user who may do everything.
    pub(crate) fn postgres_url(&self) -> String {
        match &self.postgres {
            Either::Theirs(url) => url.clone(),
            Either::Ours(postgres) => postgres.url(),
        }
    }

    /// Where Redis is.
    pub(crate) fn redis_url(&self) -> String {
        match &self.redis {
            Either::Theirs(url) => url.clone(),
            Either::Ours(redis) => redis.url(),
        }
    }

    /// How tests find both.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![(POSTGRES, self.postgres_url()), (REDIS, self.redis_url())]
    }

    /// The first process of each server that was started here.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let postgres = match &self.postgres {
            Either::Ours(postgres) => postgres.pid(),
            Either::Theirs(_) => None,
        };
        let redis = match &self.redis {
            Either::Ours(redis) => redis.pid(),
            Either::Theirs(_) => None,
        };
        postgres.into_iter().chain(redis).collect()
    }

    /// SIGKILL to all of PostgreSQL at once: no checkpoint, no goodbye.
    pub(crate) fn kill_postgres(&mut self) -> Result<()> {
        ours(&mut self.postgres, POSTGRES)?.kill()
    }

    /// Starts PostgreSQL again, on the same port and data, and waits until it has recovered.
    pub(crate) fn resume_postgres(&mut self) -> Result<()> {
        ours(&mut self.postgres, POSTGRES)?.resume()
    }

    /// SIGKILL to Redis.
    pub(crate) fn kill_redis(&mut self) -> Result<()> {
        ours(&mut self.redis, REDIS)?.kill()
    }

    /// Starts Redis again, on the same port and empty.
    pub(crate) fn resume_redis(&mut self) -> Result<()> {
        ours(&mut self.redis, REDIS)?.resume()
    }

    /// Takes everything that Redis holds: keys and scripts.
    pub(crate) fn flush_redis(&mut self) -> Result<()> {
        let redis = ours(&mut self.redis, REDIS)?;
        redis.ask("FLUSHALL")?;
        redis.ask("SCRIPT FLUSH")
    }

    /// Tells Redis a command that it answers with one good line.
    pub(crate) fn tell_redis(&mut self, command: &str) -> Result<()> {
        ours(&mut self.redis, REDIS)?.ask(command)
    }

    /// A number of Redis's own account of itself (`INFO`).
    pub(crate) fn redis_counts(&mut self, field: &str) -> Result<u64> {
        ours(&mut self.redis, REDIS)?.counts(field)
    }

    /// Everything that PostgreSQL wrote into its log.
    pub(crate) fn postgres_log(&mut self) -> Result<String> {
        ours(&mut self.postgres, POSTGRES)?.read_log()
    }
}

fn ours<'a, T>(either: &'a mut Either<T>, variable: &str) -> Result<&'a mut T> {
    match either {
        Either::Ours(service) => Some(service),
        Either::Theirs(_) => None,
    }
    .with_context(|| format!("{variable} names a server that was not started here: it is left alone"))
}

#[cfg(test)]
mod tests;
