//! What is sealed with a master key, and how it moves from one key to the next.

use tidegate_core::id::SubscriberNo;
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use crate::{Reseal, SealedRow, SecretKind};

/// Every sealed column of a subscriber.
const COLUMNS: [(&str, SecretKind); 3] = [
    ("secret", SecretKind::Signing),
    ("previous_secret", SecretKind::Signing),
    ("destination", SecretKind::Destination),
];

/// In the order of [`COLUMNS`].
const LIST: &str = "SELECT s.no, s.project, s.id, v.place, v.value FROM subscribers s CROSS JOIN LATERAL
        (VALUES (0, s.secret), (1, s.previous_secret), (2, s.destination)) AS v(place, value)
    WHERE s.deleted_at IS NULL AND v.value IS NOT NULL ORDER BY v.place, s.no";

pub(super) async fn list(conn: &Conn) -> Asked<Vec<SealedRow>> {
    Ok(conn.rows(LIST, &[]).await?.iter().map(sealed_row).collect())
}

fn sealed_row(row: &Row) -> SealedRow {
    let place = usize::try_from(row.get::<_, i32>(3)).unwrap_or(0);
    SealedRow {
        subscriber: row.get(0),
        project: row.get(1),
        id: row.get(2),
        kind: COLUMNS[place].1,
        value: row.get(4),
    }
}

/// Only what still is what it was: a secret rotated meanwhile has been sealed with the new key already.
pub(super) async fn replace(conn: &Conn, anew: &[Reseal]) -> Asked<()> {
    for (column, kind) in COLUMNS {
        let of_kind: Vec<&Reseal> = anew.iter().filter(|reseal| reseal.row.kind == kind).collect();
        let subscribers: Vec<SubscriberNo> = of_kind.iter().map(|reseal| reseal.row.subscriber).collect();
        let before: Vec<&[u8]> = of_kind.iter().map(|reseal| &reseal.row.value[..]).collect();
        let after: Vec<&[u8]> = of_kind.iter().map(|reseal| &reseal.value[..]).collect();
        let sql = format!(
            "UPDATE subscribers s SET {column} = i.value
             FROM unnest($1::bigint[], $2::bytea[], $3::bytea[]) AS i(no, was, value)
             WHERE s.no = i.no AND s.{column} = i.was"
        );
        conn.execute(&sql, &[&subscribers, &before, &after]).await?;
    }
    Ok(())
}
