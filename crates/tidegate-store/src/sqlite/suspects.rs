//! Deliveries that too many processes held when they ended: each is begun by a commit of its own before it is sent, so that it
//! is known afterwards which of them were being sent.

use rusqlite::{Connection, params};
use tidegate_core::delivery::{LOST_BEGUN, set_aside_reason};
use tidegate_core::id::DeliveryNo;
use tidegate_core::time::Timestamp;

use super::commit::Context;
use crate::Claim;

/// A suspect begins to be sent, if its claim still holds.
pub(super) fn begin(context: &mut Context<'_>, claim: &Claim) -> rusqlite::Result<()> {
    let begun = context
        .conn
        .prepare_cached(
            "UPDATE deliveries SET lost = ?5
             WHERE id = ?1 AND status = 1 AND incarnation = ?2 AND claims = ?3 AND nonce = ?4",
        )?
        .execute(params![claim.delivery, context.incarnation, claim.token, claim.nonce, LOST_BEGUN])?;
    if begun == 0 {
        context.out.unsealed.push(*claim);
    }
    Ok(())
}

/// The process that had claimed it is no more. It is due again, with so many lost claims; without a count it is set aside.
pub(super) fn void_claim(
    conn: &Connection,
    id: DeliveryNo,
    lost: Option<u32>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    if let Some(lost) = lost {
        conn.prepare_cached("UPDATE deliveries SET status = 0, lost = ?2, incarnation = NULL WHERE id = ?1")?
            .execute(params![id, lost])?;
        return Ok(());
    }
    conn.prepare_cached(
        "UPDATE deliveries SET status = 4, incarnation = NULL, finished_at = ?2, reason = ?3 WHERE id = ?1",
    )?
    .execute(params![id, now.as_ms(), set_aside_reason()])?;
    Ok(())
}
