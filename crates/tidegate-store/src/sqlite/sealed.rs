//! What is sealed with a master key, and how it moves from one key to the next.

use rusqlite::{Connection, params};

use super::Writer;
use crate::{Reseal, SealedRow, SecretKind};

/// Every sealed column of a subscriber.
const COLUMNS: [(&str, SecretKind); 3] = [
    ("secret", SecretKind::Signing),
    ("previous_secret", SecretKind::Signing),
    ("destination", SecretKind::Destination),
];

pub(super) fn list(conn: &Connection) -> rusqlite::Result<Vec<SealedRow>> {
    let mut all = Vec::new();
    for (column, kind) in COLUMNS {
        let sql = format!(
            "SELECT no, project, id, {column} FROM subscribers
             WHERE deleted_at IS NULL AND {column} IS NOT NULL ORDER BY no"
        );
        let mut statement = conn.prepare(&sql)?;
        let rows = statement.query_map([], |row| {
            let (subscriber, project) = (row.get(0)?, row.get(1)?);
            Ok(SealedRow { subscriber, project, id: row.get(2)?, kind, value: row.get(3)? })
        })?;
        for row in rows {
            all.push(row?);
        }
    }
    Ok(all)
}

/// Only what still is what it was: a secret rotated meanwhile has been sealed with the new key already.
pub(super) fn replace(writer: &mut Writer, anew: &[Reseal]) -> rusqlite::Result<()> {
    let tx = writer.conn.transaction()?;
    for Reseal { row, value } in anew {
        for (column, _) in COLUMNS.iter().filter(|(_, kind)| *kind == row.kind) {
            let sql = format!("UPDATE subscribers SET {column} = ?3 WHERE no = ?1 AND {column} = ?2");
            tx.prepare_cached(&sql)?.execute(params![row.subscriber, row.value, value])?;
        }
    }
    tx.commit()
}
