//! A database of its own, and any number of processes on it.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio_postgres::NoTls;

use crate::client::Client;
use crate::server::{Folder, Server, Setup};

pub(crate) const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// What processes share.
pub(crate) struct Cluster {
    server: String,
    url: String,
    schema: String,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var("TIDEGATE_TEST_POSTGRES").expect(
            "set TIDEGATE_TEST_POSTGRES to the URL of a PostgreSQL server, or run through `cargo xtask test`",
        );
        let schema = format!("e{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mark = if server.contains('?') { '&' } else { '?' };
        Self { url: format!("{server}{mark}schema={schema}"), server, schema }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How its processes are started.
    pub(crate) fn setup(&self) -> Setup {
        let variables = vec![("TIDEGATE_STORE", self.url.clone())];
        Setup { master_key: Some(MASTER_KEY), variables, ..Setup::usual() }
    }

    /// One more process.
    pub(crate) fn join(&self) -> Server {
        Server::start_with(&self.setup())
    }

    /// The same, with Redis beside the database.
    pub(crate) fn join_with_redis(&self) -> Server {
        let redis = std::env::var("TIDEGATE_TEST_REDIS")
            .expect("set TIDEGATE_TEST_REDIS to the URL of a Redis, or run through `cargo xtask test`");
        let mut setup = self.setup();
        setup.variables.push(("TIDEGATE_REDIS", redis));
        Server::start_with(&setup)
    }

    /// Two processes that know of each other.
    pub(crate) fn two(&self) -> (Server, Server) {
        let (a, b) = (self.join(), self.join());
        alive(&a, 2);
        alive(&b, 2);
        (a, b)
    }

    /// Lays hands on the database; says how many rows were changed.
    pub(crate) fn execute(&self, sql: &str) -> u64 {
        let (server, schema, sql) = (self.server.clone(), self.schema.clone(), sql.to_owned());
        let done = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&server, NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(&format!("SET search_path TO {schema}")).await?;
                client.execute(&sql, &[]).await
            })
        });
        done.join().expect("no panic").expect("the database does it")
    }

    /// What a start with other variables says that must fail.
    pub(crate) fn refusal(&self, setup: &Setup) -> String {
        setup.refusal(&Folder::new())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let (server, schema) = (self.server.clone(), self.schema.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&server, NoTls).await?;
                tokio::spawn(connection);
                let sql =
                    format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE");
                client.batch_execute(&sql).await
            })
        });
        if !matches!(dropped.join(), Ok(Ok(()))) {
            eprintln!("the schema {} could not be dropped", self.schema);
        }
    }
}

/// Waits until a process knows of so many.
#[track_caller]
pub(crate) fn alive(server: &Server, count: usize) {
    server.admin().until("/v1/replicas", |answer| {
        answer["items"].as_array().is_some_and(|replicas| replicas.len() == count)
    });
}

/// The value of a metric without labels.
#[track_caller]
pub(crate) fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

pub(crate) fn event(id: &str) -> Value {
    json!({ "id": id, "source": "s", "type": "t" })
}

pub(crate) fn events(prefix: &str, count: usize) -> Value {
    (0..count).map(|n| event(&format!("{prefix}{n}"))).collect()
}
