//! Whether a subscriber's endpoint has agreed to be sent to. Each change is part of the change of its subscriber.

use rusqlite::{Row, Transaction, params};
use tidegate_core::id::SubscriberNo;
use tidegate_core::time::Timestamp;
use tidegate_core::verification::{Consent, VerificationStatus};

use super::failed;
use crate::{Error, Result, VerificationRow, VerificationUpdate};

/// What [`row`] reads, from the given column on.
pub(super) const COLUMNS: &str =
    "verification, verification_round, verification_tries, verification_detail, allowed_rate";

pub(super) fn row(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<VerificationRow>> {
    let status: Option<String> = row.get(first)?;
    let Some(status) = status.and_then(|name| VerificationStatus::parse(&name)) else { return Ok(None) };
    Ok(Some(VerificationRow {
        status,
        round: row.get(first + 1)?,
        tries: row.get(first + 2)?,
        detail: row.get(first + 3)?,
        consent: Consent { per_minute: row.get(first + 4)? },
    }))
}

const BEGIN: &str =
    "UPDATE subscribers SET verification = 'pending', verification_round = verification_round + 1,
        verification_tries = 0, verification_detail = NULL, allowed_rate = NULL,
        inactive_reason = CASE WHEN active THEN 'unverified' ELSE inactive_reason END, active = 0,
        inactive_at = coalesce(inactive_at, ?2), failing_since = NULL
    WHERE no = ?1";

const END: &str = "UPDATE subscribers SET verification = NULL, verification_round = verification_round + 1,
        verification_tries = 0, verification_detail = NULL, allowed_rate = NULL,
        active = active OR coalesce(inactive_reason = 'unverified', 0),
        inactive_at = CASE WHEN inactive_reason = 'unverified' THEN NULL ELSE inactive_at END,
        inactive_reason = nullif(inactive_reason, 'unverified')
    WHERE no = ?1";

const AGREED: &str =
    "UPDATE subscribers SET verification = 'verified', verification_tries = verification_tries + 1,
        verification_detail = NULL, allowed_rate = ?3,
        active = active OR coalesce(inactive_reason = 'unverified', 0),
        inactive_at = CASE WHEN inactive_reason = 'unverified' THEN NULL ELSE inactive_at END,
        inactive_reason = nullif(inactive_reason, 'unverified')
    WHERE no = ?1 AND verification_round = ?2 AND verification = 'pending'";

const REFUSED: &str = "UPDATE subscribers SET verification = ?3, verification_tries = verification_tries + 1,
        verification_detail = ?4
    WHERE no = ?1 AND verification_round = ?2 AND verification = 'pending'";

pub(super) fn update(
    tx: &Transaction<'_>,
    no: SubscriberNo,
    update: &VerificationUpdate,
    now: Timestamp,
) -> Result<()> {
    let changed = match update {
        VerificationUpdate::Begin => tx.execute(BEGIN, params![no, now.as_ms()]),
        VerificationUpdate::End => tx.execute(END, [no]),
        VerificationUpdate::Tried { round, outcome: Ok(consent), .. } => {
            tx.execute(AGREED, params![no, round, consent.per_minute])
        }
        VerificationUpdate::Tried { round, outcome: Err(detail), is_last } => {
            let status = if *is_last { VerificationStatus::Failed } else { VerificationStatus::Pending };
            tx.execute(REFUSED, params![no, round, status.name(), detail])
        }
    };
    if changed.map_err(failed)? == 0 {
        return Err(Error::Conflict("the verification has begun anew or is over".to_owned()));
    }
    Ok(())
}

/// Whoever is resumed without its endpoint's consent stays inactive, for that reason.
pub(super) fn hold_back(tx: &Transaction<'_>, no: SubscriberNo, now: Timestamp) -> Result<()> {
    tx.execute(
        "UPDATE subscribers SET active = 0, inactive_reason = 'unverified', inactive_at = ?2
         WHERE no = ?1 AND active AND verification IS NOT NULL AND verification <> 'verified'",
        params![no, now.as_ms()],
    )
    .map_err(failed)?;
    Ok(())
}
