//! How the database is doing, in numbers.

use super::db::{Asked, Conn};
use super::holding::{self, Holding};
use crate::Vital;

/// The tables whose rows change most.
const HOT: [&str; 7] = ["deliveries", "dedupe", "windows", "rollups", "basins", "beats", "replicas"];

/// Looks at the statistics that PostgreSQL keeps anyway.
pub(super) async fn look(conn: &Conn) -> Asked<Vec<Vital>> {
    let mut vitals = Vec::new();
    let sql = "SELECT relname::text, n_dead_tup::float8, n_live_tup::float8 FROM pg_stat_user_tables
        WHERE schemaname = current_schema() AND relname = ANY($1)";
    let rows = conn.rows(sql, &[&HOT.as_slice()]).await?;
    for (name, help, column) in [
        ("postgres_dead_rows", "Rows of a table that are to be cleaned up", 1),
        ("postgres_live_rows", "Rows of a table, as PostgreSQL estimates", 2),
    ] {
        for table in HOT {
            let found = rows.iter().find(|row| row.get::<_, &str>(0) == table);
            vitals.extend(found.map(|row| Vital { name, help, part: Some(table), value: row.get(column) }));
        }
    }
    let row = conn.only(holding::SQL, &[]).await?;
    let holding = Holding::read(&row);
    vitals.extend(holding.oldest().map(|value| Vital {
        name: "postgres_oldest_transaction_seconds",
        help: "Age of the oldest open transaction: nothing is cleaned up behind it; absent while some can not be seen",
        part: None,
        value,
    }));
    vitals.push(Vital {
        name: "postgres_transactions_hidden",
        help: "Open transactions whose age can not be seen without pg_read_all_stats",
        part: None,
        value: holding.hidden as f64,
    });
    vitals.push(Vital {
        name: "postgres_connections",
        help: "Other connections to the database, whosever",
        part: None,
        value: row.get(4),
    });
    Ok(vitals)
}
