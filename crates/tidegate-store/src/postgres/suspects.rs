//! Deliveries that too many processes held when they ended: each is begun by a commit of its own before it is sent, so that it
//! is known afterwards which of them were being sent.

use std::collections::BTreeSet;

use tidegate_core::delivery::LOST_BEGUN;

use super::db::Asked;
use super::deliveries::PLACE;
use super::held::{CLAIM, claim_value, in_order};
use super::write::Context;
use crate::Claim;

/// Suspects begin to be sent, as far as their claims still hold. Their lanes are locked.
pub(super) async fn begin(context: &mut Context<'_>) -> Asked<()> {
    let begun = &context.group.begun;
    if begun.is_empty() {
        return Ok(());
    }
    let (ids, claims) = in_order(begun);
    let sql = format!(
        "UPDATE deliveries d SET lost = {LOST_BEGUN}
         WHERE d.id = ANY($2::bigint[]) AND d.status = 1 AND d.incarnation = $1 AND {CLAIM} = ($3::bigint[])[{PLACE}]
         RETURNING d.id, {CLAIM}"
    );
    let rows = context.conn.rows(&sql, &[&context.incarnation, &ids, &claims]).await?;
    let held: BTreeSet<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let is_void = |claim: &&Claim| !held.contains(&(claim.delivery, claim_value(claim)));
    context.out.unsealed.extend(begun.iter().filter(is_void));
    Ok(())
}
