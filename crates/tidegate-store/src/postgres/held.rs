//! What a life has claimed, and how that is found when it ends.
//!
//! A delivery that is claimed from the store says so in a column with an index, `holder`. One that is claimed as it is
//! made does not: nearly all of them end within moments, and an entry in an index for each, and in all the other indexes when
//! it ends, would cost more than everything else about them. The row of the life in `replicas` names the blocks of numbers
//! that have such deliveries instead; it is written in the transaction that makes them. Blocks whose deliveries take long are
//! not kept there for ever: when there are too many, what is left in the oldest gets its holder after all.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::DeliveryNo;

use super::db::{Asked, Conn};
use super::open::BLOCK_BITS;
use crate::Claim;

/// Blocks that a life's row names at most, but for that of the group under way. The row is written with every group.
const BLOCKS_MAX: usize = 64;

/// What a life has claimed. `$1` is the life, `$2` are its blocks.
pub(super) const CLAIMS: &str = "SELECT id FROM deliveries WHERE holder = $1
    UNION ALL SELECT d.id FROM unnest($2::bigint[]) AS b(block) CROSS JOIN LATERAL (SELECT id FROM deliveries
        WHERE id >= b.block AND id < b.block + 1048576 AND status = 1 AND incarnation = $1 AND holder IS NULL) d";

/// The same of a life that names no blocks: all deliveries are looked at.
const ANY_CLAIMS: &str = "SELECT id FROM deliveries WHERE status = 1 AND incarnation = $1";

const SHELVE: &str = "UPDATE deliveries SET holder = $1 WHERE id = ANY($2) AND status = 1 AND incarnation = $1 AND holder IS NULL";

/// What a claim of a row must be, as one value: so the place of each is looked up once.
pub(super) const CLAIM: &str = "(d.claims::bigint << 32) + d.nonce";

/// A claim as that value.
pub(super) fn claim_value(claim: &Claim) -> i64 {
    (i64::from(claim.token) << 32) + i64::from(claim.nonce.cast_signed())
}

/// Numbers and values of claims, in the order of the numbers.
pub(super) fn in_order(claims: &[Claim]) -> (Vec<i64>, Vec<i64>) {
    let mut claims: Vec<(i64, i64)> =
        claims.iter().map(|claim| (claim.delivery, claim_value(claim))).collect();
    claims.sort_unstable();
    claims.into_iter().unzip()
}

/// Deliveries that were claimed as they were made and have not ended, by their blocks.
#[derive(Default)]
pub(super) struct Held {
    blocks: BTreeMap<i64, BTreeSet<DeliveryNo>>,
}

fn block_of(delivery: DeliveryNo) -> i64 {
    delivery >> BLOCK_BITS << BLOCK_BITS
}

impl Held {
    pub(super) fn blocks(&self) -> Vec<i64> {
        self.blocks.keys().copied().collect()
    }

    /// A group has made these and claimed them.
    pub(super) fn begin(&mut self, made: BTreeSet<DeliveryNo>) {
        if let Some(first) = made.first() {
            self.blocks.entry(block_of(*first)).or_default().extend(made);
        }
    }

    /// This life has nothing to do with these any more.
    pub(super) fn end(&mut self, ended: impl Iterator<Item = DeliveryNo>) {
        for delivery in ended {
            let block = block_of(delivery);
            let Some(held) = self.blocks.get_mut(&block) else { continue };
            held.remove(&delivery);
            if held.is_empty() {
                self.blocks.remove(&block);
            }
        }
    }

    /// Gives holders to the deliveries of the oldest half of the blocks when there are too many.
    pub(super) async fn shelve(&mut self, conn: &Conn, incarnation: i64) -> Asked<()> {
        if self.blocks.len() < BLOCKS_MAX {
            return Ok(());
        }
        let oldest: Vec<DeliveryNo> = self.blocks.values().take(BLOCKS_MAX / 2).flatten().copied().collect();
        shelve(conn, incarnation, &oldest).await?;
        self.end(oldest.into_iter());
        Ok(())
    }
}

/// From here on these are found by their holder, if they are still claimed.
pub(super) async fn shelve(conn: &Conn, incarnation: i64, deliveries: &[DeliveryNo]) -> Asked<()> {
    conn.execute(SHELVE, &[&incarnation, &deliveries]).await?;
    Ok(())
}

/// All that a life has claimed that is about to end, or has; `blocks` as its row had them.
pub(super) async fn claims(
    conn: &Conn,
    incarnation: i64,
    blocks: Option<Vec<i64>>,
) -> Asked<Vec<DeliveryNo>> {
    let rows = match blocks {
        Some(blocks) => conn.rows(CLAIMS, &[&incarnation, &blocks]).await?,
        None => conn.rows(ANY_CLAIMS, &[&incarnation]).await?,
    };
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_named_until_their_last_delivery_has_ended() {
        let mut held = Held::default();
        let (first, second) = (1 << BLOCK_BITS, 2 << BLOCK_BITS);
        held.begin([first + 1, first + 3].into());
        held.begin([second + 1].into());
        held.begin(BTreeSet::new());
        assert_eq!(held.blocks(), [first, second]);
        held.end([first + 1, first + 2, first + 1].into_iter());
        assert_eq!(held.blocks(), [first, second]);
        held.end([first + 3, second + 1].into_iter());
        assert!(held.blocks().is_empty());
    }
}
