//! What keeps the database from cleaning up: transactions that have been open for long, by hand or prepared and left.
//!
//! A role sees when transactions of others began only if it was given `pg_read_all_stats`. That there are some it sees: whoever
//! holds rows back has a number or a snapshot, which is told to everybody.

use tokio_postgres::{Client, Error, Row};

/// How far behind cleaning up has to stay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holding {
    /// Age of the oldest transaction that can be seen, in seconds; 0 without any.
    pub(crate) transaction: f64,
    /// The same of transactions that were prepared and left.
    pub(crate) prepared: f64,
    /// Transactions of others whose age can not be seen.
    pub(crate) hidden: i64,
    /// Who asked.
    pub(crate) role: String,
}

pub(super) const SQL: &str =
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8,
        (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - prepared)), 0)::float8 FROM pg_prepared_xacts
            WHERE database = current_database()),
        count(*) FILTER (WHERE xact_start IS NULL AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)),
        current_user::text, count(*)::float8
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

impl Holding {
    pub(super) fn read(row: &Row) -> Self {
        Self { transaction: row.get(0), prepared: row.get(1), hidden: row.get(2), role: row.get(3) }
    }

    /// The age of the oldest of all, unless there are some whose age can not be seen.
    pub(super) fn oldest(&self) -> Option<f64> {
        (self.hidden == 0).then(|| self.transaction.max(self.prepared))
    }
}

/// Looks once.
pub(crate) async fn look(client: &Client) -> Result<Holding, Error> {
    Ok(Holding::read(&client.query_one(SQL, &[]).await?))
}
